"""The metadata log `__cluster_metadata-0` as batches of records: writing them, and reading them back.

Owns how a change becomes batches and how a log becomes changes again. A change that does not fit into one batch is put
between transaction markers (KIP-868), so that a log torn in its middle shows none of it. Never touches a disk: bytes come
in, bytes go out. Format: docs/formats/metadata-log.md. Keeps I12 and I18 on the reading side: what is unknown, out of
order or fails its CRC is an error, never passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.controller.delta import MetadataDelta
from tidelog.controller.elections import MIN_INSYNC_REPLICAS
from tidelog.controller.features import NEW_CLUSTER_FEATURES
from tidelog.controller.image import EMPTY_IMAGE, MetadataImage, ResourceType
from tidelog.controller.image_records import feature_records
from tidelog.controller.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
)
from tidelog.controller.metadata_serde import MetadataRecord, decode_record, encode_record
from tidelog.errors import CorruptDataError
from tidelog.records.batch import HEADER_SIZE, BatchHeader, Buffer, crc_matches, iter_headers
from tidelog.records.builder import BatchBuilder
from tidelog.records.record import iter_records

METADATA_PARTITION: Final = 0
METADATA_TOPIC_ID: Final = bytes(15) + b"\x01"
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
BATCH_RECORDS_MAX: Final = 10_000
#: Most that the fields around a record's value take within a batch.
_RECORD_OVERHEAD: Final = 40


class EncodedBatch(NamedTuple):
    data: bytes
    base_offset: int
    next_offset: int


class CommittedChange(NamedTuple):
    """Records that became true together; `last_offset` and `leader_epoch` are those of the last batch they came in."""

    records: list[MetadataRecord]
    last_offset: int
    leader_epoch: int


def bootstrap_records(
    *, features: Mapping[str, int] = NEW_CLUSTER_FEATURES, min_insync_replicas: int = 1
) -> list[MetadataRecord]:
    """What a new cluster's log begins with. With ELR, min.insync.replicas must be known to every controller alike."""
    records = feature_records(features)
    records.append(ConfigRecord(ResourceType.BROKER, "", MIN_INSYNC_REPLICAS, str(min_insync_replicas)))
    return records


def encode_batches(
    records: Sequence[MetadataRecord],
    *,
    base_offset: int,
    leader_epoch: int,
    timestamp_ms: int,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    batch_records_max: int = BATCH_RECORDS_MAX,
) -> list[EncodedBatch]:
    """One change as batches to append in this order; more than one only where a limit forces it."""
    values = [encode_record(record) for record in records]
    groups = list(grouped(values, batch_bytes_max, batch_records_max))
    if len(groups) > 1:
        groups = [[encode_record(BeginTransactionRecord())], *groups, [encode_record(EndTransactionRecord())]]
    batches = []
    for group in groups:
        builder = BatchBuilder(base_offset=base_offset, partition_leader_epoch=leader_epoch)
        for value in group:
            builder.append(timestamp_ms, None, value)
        batches.append(EncodedBatch(builder.build(), base_offset, base_offset + len(group)))
        base_offset += len(group)
    return batches


def grouped(values: Sequence[bytes], bytes_max: int, records_max: int) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = HEADER_SIZE
    for value in values:
        taken = len(value) + _RECORD_OVERHEAD
        if group and (size + taken > bytes_max or len(group) >= records_max):
            yield group
            group, size = [], HEADER_SIZE
        group.append(value)
        size += taken
    if group:
        yield group


class MetadataLogReader:
    """Turns batches, in log order, into committed changes. Feed it whole batches; it remembers what is half said."""

    def __init__(self, next_offset: int = 0, leader_epoch: int = -1) -> None:
        """Both as they are behind what is known already: a snapshot, or nothing."""
        self.next_offset = next_offset
        self.leader_epoch = leader_epoch
        self._transaction: list[MetadataRecord] | None = None
        self._began_at = next_offset

    @property
    def settled_offset(self) -> int:
        """Everything below has become true or never will: the beginning of an open transaction, else `next_offset`."""
        return self.next_offset if self._transaction is None else self._began_at

    @property
    def in_transaction(self) -> bool:
        """A transaction is open. If the log ends here its writer died: append an AbortTransactionRecord before all else."""
        return self._transaction is not None

    def read(self, buffer: Buffer) -> Iterator[CommittedChange]:
        end = 0
        for position, header in iter_headers(buffer):
            self._check(buffer, position, header)
            # Leader changes, snapshot headers and footers, voters: the quorum's business, but they take offsets.
            if not header.is_control:
                yield from self._read_batch(buffer, position, header)
            self.next_offset = header.next_offset
            self.leader_epoch = header.partition_leader_epoch
            end = position + header.size
        if end != len(buffer):
            raise CorruptDataError(
                f"metadata log: {len(buffer) - end} bytes after offset {self.next_offset} are no batch"
            )

    def _check(self, buffer: Buffer, position: int, header: BatchHeader) -> None:
        where = f"metadata log, batch at offset {header.base_offset}"
        if not crc_matches(buffer, position, header):
            raise CorruptDataError(f"{where}: its CRC does not match its bytes")
        if header.base_offset != self.next_offset:
            raise CorruptDataError(f"{where}: offset {self.next_offset} was expected there")
        if header.partition_leader_epoch < self.leader_epoch:
            raise CorruptDataError(
                f"{where}: leader epoch {header.partition_leader_epoch} after epoch {self.leader_epoch}"
            )

    def _read_batch(self, buffer: Buffer, position: int, header: BatchHeader) -> Iterator[CommittedChange]:
        """A batch is true as a whole; a transaction inside it, or across several, from its end on."""
        committed: list[MetadataRecord] = []
        for record in iter_records(buffer, position, header):
            if record.value is None:
                raise CorruptDataError(f"metadata log: record at offset {record.offset} has no value")
            try:
                decoded = decode_record(record.value)
            except CorruptDataError as error:
                raise CorruptDataError(f"metadata log, offset {record.offset}: {error}") from error
            if type(decoded) is BeginTransactionRecord:
                self._began_at = header.base_offset
            self._take(decoded, record.offset, committed)
        if committed:
            yield CommittedChange(committed, header.last_offset, header.partition_leader_epoch)

    def _take(self, record: MetadataRecord, offset: int, committed: list[MetadataRecord]) -> None:
        kind = type(record)
        if kind is BeginTransactionRecord:
            if self._transaction is not None:
                raise CorruptDataError(f"metadata log, offset {offset}: a transaction begins inside another")
            self._transaction = []
        elif kind in (EndTransactionRecord, AbortTransactionRecord):
            if self._transaction is None:
                raise CorruptDataError(f"metadata log, offset {offset}: a transaction ends that never began")
            if kind is EndTransactionRecord:
                committed += self._transaction
            self._transaction = None
        elif self._transaction is not None:
            self._transaction.append(record)
        else:
            committed.append(record)


def replay_log(
    chunks: Iterable[Buffer], image: MetadataImage = EMPTY_IMAGE
) -> tuple[MetadataImage, MetadataLogReader]:
    """The image after the whole log: what a node knows when it starts. The reader tells where and how the log ends."""
    reader = MetadataLogReader(image.offset + 1, image.epoch)
    delta = MetadataDelta(image)
    for chunk in chunks:
        for change in reader.read(chunk):
            delta.replay_all(change.records)
    return delta.apply(offset=reader.next_offset - 1, epoch=reader.leader_epoch), reader
