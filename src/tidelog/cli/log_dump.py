"""What a file of the log holds, row by row. Reads with storage's own readers, so a dump shows what a broker would see."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from tidelog.cli.boundary import CommandError
from tidelog.cli.output import bytes_field, topic_id_text
from tidelog.errors import CorruptDataError
from tidelog.records.compression import Codec
from tidelog.records.control import ControlType, control_type
from tidelog.records.record import Record, iter_records
from tidelog.storage import checkpoints, files
from tidelog.storage.batch_scan import Batch, scan_batches
from tidelog.storage.disk import read_file
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.posix_disk import PosixDisk
from tidelog.storage.producer_snapshot import decode_snapshot
from tidelog.storage.time_index import TimeIndex
from tidelog.storage.txn_index import TxnIndex

Row: TypeAlias = dict[str, Any]
NO_LIMIT = 1 << 31


def dumpable_files(path: str) -> list[str]:
    """The file itself, or every file of a directory that can be dumped."""
    if not os.path.isdir(path):
        return [path]
    found = [
        files.join(path.rstrip("/"), name) for name in sorted(os.listdir(path)) if _reader(name) is not None
    ]
    if not found:
        raise CommandError(f"{path} holds nothing to dump; give a partition's directory, or files")
    return found


def dump_file(path: str, *, records: bool = False) -> Iterator[Row]:
    """CommandError for a file of another kind, CorruptDataError where it stops making sense."""
    name = files.base_name(path)
    is_segment = files.parse_segment_name(name) is not None and name.endswith(
        (files.LOG, files.LOG + files.DELETED)
    )
    if is_segment or files.parse_metadata_snapshot(name) is not None:
        return dump_segment(path, records=records)
    reader = _reader(name)
    if reader is None:
        raise CommandError(f"{path}: its name says neither segment, index, snapshot nor checkpoint")
    return reader(path)


def dump_segment(path: str, *, records: bool) -> Iterator[Row]:
    file = PosixDisk(read_only=True).open(path)
    try:
        for batch in scan_batches(file, 0, file.size()):
            yield _batch_row(batch)
            if records:
                for record in iter_records(batch.buffer, batch.offset, batch.header):
                    yield _record_row(batch, record)
    finally:
        file.close()


def _batch_row(batch: Batch) -> Row:
    header = batch.header
    row: Row = {
        "type": "batch",
        "position": batch.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "size": header.size,
        "leader_epoch": header.partition_leader_epoch,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "append" if header.timestamp_type else "create",
        "codec": Codec(header.codec).name.lower() if header.codec in set(Codec) else header.codec,
        "crc": "ok" if batch.crc_matches() else "bad",
    }
    if header.has_producer_id:
        row |= {
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "last_sequence": header.last_sequence,
        }
    flags = {"transactional": header.is_transactional, "control": header.is_control}
    return row | {name: True for name, is_set in flags.items() if is_set}


def _record_row(batch: Batch, record: Record) -> Row:
    row: Row = {"type": "record", "offset": record.offset, "timestamp": record.timestamp}
    if batch.header.is_control:
        kind = control_type(record)
        return row | {"control": ControlType(kind).name if kind in set(ControlType) else kind}
    row |= {**bytes_field("key", record.key), **bytes_field("value", record.value)}
    if record.headers:
        row["headers"] = [{"name": name, **bytes_field("value", value)} for name, value in record.headers]
    return row


def _offset_index(path: str) -> Iterator[Row]:
    file = PosixDisk(read_only=True).open(path)
    try:
        index = OffsetIndex(file, _base_offset(path), NO_LIMIT)
        for offset, position in index:
            yield {"offset": offset, "position": position}
        index.check(deep=True)
    finally:
        file.close()


def _time_index(path: str) -> Iterator[Row]:
    file = PosixDisk(read_only=True).open(path)
    try:
        index = TimeIndex(file, _base_offset(path), NO_LIMIT)
        for timestamp, offset in index:
            yield {"timestamp": timestamp, "offset": offset}
        index.check(deep=True)
    finally:
        file.close()


def _txn_index(path: str) -> Iterator[Row]:
    index = TxnIndex(PosixDisk(read_only=True), path, _base_offset(path))
    try:
        for aborted in index:
            yield aborted._asdict()
        index.check()
    finally:
        index.close()


def _snapshot(path: str) -> Iterator[Row]:
    for entry in decode_snapshot(_content(path), path):
        yield {
            "producer_id": entry.producer_id,
            "producer_epoch": entry.producer_epoch,
            "last_sequence": entry.last_sequence,
            "last_offset": entry.last_offset,
            "last_timestamp": entry.last_timestamp,
            "coordinator_epoch": entry.coordinator_epoch,
            "transaction_first_offset": entry.transaction_first_offset,
        }


def _offsets(path: str) -> Iterator[Row]:
    for (topic, partition), offset in checkpoints.decode_offsets(_content(path), path).items():
        yield {"topic": topic, "partition": partition, "offset": offset}


def _epochs(path: str) -> Iterator[Row]:
    for epoch, start_offset in checkpoints.decode_epochs(_content(path), path):
        yield {"epoch": epoch, "start_offset": start_offset}


def _partition_metadata(path: str) -> Iterator[Row]:
    yield {"topic_id": topic_id_text(checkpoints.decode_partition_metadata(_content(path), path))}


def _meta_properties(path: str) -> Iterator[Row]:
    meta = checkpoints.decode_meta_properties(_content(path), path)
    directory_id = None if meta.directory_id is None else topic_id_text(meta.directory_id)
    yield {"cluster_id": meta.cluster_id, "node_id": meta.node_id, "directory_id": directory_id}


def _clean_shutdown(path: str) -> Iterator[Row]:
    yield {"broker_epoch": checkpoints.decode_clean_shutdown(_content(path), path)}


def _segment_rows(path: str) -> Iterator[Row]:
    return dump_segment(path, records=False)


_BY_KIND: dict[str, Callable[[str], Iterator[Row]]] = {
    files.LOG: _segment_rows,
    files.INDEX: _offset_index,
    files.TIME_INDEX: _time_index,
    files.TXN_INDEX: _txn_index,
    files.SNAPSHOT: _snapshot,
}
BY_NAME: dict[str, Callable[[str], Iterator[Row]]] = {
    files.LEADER_EPOCH_CHECKPOINT: _epochs,
    files.PARTITION_METADATA: _partition_metadata,
    files.META_PROPERTIES: _meta_properties,
    files.CLEAN_SHUTDOWN: _clean_shutdown,
    files.RECOVERY_POINT_CHECKPOINT: _offsets,
    files.LOG_START_OFFSET_CHECKPOINT: _offsets,
    files.HIGH_WATERMARK_CHECKPOINT: _offsets,
    files.CLEANER_OFFSET_CHECKPOINT: _offsets,
}


def _reader(name: str) -> Callable[[str], Iterator[Row]] | None:
    if files.parse_metadata_snapshot(name) is not None:
        return _BY_KIND[files.LOG]  # batches, as in a segment
    segment = files.parse_segment_name(name)
    return BY_NAME.get(name) if segment is None else _BY_KIND[segment.kind]


def _base_offset(path: str) -> int:
    segment = files.parse_segment_name(files.base_name(path))
    if segment is None:
        raise CorruptDataError(f"{path} has no base offset in its name")
    return segment.base_offset


def _content(path: str) -> bytes:
    return read_file(PosixDisk(read_only=True), path)
