"""When the tombstones that stay in each log may go, remembered across restarts.

A log that nobody writes to any more is not dirty, and its tombstones would stay for ever; so the cleaner notes their horizon. The file,
`cleaner-horizon-checkpoint` in each log directory, has the form of Kafka's checkpoints: topic, partition, milliseconds. It is a hint: without it
tombstones go with the next cleaning, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from tidelog.errors import CorruptDataError
from tidelog.storage import checkpoints, files
from tidelog.storage.checkpoints import TopicPartition
from tidelog.storage.cleaner_plan import NO_HORIZON
from tidelog.storage.disk import DiskError

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

logger = logging.getLogger("tidelog.broker")


class Horizons:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._by_partition: dict[TopicPartition, int] = {}
        self._saving = asyncio.Lock()

    def get(self, key: TopicPartition) -> int:
        return self._by_partition.get(key, NO_HORIZON)

    async def load(self) -> None:
        broker = self._broker
        for directory in broker.logs.dirs:
            path = files.join(directory.path, files.CLEANER_HORIZON_CHECKPOINT)
            if not directory.online:
                continue
            try:
                read = partial(checkpoints.read_offsets, broker.disk, path)
                found = await broker.in_background(read)
                self._by_partition.update(found or {})
            except CorruptDataError as error:
                logger.warning("%s; the file is ignored", error)
            except DiskError as error:
                broker.partitions.dir_failed(directory.path, error)

    async def note(self, key: TopicPartition, horizon_ms: int) -> None:
        """What the last cleaning of a partition said; -1: it left no tombstone."""
        if self.get(key) == horizon_ms:
            return
        if horizon_ms >= 0:
            self._by_partition[key] = horizon_ms
        else:
            self._by_partition.pop(key, None)
        log = self._broker.logs.logs.get(key)
        if log is not None:
            async with self._saving:
                await self._save(files.parent(log.directory))

    async def _save(self, log_dir: str) -> None:
        broker = self._broker
        lines = {
            key: horizon_ms
            for key, horizon_ms in self._by_partition.items()
            if (log := broker.logs.logs.get(key)) is not None and files.parent(log.directory) == log_dir
        }
        self._by_partition = {key: at for key, at in self._by_partition.items() if key in broker.logs.logs}
        path = files.join(log_dir, files.CLEANER_HORIZON_CHECKPOINT)
        try:
            await broker.in_background(partial(checkpoints.write_offsets, broker.disk, path, lines))
        except DiskError as error:
            if not error.out_of_space:
                broker.partitions.dir_failed(log_dir, error)
