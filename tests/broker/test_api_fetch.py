"""Fetch: limits, positions, errors, and long polls that end when they should."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.broker.conftest import OwnBroker, Topic, Wire, batch, code
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.types import ZERO_UUID

SIZE = len(batch())
LONG_MS = 15_000
SOON_SECONDS = 10.0  # far below LONG_MS, far above what a slow machine needs


def base_offsets(answer: Any) -> list[int]:
    data, position, found = bytes(answer.records), 0, []
    while position + 61 <= len(data):
        found.append(int.from_bytes(data[position : position + 8], "big"))
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return found


@pytest.fixture
def three(wire: Wire, topic: Topic) -> Topic:
    """A topic with three batches of a record each."""
    for _ in range(3):
        wire.produce(topic, batch())
    return topic


# ---- positions


def test_reading_from_an_offset_to_the_end(wire: Wire, three: Topic) -> None:
    for offset in range(4):
        answer = wire.fetch(three, offset)
        assert (code(answer), answer.high_watermark, answer.log_start_offset) == ("NONE", 3, 0)
        assert base_offsets(answer) == list(range(offset, 3))


@pytest.mark.parametrize("offset", [4, 2**40, -1, -2])
def test_out_of_range(wire: Wire, three: Topic, offset: int) -> None:
    answer = wire.fetch(three, offset)
    assert code(answer) == "OFFSET_OUT_OF_RANGE"
    assert (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset) == (-1, -1, -1)
    assert len(answer.records) == 0


def test_an_offset_within_a_batch_returns_the_whole_batch(wire: Wire, topic: Topic) -> None:
    wire.produce(topic, batch(b"a", b"b", b"c"))
    assert base_offsets(wire.fetch(topic, 2)) == [0]


def test_an_empty_log(wire: Wire, topic: Topic) -> None:
    answer = wire.fetch(topic, 0)
    assert (code(answer), answer.high_watermark, len(answer.records)) == ("NONE", 0, 0)
    assert code(wire.fetch(topic, 1)) == "OFFSET_OUT_OF_RANGE"


# ---- limits


@pytest.mark.parametrize("limit", ["partition_max_bytes", "max_bytes"])
@pytest.mark.parametrize("value", [0, 1, SIZE - 1])
def test_the_first_batch_comes_whole_whatever_the_limits(
    wire: Wire, three: Topic, limit: str, value: int
) -> None:
    """KIP-74: otherwise a reader could never get past a large batch."""
    assert base_offsets(wire.fetch(three, 0, **{limit: value})) == [0]


@pytest.mark.parametrize("limit", ["partition_max_bytes", "max_bytes"])
def test_limits_are_kept_after_the_first_batch(wire: Wire, three: Topic, limit: str) -> None:
    answer = wire.fetch(three, 0, **{limit: 2 * SIZE})
    assert (base_offsets(answer), len(answer.records)) == ([0, 1], 2 * SIZE)


def test_one_large_first_batch_for_the_whole_answer(wire: Wire, name: str) -> None:
    """Only the first partition with data may exceed the limit; the others wait for their turn."""
    topic = wire.create(name, 3)
    for index in range(3):
        for _ in range(2):
            wire.produce(topic, batch(), partition=index)
    wanted = [FetchPartition(partition=i, partition_max_bytes=1000) for i in (2, 0, 1)]
    request = FetchRequest(
        max_bytes=1, min_bytes=1, topics=[FetchTopic(topic_id=topic.id, partitions=wanted)]
    )
    (answered,) = wire.ask(request).responses
    assert [(p.partition_index, base_offsets(p)) for p in answered.partitions] == [(2, [0]), (0, []), (1, [])]
    assert all(partition.high_watermark == 2 for partition in answered.partitions)


# ---- who is asked


def test_unknown_topics_and_partitions(wire: Wire, topic: Topic, nowhere: Topic) -> None:
    assert code(wire.fetch(nowhere, version=12)) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert code(wire.fetch(nowhere, version=4)) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert code(wire.fetch(nowhere)) == "UNKNOWN_TOPIC_ID"
    assert code(wire.fetch(Topic("", ZERO_UUID))) == "UNKNOWN_TOPIC_ID"
    for version in (12, 13, 18):
        assert code(wire.fetch(topic, partition=7, version=version)) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_leader_epochs(wire: Wire, three: Topic) -> None:
    assert code(wire.fetch(three, current_leader_epoch=0)) == "NONE"
    assert code(wire.fetch(three, current_leader_epoch=9)) == "UNKNOWN_LEADER_EPOCH"


def test_a_reader_with_another_history(wire: Wire, three: Topic) -> None:
    """KIP-595: the broker says where its log and the reader's part ways."""
    answer = wire.fetch(three, 3, last_fetched_epoch=0)
    assert (code(answer), answer.diverging_epoch.epoch) == ("NONE", -1)
    answer = wire.fetch(three, 9, last_fetched_epoch=0)
    assert (code(answer), answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == ("NONE", 0, 3)
    assert len(answer.records) == 0


def test_read_committed(wire: Wire, three: Topic) -> None:
    """Only such readers are told of aborted transactions: others get null, as from Kafka."""
    committed, uncommitted = wire.fetch(three, isolation_level=1), wire.fetch(three)
    assert (base_offsets(committed), committed.last_stable_offset) == ([0, 1, 2], 3)
    assert (committed.aborted_transactions, uncommitted.aborted_transactions) == ([], None)


def test_several_partitions_with_an_error_among_them(wire: Wire, name: str) -> None:
    topic = wire.create(name, 2)
    wire.produce(topic, batch(), partition=1)
    wanted = [
        FetchPartition(partition=i, fetch_offset=offset, partition_max_bytes=1000)
        for i, offset in ((0, 5), (7, 0), (1, 0))
    ]
    request = FetchRequest(
        min_bytes=1 << 20, max_wait_ms=LONG_MS, topics=[FetchTopic(topic_id=topic.id, partitions=wanted)]
    )
    started = time.monotonic()
    (answered,) = wire.ask(request).responses
    assert time.monotonic() - started < SOON_SECONDS, "an error ends the wait at once"
    assert {p.partition_index: code(p) for p in answered.partitions} == {
        0: "OFFSET_OUT_OF_RANGE",
        7: "UNKNOWN_TOPIC_OR_PARTITION",
        1: "NONE",
    }
    assert {p.partition_index: base_offsets(p) for p in answered.partitions}[1] == [0]


# ---- waiting


def test_nothing_asked_nothing_waited_for(wire: Wire) -> None:
    assert wire.ask(FetchRequest(max_wait_ms=LONG_MS, min_bytes=1), timeout=SOON_SECONDS).responses == []


def test_min_bytes_0_does_not_wait(wire: Wire, topic: Topic) -> None:
    request = wire.fetch_request(topic, min_bytes=0, max_wait_ms=LONG_MS)
    assert wire.ask(request, timeout=SOON_SECONDS).error_code == 0


def test_enough_bytes_do_not_wait(wire: Wire, three: Topic) -> None:
    request = wire.fetch_request(three, min_bytes=3 * SIZE, max_wait_ms=LONG_MS)
    assert base_offsets(wire.ask(request, timeout=SOON_SECONDS).responses[0].partitions[0]) == [0, 1, 2]


def test_min_bytes_above_what_an_answer_may_hold_does_not_wait(wire: Wire, three: Topic) -> None:
    request = wire.fetch_request(three, min_bytes=1 << 30, max_bytes=2 * SIZE, max_wait_ms=LONG_MS)
    assert base_offsets(wire.ask(request, timeout=SOON_SECONDS).responses[0].partitions[0]) == [0, 1]


def test_the_wait_ends_in_time(wire: Wire, three: Topic) -> None:
    started = time.monotonic()
    answer = wire.fetch(three, 0, min_bytes=1 << 20, max_wait_ms=300)
    assert 0.25 < time.monotonic() - started < 5
    assert base_offsets(answer) == [0, 1, 2], "with what there is"


@pytest.mark.parametrize("version", [4, 12, 18])
def test_a_produce_wakes_a_parked_fetch(
    wire: Wire, connect: Callable[[], Wire], three: Topic, version: int
) -> None:
    wire.send(wire.fetch_request(three, 3, max_wait_ms=LONG_MS), version)
    assert wire.is_silent()
    connect().produce(three, batch(b"news"))
    answer = wire.receive(SOON_SECONDS).responses[0].partitions[0]
    assert (base_offsets(answer), answer.high_watermark) == ([3], 4)


def test_a_parked_fetch_waits_for_all_its_bytes(
    wire: Wire, connect: Callable[[], Wire], three: Topic
) -> None:
    producer = connect()
    wire.send(wire.fetch_request(three, 3, min_bytes=2 * SIZE, max_wait_ms=LONG_MS))
    producer.produce(three, batch())
    assert wire.is_silent()
    producer.produce(three, batch())
    assert base_offsets(wire.receive(SOON_SECONDS).responses[0].partitions[0]) == [3, 4]


def test_answers_keep_their_order_around_a_parked_fetch(wire: Wire, three: Topic, foreign: bool) -> None:
    if foreign:
        pytest.skip("Kafka reads no further request while one is unanswered")
    wire.send(wire.fetch_request(three, 3, max_wait_ms=LONG_MS))
    wire.send(wire.produce_request(three, batch()))
    fetched = wire.receive(SOON_SECONDS)
    assert base_offsets(fetched.responses[0].partitions[0]) == [3], "woken by its own connection's produce"
    assert wire.receive().responses[0].partition_responses[0].base_offset == 3


def test_deleting_the_topic_ends_the_wait(wire: Wire, connect: Callable[[], Wire], three: Topic) -> None:
    wire.send(wire.fetch_request(three, 3, max_wait_ms=LONG_MS), 12)
    assert wire.is_silent()
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=three.name)], timeout_ms=9000)
    connect().ask(request)
    answer = wire.receive(SOON_SECONDS).responses[0].partitions[0]
    assert code(answer) in ("UNKNOWN_TOPIC_OR_PARTITION", "NOT_LEADER_OR_FOLLOWER")


