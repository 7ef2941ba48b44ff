"""What a broker does without being asked: retention, checkpoints, deferred deletions, flushes by time.

A tick per second looks at what is due; each kind of work has Kafka's interval setting. Writing checkpoints and syncing
files happen in threads. A broker may have ten thousand partitions: none of this looks at all of them in every tick, nor at many in
one turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tidelog.storage.disk import DiskError
from tidelog.storage.posix_disk import PosixDisk

if TYPE_CHECKING:
    from tidelog.broker.node import Broker
    from tidelog.replication.partition import Partition

logger = logging.getLogger("tidelog.broker")

TICK_SECONDS = 1.0
SLICES_PER_TICK = 100
PARTITIONS_PER_SLICE = 500


class Housekeeping:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._next_synced = 0
        config = broker.config
        self._checkpoint_seconds = config.int("log.flush.offset.checkpoint.interval.ms") / 1000

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="tidelog-housekeeping")

    async def stop(self) -> None:
        """Ends after the work at hand: a checkpoint half written in a thread must not meet the one of the shutdown."""
        self._stopping.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        checkpoint_due = loop.time() + self._checkpoint_seconds
        while not await self._stop_comes_within(TICK_SECONDS):
            try:
                await self._tick()
                await self._broker.dispose()
                if loop.time() >= checkpoint_due:
                    checkpoint_due = loop.time() + self._checkpoint_seconds
                    await self._broker.checkpoint()
            except DiskError:
                logger.exception("housekeeping met a failing disk")
            except Exception:
                logger.exception("bug: housekeeping failed and goes on")

    async def _stop_comes_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _tick(self) -> None:
        broker = self._broker
        now_ms = broker.clock.wall_ms()
        await self._retain(now_ms)
        for line in broker.logs.space_news(now_ms):
            logger.warning("%s", line)
        for path, error in broker.logs.offline_dirs.items():
            # Retention met the failure: clients of the directory's partitions must hear of it, too.
            broker.partitions.dir_failed(path, error)
        for key in broker.logs.take_sealed():
            # A sealed segment is synced soon after it rolls, whatever the durability: recovery then reads little.
            self._request_flush(broker.partitions.find(*key))
        for number, partition in enumerate(broker.partitions.with_flush_interval()):
            if number % PARTITIONS_PER_SLICE == 0:
                await asyncio.sleep(0)
            if partition.log.flush_due(now_ms):
                self._request_flush(partition)
        await self._let_descriptors_go()

    async def _retain(self, now_ms: int) -> None:
        """Retention in slices, each a short turn of the loop."""
        logs = self._broker.logs
        deleted = 0
        for _ in range(SLICES_PER_TICK):
            segments = logs.retain_some(now_ms)
            if segments is None:
                break
            deleted += segments
            await asyncio.sleep(0)
        if deleted:
            logger.info("retention let %d segments go", deleted)

    async def _let_descriptors_go(self) -> None:
        """A file that was written holds its descriptor until it is synced (I7). Without `durability=fsync` nobody syncs the logs that are
        seldom written to, and thousands of them would hold one each: so some are synced when more are held than should be.
        """
        disk = self._broker.disk
        if not isinstance(disk, PosixDisk) or disk.open_files <= disk.max_open_files:
            return
        wanted = disk.open_files - disk.max_open_files * 9 // 10
        partitions = self._broker.partitions.all()
        for number in range(len(partitions)):
            if number % PARTITIONS_PER_SLICE == 0:
                await asyncio.sleep(0)
            self._next_synced += 1
            partition = partitions[self._next_synced % len(partitions)]
            if partition.log.dirty:
                self._request_flush(partition)
                wanted -= 1
            if wanted <= 0:
                return

    def _request_flush(self, partition: Partition | None) -> None:
        if partition is not None and partition.stopped_with is None:
            self._broker.group_commit.request(partition)
