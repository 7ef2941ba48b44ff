"""Derives again what a log knows of its producers and transactions, from its batches.

Owns the way from batches to `ProducerState` and to the transaction index, which appending, recovery and truncation share, so that live
state and replayed state cannot differ (I4, I39). It reads headers, and whole batches only where they are control batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tidelog.errors import CorruptDataError
from tidelog.records.batch import BatchHeader, Buffer
from tidelog.records.control import read_end_transaction_marker
from tidelog.storage import files
from tidelog.storage.batch_scan import SCAN_CHUNK_BYTES, find_valid_batch, read_batch, scan_headers
from tidelog.storage.disk import Disk, read_file
from tidelog.storage.producer_snapshot import decode_snapshot
from tidelog.storage.producer_state import ProducerState
from tidelog.storage.segment import MAX_RELATIVE_OFFSET, Segment
from tidelog.storage.txn_index import AbortedTransaction

if TYPE_CHECKING:
    from tidelog.storage.log import Log


def apply_marker(
    producers: ProducerState, batch: Buffer, position: int, header: BatchHeader, offset: int
) -> AbortedTransaction | None:
    """A control batch of a producer is in the log at `offset`. What belongs into the transaction index, if anything."""
    if not header.record_count:
        return None  # emptied by Kafka's cleaner: the transaction is gone altogether
    marker = read_end_transaction_marker(batch, position, header)
    if marker is None:
        return None
    completed = producers.append_marker(
        header.producer_id,
        producer_epoch=header.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        aborted=not marker.is_commit,
        offset=offset,
        timestamp=header.max_timestamp,
    )
    if completed is None or not completed.aborted:
        return None
    return AbortedTransaction(
        completed.producer_id,
        completed.first_offset,
        completed.last_offset,
        producers.last_stable_offset_after(completed),
    )


def apply_stored(
    producers: ProducerState, segment: Segment, position: int, header: BatchHeader
) -> AbortedTransaction | None:
    """The same for any batch that stands in a segment."""
    if header.producer_id < 0:
        return None
    if not header.is_control:
        producers.append(header, header.base_offset, header.last_offset)
        return None
    batch = read_batch(segment.file, position, header)
    return apply_marker(producers, batch.buffer, 0, header, header.base_offset)


def stored_batches(
    segments: Sequence[Segment], start_offset: int, end_offset: int
) -> Iterator[tuple[Segment, int, BatchHeader]]:
    """Every batch with offsets in [start, end), by its header. Damaged stretches are stepped over: recovery has reported them."""
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
        if following <= start_offset:
            continue
        if segment.base_offset >= end_offset:
            return
        position = segment.estimate_position(start_offset)
        while position < segment.size:
            try:
                for at, header in scan_headers(
                    segment.file, position, segment.size, chunk_bytes=SCAN_CHUNK_BYTES
                ):
                    position = at
                    if header.base_offset >= end_offset:
                        return
                    if header.last_offset >= start_offset:
                        yield segment, at, header
                break
            except CorruptDataError:
                found = find_valid_batch(
                    segment.file,
                    position + 1,
                    segment.size,
                    first_offset=segment.base_offset,
                    last_offset=segment.base_offset + MAX_RELATIVE_OFFSET,
                )
                if found is None:
                    break
                position = found


def snapshot_offsets(disk: Disk, directory: str) -> list[int]:
    """Offsets of the producer snapshots in a partition's directory, newest first."""
    return snapshots_in(disk.list_dir(directory))


def snapshots_in(names: Sequence[str]) -> list[int]:
    """The same of a listing."""
    parsed = [files.parse_segment_name(name) for name in names if name.endswith(files.SNAPSHOT)]
    return sorted(
        (file.base_offset for file in parsed if file and file.kind == files.SNAPSHOT and not file.suffix),
        reverse=True,
    )


def load_producers(
    disk: Disk, directory: str, *, at_most: int, snapshots: Sequence[int] | None = None
) -> ProducerState:
    """The state of the newest sound snapshot at or below an offset; empty, at offset 0, if there is none. `snapshots`, newest first,
    spares a look at the directory.
    """
    producers = ProducerState()
    for offset in snapshot_offsets(disk, directory) if snapshots is None else snapshots:
        if offset > at_most:
            continue
        path = files.snapshot_path(directory, offset)
        try:
            producers.reload(decode_snapshot(read_file(disk, path), path), offset)
        except (CorruptDataError, FileNotFoundError):
            continue
        break
    return producers


def producers_at(
    disk: Disk,
    directory: str,
    segments: Sequence[Segment],
    end_offset: int,
    *,
    snapshots: Sequence[int] | None = None,
) -> ProducerState:
    """The producer state just before `end_offset`: a snapshot, and what was appended since."""
    producers = load_producers(disk, directory, at_most=end_offset, snapshots=snapshots)
    if producers.end_offset < end_offset:
        for segment, position, header in stored_batches(segments, producers.end_offset, end_offset):
            apply_stored(producers, segment, position, header)
        producers.end_offset = end_offset
    return producers


def aborted_transactions(log: Log, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
    if start_offset >= log.no_aborts_from:
        return []
    found: list[AbortedTransaction] = []
    no_aborts_from = start_offset
    for segment in log.segments[log.segment_number(start_offset) :]:
        if segment.txn_index_missing:
            rebuild_txn_index(log, segment)
        index = segment.txn_index
        aborted, complete = index.collect(start_offset, end_offset)
        found.extend(aborted)
        if complete:
            return found
        if index.entries:
            no_aborts_from = max(no_aborts_from, index.last_offset + 1)
    log.no_aborts_from = min(log.no_aborts_from, no_aborts_from)
    return found


def rebuild_txn_index(log: Log, segment: Segment) -> None:
    """Replay from the snapshot before the segment, so that transactions that began earlier are known."""
    producers = producers_at(log.disk, log.directory, log.segments, segment.base_offset)
    index = segment.replace_txn_index()
    number = log.segment_number(segment.base_offset)
    end = log.segments[number + 1].base_offset if number + 1 < len(log.segments) else log.log_end_offset
    for _, position, header in stored_batches([segment], segment.base_offset, end):
        aborted = apply_stored(producers, segment, position, header)
        if aborted is not None:
            index.append(aborted)
    index.sync()
