"""Each segment's reason to be there is the one that retention and the cleaner act on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.compaction.compaction_world import COMPACT, NOW_MS, RETENTION_MS, World
from tidelog.storage.log_config import LogConfig
from tidelog.storage.segment_fate import Fate, segment_fates

DELETE = LogConfig(segment_bytes=2000, retention_ms=1000, file_delete_delay_ms=0)


def filled(config: LogConfig, segments: int = 3) -> World:
    world = World(config=config)
    for _ in range(segments):
        world.put((b"a", b"v" * 50), (b"b", b"v" * 50))
        world.seal()
        world.clock.advance(100)
    world.put((b"a", b"v"))
    world.settle()
    return world


def fates(world: World, now_ms: int | None = None, **options: Any) -> list[Fate]:
    return [
        each.fate for each in segment_fates(world.log, world.now_ms if now_ms is None else now_ms, **options)
    ]


def test_by_age() -> None:
    world = filled(DELETE)
    found = segment_fates(world.log, NOW_MS + 500)
    assert [each.fate for each in found] == [Fate.BY_AGE] * 3 + [Fate.ACTIVE]
    assert [each.goes_at_ms for each in found[:3]] == [NOW_MS + 1001, NOW_MS + 1101, NOW_MS + 1201]
    assert [(each.base_offset, each.end_offset) for each in found] == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert found[0].age_ms == 500 and found[0].newest_timestamp == NOW_MS
    assert "retention.ms" in found[0].explanation


def test_what_is_to_be_deleted_is_what_retention_deletes() -> None:
    for now_ms in range(NOW_MS + 900, NOW_MS + 1500, 50):
        world = filled(DELETE)
        expected = fates(world, now_ms).count(Fate.DELETE_DUE)
        assert world.log.apply_retention(now_ms).segments == expected


def test_by_size() -> None:
    world = filled(replace(DELETE, retention_ms=-1, retention_bytes=1))
    assert fates(world) == [Fate.DELETE_DUE] * 3 + [Fate.ACTIVE]
    assert world.log.apply_retention(world.now_ms).segments == 3
    roomy = filled(replace(DELETE, retention_ms=-1, retention_bytes=1 << 20))
    assert fates(roomy) == [Fate.BY_SIZE] * 3 + [Fate.ACTIVE]


def test_oldest_first() -> None:
    world = World(config=DELETE)
    for age in (0, 5000, 5000):
        world.put((b"a", b"v"), timestamps=[NOW_MS - age])
        world.seal()
    assert fates(world, NOW_MS)[:3] == [Fate.BY_AGE, Fate.BEHIND_OTHERS, Fate.BEHIND_OTHERS]


def test_above_the_high_watermark() -> None:
    world = filled(DELETE)
    world.log.high_watermark = 3
    assert fates(world, NOW_MS + 10_000) == [Fate.DELETE_DUE] + [Fate.NOT_COMMITTED] * 2 + [Fate.ACTIVE]


def test_below_the_log_start() -> None:
    world = filled(COMPACT)
    world.log.advance_log_start_offset(2)
    assert fates(world)[0] is Fate.DELETE_DUE


def test_for_ever() -> None:
    world = filled(replace(DELETE, retention_ms=-1))
    assert fates(world) == [Fate.FOR_EVER] * 3 + [Fate.ACTIVE]


class TestCompaction:
    def test_dirty_then_compacted(self) -> None:
        world = filled(COMPACT)
        assert fates(world) == [Fate.COMPACT_DUE] * 3 + [Fate.ACTIVE]
        world.clean()
        assert fates(world) == [Fate.COMPACTED, Fate.ACTIVE]

    def test_not_dirty_enough(self) -> None:
        world = filled(replace(COMPACT, min_cleanable_dirty_ratio=1.0))
        (first, *_), *_ = [segment_fates(world.log, world.now_ms)]
        assert first.fate is Fate.NOT_DIRTY_ENOUGH
        assert "100% of what may be compacted is dirty" in first.explanation

    def test_held_by_the_lag(self) -> None:
        world = filled(replace(COMPACT, min_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1.0))
        found = segment_fates(world.log, NOW_MS + 1050)
        assert [each.fate for each in found] == [
            Fate.NOT_DIRTY_ENOUGH,
            Fate.LAG,
            Fate.NOT_DIRTY_ENOUGH,
            Fate.ACTIVE,
        ]
        assert found[1].goes_at_ms == NOW_MS + 1100

    def test_held_by_an_open_transaction(self) -> None:
        world = filled(COMPACT, segments=1)
        world.put((b"x", b"1"), producer=7, transactional=True)
        world.seal()
        assert fates(world)[1] is Fate.UNSTABLE

    def test_tombstones_have_their_time(self) -> None:
        world = filled(COMPACT)
        world.clean()
        horizon = world.now_ms + RETENTION_MS
        first = segment_fates(world.log, world.now_ms, horizon_ms=horizon)[0]
        assert (first.fate, first.goes_at_ms) == (Fate.COMPACTED, horizon)
        assert fates(world, horizon, horizon_ms=horizon)[0] is Fate.COMPACT_DUE

    def test_both_policies(self) -> None:
        world = filled(replace(COMPACT, delete_policy=True, retention_ms=1000, min_cleanable_dirty_ratio=1.0))
        assert fates(world, NOW_MS + 500)[0] is Fate.NOT_DIRTY_ENOUGH
        assert fates(world, NOW_MS + 1150)[:3] == [Fate.DELETE_DUE] * 2 + [Fate.NOT_DIRTY_ENOUGH]
