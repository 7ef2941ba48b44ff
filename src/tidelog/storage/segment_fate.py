"""Why each segment of a log is still there, and when it will go: for people who wonder where their disk space is, or their records.

Owns the explanation, not the rules: what retention and the cleaner would do is asked of them (`retention`, `cleaner_plan`) or follows from the
same settings. A pure look: nothing is changed. Times of segments may have to be read from their indexes, as for any look-up by time.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.storage.cleaner_plan import NO_HORIZON, Cleanable, Hold, Why, cleanable, due

if TYPE_CHECKING:
    from tidelog.storage.log import Log
    from tidelog.storage.segment import Segment


class Fate(Enum):
    ACTIVE = "active"
    DELETE_DUE = "to be deleted"
    BY_AGE = "kept until its age is reached"
    BY_SIZE = "kept until the log is larger"
    BEHIND_OTHERS = "kept because an older one is"
    NOT_COMMITTED = "above the high watermark"
    UNSTABLE = "above the last stable offset"
    LAG = "too young to be compacted"
    NOT_DURABLE = "not synced yet"
    DAMAGED = "damaged"
    GAP = "next to a gap in the offsets"
    COMPACT_DUE = "to be compacted"
    NOT_DIRTY_ENOUGH = "waits to be compacted"
    COMPACTED = "compacted"
    FOR_EVER = "kept for ever"


_HELD = {
    Hold.UNSTABLE: Fate.UNSTABLE,
    Hold.LAG: Fate.LAG,
    Hold.NOT_DURABLE: Fate.NOT_DURABLE,
    Hold.DAMAGE: Fate.DAMAGED,
    Hold.GAP: Fate.GAP,
}


_FAR_AWAY_MS: Final = 1 << 52
"""Some hundred thousand years: a setting that means for ever."""


class SegmentFate(NamedTuple):
    base_offset: int
    end_offset: int
    size: int
    newest_timestamp: int  # -1: no record has one
    age_ms: int  # since its newest record, or since the file was written
    fate: Fate
    goes_at_ms: int | None  # when the reason ends by itself; None: not by the passing of time
    explanation: str


def segment_fates(log: Log, now_ms: int, *, horizon_ms: int = NO_HORIZON) -> list[SegmentFate]:
    """One for each segment, oldest first."""
    return list(each_fate(log, now_ms, horizon_ms=horizon_ms))


def each_fate(log: Log, now_ms: int, *, horizon_ms: int = NO_HORIZON) -> Iterator[SegmentFate]:
    """One for each segment that the log has at the first step, oldest first. There may be thousands: who walks may rest between steps."""
    config, segments = log.config, list(log.segments)
    found = cleanable(log, now_ms) if config.compact_policy else None
    why = _why_due(log, now_ms, horizon_ms)
    ends = [*(segment.base_offset for segment in segments[1:]), log.log_end_offset]
    excess = log.size_bytes - config.retention_bytes
    before: SegmentFate | None = None
    for number, (segment, end_offset) in enumerate(zip(segments, ends, strict=True)):
        is_active = number + 1 == len(segments)
        verdict = _deletion(log, segment, end_offset, excess, now_ms, before, is_active=is_active)
        if verdict is None or (found is not None and verdict[0] is not Fate.DELETE_DUE):
            compaction = None
            if found is not None:
                compaction = _compaction(log, segment, number, end_offset, found, why, horizon_ms)
            verdict = compaction or verdict or (Fate.FOR_EVER, None, "no policy deletes it")
        if is_active and verdict[0] is not Fate.DELETE_DUE:
            verdict = _active(log, segment)
        excess -= segment.size
        fate, until_ms, explanation = verdict
        if until_ms is not None and until_ms > _FAR_AWAY_MS:
            until_ms = None
        age_ms = max(0, now_ms - segment.largest_timestamp)
        before = SegmentFate(
            segment.base_offset,
            end_offset,
            segment.size,
            segment.max_timestamp,
            age_ms,
            fate,
            until_ms,
            explanation,
        )
        yield before


_Verdict = tuple[Fate, int | None, str]


def _why_due(log: Log, now_ms: int, horizon_ms: int) -> Why | None:
    found = due(log, now_ms, horizon_ms=horizon_ms)
    return None if found is None else found.why


def _active(log: Log, segment: Segment) -> _Verdict:
    config = log.config
    rolls_at = None
    if segment.size and segment.roll_timestamp >= 0:
        rolls_at = segment.roll_timestamp + config.segment_ms_max - segment.jitter_ms
    text = (
        f"records are appended to it; it is closed at {config.segment_bytes} bytes (segment.bytes), or by the first record"
        f" that is {config.segment_ms_max} ms later than its first (segment.ms). Neither retention nor compaction touches it before"
    )
    return Fate.ACTIVE, rolls_at, text


def _deletion(
    log: Log,
    segment: Segment,
    end_offset: int,
    excess: int,
    now_ms: int,
    before: SegmentFate | None,
    *,
    is_active: bool,
) -> _Verdict | None:
    """What retention has to say; None where it has no say."""
    config = log.config
    if end_offset <= log.log_start_offset and not is_active:
        return (
            Fate.DELETE_DUE,
            now_ms,
            "every record of it was deleted (DeleteRecords or an earlier retention)",
        )
    if not config.delete_policy or (config.retention_ms < 0 and config.retention_bytes < 0):
        return None
    if end_offset > log.high_watermark:
        return Fate.NOT_COMMITTED, None, f"it reaches above the high watermark {log.high_watermark}"
    goes_at = segment.largest_timestamp + config.retention_ms + 1 if config.retention_ms >= 0 else None
    by_size = config.retention_bytes >= 0 and excess >= segment.size > 0
    by_age = goes_at is not None and goes_at <= now_ms
    if before is not None and before.fate is not Fate.DELETE_DUE and (by_size or by_age):
        # Whole segments go, oldest first: a younger one waits, whatever it is.
        return Fate.BEHIND_OTHERS, before.goes_at_ms, "its time has come, but segments go oldest first"
    if by_size:
        return (
            Fate.DELETE_DUE,
            now_ms,
            f"the log is larger than {config.retention_bytes} bytes (retention.bytes) without it",
        )
    if by_age and segment.size:
        return (
            Fate.DELETE_DUE,
            now_ms,
            f"its newest record is older than {config.retention_ms} ms (retention.ms)",
        )
    if goes_at is not None:
        return (
            Fate.BY_AGE,
            goes_at,
            f"it goes when its newest record is {config.retention_ms} ms old (retention.ms)",
        )
    return (
        Fate.BY_SIZE,
        None,
        f"it goes when the log is {config.retention_bytes} bytes long without it (retention.bytes)",
    )


def _compaction(
    log: Log,
    segment: Segment,
    number: int,
    end_offset: int,
    found: Cleanable,
    why: Why | None,
    horizon_ms: int,
) -> _Verdict | None:
    config = log.config
    if number >= found.segments:
        if number > found.segments:
            return (
                Fate.NOT_DIRTY_ENOUGH,
                None,
                f"it follows a segment that cannot be compacted yet: {found.hold.value}",
            )
        held = _HELD.get(found.hold)
        if held is None:
            return None
        return held, _held_until(log, segment, held), f"compaction ends before it: {found.hold.value}"
    if why is not None:
        return Fate.COMPACT_DUE, None, f"the next turn of the cleaner takes it: {why.value}"
    if end_offset <= found.first_dirty_offset:
        goes_at = horizon_ms if horizon_ms >= 0 else None
        return (
            Fate.COMPACTED,
            goes_at,
            "it holds the latest values of its keys, and tombstones whose time has not come",
        )
    share, wanted = found.dirty_ratio, config.min_cleanable_dirty_ratio
    text = f"{share:.0%} of what may be compacted is dirty; it is done above {wanted:.0%} (min.cleanable.dirty.ratio)"
    return Fate.NOT_DIRTY_ENOUGH, None, text


def _held_until(log: Log, segment: Segment, held: Fate) -> int | None:
    return segment.largest_timestamp + log.config.min_compaction_lag_ms if held is Fate.LAG else None
