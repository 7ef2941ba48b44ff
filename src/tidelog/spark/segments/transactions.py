"""What readers of committed records may see: up to the last stable offset, without the records of aborted transactions.

Derived from files as a broker derives it at start: the newest producer snapshot says which transactions were open there, batches behind it are walked by their headers, and markers are read. Aborted
transactions whose marker stands below that snapshot are in the `.txnindex` files. A snapshot or an index that is missing or broken makes for a longer walk, not for a wrong answer. The markers themselves are believed
only with their CRC.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidelog.errors import CorruptDataError
from tidelog.records.batch import BatchHeader
from tidelog.spark.segments.errors import DamagedSegmentError
from tidelog.spark.segments.stored import StoredLog, StoredSegment
from tidelog.storage import files
from tidelog.storage.batch_scan import read_batch
from tidelog.storage.producer_state import ProducerState
from tidelog.storage.replay import apply_marker, load_producers, snapshots_in
from tidelog.storage.txn_index import AbortedTransaction, TxnIndex


class Aborted(NamedTuple):
    """A transaction of this producer in [first_offset, last_offset], the latter its marker's, was aborted."""

    producer_id: int
    first_offset: int
    last_offset: int


class Stability(NamedTuple):
    last_stable_offset: int
    aborted: tuple[Aborted, ...]
    """With markers below the high watermark, in the order of their markers."""
    walked_from: int
    """Batches from here on were looked at; what is older is believed as snapshot and indexes have it."""


def stability(
    log: StoredLog,
    *,
    log_start_offset: int,
    high_watermark: int,
    durable_end: int | None = None,
    skips_damage: bool = False,
) -> Stability:
    """`durable_end`: snapshots and indexes behind it may be torn, where a broker did not stop in order."""
    at_most = high_watermark if durable_end is None else min(high_watermark, durable_end)
    producers = load_producers(
        log.disk, log.directory, at_most=at_most, snapshots=snapshots_in(tuple(log.names))
    )
    broken = _first_without_index(log, log_start_offset, producers.end_offset)
    if broken is not None:
        producers = load_producers(
            log.disk, log.directory, at_most=broken, snapshots=snapshots_in(tuple(log.names))
        )
    walk_start = max(producers.end_offset, log.first_offset)
    aborted = _indexed(log, log_start_offset, walk_start)
    for segment, position, header in log.headers(walk_start, high_watermark, skips_damage=skips_damage):
        found = _apply(producers, segment, position, header, skips_damage=skips_damage)
        if found is not None and found.last_offset >= log_start_offset:
            aborted.append(Aborted(*found[:3]))
    undecided = producers.first_undecided_offset
    stable = high_watermark if undecided is None else min(undecided, high_watermark)
    return Stability(max(stable, log_start_offset), tuple(aborted), walk_start)


def _apply(
    producers: ProducerState,
    segment: StoredSegment,
    position: int,
    header: BatchHeader,
    *,
    skips_damage: bool,
) -> AbortedTransaction | None:
    if header.producer_id < 0:
        return None
    if not header.is_control:
        producers.append(header, header.base_offset, header.last_offset)
        return None
    try:
        batch = read_batch(segment.file, position, header)
        if not batch.crc_matches():
            raise CorruptDataError("a marker of a transaction fails its CRC")
        return apply_marker(producers, batch.buffer, 0, header, header.base_offset)
    except CorruptDataError as error:
        if skips_damage:  # the transaction stays open: what is held back is safe
            return None
        raise DamagedSegmentError(segment.harm_from(position, header.base_offset, str(error))) from error


def _first_without_index(log: StoredLog, start_offset: int, end_offset: int) -> int | None:
    """Base offset of the oldest segment below `end_offset` whose `.txnindex` must be there and is not, or is broken.

    Tidelog makes an empty one for each segment, Kafka makes none before a transaction is aborted: only where some are empty is a missing one known to be missing.
    """
    of_tidelog = None
    for segment in log.between(start_offset, end_offset):
        index = TxnIndex(
            log.disk,
            files.segment_path(log.directory, segment.base_offset, files.TXN_INDEX),
            segment.base_offset,
        )
        try:
            if index.file is not None:
                index.check()
                continue
        except CorruptDataError:
            return segment.base_offset
        finally:
            index.close()
        if of_tidelog is None:
            of_tidelog = _has_empty_index(log)
        if of_tidelog:
            return segment.base_offset
    return None


def _has_empty_index(log: StoredLog) -> bool:
    paths = (files.segment_path(log.directory, each.base_offset, files.TXN_INDEX) for each in log.segments)
    return any(log.disk.exists(path) and log.disk.file_size(path) == 0 for path in paths)


def _indexed(log: StoredLog, start_offset: int, end_offset: int) -> list[Aborted]:
    """Transactions aborted by markers in [start, end), as the indexes have them."""
    found: list[Aborted] = []
    for segment in log.between(start_offset, end_offset):
        index = TxnIndex(
            log.disk,
            files.segment_path(log.directory, segment.base_offset, files.TXN_INDEX),
            segment.base_offset,
        )
        try:
            found += [Aborted(*each[:3]) for each in index if start_offset <= each.last_offset < end_offset]
        finally:
            index.close()
    return found


def overlapping(aborted: Iterable[Aborted], start_offset: int, end_offset: int) -> tuple[Aborted, ...]:
    return tuple(
        each for each in aborted if each.last_offset >= start_offset and each.first_offset < end_offset
    )
