"""The controller's shell: records to the metadata log, to the disk, into the image, and out to whoever acts on it.

One change at a time: a request is decided against the image of that moment, its records are appended and fdatasync'ed,
and only then replayed and answered (D5). A metadata log that cannot be written ends the broker: it must not answer from
a state that would be gone after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Protocol, TypeVar

from tidelog.controller.controller import Controller
from tidelog.controller.delta import MetadataDelta
from tidelog.controller.image import MetadataImage
from tidelog.controller.metadata_log import bootstrap_records, encode_batches, replay_log
from tidelog.controller.metadata_records import AbortTransactionRecord
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.result import ControllerResult
from tidelog.errors import RequestError
from tidelog.records.batch import read_header
from tidelog.storage.disk import DiskError
from tidelog.storage.log import Log
from tidelog.wire.error_codes import ErrorCode

logger = logging.getLogger("tidelog.metadata")

R = TypeVar("R")
READ_BYTES = 4 * 1024 * 1024


class Publisher(Protocol):
    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Make the broker's partitions and settings what the new image says."""
        ...


def read_image(log: Log) -> tuple[MetadataImage, bool]:
    """The image that the metadata log holds, and whether its last writer died within a transaction."""
    image, reader = replay_log(_chunks(log))
    return image, reader.in_transaction


def _chunks(log: Log) -> Iterator[bytes]:
    offset = log.log_start_offset
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
    ) -> None:
        self._log = log
        self.controller = controller
        self._executor = executor
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

    async def submit(self, decide: Callable[[Controller], ControllerResult[R]]) -> R:
        """Decide on a request, make the decision durable and true, and return the answer to send."""
        async with self._turn:
            if self._failed:
                raise RequestError(
                    ErrorCode.KAFKA_STORAGE_ERROR, "the metadata log cannot be written any more"
                )
            result = decide(self.controller)
            if result.records:
                await self._commit(result.records)
        return result.response

    async def _commit(self, records: Sequence[MetadataRecord]) -> None:
        await self._append(records)
        delta = self.controller.replay(records, offset=self._log.log_end_offset - 1, epoch=self._epoch)
        self.image = self.controller.image
        await self._publisher.publish(delta, self.image)

    async def _append(self, records: Sequence[MetadataRecord]) -> None:
        now_ms = self._now_ms()
        log = self._log
        batches = encode_batches(
            records, base_offset=log.log_end_offset, leader_epoch=self._epoch, timestamp_ms=now_ms
        )
        try:
            for batch in batches:
                log.append_as_leader(
                    batch.data, read_header(batch.data), leader_epoch=self._epoch, now_ms=now_ms
                )
            ticket = log.begin_flush()
            if ticket is not None:
                await asyncio.get_running_loop().run_in_executor(self._executor, ticket.run)
                log.finish_flush(ticket)
            log.set_high_watermark(log.log_end_offset)
        except DiskError as error:
            self._failed = True
            self._on_failure(error)
            raise RequestError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log cannot be written: {error}"
            ) from error
