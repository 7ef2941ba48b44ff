"""Appends, reads and seeks of one log on real files. `python -m bench.micro log`.

Appends one-record batches until the segment holds `SIZE_BYTES`, then reads and seeks in it. "without the write" is an append minus
the time of the bare pwritev of the same bytes, measured on the same file system.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from bench.timing import Stopwatch, Timing
from tidelog.records.batch import BatchHeader, patched_prefix, read_header, write_crc
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.posix_disk import PosixDisk
from tidelog.storage.recovery import open_log
from tidelog.storage.segment import Segment

NOW_MS = 1_700_000_000_000
SIZE_BYTES = 64 << 20
VALUE_BYTES = 100
ROUND_CALLS = 500
FOLLOWED_BATCHES = 50

Thing = TypeVar("Thing")


def timings() -> Iterator[Timing]:
    root = tempfile.mkdtemp(prefix="tidelog-bench-")
    try:
        yield from run(root, SIZE_BYTES, VALUE_BYTES)
    finally:
        shutil.rmtree(root)


def run(root: str, size: int, value_bytes: int) -> Iterator[Timing]:
    config = LogConfig(segment_bytes=2 << 30)
    log = open_log(PosixDisk(), f"{root}/bench-0", "bench", 0, config=config, now_ms=NOW_MS)
    plain, bare = time_appends(log, size, value_bytes, root)
    yield Timing("append, one record", plain)
    yield Timing("append, without the write", plain - bare)
    yield Timing("append, idempotent producer", time_idempotent(log, value_bytes))
    log.set_high_watermark(log.log_end_offset)
    yield Timing("sequential read, 1 MiB each", time_sequential(log))
    yield Timing("tail read, everything fits", time_tail(log))
    draw = random.Random(1)
    offsets = [draw.randrange(log.log_end_offset) for _ in range(5000)]
    yield Timing("random seek by offset", time_seeks(log, offsets))
    yield Timing("random seek by timestamp", time_timestamps(log, offsets[:2000]))
    yield Timing("flush ticket, begin and finish", time_tickets(log, value_bytes))
    yield Timing("append as follower, per batch of 4 KiB", time_following(root))
    log.close_cleanly()
    end = log.log_end_offset
    with Stopwatch() as watch:
        recovered = open_log(PosixDisk(), f"{root}/bench-0", "bench", 0, config=config, now_ms=NOW_MS)
    assert recovered.log_end_offset == end
    yield Timing("recovery, per batch of one record", watch.seconds / end)


def each(things: Sequence[Thing], action: Callable[[Thing], object]) -> float:
    """What the action costs for one of them: the middle of many short rounds."""
    rounds = []
    for first in range(0, len(things), ROUND_CALLS):
        some = things[first : first + ROUND_CALLS]
        with Stopwatch() as watch:
            for thing in some:
                action(thing)
        rounds.append(watch.seconds / len(some))
    return statistics.median(rounds)


def batch_of(value_bytes: int, timestamp: int) -> bytes:
    return build_batch([Record(0, timestamp, b"key", b"v" * value_bytes)])


def time_appends(log: Log, size: int, value_bytes: int, root: str) -> tuple[float, float]:
    """Seconds per append, and per bare pwritev of the same two buffers."""
    template = bytearray(batch_of(value_bytes, NOW_MS))
    count = max(ROUND_CALLS, size // len(template))

    def append(pair: tuple[memoryview, BatchHeader]) -> None:
        log.append_as_leader(*pair, leader_epoch=0, now_ms=NOW_MS)

    rounds = []
    for first in range(0, count, ROUND_CALLS):
        pairs = [stamped(template, NOW_MS + number) for number in range(first, first + ROUND_CALLS)]
        rounds.append(each(pairs, append))
    descriptor = os.open(f"{root}/bare", os.O_RDWR | os.O_CREAT)
    view, prefix = memoryview(template), bytes(16)
    bare = each(
        range(0, 50_000 * len(template), len(template)),
        lambda position: os.pwritev(descriptor, (prefix, view[16:]), position),
    )
    os.close(descriptor)
    os.unlink(f"{root}/bare")
    return statistics.median(rounds), bare


def stamped(template: bytearray, timestamp: int) -> tuple[memoryview, BatchHeader]:
    """The template with its one record at another time: base and max timestamp, and the CRC over them."""
    batch = bytearray(template)
    struct.pack_into(">qq", batch, 27, timestamp, timestamp)
    write_crc(batch)
    return memoryview(batch), read_header(batch)


def time_idempotent(log: Log, value_bytes: int) -> float:
    records = [Record(0, NOW_MS, b"key", b"v" * value_bytes)]
    batches = [build_batch(records, producer_id=1, producer_epoch=0, base_sequence=n) for n in range(20_000)]
    pairs = [(batch, read_header(batch)) for batch in batches]
    return each(pairs, lambda pair: log.append_as_leader(*pair, leader_epoch=0, now_ms=NOW_MS))


def time_following(root: str) -> float:
    """What a leader's answer of `FOLLOWED_BATCHES` costs a follower for each: checks, an index entry, and its part of the writes."""
    config = LogConfig(segment_bytes=2 << 30)
    log = open_log(PosixDisk(), f"{root}/follower-0", "follower", 0, config=config, now_ms=NOW_MS)
    template = bytearray(batch_of(4200, NOW_MS))

    def answer(first: int) -> bytes:
        batches = []
        for number in range(first, first + FOLLOWED_BATCHES):
            batch, header = stamped(template, NOW_MS + number)
            batches.append(patched_prefix(number, header.batch_length, 0) + bytes(batch[16:]))
        return b"".join(batches)

    answers = [answer(number * FOLLOWED_BATCHES) for number in range(400)]
    seconds = each(answers, lambda records: log.append_as_follower(records, now_ms=NOW_MS, leader_epoch=0))
    log.close_cleanly()
    return seconds / FOLLOWED_BATCHES


