"""Helpers for bending batches out of shape in one known way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidelog.records.batch import HEADER_STRUCT, read_header, write_crc
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

NOW_MS = 1_700_000_000_000


def forge_batch(batch: bytes, *, crc: bool = True, **fields: int) -> bytes:
    """`batch` with header fields replaced; the CRC is made to match unless told otherwise."""
    forged = bytearray(batch)
    HEADER_STRUCT.pack_into(forged, 0, *read_header(batch)._replace(**fields))
    if crc:
        write_crc(forged)
    return bytes(forged)


def make_batch(count: int = 3, **options: Any) -> bytes:
    records = (Record(index, NOW_MS + index, b"key-%d" % index, b"value") for index in range(count))
    return build_batch(records, **options)


@pytest.fixture
def forge() -> Callable[..., bytes]:
    return forge_batch


@pytest.fixture
def make() -> Callable[..., bytes]:
    return make_batch


@pytest.fixture
def now_ms() -> int:
    return NOW_MS
