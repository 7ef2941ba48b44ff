"""Unsigned variable-length integers and the tagged-field section around them (KIP-482).

Owns the slow path only: the compiled code reads and writes lengths below 128 itself and calls in here for the rest.
"""

from __future__ import annotations

from typing import Final

from tidelog.errors import ProtocolError

_LONGEST_SHIFT: Final = 28


def write_uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_uvarint(view: memoryview, position: int) -> tuple[int, int]:
    """The value at `position`, and where it ends. IndexError when the bytes end first."""
    first = view[position]
    if first < 128:
        return first, position + 1
    return finish_uvarint(view, position + 1, first)


def finish_uvarint(view: memoryview, position: int, first: int) -> tuple[int, int]:
    """Goes on after a first byte above 127. Five bytes hold 32 bits; more is an attack or garbage (I53)."""
    value = first & 127
    shift = 7
    while True:
        byte = view[position]
        position += 1
        if shift == _LONGEST_SHIFT and byte > 15:
            raise ProtocolError("an unsigned varint is longer than 32 bits")
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7


def skip_tags(view: memoryview, position: int, count: int) -> int:
    """Passes over tagged fields that are newer than we are. `count` is the section's first byte, already read."""
    if count > 127:
        count, position = finish_uvarint(view, position, count)
    last = -1
    for _ in range(count):
        tag, length, position = read_tag(view, position, last)
        last = tag
        position += length
    return position


def read_tag(view: memoryview, position: int, last: int) -> tuple[int, int, int]:
    """One tag and the length of its value. Tags come in rising order, so that none comes twice."""
    tag, position = read_uvarint(view, position)
    if tag <= last:
        raise ProtocolError(f"tagged field {tag} comes after {last}: tags must rise and may not repeat")
    length, position = read_uvarint(view, position)
    if length > len(view) - position:
        raise ProtocolError(
            f"tagged field {tag} claims {length} bytes, only {max(0, len(view) - position)} are left"
        )
    return tag, length, position
