"""Compaction of a broker's logs: which log is next, the process that cleans it, and the swap of what it has written.

The division of work: `cleaner_plan` decides from memory which log is due, a worker process (`cleaner_worker`) reads and writes files, and
this task, on the loop, lets the new segments take the old ones' place; every wait for a disk or for the worker is an await. A worker is started
when the first log is due, and ended when there has been nothing to do for a while: with numba in it, it is not small.

Nothing that goes wrong here costs a record or a client anything: a log that could not be cleaned is as it was, and is tried again later, less
and less often. Only a disk that fails takes its directory offline, as everywhere (I7).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.cleaner_horizons import Horizons
from tidelog.broker.cleaner_process import CleanerProcess, WorkerBug, WorkerDied, missing_packages
from tidelog.broker.cleaner_worker import GO_ON
from tidelog.errors import CorruptDataError
from tidelog.storage import cleaner_plan, files
from tidelog.storage.checkpoints import TopicPartition
from tidelog.storage.cleaner_job import (
    Cleaned,
    CleanedGroup,
    CleaningInterrupted,
    Limits,
    NoRoomToClean,
    Progress,
    Rate,
)
from tidelog.storage.cleaner_plan import Due
from tidelog.storage.cleaner_swap import Cleaning
from tidelog.storage.disk import DiskError
from tidelog.storage.log import Log
from tidelog.storage.segment_times import unknown_times

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

logger = logging.getLogger("tidelog.broker")

LOGS_PER_SLICE = 200
WORKERS_MAX = 16
BUFFER_BYTES_MIN = 64 << 10
IDLE_SECONDS = 120.0
HANG_SECONDS = 300.0
"""A worker that says nothing for so long is not at work any more: its code is compiled in less, and the disk syncs in less."""
PAUSE_SECONDS_MIN = 0.05
TROUBLE_SECONDS_FIRST = 15.0
TROUBLE_SECONDS_MAX = 600.0


@dataclass(slots=True)
class CleanerSummary:
    """What was done since the start."""

    cleanings: int = 0
    interrupted: int = 0
    failed: int = 0
    workers_died: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_removed: int = 0
    null_keys: int = 0


class _Trouble(NamedTuple):
    text: str
    seconds: float
    until: float  # monotonic


class Cleaner:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._wake = asyncio.Event()
        self._cleanings: dict[TopicPartition, asyncio.Task[None]] = {}
        self._busy: set[CleanerProcess] = set()
        self._idle: list[tuple[CleanerProcess, float]] = []
        self._trouble: dict[TopicPartition, _Trouble] = {}
        self._packages_missing = False
        self._horizons = Horizons(broker)
        self.progress: dict[TopicPartition, Progress] = {}
        self.summary = CleanerSummary()

    @property
    def worker_pids(self) -> list[int]:
        return [worker.pid for worker in (*self._busy, *(worker for worker, _ in self._idle))]

    def horizon_ms(self, key: TopicPartition) -> int:
        """From when on all tombstones that the last cleaning of a partition left may go; -1: there were none."""
        return self._horizons.get(key)

    # ---- starting and stopping

    async def start(self) -> None:
        if self._broker.config.bool("log.cleaner.enable"):
            await self._horizons.load()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="tidelog-cleaner")

    async def stop(self) -> None:
        """A swap that has begun is completed; everything else is given up."""
        self._stopping = True
        self._wake.set()
        for worker in self._busy:
            worker.kill()
        if self._task is not None:
            await self._task
        await asyncio.gather(*self._cleanings.values())
        await asyncio.gather(*(worker.end() for worker, _ in self._idle))
        self._idle.clear()

    async def _run(self) -> None:
        while not self._stopping:
            await self._pause(self._broker.config.int("log.cleaner.backoff.ms") / 1000)
            try:
                if not self._is_stopping():
                    await self._look()
                    await self._end_idle_workers()
            except Exception:
                logger.exception("bug: the cleaner failed and goes on")

    def _is_stopping(self) -> bool:
        """Asked anew: a pause lies behind, in which that may have changed."""
        return self._stopping

    async def _pause(self, seconds: float) -> None:
        """Until then, or until a cleaning has ended: there may be more to do at once."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(seconds, PAUSE_SECONDS_MIN))
        self._wake.clear()

    # ---- what is next

    async def _look(self) -> None:
        free = self._workers_max() - len(self._cleanings)
        if free <= 0:
            return
        found: list[tuple[Due, TopicPartition, Log]] = []
        for number, (key, log) in enumerate(list(self._broker.logs.logs.items())):
            if number % LOGS_PER_SLICE == LOGS_PER_SLICE - 1:
                await asyncio.sleep(0)
            if log.config.compact_policy and key not in self._cleanings and not self._waits(key):
                due = await self._due(key, log)
                if due is not None:
                    found.append((due, key, log))
        found.sort(key=lambda each: each[0].urgency, reverse=True)
        if found and await self._packages_are_there():
            for _, key, log in found[:free]:
                if not self._stopping:
                    work = self._clean(key, log)
                    self._cleanings[key] = asyncio.get_running_loop().create_task(work)
        for key in self._trouble.keys() - self._broker.logs.logs.keys():
            del self._trouble[key]

    async def _due(self, key: TopicPartition, log: Log) -> Due | None:
        try:
            if log.config.min_compaction_lag_ms > 0:
                for piece in unknown_times(log):  # of thousands of segments, perhaps: not on the loop
                    await self._broker.in_background(piece.warm)
                    piece.load()
            if not self._is_there(key, log):
                return None
            return cleaner_plan.due(log, self._broker.clock.wall_ms(), horizon_ms=self._horizons.get(key))
        except DiskError as error:
            self._disk_failed(key, log, error)
        except (CorruptDataError, FileNotFoundError) as error:
            if self._is_there(key, log):
                self._in_trouble(key, f"{log.name} cannot be judged: {error}")
        return None

    def _is_there(self, key: TopicPartition, log: Log) -> bool:
        return self._broker.logs.logs.get(key) is log

    async def _packages_are_there(self) -> bool:
        missing = await self._broker.in_background(missing_packages)
        if missing and not self._packages_missing:
            logger.warning(
                "topics with cleanup.policy=compact are not compacted: %s cannot be imported; pip install --force-reinstall tidelog brings it back",
                " and ".join(missing),
            )
        self._packages_missing = bool(missing)
        return not missing

    def _workers_max(self) -> int:
        return min(self._broker.config.int("log.cleaner.threads"), WORKERS_MAX)

    def _limits(self) -> Limits:
        config = self._broker.config
        threads = max(1, self._workers_max())
        return Limits(
            map_bytes=config.int("log.cleaner.dedupe.buffer.size") // threads,
            load_factor=min(0.99, max(0.01, config.float("log.cleaner.io.buffer.load.factor"))),
            buffer_bytes=max(BUFFER_BYTES_MIN, config.int("log.cleaner.io.buffer.size") // threads),
            bytes_per_second=max(1.0, config.float("log.cleaner.io.max.bytes.per.second") / threads),
            reserve_bytes=config.int("log.dir.reserve.bytes"),
        )

    # ---- trouble

    def _waits(self, key: TopicPartition) -> bool:
        trouble = self._trouble.get(key)
        return trouble is not None and time.monotonic() < trouble.until

    def _in_trouble(self, key: TopicPartition, text: str) -> None:
        """Told once; tried again after a while that gets longer."""
        before = self._trouble.get(key)
        seconds = TROUBLE_SECONDS_FIRST if before is None else min(2 * before.seconds, TROUBLE_SECONDS_MAX)
        if before is None or before.text != text:
            logger.warning("%s; it stays as it is and is tried again in %.0f s", text, seconds)
        self._trouble[key] = _Trouble(text, seconds, time.monotonic() + seconds)
        self.summary.failed += 1

    def _rest(self, key: TopicPartition) -> None:
        """What has just been given up is not begun again at once."""
        seconds = self._broker.config.int("log.cleaner.backoff.ms") / 1000
        self._trouble[key] = _Trouble("", TROUBLE_SECONDS_FIRST / 2, time.monotonic() + seconds)

    def _disk_failed(self, key: TopicPartition, log: Log, error: DiskError) -> None:
        if not self._is_there(key, log):
            return
        if error.out_of_space:
            self._in_trouble(key, f"{log.name} cannot be compacted: {error}")
        else:
            self._broker.partitions.dir_failed(files.parent(log.directory), error)

    # ---- one log

    async def _clean(self, key: TopicPartition, log: Log) -> None:
        worker: CleanerProcess | None = None
        try:
            worker = await self._take_worker()
            await self._clean_with(worker, key, log)
            self._trouble.pop(key, None)
        except CleaningInterrupted as interruption:
            self.summary.interrupted += 1
            self._rest(key)
            logger.info("the compaction of %s was given up: %s", log.name, interruption)
        except DiskError as error:
            self._disk_failed(key, log, error)
        except (CorruptDataError, FileNotFoundError, NoRoomToClean, ImportError) as error:
            self._in_trouble(key, f"{log.name} cannot be compacted: {error}")
        except (WorkerDied, OSError) as error:
            await self._bury(worker)
            worker = None
            if not self._stopping:
                self.summary.workers_died += 1
                self._in_trouble(key, f"{log.name} was not compacted: {error}")
        except WorkerBug as error:
            self._in_trouble(key, f"bug: the compaction of {log.name} failed:\n{error}")
        except Exception:
            logger.exception("bug: the compaction of %s failed", log.name)
            self._in_trouble(key, f"bug: the compaction of {log.name} failed")
            await self._bury(worker)
            worker = None
        finally:
            self.progress.pop(key, None)
            await self._give_back(worker)
            del self._cleanings[key]
            self._wake.set()

    async def _clean_with(self, worker: CleanerProcess, key: TopicPartition, log: Log) -> None:
        due = await self._due(key, log)
        if due is None or log.swap is not None:
            return  # it was, a moment ago
        cleaning = Cleaning(log, due.cleanable, self._limits(), is_there=lambda: self._is_there(key, log))
        began = time.monotonic()
        try:
            cleaned = await self._work(worker, key, cleaning)
        except (CorruptDataError, FileNotFoundError, DiskError):
            cleaning.check()  # what changed under the cleaner's hands is no damage
            raise
        except WorkerDied:
            with suppress(DiskError, FileNotFoundError):
                await self._broker.in_background(cleaning.discard)
            raise
        cleaning.finish(cleaned)
        await self._horizons.note(key, cleaned.latest_horizon_ms)
        self._sum_up(log, due, cleaned, time.monotonic() - began)

    async def _work(self, worker: CleanerProcess, key: TopicPartition, cleaning: Cleaning) -> Cleaned:
        """Let the worker do its job, and swap what it has finished."""
        await worker.send(cleaning.job)
        allowed = cleaning.job.limits.bytes_per_second
        while True:
            message = await worker.receive(HANG_SECONDS)
            if isinstance(message, Cleaned):
                return message
            try:
                cleaning.check()
                if isinstance(message, Progress):
                    self.progress[key] = message
                    now_allowed = self._limits().bytes_per_second
                    if now_allowed != allowed:
                        allowed = now_allowed
                        await worker.send(Rate(allowed))
                elif isinstance(message, CleanedGroup):
                    await self._swap(key, cleaning, message)
                    await worker.send(GO_ON)
            except WorkerDied:
                raise
            except Exception:
                await worker.cancel(HANG_SECONDS)
                raise

    async def _swap(self, key: TopicPartition, cleaning: Cleaning, group: CleanedGroup) -> None:
        broker = self._broker
        new = await broker.in_background(partial(cleaning.open, group))
        try:
            swap = cleaning.begin_swap(group, new, now_ms=broker.clock.wall_ms())
        except CleaningInterrupted:
            for segment in new:
                segment.close()
            raise
        try:
            while (job := swap.advance()) is not None:
                await broker.in_background(job)
        except Exception as error:
            cleaning.check()  # deleted meanwhile: no directory, files closed
            if swap.committed:
                # Half done, and only a start can complete it. To go on would leave a log that nothing is ever deleted from.
                raise DiskError("swap", cleaning.job.directory, OSError(errno.EIO, str(error))) from error
            swap.end()
            with suppress(DiskError, FileNotFoundError):
                await broker.in_background(swap.discard)
            if isinstance(error, (FileNotFoundError, ValueError)):
                raise DiskError("swap", cleaning.job.directory, OSError(errno.EIO, str(error))) from error
            raise
        cleaning.swapped(new)
        broker.logs.files_were_marked(key)

    def _sum_up(self, log: Log, due: Due, cleaned: Cleaned, seconds: float) -> None:
        summary = self.summary
        summary.cleanings += 1
        summary.bytes_read += cleaned.bytes_read
        summary.bytes_written += cleaned.bytes_written
        summary.records_removed += cleaned.records_read - cleaned.records_kept
        summary.null_keys += cleaned.null_keys
        logger.info(
            "compacted %s up to offset %d (%s): %d of %d records stay, in %d bytes, after %.1f s%s",
            log.name, cleaned.end_offset, due.why.value, cleaned.records_kept, cleaned.records_read,
            cleaned.bytes_written, seconds, "; the map of keys was full, more is to come" if cleaned.passes_needed else "",
        )  # fmt: skip
        if cleaned.null_keys:
            logger.warning(
                "%s held %d records without a key, which a compacted topic cannot keep",
                log.name,
                cleaned.null_keys,
            )
        if cleaned.opaque_batches:
            logger.warning(
                "%s holds %d batches whose records cannot be made out; they stay",
                log.name,
                cleaned.opaque_batches,
            )

    # ---- workers

    async def _take_worker(self) -> CleanerProcess:
        while self._idle and not self._idle[-1][0].is_alive:
            await self._bury(self._idle.pop()[0])
        worker = self._idle.pop()[0] if self._idle else await CleanerProcess.start(self._broker)
        self._busy.add(worker)
        if self._stopping:
            worker.kill()
        return worker

    async def _give_back(self, worker: CleanerProcess | None) -> None:
        if worker is None:
            return
        self._busy.discard(worker)
        if self._stopping:
            worker.kill()
            await worker.end()
        else:
            self._idle.append((worker, time.monotonic()))

    async def _bury(self, worker: CleanerProcess | None) -> None:
        if worker is not None:
            self._busy.discard(worker)
            worker.kill()
            await worker.end()

    async def _end_idle_workers(self) -> None:
        now = time.monotonic()
        ended = [worker for worker, since in self._idle if now - since >= IDLE_SECONDS]
        self._idle = [(worker, since) for worker, since in self._idle if worker not in ended]
        for worker in ended:
            await worker.end()
