"""The controller's shell: records to the metadata log, to the disk, into the image, and out to whoever acts on it.

One change at a time: a request is decided against the image of that moment, its records are appended and fdatasync'ed,
and only then replayed and answered (D5). A metadata log that fails ends the broker: it must not answer from a state that
would be gone after a restart. A disk that is merely full has taken nothing: the change is refused, and the broker goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Protocol, TypeVar

from tidelog.broker.metadata_snapshots import MetadataSnapshots, SnapshotLimits
from tidelog.controller import snapshot_files
from tidelog.controller.controller import Controller
from tidelog.controller.delta import MetadataDelta
from tidelog.controller.image import MetadataImage
from tidelog.controller.metadata_log import bootstrap_records, encode_batches
from tidelog.controller.metadata_records import AbortTransactionRecord
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.result import ControllerResult
from tidelog.controller.snapshot_files import LoadedMetadata, SnapshotId
from tidelog.errors import RequestError
from tidelog.records.batch import read_header
from tidelog.storage.disk import DiskError
from tidelog.storage.log import Log
from tidelog.wire.error_codes import ErrorCode

logger = logging.getLogger("tidelog.metadata")

R = TypeVar("R")
LARGE_CHANGE_RECORDS = 500
"""A change of more records than this is encoded and replayed in a thread."""
LARGE_REQUEST_ENTRIES = 200
"""A request about more topics or resources than this is decided in a thread: it may take a second and more."""
READ_BYTES = 4 * 1024 * 1024


class Publisher(Protocol):
    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Make the broker's partitions and settings what the new image says."""
        ...


def read_metadata(log: Log) -> LoadedMetadata:
    """What the metadata log and its snapshots hold. CorruptDataError when that cannot be said for sure."""
    return snapshot_files.load(
        log.disk,
        log.directory,
        log_start=log.log_start_offset,
        log_end=log.log_end_offset,
        read_from=partial(_chunks, log),
    )


def _chunks(log: Log, offset: int) -> Iterator[bytes]:
    while offset < log.log_end_offset:
        found = log.read(offset, READ_BYTES, end_offset=log.log_end_offset)
        if found.range is None or found.next_offset is None:
            raise AssertionError(f"the metadata log cannot be read from offset {offset} on")
        data = found.range.read()
        found.range.release()
        yield data
        offset = found.next_offset


class MetadataService:
    """Single writer of the metadata log. `image` is what is durable: all that clients are told comes from it."""

    def __init__(
        self,
        log: Log,
        controller: Controller,
        executor: Executor,
        *,
        publisher: Publisher,
        now_ms: Callable[[], int],
        on_failure: Callable[[DiskError], None],
        snapshots: Sequence[SnapshotId] = (),
        snapshot_limits: SnapshotLimits,
    ) -> None:
        self._log = log
        self.controller = controller
        self._executor = executor
        self._snapshots = MetadataSnapshots(
            log, executor, snapshots, limits=snapshot_limits, now_ms=now_ms, on_failure=self._fail
        )
        self._publisher = publisher
        self._now_ms = now_ms
        self._on_failure = on_failure
        self._turn = asyncio.Lock()
        self._failed = False
        # Each run of the node is a leadership of its own, as in a quorum of one.
        self._epoch = controller.image.epoch + 1
        self.image = controller.image

    @property
    def next_offset(self) -> int:
        return self._log.log_end_offset

    async def begin(self, *, torn_transaction: bool, min_insync_replicas: int) -> None:
        """What the log must hold before anything else: an end for what its last writer left open, or a beginning."""
        async with self._turn:
            if torn_transaction:
                await self._append([AbortTransactionRecord(reason="the controller stopped within it")])
            if not self.image.features:
                await self._commit(bootstrap_records(min_insync_replicas=min_insync_replicas))

    async def submit(self, decide: Callable[[Controller], ControllerResult[R]], *, entries: int = 1) -> R:
        """Decide on a request about so many `entries`, make the decision durable and true, and return the answer to send."""
        async with self._turn:
            if self._failed:
                raise RequestError(
                    ErrorCode.KAFKA_STORAGE_ERROR, "the metadata log cannot be written any more"
                )
            if entries > LARGE_REQUEST_ENTRIES:
                # Decisions change nothing and read values that never change; the lock lets one pass at a time.
                loop = asyncio.get_running_loop()
                result = await loop.run_in_executor(self._executor, decide, self.controller)
            else:
                result = decide(self.controller)
            if result.records:
                try:
                    await self._commit(result.records)
                except RequestError as error:
                    if not _refuse_each(result.response, error):
                        raise
        return result.response

    async def finish_snapshot(self) -> None:
        """Before the log is closed."""
        await self._snapshots.finish()

    async def _commit(self, records: Sequence[MetadataRecord]) -> None:
        await self._append(records)
        replay = partial(
            self.controller.replay, records, offset=self._log.log_end_offset - 1, epoch=self._epoch
        )
        delta = await self._in_turn(len(records), replay)
        self.image = self.controller.image
        self._snapshots.consider(self.image)
        await self._publisher.publish(delta, self.image)

    async def _in_turn(self, records: int, work: Callable[[], R]) -> R:
        """Work on so many records: in a thread if they are many, since it takes some microseconds for each."""
        if records <= LARGE_CHANGE_RECORDS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def _append(self, records: Sequence[MetadataRecord]) -> None:
        now_ms = self._now_ms()
        log = self._log
        before = log.log_end_offset
        encode = partial(
            encode_batches, records, base_offset=before, leader_epoch=self._epoch, timestamp_ms=now_ms
        )
        batches = await self._in_turn(len(records), encode)
        try:
            for batch in batches:
                self._snapshots.appended(len(batch.data))
                log.append_as_leader(
                    batch.data, read_header(batch.data), leader_epoch=self._epoch, now_ms=now_ms
                )
            ticket = log.begin_flush()
            if ticket is not None:
                await asyncio.get_running_loop().run_in_executor(self._executor, ticket.run)
                log.finish_flush(ticket)
            log.set_high_watermark(log.log_end_offset)
        except RequestError as error:  # the disk is full
            if log.log_end_offset > before and isinstance(error.__cause__, DiskError):
                self._fail(
                    error.__cause__
                )  # a part of the change is in the log, and only a restart cuts it off
            raise
        except DiskError as error:
            self._fail(error)
            raise RequestError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log cannot be written: {error}"
            ) from error

    def _fail(self, error: DiskError) -> None:
        self._failed = True
        self._on_failure(error)


def _refuse_each(response: object, error: RequestError) -> bool:
    """Put the error of a change that was not made into the answer, where that has one result per thing that was to be changed."""
    for name in ("topics", "responses", "results"):
        for result in getattr(response, name, ()):
            if not result.error_code:
                result.error_code, result.error_message = error.code, error.message
        if hasattr(response, name):
            return True
    return False
