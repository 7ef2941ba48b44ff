"""What the client tests write: records with every shape a client can send, and the same again as it must be read."""

from __future__ import annotations

import os
import random
import time
from typing import NamedTuple

KCAT_HEADER = ("origin", b"kcat")
MANY = int(os.environ.get("TIDELOG_CLIENT_RECORDS", "200000"))
"""Records that every library writes and reads in one go: a million in `make clients`."""


class Row(NamedTuple):
    """One record, as sent and as read; headers in order, null and empty kept apart."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def binary_rows(count: int, *, seed: int) -> list[Row]:
    """Records with null, empty and binary keys and values, repeated and empty headers, one timestamp per millisecond."""
    chance = random.Random(seed)
    first_ms = int(time.time() * 1000) - count
    return [
        Row(
            key=None if i % 7 == 0 else b"" if i % 7 == 1 else f"key-{i % 97}".encode() + b"\x00\xff",
            # kafka-python and aiokafka refuse to send a record whose key and value are both null.
            value=None if i % 11 == 0 and i % 7 else b"" if i % 11 == 1 else _value(chance, i),
            headers=_headers(i),
            timestamp_ms=first_ms + i,
        )
        for i in range(count)
    ]


def _value(chance: random.Random, number: int) -> bytes:
    # Half of it repeats, so that compressing pays and a client really sends the compressed form.
    return chance.randbytes(chance.randrange(60)) + b"%d " % number * (number % 20)


def _headers(number: int) -> tuple[tuple[str, bytes | None], ...]:
    if number % 5 == 0:
        return (("trace", b"%d" % number), ("empty", b""), ("trace", b"again\xfe"))
    if number % 5 == 1:
        return (("ünicode-header", b"wert"),)
    if number % 5 == 2:
        return (("null", None),)
    return ()


def text_rows(count: int, *, seed: int) -> list[Row]:
    """What kcat can read from a file of lines: no line breaks, null instead of empty, one header for all.

    The timestamp is kcat's to choose; it stands as -1 here.
    """
    chance = random.Random(seed)
    return [
        Row(
            key=None if i % 7 == 0 else f"key-{i % 97}".encode(),
            value=None if i % 11 == 0 else f"{i} {chance.random()} ".encode() * (1 + i % 4),
            headers=(KCAT_HEADER,),
            timestamp_ms=-1,
        )
        for i in range(count)
    ]
