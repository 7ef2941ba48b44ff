"""Which logs are to be compacted, and how much of each: decisions only, from what a log knows in memory.

The part that may be cleaned ends where the first of these begins, always at the start of a segment: the active segment; the segment that holds
the last stable offset, which is never above the high watermark (I31); one with a record younger than `min.compaction.lag.ms`; one that
is not durable; one that is damaged, because what cannot be read cannot be judged (I6); one that a swap could not name. It is
cleaned from the first segment on, however little of it is dirty: tombstones may go only when nothing below them is left.

A log is due when the share of dirty bytes exceeds `min.cleanable.dirty.ratio`, when a dirty record is older than `max.compaction.lag.ms`, or when
the horizon of its last tombstone has passed: each cleaning is then followed by one more at most, and a topic that nobody writes to loses
its tombstones, too. Of several the dirtiest comes first. Rules and names are Kafka's, the last trigger excepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.storage.cleaner_job import CleanJob, Limits, Source
from tidelog.storage.log_config import NEVER
from tidelog.storage.segment import MAX_RELATIVE_OFFSET, Segment

if TYPE_CHECKING:
    from tidelog.storage.log import Log

NO_HORIZON: Final = -1


class Hold(Enum):
    """What begins where the cleanable part ends."""

    ACTIVE = "the active segment"
    UNSTABLE = "the last stable offset"
    LAG = "min.compaction.lag.ms"
    NOT_DURABLE = "not synced yet"
    DAMAGE = "damaged"
    GAP = "a gap in the offsets"


class Why(Enum):
    """Why a log is cleaned now."""

    DIRTY = "dirty enough"
    OVERDUE = "max.compaction.lag.ms"
    HORIZON = "tombstones may go"


class Cleanable(NamedTuple):
    """The first `segments` of a log may be cleaned; from `first_dirty_offset` on they were not yet."""

    segments: int
    first_dirty_offset: int
    end_offset: int
    hold: Hold
    clean_bytes: int
    dirty_bytes: int

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


class Due(NamedTuple):
    cleanable: Cleanable
    why: Why

    @property
    def urgency(self) -> tuple[bool, float]:
        return self.why is Why.OVERDUE, self.cleanable.dirty_ratio


def first_dirty_offset(log: Log) -> int:
    """Where cleaning has not been. A note that speaks of offsets that the log does not have means nothing."""
    if log.log_start_offset <= log.cleaned_to <= log.log_end_offset:
        return log.cleaned_to
    return log.log_start_offset


def cleanable(log: Log, now_ms: int) -> Cleanable:
    """May look up the latest time of some dirty segments (`segment_times`), if the topic has a `min.compaction.lag.ms`."""
    dirty_from = first_dirty_offset(log)
    unsynced = set(map(id, log.unsynced.segments))
    stable_offset = log.last_stable_offset
    count, hold = 0, Hold.ACTIVE
    clean_bytes = dirty_bytes = 0
    end_offset = log.segments[0].base_offset
    for segment, segment_end in sealed(log):
        found = _hold(log, segment, segment_end, unsynced, stable_offset, dirty_from, now_ms)
        if found is not None:
            hold = found
            break
        count += 1
        end_offset = segment_end
        if segment_end <= dirty_from:
            clean_bytes += segment.size
        else:
            dirty_bytes += segment.size
    return Cleanable(count, dirty_from, end_offset, hold, clean_bytes, dirty_bytes)


def sealed(log: Log) -> Iterator[tuple[Segment, int]]:
    """Every sealed segment with its end offset."""
    segments = log.segments
    for number in range(len(segments) - 1):
        yield segments[number], segments[number + 1].base_offset


def _hold(
    log: Log,
    segment: Segment,
    end_offset: int,
    unsynced: set[int],
    stable_offset: int,
    dirty_from: int,
    now_ms: int,
) -> Hold | None:
    if end_offset > stable_offset:
        return Hold.UNSTABLE
    if end_offset > log.recovery_point or id(segment) in unsynced:
        return Hold.NOT_DURABLE
    if segment.damage is not None:
        return Hold.DAMAGE
    if end_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
        return Hold.GAP
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0 and end_offset > dirty_from and segment.largest_timestamp > now_ms - lag_ms:
        return Hold.LAG
    return None


def due(log: Log, now_ms: int, *, horizon_ms: int = NO_HORIZON) -> Due | None:
    """Whether a log should be cleaned now. `horizon_ms` is what its last cleaning said of tombstones that stay."""
    if not log.config.compact_policy or log.swap is not None or len(log.segments) < 2:
        return None
    horizon_passed = 0 <= horizon_ms <= now_ms
    if log.segments[-1].base_offset <= first_dirty_offset(log) and not horizon_passed:
        return None  # nothing was sealed since the last time
    found = cleanable(log, now_ms)
    if not found.segments:
        return None
    if found.dirty_bytes:
        if is_overdue(log, found, now_ms):
            return Due(found, Why.OVERDUE)
        if found.dirty_ratio > log.config.min_cleanable_dirty_ratio:
            return Due(found, Why.DIRTY)
    return Due(found, Why.HORIZON) if horizon_passed else None


def is_overdue(log: Log, found: Cleanable, now_ms: int) -> bool:
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms >= NEVER:
        return False
    oldest = min(
        (
            segment.roll_timestamp
            for segment, end_offset in sealed(log)
            if end_offset > found.first_dirty_offset and segment.roll_timestamp > 0
        ),
        default=NEVER,
    )
    return oldest < now_ms - lag_ms


def plan(log: Log, found: Cleanable, limits: Limits) -> CleanJob:
    """The job for the part of the log that may be cleaned, as the log is at this moment."""
    parts = [*sealed(log), (log.active, log.log_end_offset)]
    end_offset = parts[found.segments - 1][1]
    retained: list[int] = []
    fences: list[tuple[int, int]] = []
    for entry in log.producers:
        # All that are remembered, not the last one only: a retry of any of them must stay known, also without a snapshot (I39).
        retained.extend(batch.last_offset for batch in entry.batches if batch.last_offset < end_offset)
        if not entry.batches:
            fences.append((entry.producer_id, entry.producer_epoch))
    return CleanJob(
        log.name,
        log.directory,
        tuple(_as_source(segment, end) for segment, end in parts[: found.segments]),
        tuple(_as_source(segment, end) for segment, end in parts[found.segments :]),
        log.active.txn_index_missing,
        found.first_dirty_offset,
        log.config,
        tuple(sorted(retained)),
        tuple(sorted(fences)),
        limits,
    )


def _as_source(segment: Segment, end_offset: int) -> Source:
    return Source(segment.base_offset, end_offset, segment.size)


class Weighed(NamedTuple):
    """A segment and the sizes of its files."""

    source: Source
    index_bytes: int
    time_index_bytes: int


def group(segments: Sequence[Weighed], *, segment_bytes: int, index_bytes: int) -> list[list[Source]]:
    """Neighbours that fit into one segment together, so that segments do not get smaller and smaller."""
    groups: list[list[Source]] = []
    log_size = index_size = time_index_size = 0
    for source, index, time_index in segments:
        log_size += source.size
        index_size += index
        time_index_size += time_index
        fits = (
            len(groups) > 0
            and log_size <= segment_bytes
            and index_size <= index_bytes
            and time_index_size <= index_bytes
            and source.end_offset - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET
        )
        if fits:
            groups[-1].append(source)
        else:
            groups.append([source])
            log_size, index_size, time_index_size = source.size, index, time_index
    return groups
