"""ListOffsets and OffsetForLeaderEpoch: where things are, in offsets, time and epochs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.conftest import NOW_MS, OwnBroker, Topic, Wire, batch, code
from tidelog.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidelog.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6


def found(answer: Any) -> tuple[str, int, int, int]:
    """Error, timestamp (relative to the first record's), offset, leader epoch."""
    timestamp = answer.timestamp - NOW_MS if answer.timestamp >= 0 else answer.timestamp
    return code(answer), timestamp, answer.offset, answer.leader_epoch


NOT_FOUND = ("NONE", -1, -1, -1)
UNSUPPORTED = ("UNSUPPORTED_VERSION", -1, -1, -1)


@pytest.fixture
def six(wire: Wire, topic: Topic) -> Topic:
    """Three batches of two records, at 0 and 1, 10 and 11, 20 and 21 ms."""
    for number in range(3):
        wire.produce(topic, batch(b"a", b"b", timestamp=NOW_MS + 10 * number))
    return topic


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (LATEST, ("NONE", -1, 0, 0)),
        (EARLIEST, ("NONE", -1, 0, 0)),
        (EARLIEST_LOCAL, ("NONE", -1, 0, 0)),
        (MAX_TIMESTAMP, NOT_FOUND),
        (LATEST_TIERED, NOT_FOUND),
        (PENDING_UPLOAD, NOT_FOUND),
        (-7, UNSUPPORTED),
        (0, NOT_FOUND),
        (NOW_MS, NOT_FOUND),
    ],
    ids=range(9),  # the times of one worker are not those of another
)
def test_an_empty_log(wire: Wire, topic: Topic, timestamp: int, expected: tuple[str, int, int, int]) -> None:
    assert found(wire.offset_at(topic, timestamp)) == expected


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (LATEST, ("NONE", -1, 6, 0)),
        (EARLIEST, ("NONE", -1, 0, 0)),
        (EARLIEST_LOCAL, ("NONE", -1, 0, 0)),
        (MAX_TIMESTAMP, ("NONE", 21, 5, 0)),
        (LATEST_TIERED, NOT_FOUND),
        (PENDING_UPLOAD, NOT_FOUND),
        (-7, UNSUPPORTED),
        (0, ("NONE", 0, 0, 0)),
        (NOW_MS, ("NONE", 0, 0, 0)),
        (NOW_MS + 1, ("NONE", 1, 1, 0)),
        (NOW_MS + 2, ("NONE", 10, 2, 0)),
        (NOW_MS + 21, ("NONE", 21, 5, 0)),
        (NOW_MS + 22, NOT_FOUND),
    ],
    ids=range(13),
)
def test_six_records(wire: Wire, six: Topic, timestamp: int, expected: tuple[str, int, int, int]) -> None:
    assert found(wire.offset_at(six, timestamp)) == expected


@pytest.mark.parametrize(
    ("timestamp", "first_version"),
    [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (PENDING_UPLOAD, 11)],
)
def test_special_questions_have_a_first_version(
    wire: Wire, six: Topic, timestamp: int, first_version: int
) -> None:
    assert code(wire.offset_at(six, timestamp, version=first_version - 1)) == "UNSUPPORTED_VERSION"
    assert code(wire.offset_at(six, timestamp, version=first_version)) == "NONE"


def test_timestamps_out_of_order(wire: Wire, topic: Topic) -> None:
    """The first record that is late enough, not the first after the latest."""
    for timestamp in (50, 10, 70, 20):
        wire.produce(topic, batch(timestamp=NOW_MS + timestamp))
    assert found(wire.offset_at(topic, NOW_MS + 15)) == ("NONE", 50, 0, 0)
    assert found(wire.offset_at(topic, NOW_MS + 51)) == ("NONE", 70, 2, 0)
    assert found(wire.offset_at(topic, MAX_TIMESTAMP)) == ("NONE", 70, 2, 0)


def test_unknown_partitions(wire: Wire, topic: Topic, nowhere: Topic) -> None:
    assert code(wire.offset_at(nowhere, LATEST)) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert code(wire.offset_at(topic, LATEST, partition=6)) == "UNKNOWN_TOPIC_OR_PARTITION"


