"""A partition of `__consumer_offsets` as the log of a coordinator's shard: records to one batch, and back as the bytes that were written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tidelog.cluster.partitions import PartitionTable
from tidelog.coordinator.group.record_serde import encode_key, encode_value
from tidelog.coordinator.outcome import CoordinatorRecord, Now
from tidelog.errors import CorruptDataError, RequestError
from tidelog.records.builder import BatchBuilder
from tidelog.replication.partition import Partition
from tidelog.storage.disk import Buffer, DiskError
from tidelog.wire.error_codes import ErrorCode

_NEWEST_PRODUCE: Final = 13


class HasPartitions(Protocol):
    """The broker, as far as a journal needs it."""

    @property
    def partitions(self) -> PartitionTable: ...


class PartitionJournal:
    """Implements `tidelog.coordinator.runtime_ports.Journal`."""

    __slots__ = ("_broker", "partition")

    def __init__(self, broker: HasPartitions, partition: Partition) -> None:
        self._broker = broker
        self.partition = partition

    @property
    def start_offset(self) -> int:
        return self.partition.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self.partition.log.log_end_offset

    def append(self, records: Sequence[CoordinatorRecord], now: Now) -> int:
        builder = BatchBuilder()
        try:
            for key, value in records:
                builder.append(now.wall_ms, encode_key(key), None if value is None else encode_value(value))
        except ValueError as error:
            raise RequestError(
                ErrorCode.MESSAGE_TOO_LARGE, f"a record for {self.partition!r} has no form: {error}"
            ) from error
        try:
            return self.partition.append(
                builder.build(), now_ms=now.wall_ms, produce_version=_NEWEST_PRODUCE, from_client=False
            ).last_offset
        except DiskError as error:
            self._broker.partitions.disk_failed(self.partition, error)
            raise RequestError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.partition!r} cannot be written: {error}"
            ) from error
        except RequestError as error:
            if error.code == ErrorCode.KAFKA_STORAGE_ERROR and self.partition.stopped_with is None:
                # The disk is full, not broken: the log is as it was, and goes on when there is room.
                raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
            raise

    def when_committed(self, offset: int, done: Callable[[ErrorCode], None]) -> None:
        self.partition.when_committed(offset, done, patient=True)

    def read(self, offset: int, max_bytes: int) -> Buffer:
        log = self.partition.log
        try:
            found = log.read(offset, max_bytes, end_offset=log.log_end_offset)
            if found.range is None:
                return b""
            try:
                return found.range.read()
            finally:
                found.range.release()
        except DiskError as error:
            self._broker.partitions.disk_failed(self.partition, error)
            raise CorruptDataError(f"{self.partition!r} cannot be read: {error}") from error

    def warm(self) -> None:
        """In a thread: bring the log into memory, so that loading it does not wait for the disk on the loop."""
        for segment in list(self.partition.log.segments):
            try:
                segment.file.warm(segment.size, 0)
            except (DiskError, OSError, ValueError):  # the last one: compaction has closed it meanwhile
                return  # the load meets the same trouble, and says so