def time_sequential(log: Log) -> float:
    """One read after the other, from the beginning to the end."""
    offset = 0
    rounds = []
    while offset < log.high_watermark:
        with Stopwatch() as watch:
            read = log.read(offset, 1 << 20, end_offset=log.high_watermark)
        assert read.range is not None and read.next_offset is not None
        read.range.release()
        offset = read.next_offset
        rounds.append(watch.seconds)
    return statistics.median(rounds)


def time_tail(log: Log) -> float:
    start = log.high_watermark - 5
    log.read(start, 1 << 20, end_offset=log.high_watermark).range.release()  # type: ignore[union-attr]
    log.positions.remember(start, *_place(log, start))

    def read(offset: int) -> None:
        log.read(offset, 1 << 20, end_offset=log.high_watermark).range.release()  # type: ignore[union-attr]

    return each([start] * 20_000, read)


def _place(log: Log, offset: int) -> tuple[Segment, int]:
    found = log.active.find(offset)
    assert found is not None
    return log.active, found[0]


def time_seeks(log: Log, offsets: list[int]) -> float:
    log.positions.clear()

    def seek(offset: int) -> None:
        found = log.active.find(offset)
        assert found is not None and found[1].base_offset <= offset

    return each(offsets, seek)


def time_timestamps(log: Log, offsets: list[int]) -> float:
    return each(offsets, lambda offset: log.offset_for_timestamp(NOW_MS + offset))


def time_tickets(log: Log, value_bytes: int) -> float:
    """The part that runs on the loop; the sync itself is timed apart."""
    rounds = []
    batch = batch_of(value_bytes, NOW_MS)
    for _ in range(50):
        log.append_as_leader(batch, read_header(batch), leader_epoch=0, now_ms=NOW_MS)
        watch = Stopwatch()
        with watch:
            ticket = log.begin_flush()
        assert ticket is not None
        ticket.run()
        with watch:
            log.finish_flush(ticket)
        rounds.append(watch.seconds)
    return statistics.median(rounds)
