"""Brokers that answer nonsense, errors or nothing: a typed error that names what is wrong, nothing lost in silence, nothing stuck."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.client.test_cluster import Script, script
from tidelog.client import Consumer, Producer, TopicPartition
from tidelog.client.errors import (
    BrokerError,
    DeliveryTimedOutError,
    MalformedResponseError,
    UnsupportedRequestError,
)
from tidelog.records.batch import read_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

__all__ = ["script"]
QUICK: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "request_timeout_ms": 500}
GARBAGE = (12).to_bytes(4, "big") + b"\xff" * 12


def produce(fake_broker: Any, script: Script, count: int = 1, **options: Any) -> list[Any]:
    """What became of each of so many records, sent one after the other."""
    results: list[Any] = []

    async def scenario(broker: Any) -> None:
        script.port = broker.port
        producer = Producer(
            f"127.0.0.1:{broker.port}",
            **{**QUICK, "delivery_timeout_ms": 1_500, "linger_ms": 0, "batch_size": 0, **options},
        )
        await producer.start()
        deliveries = [await producer.send("t", b"%d" % n, partition=0) for n in range(count)]
        results.extend(await asyncio.gather(*(_wait(each) for each in deliveries), return_exceptions=True))
        await producer.close()

    fake_broker(script, scenario)
    return results


async def _wait(delivery: Any) -> Any:
    return await delivery


def test_an_answer_that_makes_no_sense(fake_broker: Any, script: Script) -> None:
    script.produce_answers = [GARBAGE]
    (error,) = produce(fake_broker, script)
    assert isinstance(error, MalformedResponseError) and "127.0.0.1" in str(error)


def test_a_broker_that_hangs_up_is_tried_again_with_the_same_number(
    fake_broker: Any, script: Script, hang_up: object
) -> None:
    script.produce_answers = [hang_up, hang_up]
    (place,) = produce(fake_broker, script)
    assert place.offset == 0
    numbers = {
        (read_header(batch).producer_id, read_header(batch).base_sequence) for _, batch in script.batches
    }
    assert len(script.batches) == 3 and numbers == {(77, 0)}


def test_a_repeat_that_the_broker_knows_is_delivered(fake_broker: Any, script: Script) -> None:
    script.produce_answers = [ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
    (place,) = produce(fake_broker, script)
    assert place.partition == 0 and len(script.batches) == 1


@pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID])
def test_a_broker_that_has_lost_its_memory_gets_a_new_epoch(
    fake_broker: Any, script: Script, code: ErrorCode
) -> None:
    script.produce_answers = [ErrorCode.NONE, code]
    first, second = produce(fake_broker, script, 2)
    assert (first.offset, second.offset) == (0, 1)
    seen = [(read_header(b).producer_epoch, read_header(b).base_sequence) for _, b in script.batches]
    assert seen == [(0, 0), (0, 1), (1, 0)]


def test_an_error_for_good_is_the_records_own(fake_broker: Any, script: Script) -> None:
    script.produce_answers = [ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    first, second, third = produce(fake_broker, script, 3, max_in_flight_requests_per_connection=1)
    assert (
        first.offset == 0 and isinstance(second, BrokerError) and "TOPIC_AUTHORIZATION_FAILED" in str(second)
    )
    assert third.offset == 1, "the one behind it goes on, without a gap in the numbers"
    last = read_header(script.batches[-1][1])
    assert (last.producer_epoch, last.base_sequence) in ((0, 1), (1, 0))


def test_a_broker_that_never_answers(fake_broker: Any, script: Script) -> None:
    script.produce_answers = [None] * 50
    (error,) = produce(fake_broker, script)
    assert isinstance(error, DeliveryTimedOutError)
    assert "delivery.timeout.ms=1500" in str(error) and "PRODUCE within 500 ms" in str(error)


def test_a_broker_without_producer_ids_is_told_apart(fake_broker: Any, versions: Any, script: Script) -> None:
    script.versions = lambda **ranges: versions(METADATA=(0, 12), PRODUCE=(0, 12))
    (error,) = produce(fake_broker, script)
    assert isinstance(error, UnsupportedRequestError)
    assert any("enable.idempotence=false" in note for note in error.__notes__)
    (place,) = produce(fake_broker, script, enable_idempotence=False)
    assert place.offset == 0


# ---- consumers


class FetchScript(Script):
    def __init__(self, versions: Any) -> None:
        super().__init__(versions)
        self.fetch_answers: list[Any] = []

    def __call__(self, header: Any, body: Any) -> Any:
        if header.api_key == ApiKey.API_VERSIONS:
            return self.versions(METADATA=(0, 12), LIST_OFFSETS=(1, 9), FETCH=(4, 12))
        if header.api_key == ApiKey.FETCH:
            return self.fetch_answers.pop(0) if self.fetch_answers else None
        return super().__call__(header, body)


def consume(fake_broker: Any, script: Script, errors: int) -> list[BaseException]:
    found: list[BaseException] = []

    async def scenario(broker: Any) -> None:
        script.port = broker.port
        async with Consumer(f"127.0.0.1:{broker.port}", **QUICK) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            consumer.seek(TopicPartition("t", 0), 5)
            async with asyncio.timeout(5):
                while len(found) < errors:
                    try:
                        assert await consumer.poll(timeout_ms=200) == []
                    except Exception as error:  # noqa: BLE001 (whatever it is, it is looked at)
                        found.append(error)

    fake_broker(script, scenario)
    return found


def answer(**fields: Any) -> FetchResponse:
    data = PartitionData(partition_index=0, high_watermark=9, **fields)
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])


def test_a_fetch_that_makes_no_sense(fake_broker: Any, versions: Any) -> None:
    script = FetchScript(versions)
    script.fetch_answers = [GARBAGE]
    (error,) = consume(fake_broker, script, 1)
    assert isinstance(error, MalformedResponseError)


def test_records_that_are_none(fake_broker: Any, versions: Any) -> None:
    script = FetchScript(versions)
    script.fetch_answers = [answer(records=b"\xee" * 80)]
    (error,) = consume(fake_broker, script, 1)
    assert "t-0" in str(error) and "are no record batches" in str(error)


def test_half_a_batch_again_and_again(fake_broker: Any, versions: Any) -> None:
    script = FetchScript(versions)
    half = build_batch([Record(5, 0, None, bytes(100))])[:100]
    script.fetch_answers = [answer(records=half)] * 1_000

    async def scenario(broker: Any) -> None:
        script.port = broker.port
        async with Consumer(f"127.0.0.1:{broker.port}", retry_backoff_ms=50) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            consumer.seek(TopicPartition("t", 0), 5)
            assert await consumer.poll(timeout_ms=400) == []

    fake_broker(script, scenario)
    assert 1 < 1_000 - len(script.fetch_answers) < 20, "it is asked again, after a pause"


def test_an_error_of_one_partition(fake_broker: Any, versions: Any) -> None:
    script = FetchScript(versions)
    script.fetch_answers = [answer(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
    (error,) = consume(fake_broker, script, 1)
    assert isinstance(error, BrokerError) and "fetching from t-0: TOPIC_AUTHORIZATION_FAILED" in str(error)


def test_records_of_a_partition_that_nobody_asked_for(fake_broker: Any, versions: Any) -> None:
    script = FetchScript(versions)
    script.fetch_answers = [
        FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic="other", partitions=[PartitionData(partition_index=7, high_watermark=1)]
                )
            ]
        )
    ]
    (error,) = consume(fake_broker, script, 1)
    assert isinstance(error, MalformedResponseError) and "other-7" in str(error)
