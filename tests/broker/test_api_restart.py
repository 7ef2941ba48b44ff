"""What a restart must not change, after a clean stop and after none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.conftest import NOW_MS, OwnBroker, Topic, Wire, batch, code
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

pytestmark = pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])


def described(wire: Wire) -> dict[str, tuple[bytes, int]]:
    from tidelog.wire.messages.metadata import MetadataRequest

    return {
        topic.name: (topic.topic_id, len(topic.partitions))
        for topic in wire.ask(MetadataRequest(topics=None)).topics
    }


def test_topics_and_records(launch: Any, clean: bool) -> None:
    broker: OwnBroker = launch(durability="fsync")
    wire = broker.connect()
    topics = [wire.create(f"t{number}", number + 1) for number in range(3)]
    for number, topic in enumerate(topics):
        for index in range(number + 1):
            assert wire.produce(topic, batch(b"x" * number, b"y"), partition=index).base_offset == 0
    before, cluster_id = described(wire), wire.metadata().cluster_id
    stored = bytes(wire.fetch(topics[2], partition=2).records)

    broker.restart(clean=clean)

    wire = broker.connect()
    assert (described(wire), wire.metadata().cluster_id) == (before, cluster_id)
    answer = wire.fetch(topics[2], partition=2)
    assert bytes(answer.records) == stored
    assert (answer.high_watermark, answer.log_start_offset) == (2, 0)
    assert wire.offset_at(topics[2], NOW_MS + 1, partition=1).offset == 1
    assert wire.produce(topics[2], batch(), partition=2).base_offset == 2


def test_a_duplicate_after_a_restart(launch: Any, clean: bool) -> None:
    """Answered with the offset of its first append (I39)."""
    broker: OwnBroker = launch(durability="fsync")
    wire = broker.connect()
    topic = wire.create("t")

    def numbered(sequence: int) -> bytes:
        return batch(producer_id=42, producer_epoch=1, base_sequence=sequence)

    for sequence in range(7):
        assert wire.produce(topic, numbered(sequence)).base_offset == sequence

    broker.restart(clean=clean)

    wire = broker.connect()
    for sequence in (6, 2, 4):
        answer = wire.produce(topic, numbered(sequence))
        assert (code(answer), answer.base_offset) == ("NONE", sequence)
    assert code(wire.produce(topic, numbered(1))) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert code(wire.produce(topic, numbered(8))) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    old_epoch = batch(producer_id=42, producer_epoch=0, base_sequence=0)
    assert code(wire.produce(topic, old_epoch)) == "INVALID_PRODUCER_EPOCH"
    assert wire.produce(topic, numbered(7)).base_offset == 7


def test_deleted_records_stay_deleted(launch: Any, clean: bool) -> None:
    broker: OwnBroker = launch(durability="fsync")
    wire = broker.connect()
    topic = wire.create("t")
    for _ in range(5):
        wire.produce(topic, batch())
    asked = DeleteRecordsPartition(partition_index=0, offset=3)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[asked])], timeout_ms=9000)
    assert wire.ask(request).topics[0].partitions[0].low_watermark == 3

    broker.restart(clean=clean)

    wire = broker.connect()
    assert [wire.offset_at(topic, timestamp).offset for timestamp in (-2, -1)] == [3, 5]
    assert code(wire.fetch(topic, 2)) == "OFFSET_OUT_OF_RANGE"


def test_deleted_topics_stay_deleted(launch: Any, clean: bool) -> None:
    broker: OwnBroker = launch(durability="fsync")
    wire = broker.connect()
    gone, kept = wire.create("gone"), wire.create("kept")
    wire.produce(gone, batch())
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")], timeout_ms=9000)
    assert wire.ask(deletion).responses[0].error_code == 0

    broker.restart(clean=clean)

    wire = broker.connect()
    assert described(wire) == {"kept": (kept.id, 1)}
    assert code(wire.fetch(gone)) == "UNKNOWN_TOPIC_ID"
    assert wire.offset_at(wire.create("gone"), -1).offset == 0


def test_fetch_sessions_end_with_the_broker(launch: Any, clean: bool) -> None:
    broker: OwnBroker = launch()
    wire = broker.connect()
    topic = wire.create("t")
    session_id = wire.ask(wire.fetch_request(topic, session_epoch=0)).session_id
    broker.restart(clean=clean)
    wire = broker.connect()
    response = wire.ask(wire.fetch_request(topic, session_id=session_id, session_epoch=1))
    assert code(response) == "FETCH_SESSION_ID_NOT_FOUND"


def test_many_restarts(launch: Any, clean: bool) -> None:
    broker: OwnBroker = launch(durability="fsync")
    topic: Topic = broker.connect().create("t", 2)
    for count in range(4):
        wire = broker.connect()
        assert wire.produce(topic, batch(b"a", b"b"), partition=1).base_offset == 2 * count
        partition = wire.metadata("t").topics[0].partitions[1]
        assert (partition.leader_id, partition.offline_replicas) == (0, [])
        broker.restart(clean=clean)
    wire = broker.connect()
    answer = wire.fetch(topic, 3, partition=1)
    assert (answer.high_watermark, len(answer.records)) == (8, 3 * len(batch(b"a", b"b")))
