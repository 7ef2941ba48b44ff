"""Microseconds per append, sequential read and random seek of one log on real files.

    python bench/micro_log.py [--size 256] [--value-bytes 100] [--dir DIR]

Appends one-record batches until the segment holds `--size` MiB, then reads and seeks in it. "without the write" is an append minus
the time of the bare pwritev of the same bytes, measured on the same file system.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import struct
import tempfile
import time

from tidelog.records.batch import BatchHeader, read_header, write_crc
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.posix_disk import PosixDisk
from tidelog.storage.recovery import open_log
from tidelog.storage.segment import Segment

NOW_MS = 1_700_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=256, help="MiB in the segment (default 256)")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--dir", default=None, help="where to work (default: a temporary directory)")
    options = parser.parse_args()
    root = tempfile.mkdtemp(prefix="tidelog-bench-", dir=options.dir)
    try:
        run(root, options.size << 20, options.value_bytes)
    finally:
        shutil.rmtree(root)


def run(root: str, size: int, value_bytes: int) -> None:
    log = open_log(
        PosixDisk(), f"{root}/bench-0", "bench", 0, config=LogConfig(segment_bytes=2 << 30), now_ms=NOW_MS
    )
    plain, bare = time_appends(log, size, value_bytes, root)
    print(f"{log.log_end_offset} batches, {log.size_bytes >> 20} MiB, value {value_bytes} bytes")
    report("append, one record", plain)
    report("append, without the write", plain - bare)
    report("append, idempotent producer", time_idempotent(log, value_bytes))
    log.set_high_watermark(log.log_end_offset)
    report("sequential read, 1 MiB each", time_sequential(log))
    report("tail read, everything fits", time_tail(log))
    draw = random.Random(1)
    offsets = [draw.randrange(log.log_end_offset) for _ in range(5000)]
    report("random seek by offset", time_seeks(log, offsets))
    report("random seek by timestamp", time_timestamps(log, offsets[:2000]))
    report("flush ticket, begin and finish", time_tickets(log, value_bytes))
    started = time.perf_counter()
    log.close_cleanly()
    end = log.log_end_offset
    clean = open_log(
        PosixDisk(),
        f"{root}/bench-0",
        "bench",
        0,
        config=log.config,
        now_ms=NOW_MS,
        clean=True,
        recovery_point=end,
    )
    report("clean close and open", time.perf_counter() - started)
    started = time.perf_counter()
    recovered = open_log(PosixDisk(), f"{root}/bench-0", "bench", 0, config=log.config, now_ms=NOW_MS)
    elapsed = time.perf_counter() - started
    assert clean.log_end_offset == recovered.log_end_offset == end
    megabytes = recovered.size_bytes / 1e6
    print(f"{'recovery of the whole segment':34} {elapsed:9.2f} s   {megabytes / elapsed:.0f} MB/s")


def report(what: str, seconds: float) -> None:
    print(f"{what:34} {seconds * 1e6:9.2f} µs")


def batch_of(value_bytes: int, timestamp: int) -> bytes:
    return build_batch([Record(0, timestamp, b"key", b"v" * value_bytes)])


def time_appends(log: Log, size: int, value_bytes: int, root: str) -> tuple[float, float]:
    """Seconds per append, and per bare pwritev of the same two buffers."""
    template = bytearray(batch_of(value_bytes, NOW_MS))
    count = max(1000, size // len(template))
    spent = 0.0
    for first in range(0, count, 1000):
        pairs = [stamped(template, NOW_MS + number) for number in range(first, first + 1000)]
        started = time.perf_counter()
        for batch, header in pairs:
            log.append_as_leader(batch, header, leader_epoch=0, now_ms=NOW_MS)
        spent += time.perf_counter() - started
    descriptor = os.open(f"{root}/bare", os.O_RDWR | os.O_CREAT)
    view, prefix, position = memoryview(template), bytes(16), 0
    started = time.perf_counter()
    for _ in range(100_000):
        position += os.pwritev(descriptor, (prefix, view[16:]), position)
    bare = (time.perf_counter() - started) / 100_000
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
    started = time.perf_counter()
    for batch, header in pairs:
        log.append_as_leader(batch, header, leader_epoch=0, now_ms=NOW_MS)
    return (time.perf_counter() - started) / len(pairs)


def time_sequential(log: Log) -> float:
    offset = reads = 0
    started = time.perf_counter()
    while offset < log.high_watermark:
        read = log.read(offset, 1 << 20, end_offset=log.high_watermark)
        assert read.range is not None and read.next_offset is not None
        read.range.release()
        offset = read.next_offset
        reads += 1
    return (time.perf_counter() - started) / reads


def time_tail(log: Log) -> float:
    start = log.high_watermark - 5
    log.read(start, 1 << 20, end_offset=log.high_watermark).range.release()  # type: ignore[union-attr]
    log.positions.remember(start, *_place(log, start))
    started = time.perf_counter()
    for _ in range(20_000):
        read = log.read(start, 1 << 20, end_offset=log.high_watermark)
        read.range.release()  # type: ignore[union-attr]
    return (time.perf_counter() - started) / 20_000


def _place(log: Log, offset: int) -> tuple[Segment, int]:
    found = log.active.find(offset)
    assert found is not None
    return log.active, found[0]


def time_seeks(log: Log, offsets: list[int]) -> float:
    log.positions.clear()
    started = time.perf_counter()
    for offset in offsets:
        found = log.active.find(offset)
        assert found is not None and found[1].base_offset <= offset
    return (time.perf_counter() - started) / len(offsets)


def time_timestamps(log: Log, offsets: list[int]) -> float:
    started = time.perf_counter()
    for offset in offsets:
        log.offset_for_timestamp(NOW_MS + offset)
    return (time.perf_counter() - started) / len(offsets)


def time_tickets(log: Log, value_bytes: int) -> float:
    """The part that runs on the loop; the sync itself is timed apart."""
    spent = 0.0
    batch = batch_of(value_bytes, NOW_MS)
    for _ in range(50):
        log.append_as_leader(batch, read_header(batch), leader_epoch=0, now_ms=NOW_MS)
        started = time.perf_counter()
        ticket = log.begin_flush()
        spent += time.perf_counter() - started
        assert ticket is not None
        ticket.run()
        started = time.perf_counter()
        log.finish_flush(ticket)
        spent += time.perf_counter() - started
    return spent / 50


if __name__ == "__main__":
    main()
