"""The fetch loop against scripted answers: what is cut, moved, repeated or damaged on the way."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from tidelog.client.cluster import ClusterClient
from tidelog.client.errors import BrokerError, MalformedResponseError
from tidelog.client.fetch import FetchedRun, Fetcher, FetchSettings, records_of
from tidelog.client.metadata import ZERO_ID, TopicPartition
from tidelog.client.settings import ClientSettings
from tidelog.errors import CorruptDataError
from tidelog.records.builder import build_batch
from tidelog.records.control import ControlType, control_key
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
FAST = ClientSettings(retry_backoff_ms=1, retry_backoff_max_ms=2, request_timeout_ms=2_000)


def batch(first: int, count: int, **options: Any) -> bytes:
    return build_batch([Record(o, 1, None, b"%d" % o) for o in range(first, first + count)], **options)


def run_of(records: bytes, *, start: int = 0, end: int | None = None) -> FetchedRun:
    return FetchedRun(TP, start, end, memoryview(records), 0, 0, 0.0)


def offsets(run: FetchedRun) -> list[int]:
    return [record.offset for record in records_of(run)]


def test_records_outside_the_range_are_left_out() -> None:
    assert offsets(run_of(batch(0, 5) + batch(5, 5), start=3, end=8)) == [3, 4, 5, 6, 7]


def test_control_records_are_left_out() -> None:
    marker = build_batch(
        [Record(2, 1, control_key(ControlType.COMMIT), b"\0\0\0\0\0\0")],
        is_control=True,
        is_transactional=True,
        producer_id=1,
        producer_epoch=0,
    )
    assert offsets(run_of(batch(0, 2) + marker + batch(3, 1))) == [0, 1, 3]


def test_a_batch_that_fails_its_crc_is_never_shown() -> None:
    damaged = bytearray(batch(0, 2))
    damaged[-1] ^= 1
    with pytest.raises(CorruptDataError, match=r"t-0: the batch at offset 0 fails its CRC"):
        offsets(run_of(bytes(damaged)))


class Script:
    """A broker whose fetch answers are given: an error code, bytes for partition 0, or a whole message."""

    def __init__(self, versions: Any, *, topic_id: bytes = TOPIC_ID, highest: int = 17) -> None:
        self.versions = versions
        self.topic_id = topic_id
        self.highest = highest
        self.port = 0
        self.answers: list[Any] = []
        self.asked: list[tuple[int, int, int]] = []
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
        self.asked.append((asked.fetch_offset, asked.partition_max_bytes, asked.current_leader_epoch))
        self.fetch_versions.add(header.api_version)
        answer = self.answers.pop(0) if self.answers else b""
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


def read(fake_broker: Any, script: Script, end: int, **settings: int) -> list[int]:
    got: list[int] = []

    async def connected(broker: Any) -> None:
        script.port = broker.port
        async with ClusterClient(f"127.0.0.1:{broker.port}", FAST) as cluster:
            fetcher = Fetcher(cluster, {TP: 0}, FetchSettings(**settings), end_offsets={TP: end})
            async with aclosing(fetcher.runs()) as runs:
                async for run in runs:
                    got.extend(offsets(run))

    fake_broker(script, connected)
    return got


def test_a_cut_off_last_batch_is_fetched_again(fake_broker: Any, script: Script) -> None:
    script.answers = [batch(0, 3) + batch(3, 3)[:80], batch(3, 3)]
    assert read(fake_broker, script, 6) == [0, 1, 2, 3, 4, 5]
    assert [offset for offset, _, _ in script.asked] == [0, 3]


def test_a_first_batch_that_does_not_fit_makes_us_ask_for_more(fake_broker: Any, script: Script) -> None:
    script.answers = [batch(0, 3)[:70], batch(0, 3)[:70], batch(0, 3)]
    assert read(fake_broker, script, 3, max_partition_fetch_bytes=70) == [0, 1, 2]
    assert [size for _, size, _ in script.asked] == [70, 140, 280]


def test_empty_answers_are_asked_again_and_old_batches_do_not_move_us_back(
    fake_broker: Any, script: Script
) -> None:
    script.answers = [b"", batch(0, 3), batch(0, 2), batch(0, 5)]
    assert read(fake_broker, script, 5) == [0, 1, 2, 3, 4]
    assert [offset for offset, _, _ in script.asked] == [0, 0, 3, 3]


def test_gaps_are_stepped_over(fake_broker: Any, script: Script) -> None:
    script.answers = [batch(0, 2) + batch(40, 2)]
    assert read(fake_broker, script, 42) == [0, 1, 40, 41]


def test_a_leader_that_moved_is_looked_up_again(fake_broker: Any, script: Script, hang_up: object) -> None:
    script.answers = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, hang_up, batch(0, 3)]
    assert read(fake_broker, script, 3) == [0, 1, 2]
    assert script.metadata_requests >= 4


def test_failures_do_not_go_on_for_ever(fake_broker: Any, script: Script) -> None:
    script.answers = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 100_000
    with pytest.raises(BrokerError, match="NOT_LEADER_OR_FOLLOWER"):
        read(fake_broker, script, 3, retry_timeout_ms=50)


def test_an_error_that_will_not_pass_is_raised(fake_broker: Any, script: Script) -> None:
    script.answers = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(BrokerError, match=r"fetching from t-0: TOPIC_AUTHORIZATION_FAILED"):
        read(fake_broker, script, 3)


def test_records_that_are_no_batches_name_the_partition(fake_broker: Any, script: Script) -> None:
    script.answers = [bytes(200)]
    with pytest.raises(MalformedResponseError, match="t-0: no record batch at position 0"):
        read(fake_broker, script, 1)


def test_topic_ids_are_used_where_both_sides_have_them(fake_broker: Any, versions: Any) -> None:
    for topic_id, highest, spoken in [(TOPIC_ID, 17, 17), (TOPIC_ID, 11, 11), (ZERO_ID, 17, 12)]:
        script = Script(versions, topic_id=topic_id, highest=highest)
        script.answers = [batch(0, 1)]
        assert read(fake_broker, script, 1) == [0]
        assert script.fetch_versions == {spoken}


def test_records_nobody_asked_for_are_refused(fake_broker: Any, script: Script) -> None:
    stranger = PartitionData(partition_index=9, records=batch(0, 1))
    script.answers = [
        FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[stranger])])
    ]
    with pytest.raises(MalformedResponseError, match="t-9"):
        read(fake_broker, script, 1)


def test_the_leaders_epoch_is_sent_along(fake_broker: Any, script: Script) -> None:
    script.answers = [batch(0, 1)]
    read(fake_broker, script, 1)
    assert {epoch for _, _, epoch in script.asked} == {4}


def test_the_next_request_leaves_before_the_caller_has_its_records(fake_broker: Any, script: Script) -> None:
    script.answers = [batch(0, 1), batch(1, 1)]

    async def connected(broker: Any) -> None:
        script.port = broker.port
        async with (
            ClusterClient(f"127.0.0.1:{broker.port}", FAST) as cluster,
            aclosing(Fetcher(cluster, {TP: 0}, end_offsets={TP: 2}).runs()) as runs,
            asyncio.timeout(5),
        ):
            await anext(runs)
            while len(script.asked) < 2:
                await asyncio.sleep(0.001)

    fake_broker(script, connected)
    assert [offset for offset, _, _ in script.asked] == [0, 1]
