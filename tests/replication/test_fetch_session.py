"""Fetch sessions: ids and epochs, what an incremental answer mentions, and that the cache stays bounded (KIP-227, I51)."""

from __future__ import annotations

import random

import pytest

from tidelog.replication.fetch_session import (
    FetchContext,
    FetchSessionCache,
    FetchTarget,
    PartitionKey,
    SessionError,
)
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.types import ZERO_UUID

NONE = ErrorCode.NONE


def key(partition: int, topic: str = "orders") -> PartitionKey:
    return PartitionKey(topic, ZERO_UUID, partition)


def target(partition: int, offset: int = 0) -> FetchTarget:
    return FetchTarget(key(partition), offset, 1000)


class Reader:
    """A client's side of a session."""

    def __init__(self, cache: FetchSessionCache) -> None:
        self.cache = cache
        self.now = 0.0

    def ask(
        self,
        session_id: int,
        epoch: int,
        targets: list[FetchTarget] | None = None,
        forgotten: list[PartitionKey] | None = None,
        *,
        by_id: bool = False,
    ) -> FetchContext:
        return self.cache.resolve(
            session_id=session_id,
            epoch=epoch,
            by_id=by_id,
            targets=targets or [],
            forgotten=forgotten or [],
            now=self.now,
        )


@pytest.fixture
def cache() -> FetchSessionCache:
    return FetchSessionCache(random.Random(1), slots_max=2, eviction_ms=1000)


@pytest.fixture
def reader(cache: FetchSessionCache) -> Reader:
    return Reader(cache)


def test_a_sessionless_request_leaves_nothing_behind(reader: Reader, cache: FetchSessionCache) -> None:
    context = reader.ask(0, -1, [target(0)])
    assert context.session_id == 0
    assert not context.incremental
    assert len(cache) == 0


def test_a_session_remembers_its_partitions(reader: Reader) -> None:
    first = reader.ask(0, 0, [target(0), target(1)])
    assert first.session_id > 0
    assert not first.incremental
    second = reader.ask(first.session_id, 1, [target(1, offset=7)])
    assert second.incremental
    assert [(t.key.partition, t.fetch_offset) for t in second.targets] == [(0, 0), (1, 7)]


def test_forgotten_partitions_leave_and_new_ones_join(reader: Reader) -> None:
    session_id = reader.ask(0, 0, [target(0), target(1)]).session_id
    context = reader.ask(session_id, 1, [target(2)], [key(0)])
    assert [t.key.partition for t in context.targets] == [1, 2]


def test_an_epoch_out_of_turn_is_refused(reader: Reader) -> None:
    session_id = reader.ask(0, 0, [target(0)]).session_id
    with pytest.raises(SessionError) as refused:
        reader.ask(session_id, 2)
    assert refused.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_an_unknown_session_is_refused(reader: Reader) -> None:
    with pytest.raises(SessionError) as refused:
        reader.ask(42, 1)
    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_by_name_does_not_take_ids(reader: Reader) -> None:
    session_id = reader.ask(0, 0, [target(0)]).session_id
    with pytest.raises(SessionError) as refused:
        reader.ask(session_id, 1, by_id=True)
    assert refused.value.code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_epochs_wrap_to_one(reader: Reader, cache: FetchSessionCache) -> None:
    session_id = reader.ask(0, 0, [target(0)]).session_id
    next(iter(cache)).epoch = 2**31 - 1
    reader.ask(session_id, 2**31 - 1)
    assert reader.ask(session_id, 1).incremental


def test_closing_ends_the_session(reader: Reader, cache: FetchSessionCache) -> None:
    session_id = reader.ask(0, 0, [target(0)]).session_id
    assert reader.ask(session_id, -1, [target(0)]).session_id == 0
    assert len(cache) == 0


def test_a_session_without_partitions_ends(reader: Reader, cache: FetchSessionCache) -> None:
    session_id = reader.ask(0, 0, [target(0)]).session_id
    assert reader.ask(session_id, 1, [], [key(0)]).session_id == 0
    assert len(cache) == 0


def test_an_incremental_answer_mentions_only_news(reader: Reader) -> None:
    session = reader.ask(0, 0, [target(0)]).session
    assert session is not None

    def mentioned(**changes: int | bool) -> bool:
        said = {
            "has_records": False,
            "error": 0,
            "diverging": False,
            "high_watermark": 5,
            "log_start_offset": 0,
        }
        return session.must_answer(key(0), **(said | changes))  # type: ignore[arg-type]

    assert mentioned()
    assert not mentioned()
    assert mentioned(has_records=True)
    assert mentioned(high_watermark=6)
    assert mentioned(high_watermark=6, log_start_offset=1)
    assert mentioned(high_watermark=6, log_start_offset=1, error=3)
    assert mentioned(high_watermark=6, log_start_offset=1, error=3)
    assert mentioned(high_watermark=6, log_start_offset=1)
    assert mentioned(high_watermark=6, log_start_offset=1, diverging=True)


def test_a_partition_with_data_goes_to_the_end_of_the_line(reader: Reader) -> None:
    context = reader.ask(0, 0, [target(0), target(1), target(2)])
    assert context.session is not None
    context.session.must_answer(
        key(0), has_records=True, error=0, diverging=False, high_watermark=1, log_start_offset=0
    )
    assert [t.key.partition for t in reader.ask(context.session_id, 1).targets] == [1, 2, 0]


def test_a_full_cache_serves_without_a_session(reader: Reader, cache: FetchSessionCache) -> None:
    kept = [reader.ask(0, 0, [target(0)]).session_id for _ in range(2)]
    context = reader.ask(0, 0, [target(0), target(1)])
    assert context.session_id == 0
    assert [t.key.partition for t in context.targets] == [0, 1]
    assert sorted(session.id for session in cache) == sorted(kept)


def test_a_silent_session_makes_room(reader: Reader, cache: FetchSessionCache) -> None:
    silent = reader.ask(0, 0, [target(0)]).session_id
    reader.now = 0.9
    used = reader.ask(0, 0, [target(0)]).session_id
    reader.now = 1.5
    reader.ask(used, 1)
    newcomer = reader.ask(0, 0, [target(0)]).session_id
    assert {session.id for session in cache} == {used, newcomer}
    with pytest.raises(SessionError):
        reader.ask(silent, 1)


def test_a_larger_session_replaces_a_smaller_one_that_had_its_turn(
    reader: Reader, cache: FetchSessionCache
) -> None:
    small = reader.ask(0, 0, [target(0)]).session_id
    other = reader.ask(0, 0, [target(0), target(1), target(2)]).session_id
    reader.now = 1.5
    reader.ask(small, 1)
    reader.ask(other, 1)
    large = reader.ask(0, 0, [target(0), target(1)]).session_id
    assert {session.id for session in cache} == {other, large}
