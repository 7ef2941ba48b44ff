"""What the tests of compaction share: a log to write keyed records and transactions to, a cleaner to run over it, and readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from tidelog.records.batch import BatchHeader, iter_headers, read_header
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.control import build_end_transaction_marker, read_end_transaction_marker
from tidelog.records.record import Record, iter_records
from tidelog.storage import files
from tidelog.storage.cleaner import LogCleaner
from tidelog.storage.cleaner_job import Cleaned, Limits
from tidelog.storage.cleaner_plan import cleanable
from tidelog.storage.cleaner_swap import Cleaning
from tidelog.storage.disk import Disk
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.recovery import open_log
from tidelog.testing.sim.clock import SimClock
from tidelog.testing.sim.disk import SimDisk

NOW_MS = 1_700_000_000_000
DIRECTORY = "/data/orders-0"
RETENTION_MS = 1000
SECRET = bytes(range(16))
COMPACT = LogConfig(
    segment_bytes=2000,
    index_interval_bytes=150,
    file_delete_delay_ms=1000,
    delete_policy=False,
    compact_policy=True,
    delete_retention_ms=RETENTION_MS,
    min_cleanable_dirty_ratio=0.0,
)


class Raw(NamedTuple):
    """A batch as it stands in the log."""

    header: BatchHeader
    data: bytes

    @property
    def records(self) -> list[Record]:
        return list(iter_records(self.data, 0, self.header))


class World:
    """One log on a disk, with a clock."""

    def __init__(
        self, disk: Disk | None = None, config: LogConfig = COMPACT, directory: str = DIRECTORY
    ) -> None:
        self.clock = SimClock(NOW_MS)
        self.disk = disk if disk is not None else SimDisk(Random(1), clock=self.clock)
        self.directory = directory
        self.config = config
        self.log = self._open()
        self._markers: dict[int, int] = {}

    def _open(self, **facts: int | bool) -> Log:
        return open_log(
            self.disk, self.directory, "orders", 0, config=self.config, now_ms=self.now_ms, **facts,  # type: ignore[arg-type]
        )  # fmt: skip

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ms()

    # ---- writing

    def put(
        self,
        *pairs: tuple[bytes | None, bytes | None],
        codec: int = Codec.NONE,
        producer: int = -1,
        transactional: bool = False,
        epoch: int = 0,
        timestamps: Sequence[int] | None = None,
    ) -> int:
        """One batch of (key, value); returns its first offset."""
        known = self.log.producers.get(producer) if producer >= 0 else None
        times = [self.now_ms] * len(pairs) if timestamps is None else timestamps
        batch = build_batch(
            [Record(n, times[n], key, value, (("h", b"x"),)) for n, (key, value) in enumerate(pairs)],
            codec=codec,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=-1 if producer < 0 else known.next_sequence if known is not None else 0,
            is_transactional=transactional,
        )
        result = self.log.append_as_leader(batch, read_header(batch), leader_epoch=epoch, now_ms=self.now_ms)
        return result.base_offset

    def end_transaction(self, producer: int, *, commit: bool) -> int:
        batch = build_end_transaction_marker(
            commit=commit, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=self.now_ms
        )
        result = self.log.append_as_leader(batch, read_header(batch), leader_epoch=0, now_ms=self.now_ms)
        return result.base_offset

    def seal(self) -> None:
        """Everything so far is in sealed segments, durable and committed."""
        self.log.roll(self.now_ms)
        self.settle()

    def settle(self) -> None:
        self.log.flush()
        self.log.set_high_watermark(self.log.log_end_offset)

    # ---- cleaning

    def clean(self, limits: Limits | None = None) -> Cleaned | None:
        """All of it on this thread; None if there is nothing that may be cleaned."""
        found = cleanable(self.log, self.now_ms)
        if not found.segments:
            return None
        cleaning = Cleaning(self.log, found, limits or Limits())
        cleaner = LogCleaner(self.disk, cleaning.job, clock=self.clock, secret=SECRET)
        for group in cleaner.groups():
            new = cleaning.open(group)
            cleaning.begin_swap(group, new, now_ms=self.now_ms).run()
            cleaning.swapped(new)
        cleaning.finish(cleaner.result)
        return cleaner.result

    def restart(self, *, clean: bool, losing: str = "") -> None:
        """`losing`: the files of this kind are gone."""
        facts: dict[str, int | bool] = {
            "recovery_point": self.log.recovery_point,
            "high_watermark": self.log.high_watermark,
            "log_start_offset": self.log.log_start_offset,
            "cleaned_to": self.log.cleaned_to,
        }
        if clean:
            self.log.close_cleanly()
            facts |= {"clean": True, "recovery_point": self.log.log_end_offset}
        else:
            self.log.close()
        for name in self.disk.list_dir(self.directory) if losing else ():
            if name.endswith(losing):
                self.disk.remove(files.join(self.directory, name))
        self.log = self._open(**facts)
        self.settle()

    # ---- reading

    def batches(self) -> list[Raw]:
        return list(raw_batches(self.log))

    def records(self) -> list[Record]:
        """What a read_uncommitted consumer gets."""
        return [record for raw in self.batches() if not raw.header.is_control for record in raw.records]

    def committed(self) -> list[Record]:
        """What a read_committed consumer gets, who does with an answer what Kafka's clients do."""
        log = self.log
        end = log.last_stable_offset
        aborted = sorted(
            log.aborted_transactions(log.log_start_offset, end), key=lambda each: each.first_offset
        )
        skipping: set[int] = set()
        found: list[Record] = []
        for raw in raw_batches(log, end=end):
            header = raw.header
            while aborted and aborted[0].first_offset <= header.last_offset:
                skipping.add(aborted.pop(0).producer_id)
            if header.is_control:
                marker = read_end_transaction_marker(raw.data, 0, header) if header.record_count else None
                if marker is not None and not marker.is_commit:
                    skipping.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipping):
                found.extend(raw.records)
        return found

    def latest(self) -> dict[bytes | None, bytes | None]:
        return {record.key: record.value for record in self.committed()}


def raw_batches(log: Log, *, end: int | None = None) -> Iterator[Raw]:
    offset = log.log_start_offset
    end_offset = log.log_end_offset if end is None else end
    while offset < end_offset:
        read = log.read(offset, 500, end_offset=end_offset)
        if read.range is None:
            return
        data = read.range.read()
        read.range.release()
        last = offset
        for position, header in iter_headers(data):
            if header.last_offset >= offset:
                yield Raw(header, data[position : position + header.size])
                last = header.next_offset
        assert last > offset, "an answer holds at least one whole batch"
        offset = last
