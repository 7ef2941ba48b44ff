"""Storage on the recorded disk with a cleaner in it: keyed records, cleanings that may be interrupted, and a ledger that knows of both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.compaction.compaction_world import RETENTION_MS, SECRET
from tidelog.records.builder import build_batch
from tidelog.records.record import Record, iter_records
from tidelog.storage import files
from tidelog.storage.batch_scan import scan_batches
from tidelog.storage.checkpoints import TopicPartition
from tidelog.storage.cleaner import LogCleaner
from tidelog.storage.cleaner_job import CleanedGroup, CleaningInterrupted, Limits
from tidelog.storage.cleaner_plan import cleanable
from tidelog.storage.cleaner_swap import Cleaning
from tidelog.storage.leftovers import discard_cleaned
from tidelog.storage.log_config import LogConfig
from tidelog.storage.segment_swap import SegmentSwap
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.storage_ledger import Sent, stored
from tidelog.testing.sim.storage_world import ORDERS, StorageWorld

COMPACTED = LogConfig(
    segment_bytes=700,
    index_interval_bytes=150,
    file_delete_delay_ms=1000,
    retention_ms=-1,
    delete_policy=False,
    compact_policy=True,
    delete_retention_ms=RETENTION_MS,
    min_cleanable_dirty_ratio=0.0,
)


class Swapping(NamedTuple):
    cleaning: Cleaning
    swap: SegmentSwap
    key: TopicPartition


class CompactingWorld(StorageWorld):
    cleaning_begun: int | None = None

    def __init__(self) -> None:
        super().__init__(config=COMPACTED)
        self.cleaned_to: list[
            tuple[int, int]
        ] = []  # (operations, offset): the log was clean below it since then

    def put(
        self,
        keys: str,
        *,
        producer: int = -1,
        key: TopicPartition = ORDERS,
        epoch: int = 0,
        deleted: str = "",
    ) -> None:
        """A batch with a record for each letter; those in `deleted` are tombstones."""
        if not self.is_online(key):
            return
        log = self.log(key)
        known = log.producers.get(producer) if producer >= 0 else None
        sequence = -1 if producer < 0 else known.next_sequence if known is not None else 0
        records = []
        for number, letter in enumerate(keys):
            self._number += 1
            value = (
                None if letter in deleted else b"%s/%06d" % (log.topic_id[-2:].hex().encode(), self._number)
            )
            # One time for all, so that it is the batch's whatever remains of it.
            records.append(Record(number, self.clock.wall_ms(), letter.encode(), value))
        self.clock.advance(1)
        batch = build_batch(
            records, producer_id=producer, producer_epoch=0 if producer >= 0 else -1, base_sequence=sequence
        )
        self._append(key, batch, epoch)

    def seal(self) -> None:
        self.roll()
        self.flush()

    # ---- cleaning

    def compact(self, key: TopicPartition = ORDERS, limits: Limits | None = None) -> None:
        for swapping in self.swaps(key, limits):
            self.take_all_steps(swapping)

    def swaps(self, key: TopicPartition = ORDERS, limits: Limits | None = None) -> Iterator[Swapping]:
        """Each swap of a cleaning, begun: whoever asks takes its steps, or lets something else happen."""
        if not self.is_online(key):
            return
        log = self.log(key)
        if self.cleaning_begun is None:
            self.cleaning_begun = self.now
        found = cleanable(log, self.clock.wall_ms())
        assert found.segments, found
        cleaning = Cleaning(
            log, found, limits or Limits(), is_there=lambda: self.manager.logs.get(key) is log
        )
        cleaner = LogCleaner(self.disk, cleaning.job, clock=self.clock, secret=SECRET)
        groups = cleaner.groups()
        while (group := self._in_thread(lambda: next(groups, None))) is not None:
            new = cleaning.open(group)
            try:
                swap = cleaning.begin_swap(group, new, now_ms=self.clock.wall_ms())
            except CleaningInterrupted:
                self._in_thread(lambda: discard_cleaned(self.disk, cleaning.job.directory))
                return
            self.ledger.replacing(key, self._as_replaced(cleaning, group), self.now)
            yield Swapping(cleaning, swap, key)
            try:
                cleaning.swapped(new)
            except CleaningInterrupted:
                return
        cleaning.finish(cleaner.result)
        self.cleaned_to.append((self.now, log.cleaned_to))

    def take_all_steps(self, swapping: Swapping) -> None:
        while (job := swapping.swap.advance()) is not None:
            self._in_thread(job)
        self.ledger.settled(swapping.key, self.now)

    def _as_replaced(self, cleaning: Cleaning, group: CleanedGroup) -> list[Sent]:
        """The log's batches once the new segments, which are whole, stand in the old ones' place."""
        end = next(s.end_offset for s in cleaning.job.sources if s.base_offset == group.old[-1])
        version = self.ledger.version((cleaning.log.topic, cleaning.log.partition))
        before = [batch for batch in version.batches if batch.stored.base_offset < group.old[0]]
        behind = [batch for batch in version.batches if batch.stored.base_offset >= end]
        return [*before, *written(self.disk, cleaning.job.directory, group.new, self.now), *behind]


def written(disk: SimDisk, directory: str, bases: tuple[int, ...], now: int) -> list[Sent]:
    found = []
    for base in bases:
        file = disk.open(files.segment_path(directory, base, files.LOG) + files.CLEANED)
        for batch in scan_batches(file, 0, file.size()):
            data = bytes(batch.bytes())
            times = tuple((record.timestamp, record.offset) for record in iter_records(data, 0, batch.header))
            found.append(Sent(stored(data, 0, batch.header), batch.header, times, now))
        file.close()
    return found
