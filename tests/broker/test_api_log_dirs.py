"""Several log directories: where partitions go, and that they are found again."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.broker.conftest import OwnBroker, Wire, batch
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidelog.wire.messages.describe_log_dirs import DescribeLogDirsRequest


def homes(wire: Wire) -> dict[tuple[str, int], str]:
    return {
        (topic.name, partition.partition_index): result.log_dir
        for result in wire.ask(DescribeLogDirsRequest(topics=None)).results
        for topic in result.topics
        for partition in topic.partitions
    }


def counts(wire: Wire) -> list[int]:
    return sorted(Counter(homes(wire).values()).values())


def test_new_partitions_go_where_there_are_fewest(launch: Any) -> None:
    broker: OwnBroker = launch(dirs=3)
    wire = broker.connect()
    wire.create("a", 6)
    assert counts(wire) == [2, 2, 2]
    wire.create("b", 1)
    wire.create("c", 2)
    assert counts(wire) == [3, 3, 3]
    wire.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=9000))
    assert counts(wire) == [1, 1, 1]
    before = homes(wire)

    broker.restart()

    wire = broker.connect()
    assert homes(wire) == before
    wire.create("d", 3)
    assert counts(wire) == [2, 2, 2]


def test_records_are_found_again_in_every_directory(launch: Any) -> None:
    broker: OwnBroker = launch(dirs=2, durability="fsync")
    wire = broker.connect()
    topic = wire.create("t", 4)
    for index in range(4):
        wire.produce(topic, batch(b"%d" % index), partition=index)
    for clean in (True, False):
        broker.restart(clean=clean)
        wire = broker.connect()
        for index in range(4):
            assert b"%d" % index in bytes(wire.fetch(topic, partition=index).records)[-8:]
    assert counts(wire) == [2, 2]
