"""The records that are measured with: the same bytes for every peer and every client."""

from __future__ import annotations

CALL_RECORDS = 1000
BATCH_RECORDS_MAX = 10_000
BATCH_BYTES_MAX = 1_000_000
"""What librdkafka gathers into one batch with the settings stated in `bench.load`."""


def values(record_bytes: int, count: int = CALL_RECORDS) -> list[bytes]:
    """Half repeats, half does not, so that a codec has work to do and something to gain."""
    noise = bytes((i * 2654435761 >> 7) & 0xFF for i in range(record_bytes))
    return [
        (b"%08d" % number + noise[number % 97 :][: record_bytes // 2]).ljust(record_bytes, b".")[
            :record_bytes
        ]
        for number in range(count)
    ]


def batch_records(record_bytes: int) -> int:
    """How many records of a size make a full batch."""
    return max(1, min(BATCH_RECORDS_MAX, BATCH_BYTES_MAX // (record_bytes + 12)))


def size_name(record_bytes: int) -> str:
    return f"{record_bytes} B" if record_bytes < 1024 else f"{record_bytes // 1024} KiB"
