"""A metadata snapshot as bytes: the whole image as records, between a header and a footer that show that it is whole (I15).

Owns Kafka's `.checkpoint` format (docs/formats/metadata-log.md). Never touches a disk. Reading is as strict as reading the log: a snapshot
without its footer, with a CRC that fails or a record that is not known is an error, never half an image; whoever acted on half
an image would take partitions for deleted (I6, M28).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidelog.controller.delta import MetadataDelta
from tidelog.controller.image import EMPTY_IMAGE, MetadataImage
from tidelog.controller.image_records import image_to_records
from tidelog.controller.metadata_log import MetadataLogReader, grouped
from tidelog.controller.metadata_serde import encode_record
from tidelog.errors import CorruptDataError
from tidelog.records.batch import iter_headers
from tidelog.records.builder import BatchBuilder
from tidelog.records.control import ControlType, control_key, control_type
from tidelog.records.record import iter_records
from tidelog.wire.codec import encode
from tidelog.wire.messages.snapshot_footer_record import SnapshotFooterRecord
from tidelog.wire.messages.snapshot_header_record import SnapshotHeaderRecord

BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
BATCH_RECORDS_MAX: Final = 10_000


def encode_snapshot(image: MetadataImage, *, last_timestamp_ms: int, now_ms: int) -> Iterator[bytes]:
    """The snapshot, batch by batch. `last_timestamp_ms` is that of the last batch of the log which it covers."""
    header = encode(SnapshotHeaderRecord(last_contained_log_timestamp=last_timestamp_ms), 0)
    yield _control_batch(ControlType.SNAPSHOT_HEADER, header, 0, image.epoch, now_ms)
    offset = 1
    values = [encode_record(record) for record in image_to_records(image)]
    for group in grouped(values, BATCH_BYTES_MAX, BATCH_RECORDS_MAX):
        builder = BatchBuilder(base_offset=offset, partition_leader_epoch=image.epoch)
        for value in group:
            builder.append(now_ms, None, value)
        yield builder.build()
        offset += len(group)
    footer = encode(SnapshotFooterRecord(), 0)
    yield _control_batch(ControlType.SNAPSHOT_FOOTER, footer, offset, image.epoch, now_ms)


def _control_batch(kind: ControlType, value: bytes, offset: int, epoch: int, now_ms: int) -> bytes:
    builder = BatchBuilder(base_offset=offset, is_control=True, partition_leader_epoch=epoch)
    builder.append(now_ms, control_key(kind), value)
    return builder.build()


def read_snapshot(data: bytes, *, end_offset: int, epoch: int, path: str) -> MetadataImage:
    """The image just before `end_offset` of the log. CorruptDataError, with the path, unless the snapshot is whole and sound."""
    try:
        _check_ends(data)
        reader = MetadataLogReader()
        delta = MetadataDelta(EMPTY_IMAGE)
        for change in reader.read(data):
            delta.replay_all(change.records)
    except (CorruptDataError, ValueError) as error:
        raise CorruptDataError(f"metadata snapshot {path}: {error}") from error
    return delta.apply(offset=end_offset - 1, epoch=epoch)


def _check_ends(data: bytes) -> None:
    batches = list(iter_headers(data))
    kinds = []
    for position, header in (batches[0], batches[-1]) if batches else ():
        records = list(iter_records(data, position, header)) if header.is_control else []
        kinds.append(control_type(records[0]) if records else None)
    if kinds != [ControlType.SNAPSHOT_HEADER, ControlType.SNAPSHOT_FOOTER]:
        raise CorruptDataError("it does not begin with a snapshot header and end with a snapshot footer")
