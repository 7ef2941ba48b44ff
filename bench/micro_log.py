"""Appends, reads and seeks of one log on real files. `python -m bench.micro log`.

Appends one-record batches until the segment holds `SIZE_BYTES`, then reads and seeks in it. "without the write" is an append minus
the time of the bare pwritev of the same bytes, measured on the same file system.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator

from bench.timing import Timing
from tidelog.records.batch import BatchHeader, read_header, write_crc
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
    log.close_cleanly()
    end = log.log_end_offset
    started = time.thread_time()
    recovered = open_log(PosixDisk(), f"{root}/bench-0", "bench", 0, config=config, now_ms=NOW_MS)
    elapsed = time.thread_time() - started
    assert recovered.log_end_offset == end
    yield Timing("recovery, per batch of one record", elapsed / end)


def batch_of(value_bytes: int, timestamp: int) -> bytes:
    return build_batch([Record(0, timestamp, b"key", b"v" * value_bytes)])


def time_appends(log: Log, size: int, value_bytes: int, root: str) -> tuple[float, float]:
    """Seconds per append, and per bare pwritev of the same two buffers."""
    template = bytearray(batch_of(value_bytes, NOW_MS))
    count = max(1000, size // len(template))
    spent = 0.0
    for first in range(0, count, 1000):
        pairs = [stamped(template, NOW_MS + number) for number in range(first, first + 1000)]
        started = time.thread_time()
        for batch, header in pairs:
            log.append_as_leader(batch, header, leader_epoch=0, now_ms=NOW_MS)
        spent += time.thread_time() - started
    descriptor = os.open(f"{root}/bare", os.O_RDWR | os.O_CREAT)
    view, prefix, position = memoryview(template), bytes(16), 0
    started = time.thread_time()
    for _ in range(100_000):
        position += os.pwritev(descriptor, (prefix, view[16:]), position)
    bare = (time.thread_time() - started) / 100_000
    os.close(descriptor)
    os.unlink(f"{root}/bare")
    return spent / log.log_end_offset, bare


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
    started = time.thread_time()
    for batch, header in pairs:
        log.append_as_leader(batch, header, leader_epoch=0, now_ms=NOW_MS)
    return (time.thread_time() - started) / len(pairs)


def time_sequential(log: Log) -> float:
    offset = reads = 0
    started = time.thread_time()
    while offset < log.high_watermark:
        read = log.read(offset, 1 << 20, end_offset=log.high_watermark)
        assert read.range is not None and read.next_offset is not None
        read.range.release()
        offset = read.next_offset
        reads += 1
    return (time.thread_time() - started) / reads


def time_tail(log: Log) -> float:
    start = log.high_watermark - 5
    log.read(start, 1 << 20, end_offset=log.high_watermark).range.release()  # type: ignore[union-attr]
    log.positions.remember(start, *_place(log, start))
    started = time.thread_time()
    for _ in range(20_000):
        read = log.read(start, 1 << 20, end_offset=log.high_watermark)
        read.range.release()  # type: ignore[union-attr]
    return (time.thread_time() - started) / 20_000


def _place(log: Log, offset: int) -> tuple[Segment, int]:
    found = log.active.find(offset)
    assert found is not None
    return log.active, found[0]


def time_seeks(log: Log, offsets: list[int]) -> float:
    log.positions.clear()
    started = time.thread_time()
    for offset in offsets:
        found = log.active.find(offset)
        assert found is not None and found[1].base_offset <= offset
    return (time.thread_time() - started) / len(offsets)


def time_timestamps(log: Log, offsets: list[int]) -> float:
    started = time.thread_time()
    for offset in offsets:
        log.offset_for_timestamp(NOW_MS + offset)
    return (time.thread_time() - started) / len(offsets)


def time_tickets(log: Log, value_bytes: int) -> float:
    """The part that runs on the loop; the sync itself is timed apart."""
    spent = 0.0
    batch = batch_of(value_bytes, NOW_MS)
    for _ in range(50):
        log.append_as_leader(batch, read_header(batch), leader_epoch=0, now_ms=NOW_MS)
        started = time.thread_time()
        ticket = log.begin_flush()
        spent += time.thread_time() - started
        assert ticket is not None
        ticket.run()
        started = time.thread_time()
        log.finish_flush(ticket)
        spent += time.thread_time() - started
    return spent / 50
