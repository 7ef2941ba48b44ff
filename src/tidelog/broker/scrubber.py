"""Looks for damage in sealed segments, slowly and all the time, and keeps what it finds from readers.

One segment at a time: `storage/scrub` checks it piece by piece in a background thread, `storage/scrub_round` says which one is next, and
between two pieces this task pauses, so that `log.scrub.bytes.per.second` is kept; an eighth of it while the loop is busy. Damage is told
once, as an error, and put into the segment: from then on fetches end before it, and a fetch at it gets CORRUPT_MESSAGE (I2). Nothing is
ever cut, replaced or deleted because of damage (I6). Indexes that do not fit their log are derived data: they are written anew.

A disk that cannot read takes its directory offline, as everywhere (I7).
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.broker.quiet_file import QuietFile
from tidelog.broker.scrub_ledger import DamageLedger
from tidelog.storage import files, index_rebuild
from tidelog.storage.checkpoints import TopicPartition
from tidelog.storage.disk import Disk, DiskError, File
from tidelog.storage.log import Log
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.recovery_report import Damage
from tidelog.storage.scrub import SegmentFacts, SegmentScrub
from tidelog.storage.scrub_round import Round, Target, find_log, target_at
from tidelog.storage.segment import Segment
from tidelog.storage.throttle import Throttle
from tidelog.storage.time_index import TimeIndex

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

logger = logging.getLogger("tidelog.broker")

PIECE_BYTES = 128 << 10  # some tenths of a millisecond in a thread that shares the interpreter with the loop
SEGMENT_COST = 256 << 10
"""What opening a segment counts for, about a millisecond of three threads: thousands of small ones must not keep a processor busy."""
LOOK_SECONDS = 1.0
SWAP_SECONDS = 0.2
CHECKPOINT_SECONDS = 60.0
BUSY_SHARE = 0.6
BUSY_SLOWDOWN = 8
_REBUILT = ".scrub.tmp"  # not the name that the loop uses for the same purpose; removed at the next start like all .tmp


@dataclass(slots=True)
class ScrubSummary:
    """What the scrub did since the start. `damages` are those known now."""

    segments: int = 0
    bytes: int = 0
    batches: int = 0
    rounds: int = 0
    indexes_rebuilt: int = 0
    damages: list[Damage] = field(default_factory=list)


class Scrubber:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._rounds = [Round(directory.path) for directory in broker.logs.dirs if directory.online]
        self._ledger = DamageLedger(broker, self._rounds)
        self._throttle = Throttle()
        self._load = _LoopLoad()
        self._saved_at = 0.0
        self._done = ScrubSummary()

    def summary(self) -> ScrubSummary:
        done = self._done
        return ScrubSummary(
            done.segments,
            done.bytes,
            done.batches,
            sum(each.rounds for each in self._rounds),
            done.indexes_rebuilt,
            [damage for _, _, damage in self._ledger.known()],
        )

    # ---- starting and stopping

    async def start(self) -> None:
        """What is known to be damaged is kept from readers before there are any."""
        for key, log in await self._ledger.load():
            await self._judge_active(key, log)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="tidelog-scrub")

    async def stop(self) -> None:
        self._stopping.set()
        if self._task is not None:
            await self._task

    async def _judge_active(self, key: TopicPartition, log: Log) -> None:
        """It was damaged once, and no round passes it before it is sealed: looked at now, while nothing is appended."""
        segment = log.active
        if not log.recovery.clean or not segment.size:
            return  # recovery has just looked
        facts = SegmentFacts(
            segment.base_offset,
            log.log_end_offset,
            segment.size,
            log.log_start_offset,
            log.epochs.checkpoint_entries(),
        )
        target = Target(key, log, segment, facts, log.truncation_count)
        try:
            damages = await self._broker.in_background(lambda: _check_at_once(self._broker.disk, target))
        except DiskError as error:
            self._broker.partitions.dir_failed(files.parent(log.directory), error)
        else:
            self._ledger.note(target, damages)

    async def _run(self) -> None:
        clock = self._broker.clock
        self._saved_at = clock.monotonic()
        rounds_begin = clock.monotonic() + self._broker.config.int("log.initial.task.delay.ms") / 1000
        while not self._stopping.is_set():
            try:
                if self._ledger.has_news or clock.monotonic() - self._saved_at >= CHECKPOINT_SECONDS:
                    await self._ledger.save()
                    self._saved_at = clock.monotonic()
                if self._rate() == 0 or (not self._ledger.suspects and clock.monotonic() < rounds_begin):
                    await self._pause(LOOK_SECONDS)
                    continue
                target = self._next()
                if target is not None:
                    await self._check(target)
                elif all(each.is_idle for each in self._rounds):
                    await self._pause(LOOK_SECONDS)
                else:
                    await asyncio.sleep(0)
            except Exception:
                logger.exception("bug: the scrub failed and goes on")
                await self._pause(LOOK_SECONDS)
        await self._ledger.save()

    # ---- what is next, and how fast

    def _rate(self) -> int:
        return self._broker.config.int("log.scrub.bytes.per.second")

    def _next(self) -> Target | None:
        manager = self._broker.logs
        while self._ledger.suspects:
            key, base_offset = self._ledger.suspects.popleft()
            log = find_log(manager, key)
            target = target_at(key, log, log.segment_number(base_offset)) if log is not None else None
            if target is not None and target.facts.base_offset == base_offset:
                return target
        now_ms = self._broker.clock.wall_ms()
        interval_ms = self._broker.config.int("log.scrub.interval.ms")
        for _ in self._rounds:
            self._rounds.append(self._rounds.pop(0))  # the disks take turns
            target = self._rounds[-1].next(manager, now_ms=now_ms, interval_ms=interval_ms)
            if target is not None:
                return target
        return None

    async def _spend(self, amount: int) -> None:
        rate = self._rate() / (BUSY_SLOWDOWN if self._load.is_busy() else 1)
        if rate > 0:
            now = self._broker.clock.monotonic()
            await self._pause(self._throttle.spend(amount, now=now, per_second=rate))

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            try:
                await asyncio.wait_for(self._stopping.wait(), seconds)
            except TimeoutError:
                return

    # ---- one segment

    async def _check(self, target: Target) -> None:
        broker = self._broker
        try:
            while target.log.swap is not None and not self._stopping.is_set():
                await self._pause(
                    SWAP_SECONDS
                )  # names change hands: the file under one is not yet the segment's
            if not target.is_there(broker.logs):
                return
            opened = await broker.in_background(lambda: _Opened(broker.disk, target))
            try:
                if await self._step_through(opened.scrub, target):
                    await self._report(target, opened.scrub)
            finally:
                await broker.in_background(opened.close)
        except FileNotFoundError:
            if target.is_there(broker.logs):
                self._ledger.note(target, (_missing(target),))
        except DiskError as error:
            if target.is_there(broker.logs):
                broker.partitions.dir_failed(files.parent(target.log.directory), error)
        finally:
            if not self._stopping.is_set():
                for each in self._rounds:
                    each.finished(target)
                self._ledger.unsaved.add(files.parent(target.log.directory))

    async def _step_through(self, scrub: SegmentScrub, target: Target) -> bool:
        """False: the segment is not there any more, or the broker stops. That is no finding."""
        broker = self._broker
        await self._spend(SEGMENT_COST)
        while not scrub.done:
            if self._stopping.is_set():
                return False
            spent = await broker.in_background(lambda: scrub.step(PIECE_BYTES))
            if not target.is_there(broker.logs):
                return False
            await self._spend(spent)
        return target.is_there(broker.logs)

    async def _report(self, target: Target, scrub: SegmentScrub) -> None:
        done = self._done
        done.segments += 1
        done.bytes += target.facts.size
        done.batches += scrub.batches
        if scrub.epoch_conflicts:
            logger.warning(
                "%d batches of %s agree on a leader epoch that its %s does not know; remove that file from the stopped"
                " broker and it is written anew",
                scrub.epoch_conflicts, target.segment.file.path, files.LEADER_EPOCH_CHECKPOINT,
            )  # fmt: skip
        if scrub.gaps and not target.log.config.compact_policy:
            _, first_offset, end_offset = scrub.gaps[0]
            logger.warning(
                "%s: offsets %d to %d (exclusive) are not in %s, and %d more gaps; unless the topic was compacted once, they are lost",
                target.log.name, first_offset, end_offset, target.segment.file.path, len(scrub.gaps) - 1,
            )  # fmt: skip
        self._ledger.note(target, tuple(scrub.damages))
        if scrub.index_problem is not None:
            await self._rebuild_indexes(target, scrub.index_problem)

    async def _rebuild_indexes(self, target: Target, problem: str) -> None:
        """In a thread, from files of its own; on the loop only the names change."""
        broker, live = self._broker, target.segment
        work = Segment.open(
            broker.disk, target.log.directory, target.facts.base_offset, live.config, names=frozenset()
        )
        work.damage = live.damage
        try:
            written = await broker.in_background(lambda: index_rebuild.write(work, _REBUILT))
            for file in written:
                if target.is_there(broker.logs):
                    broker.disk.rename(file.path, file.path.removesuffix(_REBUILT))
                else:
                    broker.disk.remove(file.path)
            if target.is_there(broker.logs):
                live.forget_indexes()
                self._done.indexes_rebuilt += 1
                logger.warning(
                    "the indexes of %s were wrong (%s) and were written anew", live.file.path, problem
                )
        except DiskError as error:
            if not error.out_of_space:
                raise
            logger.warning(
                "the indexes of %s are wrong (%s), and no space is left for new ones", live.file.path, problem
            )
        finally:
            work.close()


class _Opened:
    """A segment's files, opened for its check alone."""

    def __init__(self, disk: Disk, target: Target) -> None:
        self._disk = disk
        self._base_path = files.segment_path(target.log.directory, target.facts.base_offset, "")
        base_offset, limit = target.facts.base_offset, target.segment.config.segment_index_bytes
        log = QuietFile(disk.open(self._base_path + files.LOG))
        self._files: list[File | QuietFile] = [log]
        try:
            index, time_index = self._index(files.INDEX), self._index(files.TIME_INDEX)
            self.scrub = SegmentScrub(
                log,
                target.facts,
                offset_index=OffsetIndex(index, base_offset, limit) if index is not None else None,
                time_index=TimeIndex(time_index, base_offset, limit) if time_index is not None else None,
            )
        except BaseException:
            self.close()
            raise

    def _index(self, kind: str) -> File | None:
        try:
            self._files.append(file := self._disk.open(self._base_path + kind))
        except FileNotFoundError:
            return None
        return file

    def close(self) -> None:
        for file in self._files:
            file.close()


def _check_at_once(disk: Disk, target: Target) -> tuple[Damage, ...]:
    opened = _Opened(disk, target)
    try:
        while not opened.scrub.done:
            opened.scrub.step(PIECE_BYTES)
    finally:
        opened.close()
    return tuple(opened.scrub.damages)


class _LoopLoad:
    """Whether the loop's thread has been computing most of the time lately."""

    def __init__(self) -> None:
        self._at, self._used = time.monotonic(), time.thread_time()
        self._busy = False

    def is_busy(self) -> bool:
        elapsed = time.monotonic() - self._at
        if elapsed >= 0.25:
            used = time.thread_time()
            self._busy = used - self._used > BUSY_SHARE * elapsed
            self._at, self._used = self._at + elapsed, used
        return self._busy


def _missing(target: Target) -> Damage:
    facts = target.facts
    return Damage(
        target.segment.file.path, 0, facts.size, facts.base_offset, facts.end_offset, "the file is missing"
    )
