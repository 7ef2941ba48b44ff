"""The partitions that all fetch sessions remember together are bounded, however large each session is."""

from __future__ import annotations

from random import Random

import pytest

from tidelog.replication.fetch_session import (
    FetchContext,
    FetchSessionCache,
    FetchTarget,
    PartitionKey,
    SessionError,
)
from tidelog.wire.types import ZERO_UUID


class Chance:
    def __init__(self) -> None:
        self._random = Random(1)

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def randbytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def random(self) -> float:
        return self._random.random()


def targets(first: int, count: int) -> list[FetchTarget]:
    return [FetchTarget(PartitionKey("t", ZERO_UUID, index), 0, 100) for index in range(first, first + count)]


@pytest.fixture
def cache() -> FetchSessionCache:
    return FetchSessionCache(Chance(), slots_max=100, eviction_ms=120_000, partitions_max=1000)  # type: ignore[arg-type]


def ask(
    cache: FetchSessionCache,
    asked: list[FetchTarget],
    *,
    session_id: int = 0,
    epoch: int = 0,
    forgotten: list[PartitionKey] | None = None,
    now: float = 0.0,
) -> FetchContext:
    return cache.resolve(
        session_id=session_id, epoch=epoch, by_id=False, targets=asked, forgotten=forgotten or [], now=now
    )


def test_beyond_the_limit_a_reader_is_served_without_a_session(cache: FetchSessionCache) -> None:
    assert ask(cache, targets(0, 600)).session_id != 0
    second = ask(cache, targets(0, 600))
    assert second.session_id == 0
    assert len(second.targets) == 600
    assert ask(cache, targets(0, 400)).session_id != 0
    assert cache.partitions == 1000


def test_what_is_forgotten_or_closed_makes_room(cache: FetchSessionCache) -> None:
    first = ask(cache, targets(0, 900)).session_id
    ask(cache, [], session_id=first, epoch=1, forgotten=[target.key for target in targets(0, 500)])
    assert cache.partitions == 400
    second = ask(cache, targets(0, 600)).session_id
    assert second != 0
    ask(cache, [], session_id=first, epoch=-1)
    assert cache.partitions == 600
    ask(cache, targets(0, 10), session_id=second, epoch=0)
    assert cache.partitions == 10


def test_a_session_that_grows_beyond_it_ends(cache: FetchSessionCache) -> None:
    ask(cache, targets(0, 900))
    session = ask(cache, targets(0, 50)).session_id
    grown = ask(cache, targets(50, 200), session_id=session, epoch=1)
    assert len(grown.targets) == 250, "this once it is served all the same"
    with pytest.raises(SessionError):
        ask(cache, [], session_id=session, epoch=2)
    assert cache.partitions == 900


def test_a_session_that_only_changes_its_offsets_stays(cache: FetchSessionCache) -> None:
    session = ask(cache, targets(0, 1000)).session_id
    for epoch in range(1, 5):
        assert ask(cache, targets(0, 1000), session_id=session, epoch=epoch).session_id == session
    assert cache.partitions == 1000


def test_a_session_that_nobody_uses_makes_room(cache: FetchSessionCache) -> None:
    ask(cache, targets(0, 900), now=0.0)
    assert ask(cache, targets(0, 900), now=100.0).session_id == 0
    assert ask(cache, targets(0, 900), now=200.0).session_id != 0
    assert (cache.partitions, cache.evictions) == (900, 1)
    assert ask(cache, targets(0, 2000), now=1000.0).session_id == 0, "more than there may ever be"
