"""What a broker does without being asked: retention, checkpoints, deferred deletions, flushes by time.

A tick per second looks at what is due; each kind of work has Kafka's interval setting. Writing checkpoints and syncing
files happen in threads.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tidelog.storage.disk import DiskError

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

logger = logging.getLogger("tidelog.broker")

TICK_SECONDS = 1.0


class Housekeeping:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
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
                self._tick()
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

    def _tick(self) -> None:
        broker = self._broker
        now_ms = broker.clock.wall_ms()
        deleted = broker.logs.tick(now_ms)
        if deleted:
            logger.info("retention let %d segments go", deleted)
        for path, error in broker.logs.offline_dirs.items():
            # Retention met the failure: clients of the directory's partitions must hear of it, too.
            broker.partitions.dir_failed(path, error)
        for partition in broker.partitions.all():
            if partition.stopped_with is None and (partition.log.unsynced or partition.log.flush_due(now_ms)):
                # A sealed segment is synced soon after it rolls, whatever the durability: recovery then reads little.
                broker.group_commit.request(partition)
