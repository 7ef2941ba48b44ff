"""Which logs are cleaned, how far, and in which groups: decisions, without a cleaner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.compaction.compaction_world import COMPACT, NOW_MS, World
from tidelog.storage.cleaner_job import CleaningInterrupted, Limits, Source
from tidelog.storage.cleaner_plan import (
    Hold,
    Weighed,
    Why,
    cleanable,
    due,
    first_dirty_offset,
    group,
    plan,
)
from tidelog.storage.cleaner_swap import Cleaning
from tidelog.storage.recovery_report import Damage
from tidelog.storage.segment import MAX_RELATIVE_OFFSET


def filled(segments: int = 3, **config: Any) -> World:
    """Segments of three records each, and one in the active segment; a record every 10 ms."""
    world = World(config=replace(COMPACT, **config))
    for _ in range(segments):
        for key in (b"a", b"b", b"c"):
            world.put((key, b"v" * 20))
            world.clock.advance(10)
        world.seal()
    world.put((b"a", b"v"))
    world.settle()
    return world


class TestHowFar:
    def test_never_the_active_segment(self) -> None:
        world = filled()
        found = cleanable(world.log, world.now_ms)
        assert (found.segments, found.end_offset, found.hold) == (3, 9, Hold.ACTIVE)

    def test_never_above_the_high_watermark(self) -> None:
        world = filled()
        world.log.high_watermark = 5
        found = cleanable(world.log, world.now_ms)
        assert (found.segments, found.end_offset, found.hold) == (1, 3, Hold.UNSTABLE)

    def test_never_above_the_last_stable_offset(self) -> None:
        world = filled(segments=1)
        world.put((b"x", b"1"), producer=7, transactional=True)
        world.seal()
        world.put((b"y", b"1"))
        world.seal()
        assert cleanable(world.log, world.now_ms).end_offset == 3
        world.end_transaction(7, commit=True)
        world.settle()
        assert cleanable(world.log, world.now_ms).end_offset == 6

    def test_nothing_younger_than_the_lag(self) -> None:
        world = filled(min_compaction_lag_ms=50)
        found = cleanable(world.log, NOW_MS + 100)
        assert (found.end_offset, found.hold) == (6, Hold.LAG)
        assert cleanable(world.log, NOW_MS + 200).end_offset == 9

    def test_what_was_clean_before_is_not_held_by_the_lag(self) -> None:
        world = filled(min_compaction_lag_ms=50)
        world.log.cleaned_to = 9
        assert cleanable(world.log, NOW_MS).hold is Hold.ACTIVE

    def test_only_what_is_durable(self) -> None:
        world = filled()
        world.log.roll(world.now_ms)
        found = cleanable(world.log, world.now_ms)
        assert (found.end_offset, found.hold) == (9, Hold.NOT_DURABLE)

    def test_nothing_behind_damage(self) -> None:
        world = filled()
        world.log.segments[1].damage = (Damage("file", 0, 10, 3, 4, "it is broken"),)
        found = cleanable(world.log, world.now_ms)
        assert (found.end_offset, found.hold) == (3, Hold.DAMAGE)


class TestWhen:
    def test_above_the_ratio_of_dirty_bytes(self) -> None:
        world = filled(min_cleanable_dirty_ratio=0.5)
        found = due(world.log, world.now_ms)
        assert found is not None and found.why is Why.DIRTY and found.cleanable.dirty_ratio == 1
        world.log.cleaned_to = 3
        assert due(world.log, world.now_ms) is not None
        world.log.cleaned_to = 6
        assert due(world.log, world.now_ms) is None

    def test_when_a_record_is_older_than_the_largest_lag(self) -> None:
        world = filled(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=500)
        assert due(world.log, NOW_MS + 500) is None
        found = due(world.log, NOW_MS + 501)
        assert found is not None and found.why is Why.OVERDUE
        world.log.cleaned_to = 9
        assert due(world.log, NOW_MS + 501) is None

    def test_a_largest_lag_closes_segments_in_time(self) -> None:
        assert replace(COMPACT, max_compaction_lag_ms=7).segment_ms_max == 7
        assert (
            replace(COMPACT, max_compaction_lag_ms=7, compact_policy=False).segment_ms_max
            == COMPACT.segment_ms
        )

    def test_when_tombstones_may_go(self) -> None:
        world = filled()
        world.log.cleaned_to = 9
        assert due(world.log, NOW_MS, horizon_ms=NOW_MS + 1) is None
        found = due(world.log, NOW_MS + 1, horizon_ms=NOW_MS + 1)
        assert found is not None and found.why is Why.HORIZON

    def test_never_a_topic_that_only_deletes(self) -> None:
        assert due(filled(compact_policy=False).log, NOW_MS, horizon_ms=0) is None

    def test_not_while_segments_change_places(self) -> None:
        world = filled()
        world.log.swap = object()  # type: ignore[assignment]
        assert due(world.log, world.now_ms) is None

    def test_a_note_that_does_not_fit_the_log_means_nothing(self) -> None:
        world = filled()
        for noted, expected in ((0, 0), (4, 4), (10, 10), (11, 0)):
            world.log.cleaned_to = noted
            assert first_dirty_offset(world.log) == expected
        world.log.advance_log_start_offset(6)
        world.log.cleaned_to = 4
        assert first_dirty_offset(world.log) == 6


def test_the_job_names_the_batches_that_producers_are_known_from() -> None:
    world = filled(segments=1)
    for _ in range(7):
        world.put((b"a", b"1"), producer=7)
    world.put((b"b", b"1"), producer=8, transactional=True)
    world.end_transaction(8, commit=True)
    world.seal()
    world.put((b"a", b"1"), producer=7)
    world.settle()
    job = plan(world.log, cleanable(world.log, world.now_ms), Limits())
    assert job.retained == (7, 8, 9, 10, 11), "of five remembered batches the last is not in a sealed segment"
    assert [source.base_offset for source in job.sources] == [0, 3]
    assert [source.base_offset for source in job.behind] == [13]
    assert job.end_offset == 13


class TestGroups:
    def sources(self, *sizes: int, offsets: int = 10) -> list[Weighed]:
        return [
            Weighed(Source(n * offsets, (n + 1) * offsets, size), size // 10, size // 8)
            for n, size in enumerate(sizes)
        ]

    def bases(
        self, segments: list[Weighed], *, segment_bytes: int = 100, index_bytes: int = 1000
    ) -> list[list[int]]:
        groups = group(segments, segment_bytes=segment_bytes, index_bytes=index_bytes)
        return [[source.base_offset for source in each] for each in groups]

    def test_neighbours_that_fit_together(self) -> None:
        assert self.bases(self.sources(40, 60, 1, 99, 100, 30, 30)) == [[0, 10], [20, 30], [40], [50, 60]]

    def test_one_that_is_too_large_stays_alone(self) -> None:
        assert self.bases(self.sources(500, 10, 10)) == [[0], [10, 20]]

    def test_empty_ones_join(self) -> None:
        assert self.bases(self.sources(100, 0, 0, 1)) == [[0, 10, 20], [30]]

    def test_indexes_must_fit_as_well(self) -> None:
        assert self.bases(self.sources(40, 40), index_bytes=9) == [[0], [10]]

    def test_offsets_must_fit_as_well(self) -> None:
        half = MAX_RELATIVE_OFFSET // 2
        assert self.bases(self.sources(1, 1, 1, offsets=half)) == [[0, half], [2 * half]]

    def test_of_nothing_there_is_nothing(self) -> None:
        assert self.bases([]) == []


class TestInterruptions:
    def cleaning(self, world: World) -> Cleaning:
        return Cleaning(world.log, cleanable(world.log, world.now_ms), Limits())

    def test_a_truncation_ends_it_also_if_the_segments_look_the_same(self) -> None:
        world = filled()
        cleaning = self.cleaning(world)
        world.log.truncate_to(9)
        with pytest.raises(CleaningInterrupted, match="truncated"):
            cleaning.check()

    def test_a_change_of_policy_ends_it(self) -> None:
        world = filled()
        cleaning = self.cleaning(world)
        cleaning.check()
        world.log.update_config(replace(COMPACT, compact_policy=False))
        with pytest.raises(CleaningInterrupted, match="not to be compacted"):
            cleaning.check()

    def test_a_log_that_has_moved_ends_it(self) -> None:
        world = filled()
        cleaning = self.cleaning(world)
        world.disk.rename(world.directory, "/data/elsewhere")
        world.log.directory_moved("/data/elsewhere")
        with pytest.raises(CleaningInterrupted, match="not there"):
            cleaning.check()