def ask(wire: Wire, topic: Topic, *partitions: ListOffsetsPartition, **more: Any) -> list[Any]:
    asked = ListOffsetsTopic(name=topic.name, partitions=list(partitions))
    request = ListOffsetsRequest(**({"replica_id": -1, "topics": [asked]} | more))
    return [partition for found in wire.ask(request).topics for partition in found.partitions]


def test_a_partition_asked_about_twice(wire: Wire, six: Topic) -> None:
    answers = ask(
        wire,
        six,
        ListOffsetsPartition(partition_index=0, timestamp=LATEST),
        ListOffsetsPartition(partition_index=0, timestamp=EARLIEST),
    )
    assert {code(answer) for answer in answers} == {"INVALID_REQUEST"}


def test_leader_epochs(wire: Wire, six: Topic) -> None:
    for epoch, expected in ((0, "NONE"), (7, "UNKNOWN_LEADER_EPOCH")):
        asked = ListOffsetsPartition(partition_index=0, timestamp=LATEST, current_leader_epoch=epoch)
        assert [code(answer) for answer in ask(wire, six, asked)] == [expected]


def test_read_committed_is_told_the_last_stable_offset(wire: Wire, six: Topic) -> None:
    asked = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    assert [answer.offset for answer in ask(wire, six, asked, isolation_level=1)] == [6]


# ---- OffsetForLeaderEpoch


def end_of(
    wire: Wire, topic: Topic, epoch: int, *, current: int = -1, partition: int = 0
) -> tuple[str, int, int]:
    asked = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic.name, partitions=[asked])])
    answer = wire.ask(request).topics[0].partitions[0]
    assert answer.partition == partition
    return code(answer), answer.leader_epoch, answer.end_offset


def test_the_end_of_the_current_epoch_is_the_end_of_the_log(wire: Wire, six: Topic) -> None:
    assert end_of(wire, six, 0) == ("NONE", 0, 6)
    assert end_of(wire, six, 0, current=0) == ("NONE", 0, 6)


def test_epochs_that_never_were(wire: Wire, six: Topic, nowhere: Topic) -> None:
    for epoch in (1, 99, -1):
        assert end_of(wire, six, epoch) == ("NONE", -1, -1)
    assert end_of(wire, six, 0, current=5) == ("UNKNOWN_LEADER_EPOCH", -1, -1)
    assert end_of(wire, six, 0, partition=5) == ("UNKNOWN_TOPIC_OR_PARTITION", -1, -1)
    assert end_of(wire, nowhere, 0) == ("UNKNOWN_TOPIC_OR_PARTITION", -1, -1)


def test_an_epoch_of_an_empty_log(wire: Wire, topic: Topic) -> None:
    assert end_of(wire, topic, 0) == ("NONE", 0, 0)
    assert end_of(wire, topic, 1) == ("NONE", -1, -1)


def test_epochs_after_a_restart(launch: Any) -> None:
    """Wherever a restart began a new epoch, its predecessors end where they ended, and old readers are fenced."""
    broker: OwnBroker = launch()
    wire = broker.connect()
    topic = wire.create("t")
    wire.produce(topic, batch(b"a", b"b"))
    broker.restart()
    wire = broker.connect()
    wire.produce(topic, batch(b"c"))
    epoch = wire.metadata("t").topics[0].partitions[0].leader_epoch
    assert epoch >= 0
    assert end_of(wire, topic, epoch, current=epoch) == ("NONE", epoch, 3)
    assert found(wire.offset_at(topic, LATEST)) == ("NONE", -1, 3, epoch)
    if epoch > 0:
        assert end_of(wire, topic, 0) == ("NONE", 0, 2)
        assert end_of(wire, topic, 0, current=0) == ("FENCED_LEADER_EPOCH", -1, -1)
        assert code(wire.fetch(topic, current_leader_epoch=0)) == "FENCED_LEADER_EPOCH"
        assert found(wire.offset_at(topic, NOW_MS))[3] == 0, "records keep the epoch they were written in"
