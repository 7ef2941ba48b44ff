"""When a metadata snapshot is taken: the metadata log stays about as long as what it describes.

A snapshot is due when replaying the log behind the last one would take longer than reading a snapshot, and at Kafka's own limits of bytes and time. The image is a value, so it is
written in a thread while metadata goes on changing; then the quorum may let go of what the older of two snapshots covers. One that cannot be written because the disk is full is
a reason to try later, not to stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from tidelog.controller import snapshot_files
from tidelog.controller.image import MetadataImage
from tidelog.ports import Clock, Offload
from tidelog.quorum.driver import Quorum
from tidelog.quorum.values import SnapshotId
from tidelog.storage.disk import DiskError

logger = logging.getLogger("tidelog.metadata")

RECORDS_MIN: Final = 5000
"""So many records are replayed in a moment, however small the cluster is."""
AGAIN_MS: Final = 60_000
"""After one that did not fit on the disk."""


class SnapshotLimits(NamedTuple):
    bytes_between: int = 20 << 20
    interval_ms: int = 0  # 0: none


class MetadataSnapshots:
    def __init__(
        self,
        quorum: Quorum,
        *,
        limits: SnapshotLimits,
        clock: Clock,
        offload: Offload,
        failed: Callable[[Exception], None],
    ) -> None:
        self._quorum = quorum
        self._limits = limits
        self._clock = clock
        self._offload = offload
        self._failed = failed
        latest = quorum.log.latest_snapshot
        self._last_offset = 0 if latest is None else latest.end_offset
        self._last_size = quorum.log.log.size_bytes
        self._last_ms = clock.wall_ms()
        self._not_before_ms = 0
        self._is_writing = False
        self._finished: list[Callable[[], None]] = []

    def consider(self, image: MetadataImage) -> None:
        """The image has changed."""
        if self._is_writing or not self._is_due(image):
            return
        self._is_writing = True
        log, now_ms = self._quorum.log.log, self._clock.wall_ms()
        write = partial(
            snapshot_files.write,
            log.disk,
            log.directory,
            image,
            last_timestamp_ms=max(0, log.active.max_timestamp),
            now_ms=now_ms,
        )
        self._offload.run(write, partial(self._written, image, now_ms))

    def when_finished(self, done: Callable[[], None]) -> None:
        """Call `done` once none is being written, perhaps at once."""
        if self._is_writing:
            self._finished.append(done)
        else:
            done()

    def _is_due(self, image: MetadataImage) -> bool:
        records, now_ms = image.offset + 1 - self._last_offset, self._clock.wall_ms()
        if records <= 0 or now_ms < self._not_before_ms:
            return False
        described = image.partition_count + len(image.topics_by_name) + len(image.configs)
        interval_ms = self._limits.interval_ms
        return (
            records >= max(RECORDS_MIN, described)
            or self._quorum.log.log.size_bytes - self._last_size >= self._limits.bytes_between
            or 0 < interval_ms <= now_ms - self._last_ms
        )

    def _written(
        self, image: MetadataImage, now_ms: int, result: snapshot_files.SnapshotId | Exception
    ) -> None:
        self._is_writing = False
        if isinstance(result, DiskError) and result.out_of_space:
            logger.warning("the metadata snapshot is put off: %s", result)
            self._not_before_ms = now_ms + AGAIN_MS
        elif isinstance(result, Exception):
            self._failed(result)
        else:
            self._last_offset, self._last_ms = result.end_offset, now_ms
            logger.info(
                "metadata snapshot at offset %d: %d partitions", result.end_offset, image.partition_count
            )
            self._quorum.snapshot_taken(SnapshotId(*result))
            self._last_size = self._quorum.log.log.size_bytes
        finished, self._finished = self._finished, []
        for done in finished:
            done()
