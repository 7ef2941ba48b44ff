"""How far a micro-batch goes: rate limits by offsets and by bytes, shared out among partitions.

Each partition gets a part of the limit in proportion to what waits there, and at least one offset, so that none starves. Offsets stand for rows: markers and
compaction leave gaps, so a batch may hold fewer rows than its limit; more only by the one offset that each partition gets. Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor

from tidelog.client.metadata import TopicPartition

Next = Mapping[TopicPartition, int]


def waiting(start: Next, end: Next) -> dict[TopicPartition, int]:
    """Offsets between the two, of every partition in `end`; new ones are in `start`, too, where they begin."""
    return {tp: max(0, offset - start[tp]) for tp, offset in end.items()}


def limited_by_offsets(start: Next, end: Next, limit: int) -> dict[TopicPartition, int]:
    """The end of a batch of about `limit` offsets: every partition that has some moves on by one at least."""
    behind = waiting(start, end)
    total = sum(behind.values())
    if total <= limit:
        return dict(end)
    return {
        tp: start[tp] + (min(count, max(1, floor(limit * count / total))) if count else 0)
        for tp, count in behind.items()
    }


def limited_by_bytes(
    start: Next, end: Next, limit: int, bytes_per_offset: Mapping[TopicPartition, float]
) -> dict[TopicPartition, int]:
    """The same for bytes, by what an offset of each partition takes on average, as far as that is known."""
    known = [size for size in bytes_per_offset.values() if size > 0]
    usual = sum(known) / len(known) if known else 1.0
    behind = {tp: count * (bytes_per_offset.get(tp) or usual) for tp, count in waiting(start, end).items()}
    total = sum(behind.values())
    if total <= limit:
        return dict(end)
    share = limit / total
    return {
        tp: min(offset, start[tp] + max(1, floor((offset - start[tp]) * share)))
        if offset > start[tp]
        else offset
        for tp, offset in end.items()
    }


class Patience:
    """`minOffsetsPerTrigger` and `maxTriggerDelay`: small batches wait for more, but not for ever. The first one never waits."""

    def __init__(self, offsets_min: int, delay_ms: int) -> None:
        self._offsets_min = offsets_min
        self._delay_ms = delay_ms
        self._last_ms: int | None = None

    def is_over(self, start: Next, end: Next, now_ms: int) -> bool:
        """Whether a batch may begin now; if so, the next one is waited for from here on."""
        count = sum(waiting(start, end).values())
        is_late = self._last_ms is None or now_ms - self._last_ms >= self._delay_ms
        if count < self._offsets_min and not is_late:
            return False
        self._last_ms = now_ms
        return True