def delete_records(wire: Wire, topic: Topic, offset: int) -> Any:
    asked = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic.name, partitions=[asked])], timeout_ms=9000
    )
    return wire.ask(request).topics[0].partitions[0]


def test_a_log_start_that_passes_the_reader_ends_the_wait(launch: Any) -> None:
    broker: OwnBroker = launch()
    wire, other = broker.connect(), broker.connect()
    topic = wire.create("t")
    for _ in range(3):
        wire.produce(topic, batch())
    wire.send(wire.fetch_request(topic, 1, min_bytes=1 << 19, max_wait_ms=LONG_MS))
    assert wire.is_silent()
    assert delete_records(other, topic, 1).low_watermark == 1
    assert wire.is_silent(), "offset 1 is still there"
    assert delete_records(other, topic, 2).low_watermark == 2
    assert code(wire.receive(SOON_SECONDS).responses[0].partitions[0]) == "OFFSET_OUT_OF_RANGE"


def test_a_client_that_leaves_takes_its_parked_fetch_along(launch: Any) -> None:
    broker: OwnBroker = launch()
    wire, stays = broker.connect(), broker.connect()
    topic = wire.create("t")
    wire.send(wire.fetch_request(topic, max_wait_ms=LONG_MS))
    stays.send(stays.fetch_request(topic, max_wait_ms=LONG_MS))
    assert wire.is_silent() and stays.is_silent()
    purgatory = broker.broker.fetch_purgatory
    assert purgatory.parked == 2
    wire.close()
    deadline = time.monotonic() + SOON_SECONDS
    while purgatory.parked > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert purgatory.parked == 1
    broker.connect().produce(topic, batch())
    assert base_offsets(stays.receive(SOON_SECONDS).responses[0].partitions[0]) == [0]
    assert purgatory.parked == 0
    (partition,) = broker.broker.partitions.all()
    assert not partition._watchers


def test_a_partition_that_is_damaged_does_not_hurt_the_others(launch: Any) -> None:
    """The damaged one is reported with its own error, and nothing stays pinned."""
    broker: OwnBroker = launch()
    wire = broker.connect()
    topic = wire.create("t", 2)
    for index in (0, 1):
        for _ in range(3):
            wire.produce(topic, batch(), partition=index)
    log = broker.broker.partitions.leader_of("t", 1).log
    broker.call(lambda: log.active.file.write_at([b"\xff" * 61], SIZE))
    broker.call(log.positions.clear)
    wanted = [
        FetchPartition(partition=i, fetch_offset=offset, partition_max_bytes=SIZE + 1)
        for i, offset in ((0, 0), (1, 1))
    ]
    (answered,) = wire.ask(
        FetchRequest(min_bytes=1, topics=[FetchTopic(topic_id=topic.id, partitions=wanted)])
    ).responses
    assert [code(partition) for partition in answered.partitions] == ["NONE", "CORRUPT_MESSAGE"]
    assert base_offsets(answered.partitions[0]) == [0]
