"""What the log's tests share: batches to append, a list as the model of a log, and ways to read a log back and compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidelog.records.batch import BatchHeader, iter_headers, read_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record, iter_records
from tidelog.storage.disk import Disk
from tidelog.storage.log import AppendResult, Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.producer_state import ProducerState
from tidelog.storage.recovery import open_log

DIRECTORY = "/data/orders-0"
NOW_MS = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=700, index_interval_bytes=150, file_delete_delay_ms=1000)


def make_batch(
    timestamps: Sequence[int] = (NOW_MS,),
    *,
    value: bytes = b"value",
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    base_offset: int = 0,
    leader_epoch: int = -1,
    is_transactional: bool = False,
) -> bytes:
    return build_batch(
        [Record(base_offset + n, ts, b"key", value) for n, ts in enumerate(timestamps)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        base_offset=base_offset,
        partition_leader_epoch=leader_epoch,
        is_transactional=is_transactional,
    )


def append(
    log: Log, batch: bytes | None = None, *, leader_epoch: int = 0, now_ms: int = NOW_MS
) -> AppendResult:
    data = make_batch() if batch is None else batch
    return log.append_as_leader(data, read_header(data), leader_epoch=leader_epoch, now_ms=now_ms)


def append_many(log: Log, count: int, *, leader_epoch: int = 0) -> None:
    for number in range(count):
        append(log, make_batch((NOW_MS + number,), value=b"v%d" % number), leader_epoch=leader_epoch)


def open_orders(
    disk: Disk, config: LogConfig = SMALL, *, directory: str = DIRECTORY, **facts: int | bool
) -> Log:
    return open_log(disk, directory, "orders", 0, config=config, now_ms=NOW_MS, **facts)  # type: ignore[arg-type]


class Stored(NamedTuple):
    """A batch as a reader sees it. The first 16 bytes are the broker's, so they are compared as numbers."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    payload: bytes


def stored(data: bytes | memoryview, position: int, header: BatchHeader) -> Stored:
    payload = bytes(data[position + 16 : position + header.size])
    return Stored(header.base_offset, header.last_offset, header.partition_leader_epoch, payload)


def read_all(
    log: Log, *, start: int | None = None, max_bytes: int = 300, end: int | None = None
) -> list[Stored]:
    """Read as a consumer does: from the log start to the end, each time from where the last answer ended."""
    offset = log.log_start_offset if start is None else start
    end_offset = log.log_end_offset if end is None else end
    found: list[Stored] = []
    while offset < end_offset:
        read = log.read(offset, max_bytes, end_offset=end_offset)
        if read.range is None:
            break
        data = read.range.read()
        assert len(data) == read.range.count
        read.range.release()
        batches = [
            (position, header) for position, header in iter_headers(data) if header.last_offset >= offset
        ]
        assert batches, "an answer holds at least one whole batch"
        found.extend(stored(data, position, header) for position, header in batches)
        offset = batches[-1][1].next_offset
    return found


class ModelBatch(NamedTuple):
    stored: Stored
    header: BatchHeader
    records: tuple[tuple[int, int], ...]  # (timestamp, offset)


class Model:
    """The log as a list: every batch ever appended and not truncated, also those that retention has let go."""

    def __init__(self) -> None:
        self.batches: list[ModelBatch] = []

    def appended(self, data: bytes, base_offset: int, leader_epoch: int) -> None:
        header = read_header(data)._replace(base_offset=base_offset, partition_leader_epoch=leader_epoch)
        times = tuple(
            (record.timestamp, base_offset + number)
            for number, record in enumerate(iter_records(data, 0, read_header(data)))
        )
        self.batches.append(ModelBatch(stored(data, 0, header), header, times))

    def cut(self, end_offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch.stored.last_offset < end_offset]

    def visible(self, start: int, end: int) -> list[Stored]:
        return [
            batch.stored
            for batch in self.batches
            if batch.stored.last_offset >= start and batch.stored.last_offset < end
        ]

    def first_at(self, timestamp: int, start: int) -> tuple[int, int] | None:
        for batch in self.batches:
            for found in batch.records:
                if found[0] >= timestamp and found[1] >= start:
                    return found
        return None

    def producers(self, *, from_offset: int = 0) -> dict[int, tuple[int, int, tuple[tuple[int, ...], ...]]]:
        state = ProducerState()
        for batch in self.batches:
            if batch.stored.base_offset >= from_offset:
                state.append(batch.header, batch.stored.base_offset, batch.stored.last_offset)
        return producers_of(state)


def producers_of(state: ProducerState) -> dict[int, tuple[int, int, tuple[tuple[int, ...], ...]]]:
    return {
        entry.producer_id: (
            entry.producer_epoch,
            entry.next_sequence,
            tuple(tuple(batch) for batch in entry.batches),
        )
        for entry in state
    }


def check_order(log: Log) -> None:
    """I5, and that the pieces agree with one another."""
    assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
    assert log.segments[0].base_offset <= log.log_start_offset or log.log_end_offset == log.log_start_offset
    bases = [segment.base_offset for segment in log.segments]
    assert bases == sorted(set(bases))
    assert log.active is log.segments[-1]
    assert log.recovery_point <= log.log_end_offset


def remove_due_files(log: Log, now_ms: int) -> int:
    """What housekeeping does with files whose delay is over."""
    due = log.take_due_files(now_ms)
    for path in due:
        log.disk.remove(path)
    return len(due)
