"""When a metadata snapshot is taken, and what may go once it is there: the metadata log stays about as long as what it describes.

A snapshot is due when replaying the log behind the last one would take longer than reading a snapshot, and at Kafka's own limits of bytes and
time. The image is a value, so it is written in a thread while metadata goes on changing. Then the log before the *previous*
snapshot may go: the older of the two is the spare. A snapshot that cannot be written is a reason to try later, not to stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, NamedTuple

from tidelog.controller import snapshot_files
from tidelog.controller.image import MetadataImage
from tidelog.controller.snapshot_files import KEPT, SnapshotId
from tidelog.storage.disk import DiskError
from tidelog.storage.log import Log

logger = logging.getLogger("tidelog.metadata")

RECORDS_MIN: Final = 5000
"""So many records are replayed in a moment, however small the cluster is."""

AGAIN_MS: Final = 60_000
"""After one that did not fit on the disk."""


class SnapshotLimits(NamedTuple):
    bytes_between: int
    interval_ms: int  # 0: none


class MetadataSnapshots:
    def __init__(
        self,
        log: Log,
        executor: Executor,
        taken: Sequence[SnapshotId],
        *,
        limits: SnapshotLimits,
        now_ms: Callable[[], int],
        on_failure: Callable[[DiskError], None],
    ) -> None:
        self._log = log
        self._executor = executor
        self._taken = list(taken)
        self._limits = limits
        self._now_ms = now_ms
        self._on_failure = on_failure
        self._last_ms = now_ms()
        self._bytes = 0
        self._not_before_ms = 0
        self._writing: asyncio.Task[None] | None = None

    def appended(self, size: int) -> None:
        self._bytes += size

    def consider(self, image: MetadataImage) -> None:
        """After a change that is durable and in the image, before the next one."""
        if self._writing is not None or not self._is_due(image):
            return
        now_ms = self._now_ms()
        try:
            # The log begins a segment where the snapshot ends, so that what is before it can go as a whole.
            self._log.roll(now_ms)
        except DiskError as error:
            self._failed(error, now_ms)
            return
        self._writing = asyncio.get_running_loop().create_task(self._take(image, now_ms))

    async def finish(self) -> None:
        """Wait for the one under way."""
        if self._writing is not None:
            await self._writing

    def _is_due(self, image: MetadataImage) -> bool:
        records = image.offset + 1 - (self._taken[-1].end_offset if self._taken else 0)
        if records <= 0 or self._now_ms() < self._not_before_ms:
            return False
        described = image.partition_count + len(image.topics_by_name) + len(image.configs)
        interval_ms = self._limits.interval_ms
        return (
            records >= max(RECORDS_MIN, described)
            or self._bytes >= self._limits.bytes_between
            or 0 < interval_ms <= self._now_ms() - self._last_ms
        )

    async def _take(self, image: MetadataImage, now_ms: int) -> None:
        log = self._log
        try:
            write = partial(
                snapshot_files.write,
                log.disk,
                log.directory,
                image,
                last_timestamp_ms=max(0, log.segments[-2].max_timestamp) if len(log.segments) > 1 else now_ms,
                now_ms=now_ms,
            )
            taken = await asyncio.get_running_loop().run_in_executor(self._executor, write)
            self._taken.append(taken)
            self._bytes, self._last_ms = 0, now_ms
            logger.info(
                "metadata snapshot at offset %d: %d partitions", taken.end_offset, image.partition_count
            )
            await self._let_go()
        except DiskError as error:
            self._failed(error, now_ms)
        finally:
            self._writing = None

    def _failed(self, error: DiskError, now_ms: int) -> None:
        if not error.out_of_space:
            self._on_failure(error)
            return
        logger.warning("the metadata snapshot is put off: %s", error)
        self._bytes, self._last_ms, self._not_before_ms = 0, now_ms, now_ms + AGAIN_MS

    async def _let_go(self) -> None:
        """Records below the older of the snapshots that are kept, and snapshots older than that."""
        gone, self._taken = self._taken[:-KEPT], self._taken[-KEPT:]
        if len(self._taken) == KEPT:
            log = self._log
            log.advance_log_start_offset(self._taken[0].end_offset)
            log.apply_retention(self._now_ms())
        if gone:
            remove = partial(snapshot_files.remove, self._log.disk, self._log.directory, gone)
            await asyncio.get_running_loop().run_in_executor(self._executor, remove)
