"""Zigzag variable-length integers, the numbers inside records.

Owns their encoding and decoding in plain Python. Never accepts more bytes than a 32-bit (5) or 64-bit (10) number can need,
so that a run of 0xff costs ten steps, not the length of the buffer.
"""

from __future__ import annotations

from typing import Final

from tidelog.errors import CorruptDataError
from tidelog.records.batch import Buffer

_VARINT_BYTES_MAX: Final = 5
_VARLONG_BYTES_MAX: Final = 10


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """A 32-bit number and the position behind it. IndexError when the buffer ends inside it."""
    byte = buffer[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    return _read_long(buffer, position, byte, _VARINT_BYTES_MAX)


def read_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """A 64-bit number and the position behind it. IndexError when the buffer ends inside it."""
    byte = buffer[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    return _read_long(buffer, position, byte, _VARLONG_BYTES_MAX)


def _read_long(buffer: Buffer, position: int, byte: int, bytes_max: int) -> tuple[int, int]:
    start = position - 1
    raw, shift = byte & 0x7F, 7
    while byte & 0x80:
        if position - start == bytes_max:
            raise CorruptDataError(f"variable-length number at {start} is longer than {bytes_max} bytes")
        byte = buffer[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
    if raw >> (32 if bytes_max == _VARINT_BYTES_MAX else 64):
        raise CorruptDataError(f"variable-length number at {start} does not fit its type")
    return (raw >> 1) ^ -(raw & 1), position


def _encode(value: int) -> bytes:
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


_SMALL: Final = tuple(_encode(value) for value in range(1024))  # lengths and deltas are mostly small
_MINUS_ONE: Final = _encode(-1)


def encode_varint(value: int) -> bytes:
    """Serves both widths: the width only bounds what a reader accepts."""
    if 0 <= value < 1024:
        return _SMALL[value]
    return _MINUS_ONE if value == -1 else _encode(value)
