"""A broker's storage on a simulated disk, driven as a broker drives it, with a ledger of what was done and promised.

Owns the calls: every action goes through `LogManager` and `Log`, a `DiskError` takes its directory offline as the broker would, and the
ledger is told before (it may be found) and after (it must be). It judges nothing: `storage_checks` does, on what `crash_explorer`
makes of the recorded disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from tidelog.errors import CorruptDataError, RequestError
from tidelog.records.batch import HEADER_SIZE, LOG_OVERHEAD, read_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.storage.checkpoints import TopicPartition
from tidelog.storage.disk import SYNC, SYNC_DIRECTORY, DiskError
from tidelog.storage.files import parent
from tidelog.storage.log import AppendResult, FlushTicket, Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.log_manager import LogManager
from tidelog.storage.manager_checkpoint import Checkpoint
from tidelog.storage.segment_swap import SegmentSwap
from tidelog.testing.sim.clock import SimClock
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.storage_cleaner import clean
from tidelog.testing.sim.storage_ledger import Ledger, Sent, Version, sent

NOW_MS: Final = 1_700_000_000_000
SMALL: Final = LogConfig(
    segment_bytes=700, index_interval_bytes=150, file_delete_delay_ms=1000, retention_ms=-1
)
ORDERS: Final = ("orders", 0)
RETENTION_INTERVAL_MS: Final = 10

T = TypeVar("T")


class StorageWorld:
    """One process after another on one recorded disk. `manager` is that of the process that lives."""

    def __init__(
        self,
        *,
        dirs: Sequence[str] = ("/a",),
        config: LogConfig = SMALL,
        seed: int = 1,
        prepare: Callable[[SimDisk], None] = lambda disk: None,
    ) -> None:
        self.dirs = tuple(dirs)
        self.config = config
        self.rng = Random(seed)
        self.clock = SimClock(NOW_MS)
        self.disk = SimDisk(Random(seed), clock=self.clock, record=True)
        self.ledger = Ledger()
        self.offline: dict[str, DiskError] = {}
        self.meanwhile: Callable[[], None] | None = None
        self._number = 0
        self.topics_made = 0
        self._tickets: dict[TopicPartition, FlushTicket] = {}
        self._checkpoint: tuple[Checkpoint, dict[TopicPartition, tuple[Log, int, Version]]] | None = None
        prepare(self.disk)
        self.manager = self.manager_on(self.disk, self.now)
        self.manager.open()
        self._note_offline()

    def manager_on(self, disk: SimDisk, operations: int) -> LogManager:
        """For a process that starts when so many operations have happened. Not opened yet."""
        return LogManager(
            disk,
            SimClock(self.clock.wall_ms()),
            Random(3),
            self.dirs,
            node_id=1,
            cluster_id="world",
            config_for=lambda topic: self.config_of(topic, operations),
            retention_check_interval_ms=RETENTION_INTERVAL_MS,
        )

    def config_of(self, topic: str, operations: int) -> LogConfig:
        configs = [
            incarnation.config
            for (name, _), lives in self.ledger.partitions.items()
            for incarnation in lives
            if name == topic and incarnation.begun <= operations
        ]
        return configs[-1] if configs else self.config

    @property
    def now(self) -> int:
        return self.disk.operations

    def log(self, key: TopicPartition = ORDERS) -> Log:
        return self.manager.logs[key]

    def is_online(self, key: TopicPartition) -> bool:
        return key in self.manager.logs

    # ---- topics

    def create(
        self, topic: str = "orders", partitions: Iterable[int] = (0,), config: LogConfig | None = None
    ) -> None:
        """The topic's metadata is durable; its partitions follow, each in a thread of its own."""
        self.topics_made += 1
        topic_id = self.topics_made.to_bytes(16, "big")
        chosen = config or self.config
        keys = [(topic, partition) for partition in partitions]
        for key in keys:
            self.ledger.creating(key, topic_id, chosen, self.now)
        creations = self.manager.plan_creation([(key, topic_id, chosen) for key in keys])
        for key, creation in zip(keys, creations, strict=True):
            log = self._guarded(partial(self._in_thread, creation.run))
            if log is not None and creation.log_dir not in self.manager.offline_dirs:
                self.manager.adopt(log)
                self.ledger.created(key, self.now)

    def delete_topic(self, topic: str = "orders") -> None:
        keys = [key for key in self.manager.logs if key[0] == topic]
        for key in keys:
            self.ledger.removing(key, self.now)

        def remove() -> bool:
            removal = self.manager.remove(keys)
            self._in_thread(removal.run)
            return True

        if self._guarded(remove):
            for key in keys:
                self.ledger.removed(key, self.now)

    def configure(self, key: TopicPartition = ORDERS, **changes: object) -> None:
        if not self.is_online(key):
            return
        incarnation = self.ledger.incarnation(key)
        incarnation.config = replace(incarnation.config, **changes)  # type: ignore[arg-type]
        self.log(key).update_config(incarnation.config)

    # ---- records

    def append(
        self,
        key: TopicPartition = ORDERS,
        count: int = 1,
        *,
        records: int = 1,
        size: int = 40,
        epoch: int = 0,
        producer: int = 5,
        age_ms: int = 0,
    ) -> None:
        for _ in range(count):
            if not self.is_online(key):
                return
            batch = self.batch(key, records=records, size=size, producer=producer, age_ms=age_ms)
            self._append(key, batch, epoch)

    def batch(
        self, key: TopicPartition, *, records: int = 1, size: int = 40, producer: int = 5, age_ms: int = 0
    ) -> bytes:
        """The next batch of a producer; its value names the topic and is never sent twice. Producer -1 is not idempotent."""
        log = self.log(key)
        known = log.producers.get(producer) if producer >= 0 else None
        sequence = -1 if producer < 0 else known.next_sequence if known is not None else 0
        time = self.clock.wall_ms() - age_ms
        built = []
        for number in range(records):
            self._number += 1
            value = f"{key[0]}-{key[1]}/{log.topic_id.hex()[-4:]}/{self._number:06d}:".encode()
            built.append(Record(number, time + number, b"k", value.ljust(size, b".")))
        self.clock.advance(records)
        return build_batch(
            built,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
        )

    def _append(self, key: TopicPartition, batch: bytes, epoch: int) -> AppendResult | None:
        log = self.log(key)
        begun = self.now
        self.ledger.sending(key, sent(batch, base_offset=log.log_end_offset, leader_epoch=epoch, begun=begun))
        try:
            result = self._guarded(
                lambda: log.append_as_leader(
                    batch, read_header(batch), leader_epoch=epoch, now_ms=self.clock.wall_ms()
                )
            )
        except RequestError:  # the disk is full, and the log goes on without this batch
            self.ledger.refused(key, self.now)
            return None
        if result is not None:
            self.ledger.written(key, log.log_end_offset, self.now)
        return result

    def replicate(
        self, key: TopicPartition = ORDERS, *, epoch: int = 0, gap: int = 0, corrupt: bool = False
    ) -> None:
        """What a follower does with a leader's batch. A corrupt one must not get in (I2)."""
        if not self.is_online(key):
            return
        log = self.log(key)
        base = log.log_end_offset + gap
        batch = bytearray(self.batch(key, producer=-1))
        batch[0:8] = base.to_bytes(8, "big")
        batch[12:16] = epoch.to_bytes(4, "big")
        if corrupt:
            batch[HEADER_SIZE + LOG_OVERHEAD] ^= 1
        self.ledger.sending(key, sent(bytes(batch), base_offset=base, leader_epoch=epoch, begun=self.now))
        try:
            done = self._guarded(lambda: log.append_as_follower(bytes(batch), now_ms=self.clock.wall_ms()))
        except CorruptDataError:
            self.ledger.refused(key, self.now)
            return
        if done is not None:
            self.ledger.written(key, log.log_end_offset, self.now)

    def roll(self, key: TopicPartition = ORDERS) -> None:
        if not self.is_online(key):
            return
        self._guarded(lambda: self.log(key).roll(self.clock.wall_ms()))

    def new_epoch(self, epoch: int, key: TopicPartition = ORDERS) -> None:
        if not self.is_online(key):
            return
        self._guarded(lambda: self.log(key).start_epoch(epoch))

    # ---- durability

    def flush(self, *keys: TopicPartition) -> None:
        """One round of group commit: what is acknowledged under `durability=fsync` is what this returned for."""
        self.begin_flush(*keys)
        self.finish_flush()

    def begin_flush(self, *keys: TopicPartition) -> None:
        for key in keys or tuple(self.manager.logs):
            ticket = self.log(key).begin_flush() if self.is_online(key) and key not in self._tickets else None
            if ticket is not None:
                self._tickets[key] = ticket

    def finish_flush(self) -> None:
        tickets, self._tickets = self._tickets, {}
        for key, ticket in tickets.items():
            if self._guarded(partial(self._ran, ticket)) and self.is_online(key):
                log = self.log(key)
                if log.flush_ticket is ticket:
                    log.finish_flush(ticket)
                    log.set_high_watermark(log.recovery_point)
                    self.ledger.synced(key, log.recovery_point, self.now)

    def commit(self, key: TopicPartition = ORDERS) -> None:
        """As `durability=replicated` does it: written is committed."""
        if not self.is_online(key):
            return
        self.log(key).set_high_watermark(self.log(key).log_end_offset)

    def checkpoint(self) -> None:
        self.begin_checkpoint()
        self.finish_checkpoint()

    def begin_checkpoint(self) -> None:
        if self._checkpoint is None:
            starts = {
                key: (log, log.log_start_offset, self.ledger.version(key))
                for key, log in self.manager.logs.items()
            }
            self._checkpoint = (self.manager.checkpoint(), starts)

    def finish_checkpoint(self) -> None:
        if self._checkpoint is None:
            return
        (checkpoint, starts), self._checkpoint = self._checkpoint, None
        self._in_thread(checkpoint.run)
        durable_at = self.now
        for job in checkpoint.finishing(self.clock.wall_ms()):
            if job is not None:
                self._in_thread(job)
        self.offline.update(checkpoint.failed)
        for key, (log, offset, version) in starts.items():
            # A truncation meanwhile may have moved the start; what the checkpoint says then counts for nothing. Nor does one that did
            # not fit on the disk.
            there = self.manager.logs.get(key) is log and parent(log.directory) not in checkpoint.errors
            if there and self.ledger.version(key) is version:
                self.ledger.starts_durably_at(key, offset, durable_at)

    # ---- the ends

    def retain(self, *, later_ms: int = RETENTION_INTERVAL_MS) -> int:
        """Retention has its turn, after some time."""
        self.clock.advance(later_ms)
        now_ms = self.clock.wall_ms()
        for key, log in self.manager.logs.items():
            self.ledger.may_start_at(key, self._policy_limit(key, log, now_ms), self.now)
        segments = self.manager.tick(now_ms)
        self._note_offline()
        return segments

    def _policy_limit(self, key: TopicPartition, log: Log, now_ms: int) -> int:
        """The log start beyond which retention would delete what it must keep (I8), from the records alone."""
        version = self.ledger.version(key)
        held = [batch for batch in version.batches if batch.stored.last_offset >= log.log_start_offset]
        limit = log.log_start_offset
        config = log.config
        if config.retention_bytes >= 0:
            enough = [
                batch.stored.base_offset
                for batch in held
                if version.size_from(batch.stored.base_offset) >= config.retention_bytes
            ]
            limit = max(limit, *enough, log.log_end_offset if config.retention_bytes == 0 else 0)
        if config.retention_ms >= 0:
            # A batch that is let go for its size no longer protects older times behind it.
            fresh = [
                b.stored.base_offset
                for b in held
                if b.stored.last_offset >= limit and now_ms - b.header.max_timestamp <= config.retention_ms
            ]
            limit = max(limit, fresh[0] if fresh else log.log_end_offset)
        return min(limit, log.high_watermark)

    def dispose(self, *, later_ms: int = 1000) -> None:
        """Remove the files and directories whose time has come."""
        self.clock.advance(later_ms)
        disposal = self.manager.disposal(self.clock.wall_ms())
        if disposal is not None:
            self._in_thread(disposal.run)
            self.offline.update(self.manager.disposed(disposal))

    def delete_records(self, before_offset: int, key: TopicPartition = ORDERS) -> None:
        """Answered when the checkpoint that holds the new log start is durable."""
        if not self.is_online(key):
            return
        self.ledger.may_start_at(key, before_offset, self.now)
        self.log(key).advance_log_start_offset(before_offset)
        self.checkpoint()

    def truncate(self, offset: int, key: TopicPartition = ORDERS) -> None:
        if not self.is_online(key):
            return
        log, version = self.log(key), self.ledger.version(key)
        kept = [
            batch.stored.last_offset + 1 for batch in version.batches if batch.stored.last_offset < offset
        ]
        if offset >= log.log_end_offset:
            return
        if offset < log.log_start_offset or max([version.first_offset, *kept]) < log.log_start_offset:
            self.ledger.starting_anew(key, min(offset, log.log_start_offset), self.now)
        else:
            self.ledger.cutting(key, offset, self.now)
        if self._guarded(lambda: log.truncate_to(offset)) is not None:
            self.ledger.settled(key, self.now)

    def restart_at(self, offset: int, key: TopicPartition = ORDERS) -> None:
        if not self.is_online(key):
            return
        self.ledger.starting_anew(key, offset, self.now)

        def restart() -> bool:
            self.log(key).truncate_fully_and_start_at(offset, now_ms=self.clock.wall_ms())
            return True

        if self._guarded(restart):
            self.ledger.settled(key, self.now)

    # ---- segments change places

    def begin_swap(
        self,
        key: TopicPartition = ORDERS,
        *,
        old: slice,
        drop: Callable[[Sent], bool] = lambda batch: False,
        split_at: Sequence[int] = (),
    ) -> SegmentSwap:
        """A cleaner has written new segments and hands them over."""
        log = self.log(key)
        cleaned = clean(
            log,
            self.ledger.version(key),
            old=old,
            drop=drop,
            split_at=split_at,
            now=self.now,
            now_ms=self.clock.wall_ms(),
        )
        self.ledger.replacing(key, cleaned.batches, self.now)
        return SegmentSwap(log, cleaned.old, cleaned.new, now_ms=self.clock.wall_ms())

    def swap(self, key: TopicPartition = ORDERS, **how: Any) -> None:
        if self.is_online(key):
            begun = self._guarded(lambda: self.begin_swap(key, **how))
            if begun is not None:
                self.finish_swap(begun, key)

    def finish_swap(self, swap: SegmentSwap, key: TopicPartition = ORDERS) -> None:
        def take_all_steps() -> bool:
            while (job := swap.advance()) is not None:
                self._in_thread(job)
            return True

        if self._guarded(take_all_steps):
            self.ledger.settled(key, self.now)

    # ---- processes

    def stop(self) -> None:
        """A clean stop: everything is durable when it returns, in the directories that work."""
        self.finish_flush()
        self.finish_checkpoint()
        logs = dict(self.manager.logs)
        starts = {key: log.log_start_offset for key, log in logs.items()}
        self.manager.close(clean=True)
        self._note_offline()
        for key, log in logs.items():
            if key in self.manager.logs:
                self.ledger.synced(key, log.log_end_offset, self.now)
                self.ledger.starts_durably_at(key, starts[key], self.now)

    def start(self) -> None:
        """The next process, on the same disk: after `stop`, or as after kill -9, with the page cache still there."""
        self.manager.release_locks()
        self._tickets.clear()
        self._checkpoint = None
        self.offline.clear()
        self.manager = self.manager_on(self.disk, self.now)
        self.manager.open_directories()
        self.manager.load(topic_id_of=lambda topic: self.ledger.topic_id_at(topic, self.now))
        self._note_offline()
        for log in self.manager.logs.values():
            log.set_high_watermark(log.recovery_point)

    # ---- threads

    def _in_thread(self, job: Callable[[], T]) -> T:
        """A job that the broker runs in a thread: before each of its operations the loop may do something else (`meanwhile`)."""
        self.disk.before_change = self.meanwhile
        try:
            return job()
        finally:
            self.disk.before_change = None

    def _ran(self, ticket: FlushTicket) -> bool:
        self._in_thread(ticket.run)
        return True

    # ---- failing disks

    def _guarded(self, action: Callable[[], T]) -> T | None:
        """What the broker does with a DiskError: the directory goes offline, the others go on (I7)."""
        try:
            return action()
        except DiskError as error:
            for path in self.dirs:
                if error.path == path or error.path.startswith(path + "/"):
                    self._note_failed_sync(path, error)
                    self.manager.fail_dir(path, error)
                    self.offline.setdefault(path, error)
            return None

    def _note_failed_sync(self, path: str, error: DiskError) -> None:
        for key, log in self.manager.logs.items():
            if error.operation in (SYNC, SYNC_DIRECTORY) and parent(log.directory) == path:
                self.ledger.sync_failed(key, self.now)

    def _note_offline(self) -> None:
        for path, error in self.manager.offline_dirs.items():
            if isinstance(error, DiskError):
                self.offline.setdefault(path, error)
