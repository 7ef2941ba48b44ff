"""Fetch answers written by hand are those of the compiled encoder, byte for byte, with file ranges in the same places."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.wire.test_produce_frames import IDS, INT16, INT32, INT64, NAMES
from tidelog.wire.api import ApiKey
from tidelog.wire.codec import joined
from tidelog.wire.fetch_frames import (
    FIRST_BY_ID,
    FIRST_FLEXIBLE,
    FIRST_WITH_LEADERS,
    Fetched,
    FetchedTopic,
    write_fetch_response,
)
from tidelog.wire.headers import encode_response
from tidelog.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from tidelog.wire.node_endpoints import NodeAddress

VERSIONS = range(4, 19)


class Range:
    """Bytes that stay where they are."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def read(self) -> bytes:
        return self.data

    def release(self) -> None:
        pass


RECORDS: st.SearchStrategy[Any] = st.binary(max_size=200) | st.binary(min_size=1, max_size=40_000).map(Range)
PARTITIONS = st.builds(
    Fetched,
    INT32,
    INT16,
    INT64,
    INT64,
    INT64,
    RECORDS,
    st.none() | st.lists(st.tuples(INT64, INT64), max_size=3),
    st.none() | st.tuples(st.integers(0, 1 << 30), INT64),
    INT32,
    st.none() | st.tuples(st.integers(0, 1 << 30), st.integers(0, 1 << 30)),
).map(lambda fetched: fetched if fetched.diverging is None else fetched._replace(current_leader=None))
ENDPOINTS = st.lists(st.builds(NodeAddress, INT32, NAMES, INT32, st.none() | NAMES), max_size=3)


@given(
    st.lists(st.builds(FetchedTopic, NAMES, IDS, st.lists(PARTITIONS, max_size=3)), max_size=3)
    | st.builds(FetchedTopic, NAMES, IDS, st.just([])).map(lambda topic: [topic] * 127)
    | st.builds(FetchedTopic, NAMES, IDS, PARTITIONS.map(lambda partition: [partition] * 127)).map(
        lambda t: [t]
    ),
    st.sampled_from(VERSIONS),
    INT32,
    INT32,
    INT16,
    ENDPOINTS,
)
def test_answers(
    topics: list[FetchedTopic],
    version: int,
    correlation_id: int,
    session_id: int,
    error_code: int,
    endpoints: list[NodeAddress],
) -> None:
    if version < FIRST_FLEXIBLE:
        topics = [
            FetchedTopic(
                topic.name,
                topic.topic_id,
                [each._replace(diverging=None, current_leader=None) for each in topic.partitions],
            )
            for topic in topics
        ]
    if version < FIRST_WITH_LEADERS:
        endpoints = []
    parts = write_fetch_response(
        version, correlation_id, topics, session_id=session_id, error_code=error_code, endpoints=endpoints
    )
    message = as_message(topics, version, session_id, error_code)
    message.node_endpoints = [NodeEndpoint(*endpoint) for endpoint in endpoints]
    expected = encode_response(ApiKey.FETCH, version, correlation_id, message)
    assert joined(parts) == joined(expected)
    assert [part for part in parts if isinstance(part, Range)] == [
        part for part in expected if isinstance(part, Range)
    ]
    assert isinstance(parts[0], bytes)


def as_message(topics: list[FetchedTopic], version: int, session_id: int, error_code: int) -> FetchResponse:
    sessions = version >= 7
    return FetchResponse(
        error_code=error_code if sessions else 0,
        session_id=session_id if sessions else 0,
        responses=[
            FetchableTopicResponse(
                topic=topic.name if version < FIRST_BY_ID else "",
                topic_id=topic.topic_id if version >= FIRST_BY_ID else bytes(16),
                partitions=[as_partition(fetched, version) for fetched in topic.partitions],
            )
            for topic in topics
        ],
    )


def as_partition(fetched: Fetched, version: int) -> PartitionData:
    data = PartitionData(
        partition_index=fetched.partition,
        error_code=fetched.error_code,
        high_watermark=fetched.high_watermark,
        last_stable_offset=fetched.last_stable_offset,
        log_start_offset=fetched.log_start_offset if version >= 5 else -1,
        aborted_transactions=None
        if fetched.aborted is None
        else [AbortedTransaction(*transaction) for transaction in fetched.aborted],
        preferred_read_replica=fetched.preferred if version >= 11 else -1,
        records=fetched.records,
    )
    if fetched.diverging is not None:
        data.diverging_epoch = EpochEndOffset(*fetched.diverging)
    if fetched.current_leader is not None:
        data.current_leader = LeaderIdAndEpoch(*fetched.current_leader)
    return data
