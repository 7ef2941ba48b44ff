"""A cleaner for histories: copies the batches of some segments into new ones and leaves some out, as compaction does.

Which ones go is the caller's choice. What must be found afterwards is computed here from the books, not read back from the files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidelog.records.batch import NO_LEADER_EPOCH, patched_prefix
from tidelog.storage.log import Log
from tidelog.storage.segment import Segment
from tidelog.storage.segment_swap import empty_batch, new_segment
from tidelog.testing.sim.storage_ledger import Sent, Version, sent


class Cleaned(NamedTuple):
    old: list[Segment]
    new: list[Segment]
    batches: list[Sent]  # of the whole log, once the new segments stand in the old ones' place


def clean(
    log: Log,
    version: Version,
    *,
    old: slice,
    drop: Callable[[Sent], bool],
    split_at: Sequence[int],
    now: int,
    now_ms: int,
) -> Cleaned:
    """New segments begin where the first old one does and at `split_at`."""
    segments = log.segments[old]
    first = segments[0].base_offset
    end = log.segments[log.segments.index(segments[-1]) + 1].base_offset
    batches = [batch for batch in version.batches if batch.stored.base_offset < first]
    new = []
    for base, stop in zip([first, *split_at], [*split_at, end], strict=True):
        kept = [b for b in version.batches if base <= b.stored.base_offset < stop and not drop(b)]
        new.append(_written(log, base, kept, now_ms))
        batches += kept
        reached = kept[-1].stored.last_offset + 1 if kept else base
        if reached < stop:
            batches.append(_filler(log, reached, stop, now))
    batches += [batch for batch in version.batches if batch.stored.base_offset >= end]
    return Cleaned(segments, new, batches)


def _written(log: Log, base: int, batches: Sequence[Sent], now_ms: int) -> Segment:
    segment = new_segment(log, base, now_ms=now_ms)
    for (base_offset, _, leader_epoch, payload), header, _, _ in batches:
        prefix = patched_prefix(base_offset, header.batch_length, leader_epoch)
        segment.append_run(prefix + payload, [header])
    return segment


def _filler(log: Log, first_offset: int, end_offset: int, now: int) -> Sent:
    """What the swap puts where the last records of a segment are gone."""
    known = log.epochs.epoch_for_offset(end_offset - 1)
    epoch = NO_LEADER_EPOCH if known is None else known
    return sent(
        empty_batch(first_offset, end_offset - 1, epoch),
        base_offset=first_offset,
        leader_epoch=epoch,
        begun=now,
    )
