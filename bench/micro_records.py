"""How long the records package takes for its few hot things. Run: python bench/micro_records.py

Prints CPU time, the best of several runs, because the machine it runs on is rarely idle.
"""

from __future__ import annotations

import random
import timeit
from collections.abc import Callable
from functools import partial
from time import process_time

from crc32c import crc32c

from tidelog.records.batch import crc_matches, patched_prefix, read_header
from tidelog.records.builder import build_batch
from tidelog.records.columnar import DEFAULT_COLUMNS, decode_batches
from tidelog.records.compression import Codec, compress, decompress
from tidelog.records.record import Record, iter_records
from tidelog.records.validation import BatchRules, validate_for_append

NOW_MS = 1_700_000_000_000
RANDOM = random.Random(7)


def best_seconds(action: Callable[[], object], budget: float = 0.3) -> float:
    action()
    once = min(timeit.repeat(action, number=1, repeat=3, timer=process_time))
    number = max(1, int(budget / 5 / max(once, 1e-7)))
    return min(timeit.repeat(action, number=number, repeat=7, timer=process_time)) / number


def values(count: int, size: int) -> list[bytes]:
    """Half random, half repeating: compresses about two to one."""
    return [
        RANDOM.randbytes(size // 4).hex().encode() + (b"tidelog!" * (size // 16 + 1))[: size // 2]
        for _ in range(count)
    ]


def append_path() -> None:
    print("produce path, microseconds per batch of one record")
    rules = BatchRules()
    for size in (100, 1_000, 16_000, 1_000_000):
        batch = memoryview(build_batch([Record(0, NOW_MS, b"k", bytes(size))]))
        times = {
            "read_header": best_seconds(partial(read_header, batch)),
            "crc_matches": best_seconds(partial(crc_matches, batch, 0, read_header(batch))),
            "validate_for_append": best_seconds(partial(validate_for_append, batch, rules, NOW_MS)),
            "bare crc": best_seconds(partial(crc32c, batch[21:])),
        }
        without_crc = times["validate_for_append"] - times["bare crc"]
        print(
            f"  {size:>9,} B  " + "  ".join(f"{name} {value * 1e6:.2f}" for name, value in times.items())
            + f"  = {without_crc * 1e6:.2f} + crc"
        )  # fmt: skip


def run_of_batches(codec: Codec, per_batch: int, size: int, total: int) -> bytes:
    payloads = values(per_batch, size)
    batch = build_batch(
        [Record(i, NOW_MS + i, b"key-%05d" % i, payloads[i]) for i in range(per_batch)], codec=codec
    )
    length = read_header(batch).batch_length
    return b"".join(patched_prefix(start, length, 0) + batch[16:] for start in range(0, total, per_batch))


def columnar_decode() -> None:
    print("columnar decode, one core, CRC checked")
    for codec, per_batch, size, columns in (
        (Codec.NONE, 1000, 100, DEFAULT_COLUMNS),
        (Codec.NONE, 1000, 100, ("value",)),
        (Codec.NONE, 1000, 100, ("offset", "timestamp")),
        (Codec.NONE, 1000, 100, (*DEFAULT_COLUMNS, "headers")),
        (Codec.NONE, 10, 100, DEFAULT_COLUMNS),
        (Codec.NONE, 1, 100, DEFAULT_COLUMNS),
        (Codec.NONE, 100, 1024, DEFAULT_COLUMNS),
        (Codec.LZ4, 1000, 100, DEFAULT_COLUMNS),
        (Codec.LZ4, 100, 1024, DEFAULT_COLUMNS),
        (Codec.SNAPPY, 1000, 100, DEFAULT_COLUMNS),
        (Codec.ZSTD, 1000, 100, DEFAULT_COLUMNS),
        (Codec.GZIP, 1000, 100, DEFAULT_COLUMNS),
    ):
        total = 200_000 if per_batch > 1 else 50_000
        buffer = run_of_batches(codec, per_batch, size, total)
        seconds = best_seconds(partial(decode_batches, buffer, columns=columns))
        print(
            f"  {codec.name.lower():<6} {size:>5} B x {per_batch:>4}  {total / seconds / 1e6:6.2f} M rows/s"
            f"  {len(buffer) / seconds / 1e9:5.2f} GB/s  {', '.join(columns)}"
        )


def plain_python() -> None:
    print("plain Python, microseconds per record of 100 B")
    payloads = values(1000, 100)
    records = [Record(i, NOW_MS + i, b"key-%05d" % i, payloads[i]) for i in range(1000)]
    batch = build_batch(records)
    header = read_header(batch)
    print(f"  build_batch   {best_seconds(lambda: build_batch(records)) * 1e3:.2f}")
    print(f"  iter_records  {best_seconds(lambda: list(iter_records(batch, 0, header))) * 1e3:.2f}")


def codecs() -> None:
    print("codecs, 16 KB of records that compress about two to one, microseconds")
    data = b"".join(values(160, 100))
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        packed = compress(codec, data)
        there = best_seconds(partial(compress, codec, data))
        back = best_seconds(partial(decompress, codec, packed, 1 << 20))
        print(
            f"  {codec.name.lower():<6} {len(packed):>6} B  compress {there * 1e6:8.1f}  decompress {back * 1e6:7.1f}"
        )


if __name__ == "__main__":
    append_path()
    columnar_decode()
    plain_python()
    codecs()
