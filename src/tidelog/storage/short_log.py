"""Opens, after a clean stop, a log of a few batches in one segment: one small read tells everything.

Such a log was closed without indexes, epochs or producer snapshot (`Log.is_short`). They are what its batches say, and reading those
is no more work than reading files derived from them. A broker with ten thousand partitions has thousands of such logs.
"""

from __future__ import annotations

from tidelog.errors import CorruptDataError
from tidelog.records.batch import iter_headers
from tidelog.storage.epoch_cache import LeaderEpochCache
from tidelog.storage.producer_state import ProducerState
from tidelog.storage.replay import apply_stored
from tidelog.storage.segment import Segment


def load(segment: Segment) -> tuple[int, LeaderEpochCache, ProducerState]:
    """(log end offset, epochs, producers). CorruptDataError when the file does not hold whole batches from its start to its end; the segment is
    then as it was, for recovery to read all of it.
    """
    size = segment.size
    try:
        return _load(segment, size)
    except CorruptDataError:
        segment.size = size
        raise


def _load(segment: Segment, size: int) -> tuple[int, LeaderEpochCache, ProducerState]:
    epochs, producers = LeaderEpochCache(), ProducerState()
    next_offset, end = segment.base_offset, 0
    aborted = []
    segment.reset_indexes()
    data = segment.file.read_at(size, 0)
    for position, header in iter_headers(data):
        if header.base_offset < next_offset:
            raise CorruptDataError(
                f"{segment.file.path}: offset {header.base_offset} comes after {next_offset - 1}"
            )
        segment.note_batch(position, header)
        transaction = apply_stored(producers, segment, position, header)
        if transaction is not None:
            aborted.append(transaction)
        epoch = header.partition_leader_epoch
        latest = -1 if epochs.latest_epoch is None else epochs.latest_epoch
        if epoch > latest:
            epochs.assign(epoch, header.base_offset)
        elif 0 <= epoch < latest:
            raise CorruptDataError(f"{segment.file.path}: leader epoch {epoch} comes after {latest}")
        next_offset, end = header.next_offset, position + header.size
    if end != size:
        raise CorruptDataError(f"{segment.file.path}: no batch stands at position {end}")
    segment.found_aborted(aborted)
    producers.end_offset = next_offset
    epochs.dirty = False
    return next_offset, epochs, producers
