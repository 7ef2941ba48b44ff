"""Produce: what is taken, what is refused with which error, and what a retry gets."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.broker.conftest import NOW_MS, Topic, Wire, batch, code
from tidelog.records.compression import Codec
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.types import ZERO_UUID


def flipped(records: bytes) -> bytes:
    return records[:-1] + bytes([records[-1] ^ 1])


def outcome(answer: Any) -> tuple[str, int]:
    return code(answer), answer.base_offset


@pytest.mark.parametrize("acks", [1, -1])
def test_offsets_are_given_one_after_another(wire: Wire, topic: Topic, acks: int) -> None:
    assert outcome(wire.produce(topic, batch(b"a", b"b", b"c"), acks=acks)) == ("NONE", 0)
    assert outcome(wire.produce(topic, batch(b"d"), acks=acks)) == ("NONE", 3)
    assert wire.offset_at(topic, -1).offset == 4


@pytest.mark.parametrize("acks", [2, -2, 5, 32767])
def test_other_acks_are_refused(wire: Wire, topic: Topic, acks: int) -> None:
    assert outcome(wire.produce(topic, batch(), acks=acks)) == ("INVALID_REQUIRED_ACKS", -1)
    assert wire.offset_at(topic, -1).offset == 0


def test_no_acks_no_answer(wire: Wire, topic: Topic) -> None:
    wire.send(wire.produce_request(topic, batch(), acks=0))
    wire._sent.clear()
    assert wire.offset_at(topic, -2).offset == 0, "the next answer is that of the next question"
    assert wire.offset_at(topic, -1).offset == 1


def test_a_failure_without_acks_ends_the_connection(wire: Wire, topic: Topic) -> None:
    """So that the client looks at its metadata again: it has no other way to hear of it."""
    wire.send(wire.produce_request(topic, batch(), acks=0, partition=8))
    assert wire.is_closed()


def test_unknown_partitions(wire: Wire, topic: Topic, nowhere: Topic) -> None:
    assert outcome(wire.produce(nowhere, batch(), version=12)) == ("UNKNOWN_TOPIC_OR_PARTITION", -1)
    assert outcome(wire.produce(nowhere, batch())) == ("UNKNOWN_TOPIC_ID", -1)
    assert outcome(wire.produce(Topic("", ZERO_UUID), batch())) == ("UNKNOWN_TOPIC_ID", -1)
    for partition in (1, 99, -1):
        assert outcome(wire.produce(topic, batch(), partition=partition)) == (
            "UNKNOWN_TOPIC_OR_PARTITION",
            -1,
        )
        assert outcome(wire.produce(topic, batch(), partition=partition, version=12)) == (
            "UNKNOWN_TOPIC_OR_PARTITION",
            -1,
        )


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (b"", "INVALID_RECORD"),
        (batch() + batch(), "INVALID_RECORD"),
        (batch()[:-3], "INVALID_RECORD"),
        (batch() + b"x" * 20, "CORRUPT_MESSAGE"),
        (flipped(batch()), "CORRUPT_MESSAGE"),
        (batch(b"x" * 1_100_000), "MESSAGE_TOO_LARGE"),
        (batch(is_control=True, producer_id=1, producer_epoch=0, base_sequence=0), "INVALID_RECORD"),
        (batch(timestamp=NOW_MS + 10**9), "INVALID_TIMESTAMP"),
        (batch(producer_id=5002, producer_epoch=0, base_sequence=-1), "INVALID_RECORD"),
    ],
    ids=["empty", "two batches", "cut", "tail", "crc", "large", "control", "future", "no sequence"],
)
def test_bad_records_are_refused_and_nothing_is_written(
    wire: Wire, topic: Topic, records: bytes, expected: str
) -> None:
    for acks in (1, -1):
        assert outcome(wire.produce(topic, records, acks=acks)) == (expected, -1)
    assert wire.offset_at(topic, -1).offset == 0


def test_null_records_are_refused(wire: Wire, topic: Topic, foreign: bool) -> None:
    if foreign:
        pytest.skip("Kafka 4.3 never answers this one")
    assert outcome(wire.produce(topic, None)) == ("INVALID_RECORD", -1)
    assert outcome(wire.produce(topic, None, version=3)) == ("INVALID_RECORD", -1)


def test_old_and_absent_timestamps_are_taken(wire: Wire, topic: Topic) -> None:
    assert outcome(wire.produce(topic, batch(timestamp=1000))) == ("NONE", 0)
    assert outcome(wire.produce(topic, batch(timestamp=-1))) == ("NONE", 1)


def test_refused_records_are_named(wire: Wire, name: str) -> None:
    topic = wire.create(name, cleanup_policy="compact")
    answer = wire.produce(topic, batch(b"a", b"b"))
    assert code(answer) == "INVALID_RECORD"
    assert [error.batch_index for error in answer.record_errors] == [0, 1]
    assert all("key" in error.batch_index_error_message for error in answer.record_errors)
    assert wire.produce(topic, batch(b"a", b"b"), version=7).record_errors == []


def test_log_append_time_is_told(wire: Wire, name: str) -> None:
    topic = wire.create(name, message_timestamp_type="LogAppendTime")
    answer = wire.produce(topic, batch(timestamp=1000))
    assert code(answer) == "NONE"
    assert answer.log_append_time_ms >= NOW_MS
    assert wire.offset_at(topic, NOW_MS).offset == 0, "the record carries the broker's time, not the client's"


def test_a_topic_that_compresses(wire: Wire, name: str) -> None:
    topic = wire.create(name, compression_type="zstd")
    records = batch(b"x" * 2000)
    assert code(wire.produce(topic, records)) == "NONE"
    stored = bytes(wire.fetch(topic).records)
    assert len(stored) < len(records) and stored[22] & 7 == Codec.ZSTD


def test_a_negative_or_zero_timeout_does_not_matter_to_a_committed_batch(wire: Wire, topic: Topic) -> None:
    assert outcome(wire.produce(topic, batch(), timeout_ms=0)) == ("NONE", 0)
    assert outcome(wire.produce(topic, batch(), timeout_ms=-1)) == ("NONE", 1)


# ---- idempotence


def sequence(number: int, *, epoch: int = 0, producer_id: int = 5000, count: int = 1) -> bytes:
    return batch(*[b"v"] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=number)


def test_a_duplicate_is_answered_with_its_first_offset(wire: Wire, topic: Topic) -> None:
    for number in range(3):
        assert outcome(wire.produce(topic, sequence(number))) == ("NONE", number)
    for number in (2, 0, 1):
        for acks in (1, -1):
            assert outcome(wire.produce(topic, sequence(number), acks=acks)) == ("NONE", number)
    assert wire.offset_at(topic, -1).offset == 3


def test_five_batches_are_remembered(wire: Wire, topic: Topic) -> None:
    for number in range(8):
        wire.produce(topic, sequence(number))
    assert outcome(wire.produce(topic, sequence(3))) == ("NONE", 3)
    assert outcome(wire.produce(topic, sequence(2))) == ("OUT_OF_ORDER_SEQUENCE_NUMBER", -1)
    assert wire.offset_at(topic, -1).offset == 8


def test_a_gap_is_refused(wire: Wire, topic: Topic) -> None:
    wire.produce(topic, sequence(0, count=2))
    assert outcome(wire.produce(topic, sequence(3))) == ("OUT_OF_ORDER_SEQUENCE_NUMBER", -1)
    assert outcome(wire.produce(topic, sequence(2))) == ("NONE", 2)


def test_part_of_a_remembered_batch_is_no_duplicate(wire: Wire, topic: Topic) -> None:
    wire.produce(topic, sequence(0, count=3))
    assert outcome(wire.produce(topic, sequence(1, count=2))) == ("OUT_OF_ORDER_SEQUENCE_NUMBER", -1)


def test_epochs(wire: Wire, topic: Topic) -> None:
    assert outcome(wire.produce(topic, sequence(0))) == ("NONE", 0)
    assert outcome(wire.produce(topic, sequence(1, epoch=1))) == ("OUT_OF_ORDER_SEQUENCE_NUMBER", -1)
    assert outcome(wire.produce(topic, sequence(0, epoch=1))) == ("NONE", 1)
    assert outcome(wire.produce(topic, sequence(1, epoch=0))) == ("INVALID_PRODUCER_EPOCH", -1)


def test_an_unknown_producer_may_begin_anywhere(wire: Wire, topic: Topic) -> None:
    assert outcome(wire.produce(topic, sequence(10))) == ("NONE", 0)
    assert outcome(wire.produce(topic, sequence(11))) == ("NONE", 1)


def test_sequences_wrap_around(wire: Wire, topic: Topic) -> None:
    assert outcome(wire.produce(topic, sequence(2**31 - 2, count=3))) == ("NONE", 0)
    assert outcome(wire.produce(topic, sequence(1))) == ("NONE", 3)


def test_transactional_records_need_a_transaction(wire: Wire, topic: Topic, foreign: bool) -> None:
    """Nothing could end a transaction that such a batch opened, and read_committed consumers would wait forever (I44)."""
    if foreign:
        pytest.skip("Kafka asks its coordinator")
    records = batch(is_transactional=True, producer_id=777, producer_epoch=0, base_sequence=0)
    assert outcome(wire.produce(topic, records)) == ("INVALID_TXN_STATE", -1)
    request = wire.produce_request(topic, records)
    request.transactional_id = "t"
    assert outcome(wire.ask(request).responses[0].partition_responses[0]) == ("INVALID_TXN_STATE", -1)
    wire.produce(topic, batch())
    assert wire.fetch(topic, isolation_level=1).last_stable_offset == 1


# ---- several partitions at once


def test_several_topics_and_partitions(wire: Wire, name: str) -> None:
    two, one = wire.create(name + "-2", 2), wire.create(name + "-1")
    unknown = uuid.uuid4().bytes

    def data(topic_id: bytes, *indexes: int) -> TopicProduceData:
        return TopicProduceData(
            topic_id=topic_id,
            partition_data=[PartitionProduceData(index=i, records=batch()) for i in indexes],
        )

    request = ProduceRequest(
        acks=-1, timeout_ms=9000, topic_data=[data(one.id, 0, 5), data(unknown, 0), data(two.id, 1, 0)]
    )
    response = wire.ask(request)
    outcomes = {
        (topic.topic_id, partition.index): outcome(partition)
        for topic in response.responses
        for partition in topic.partition_responses
    }
    assert outcomes == {
        (one.id, 0): ("NONE", 0),
        (one.id, 5): ("UNKNOWN_TOPIC_OR_PARTITION", -1),
        (unknown, 0): ("UNKNOWN_TOPIC_ID", -1),
        (two.id, 1): ("NONE", 0),
        (two.id, 0): ("NONE", 0),
    }


def test_nothing_to_produce(wire: Wire) -> None:
    assert wire.ask(ProduceRequest(acks=-1, timeout_ms=100)).responses == []


def test_pipelined_requests_are_answered_in_order(wire: Wire, topic: Topic) -> None:
    for number in range(50):
        wire.send(wire.produce_request(topic, batch(b"%d" % number), acks=-1 if number % 2 else 1))
    answers = [wire.receive().responses[0].partition_responses[0] for _ in range(50)]
    assert [outcome(answer) for answer in answers] == [("NONE", number) for number in range(50)]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_versions_before_3_are_advertised_and_refused(wire: Wire, version: int) -> None:
    wire.send_raw(bytes([0, 0, 0, version]) + b"\0\0\0\x07\0\x01x\0\x01\0\0\0\x10\0\0\0\0")
    assert wire.is_closed()


@pytest.mark.parametrize("internal", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_are_not_for_clients(launch: Any, internal: str) -> None:
    wire = launch().connect()
    topic = wire.create(internal)
    assert outcome(wire.produce(topic, batch())) == ("INVALID_TOPIC_EXCEPTION", -1)
    assert outcome(wire.produce(topic, batch(), version=9)) == ("INVALID_TOPIC_EXCEPTION", -1)
