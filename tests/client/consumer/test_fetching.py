"""Fetching against scripted answers: what is cut, moved, repeated or gone on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidelog.client import Consumer, TopicPartition
from tidelog.client.errors import NoOffsetError
from tidelog.client.metadata import ZERO_ID
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from tidelog.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TP = TopicPartition("t", 0)
TOPIC_ID = bytes(range(1, 17))


def batch(first: int, count: int) -> bytes:
    return build_batch([Record(o, 1, None, b"%d" % o) for o in range(first, first + count)])


class Script:
    """A broker without sessions whose fetch answers are given: an error code, bytes for partition 0, or a whole message; silence after them.

    What is below `log_start` is out of range.
    """

    def __init__(self, versions: Any, *, topic_id: bytes = TOPIC_ID, highest: int = 17) -> None:
        self.versions = versions
        self.topic_id = topic_id
        self.highest = highest
        self.port = 0
        self.answers: list[Any] = []
        self.log_start = 0
        self.asked: list[tuple[int, int]] = []  # (offset, leader epoch)
        self.fetch_versions: set[int] = set()
        self.metadata_requests = 0

    def __call__(self, header: Any, body: Any) -> Any:
        if header.api_key == ApiKey.API_VERSIONS:
            return self.versions(METADATA=(0, 12), FETCH=(4, self.highest), LIST_OFFSETS=(1, 9))
        if header.api_key == ApiKey.METADATA:
            self.metadata_requests += 1
            partition = MetadataResponsePartition(partition_index=0, leader_id=0, leader_epoch=4)
            return MetadataResponse(
                brokers=[MetadataResponseBroker(node_id=0, host="127.0.0.1", port=self.port)],
                topics=[MetadataResponseTopic(name="t", topic_id=self.topic_id, partitions=[partition])],
            )
        asked = body.topics[0].partitions[0]
        self.asked.append((asked.fetch_offset, asked.current_leader_epoch))
        self.fetch_versions.add(header.api_version)
        if asked.fetch_offset < self.log_start:
            answer: Any = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            answer = self.answers.pop(0) if self.answers else None
        if not isinstance(answer, (bytes, ErrorCode)):
            return answer
        data = PartitionData(partition_index=0, high_watermark=100)
        if isinstance(answer, ErrorCode):
            data.error_code = answer
        else:
            data.records = answer
        return FetchResponse(
            responses=[FetchableTopicResponse(topic="t", topic_id=self.topic_id, partitions=[data])]
        )


@pytest.fixture
def script(versions: Any) -> Script:
    return Script(versions)


def run(fake_broker: Any, script: Script, scenario: Any) -> None:
    async def connected(broker: Any) -> None:
        script.port = broker.port
        async with Consumer(
            f"127.0.0.1:{broker.port}",
            auto_offset_reset="none",
            retry_backoff_ms=1,
            retry_backoff_max_ms=2,
            request_timeout_ms=2_000,
        ) as consumer:
            consumer.assign([TP])
            consumer.seek(TP, 0)
            await scenario(consumer)

    fake_broker(script, connected)


def read(fake_broker: Any, script: Script, count: int) -> list[int]:
    got: list[int] = []

    async def scenario(consumer: Consumer) -> None:
        while len(got) < count:
            got.extend(record.offset for record in await consumer.poll())

    run(fake_broker, script, scenario)
    return got


def test_a_cut_off_last_batch_is_fetched_again(fake_broker: Any, script: Script) -> None:
    script.answers = [batch(0, 3) + batch(3, 3)[:80], batch(3, 3)]
    assert read(fake_broker, script, 6) == [0, 1, 2, 3, 4, 5]
    assert [offset for offset, _ in script.asked][:2] == [0, 3]


def test_empty_answers_are_asked_again_and_old_batches_do_not_move_us_back(
    fake_broker: Any, script: Script
) -> None:
    script.answers = [b"", batch(0, 3), batch(0, 2), batch(0, 5)]
    assert read(fake_broker, script, 5) == [0, 1, 2, 3, 4]
    assert [offset for offset, _ in script.asked][:4] == [0, 0, 3, 3]


def test_gaps_are_stepped_over(fake_broker: Any, script: Script) -> None:
    script.answers = [batch(0, 2) + batch(40, 2)]
    assert read(fake_broker, script, 4) == [0, 1, 40, 41]


def test_a_leader_that_moved_is_looked_up_again(fake_broker: Any, script: Script, hang_up: object) -> None:
    script.answers = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, hang_up, batch(0, 3)]
    assert read(fake_broker, script, 3) == [0, 1, 2]
    assert script.metadata_requests >= 4


def test_topic_ids_are_used_where_both_sides_have_them(fake_broker: Any, versions: Any) -> None:
    for topic_id, highest, spoken in [(TOPIC_ID, 17, 17), (TOPIC_ID, 11, 11), (ZERO_ID, 17, 12)]:
        script = Script(versions, topic_id=topic_id, highest=highest)
        script.answers = [batch(0, 1)]
        assert read(fake_broker, script, 1) == [0]
        assert script.fetch_versions == {spoken}


def test_the_leaders_epoch_is_sent_along(fake_broker: Any, script: Script) -> None:
    script.answers = [batch(0, 1)]
    read(fake_broker, script, 1)
    assert {epoch for _, epoch in script.asked} == {4}


def test_the_next_request_leaves_before_the_application_has_its_records(
    fake_broker: Any, script: Script
) -> None:
    script.answers = [batch(0, 1), None]

    async def scenario(consumer: Consumer) -> None:
        while len(script.asked) < 2:
            await asyncio.sleep(0.001)
        assert [record.offset for record in await consumer.poll()] == [0]

    run(fake_broker, script, scenario)
    assert [offset for offset, _ in script.asked] == [0, 1]


def test_a_chunk_knows_how_long_its_broker_took(fake_broker: Any, script: Script) -> None:
    script.answers = [batch(0, 1)]

    async def scenario(consumer: Consumer) -> None:
        found = await consumer.wait_for_chunk(2_000)
        assert found is not None
        assert 0 < found[1].latency_seconds < 2

    run(fake_broker, script, scenario)


# ---- offsets that are gone


def test_an_offset_that_is_gone_is_named(fake_broker: Any, script: Script) -> None:
    script.log_start = 9

    async def scenario(consumer: Consumer) -> None:
        consumer.seek(TP, 7)
        for _ in range(2):  # and again: nothing is skipped in silence
            with pytest.raises(NoOffsetError, match="offset 7 is not in the log") as raised:
                await consumer.poll()
            assert (raised.value.tp, raised.value.offset) == (TP, 7)

    run(fake_broker, script, scenario)


def test_records_that_are_here_come_before_the_news_that_the_log_lost_the_next(
    fake_broker: Any, script: Script
) -> None:
    script.answers = [batch(0, 3), *[ErrorCode.OFFSET_OUT_OF_RANGE] * 10_000]

    async def scenario(consumer: Consumer) -> None:
        while len(script.asked) < 5:
            await asyncio.sleep(0.001)
        assert [record.offset for record in await consumer.poll()] == [0, 1, 2]
        with pytest.raises(NoOffsetError) as raised:
            await consumer.poll()
        assert raised.value.offset == 3

    run(fake_broker, script, scenario)


def test_who_has_gone_elsewhere_hears_nothing_of_what_was_wrong_there(
    fake_broker: Any, script: Script
) -> None:
    script.answers, script.log_start = [batch(5, 1)], 5

    async def scenario(consumer: Consumer) -> None:
        while len(script.asked) < 5:  # nobody asks for records meanwhile
            await asyncio.sleep(0.001)
        consumer.seek(TP, 5)
        assert [record.offset for record in await consumer.poll()] == [5]

    run(fake_broker, script, scenario)
