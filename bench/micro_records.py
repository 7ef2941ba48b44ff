"""What the few hot things of the records package cost. `python -m bench.micro records`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from crc32c import crc32c

from bench.payload import size_name
from bench.timing import Timing, cost_seconds
from tidelog.records.batch import crc_matches, patched_prefix, read_header
from tidelog.records.builder import build_batch
from tidelog.records.columnar import DEFAULT_COLUMNS, decode_batches
from tidelog.records.compression import Codec, compress, decompress
from tidelog.records.record import Record, iter_records
from tidelog.records.validation import BatchRules, validate_for_append

NOW_MS = 1_700_000_000_000
RANDOM = random.Random(7)


def values(count: int, size: int) -> list[bytes]:
    """Half random, half repeating: compresses about two to one."""
    return [
        RANDOM.randbytes(size // 4).hex().encode() + (b"tidelog!" * (size // 16 + 1))[: size // 2]
        for _ in range(count)
    ]


def append_path() -> Iterator[Timing]:
    rules = BatchRules()
    for size in (100, 1024, 16_384, 1_048_000):
        batch = memoryview(build_batch([Record(0, NOW_MS, b"k", bytes(size))]))
        label = f"batch of one record of {size_name(size)}"
        header = read_header(batch)
        yield Timing(f"read_header, {label}", cost_seconds(partial(read_header, batch)))
        yield Timing(f"crc_matches, {label}", cost_seconds(partial(crc_matches, batch, 0, header)))
        validated = cost_seconds(partial(validate_for_append, batch, rules, NOW_MS))
        yield Timing(f"validate_for_append, {label}", validated)
        bare = cost_seconds(partial(crc32c, batch[21:]))
        yield Timing(f"validate_for_append without the CRC, {label}", validated - bare)


def run_of_batches(codec: Codec, per_batch: int, size: int, total: int) -> bytes:
    payloads = values(per_batch, size)
    batch = build_batch(
        [Record(i, NOW_MS + i, b"key-%05d" % i, payloads[i]) for i in range(per_batch)], codec=codec
    )
    length = read_header(batch).batch_length
    return b"".join(patched_prefix(start, length, 0) + batch[16:] for start in range(0, total, per_batch))


def columnar_decode() -> Iterator[Timing]:
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
        seconds = cost_seconds(partial(decode_batches, buffer, columns=columns), rounds=5)
        chosen = "" if columns == DEFAULT_COLUMNS else f", {'+'.join(columns)}"
        yield Timing(
            f"columnar row, {codec.name.lower()} {size_name(size)} x {per_batch}{chosen}", seconds / total
        )


def plain_python() -> Iterator[Timing]:
    payloads = values(1000, 100)
    records = [Record(i, NOW_MS + i, b"key-%05d" % i, payloads[i]) for i in range(1000)]
    batch = build_batch(records)
    header = read_header(batch)
    yield Timing("build_batch, per record of 100 B", cost_seconds(lambda: build_batch(records)) / 1000)
    yield Timing(
        "iter_records, per record of 100 B", cost_seconds(lambda: list(iter_records(batch, 0, header))) / 1000
    )


def codecs() -> Iterator[Timing]:
    data = b"".join(values(160, 100))
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        packed = compress(codec, data)
        name = codec.name.lower()
        yield Timing(f"{name}, compress 16 KB", cost_seconds(partial(compress, codec, data)))
        yield Timing(f"{name}, decompress 16 KB", cost_seconds(partial(decompress, codec, packed, 1 << 20)))


def timings() -> Iterator[Timing]:
    yield from append_path()
    yield from plain_python()
    yield from codecs()
    yield from columnar_decode()
