"""Ways to spoil a message whose structure is known: each takes bytes with marks and gives back other bytes.

A mutation keeps everything around it intact, so that the reader gets as far as the spoiled place. Several in a row use the marks
of the original, which then lie a little off: that too is a kind of hostile input.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Final

from tests.fuzz.dictionary import EDGES, INVALID_UTF8, LENGTHS_16, LENGTHS_32, STRINGS, TOPIC_NAMES, UVARINTS
from tests.fuzz.shapes import Mark, Shape, uvarint
from tidelog.wire.plan import FIXED

Mutation = Callable[[Shape, bytearray, Random], None]

_LENGTHS: Final = frozenset(("length16", "length32", "uvarint"))
_TEXTS: Final = frozenset(("string", "bytes", "records"))
_COPIES_MAX: Final = 2000


def _pick(shape: Shape, rng: Random, kinds: frozenset[str]) -> Mark | None:
    """A mark of one of these kinds; a few draws instead of a search, because most messages have one."""
    marks = shape.marks
    if not marks:
        return None
    for _ in range(6):
        mark = rng.choice(marks)
        if mark.kind in kinds:
            return mark
    found = [mark for mark in marks if mark.kind in kinds]
    return rng.choice(found) if found else None


def truncate(shape: Shape, data: bytearray, rng: Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def lengths(shape: Shape, data: bytearray, rng: Random) -> None:
    mark = _pick(shape, rng, _LENGTHS)
    if mark is None:
        return
    if mark.kind == "length16":
        data[mark.start : mark.end] = struct.pack(">h", rng.choice(LENGTHS_16))
    elif mark.kind == "length32":
        data[mark.start : mark.end] = struct.pack(">i", rng.choice(LENGTHS_32))
    else:
        data[mark.start : mark.end] = rng.choice(UVARINTS)


def nulls(shape: Shape, data: bytearray, rng: Random) -> None:
    """Null where it may not be, with the bytes that followed gone too."""
    mark = _pick(shape, rng, _TEXTS)
    if mark is None:
        return
    before = next((m for m in shape.marks if m.end == mark.start and m.kind in _LENGTHS), None)
    if before is not None:
        data[before.start : mark.end] = {
            "length16": b"\xff\xff",
            "length32": b"\xff" * 4,
            "uvarint": b"\x00",
        }[before.kind]


def near_lengths(shape: Shape, data: bytearray, rng: Random) -> None:
    """Off by one or two: what follows is read from the wrong place."""
    mark = _pick(shape, rng, _LENGTHS)
    if mark is not None and mark.end <= len(data):
        at = mark.end - 1
        data[at] = (data[at] + rng.choice((-2, -1, 1, 2))) & 0xFF


def numbers(shape: Shape, data: bytearray, rng: Random) -> None:
    mark = _pick(shape, rng, frozenset(EDGES))
    if mark is not None:
        data[mark.start : mark.end] = struct.pack(">" + FIXED[mark.kind], rng.choice(EDGES[mark.kind]))


def texts(shape: Shape, data: bytearray, rng: Random) -> None:
    """Another text with the length that belongs to it: also names that lead out of a directory, and no UTF-8."""
    mark = _pick(shape, rng, frozenset(("string",)))
    if mark is None:
        return
    word = rng.choice(
        (rng.choice(TOPIC_NAMES).encode(), rng.choice(STRINGS).encode(), rng.choice(INVALID_UTF8))
    )
    before = next((m for m in shape.marks if m.end == mark.start and m.kind in _LENGTHS), None)
    if before is None:
        data[mark.start : mark.end] = word
    elif before.kind == "uvarint":
        data[before.start : mark.end] = uvarint(len(word) + 1) + word
    else:
        data[before.start : mark.end] = struct.pack(">h", len(word)) + word


def tags(shape: Shape, data: bytearray, rng: Random) -> None:
    mark = _pick(shape, rng, frozenset(("tags",)))
    if mark is None:
        return
    number = rng.choice((0, 1, 2, 3, 100))
    one = uvarint(number) + b"\x01x"
    data[mark.start : mark.end] = rng.choice(
        (
            b"\x02" + one + one,  # twice the same
            b"\x02" + uvarint(number + 1) + b"\x01x" + one,  # falling
            b"\x01" + b"\xff\xff\xff\xff\x0f" + b"\x01x",  # the largest tag there is
            b"\x01" + uvarint(number) + rng.choice(UVARINTS),
            b"\x01" + uvarint(number) + b"\x00",  # of no length
            b"\x01" + one,
            rng.choice(UVARINTS),  # a count without tags
            b"\x80\x01" + b"".join(uvarint(n + 50) + b"\x00" for n in range(128)),
            b"\x01" + uvarint(number) + uvarint(3000) + bytes(3000),
        )
    )


def repeat(shape: Shape, data: bytearray, rng: Random) -> None:
    """One element of an array many times, with the count that belongs to it or another."""
    mark = _pick(shape, rng, frozenset(("element",)))
    if mark is None or mark.end <= mark.start:
        return
    count = rng.choice((1, 2, 10, min(_COPIES_MAX, 1 + 20_000 // (mark.end - mark.start))))
    head = next(
        (
            m
            for m in reversed(shape.marks)
            if m.label == mark.label and m.kind in _LENGTHS and m.end <= mark.start
        ),
        None,
    )
    data[mark.start : mark.end] = data[mark.start : mark.end] * count
    if head is not None and rng.random() < 0.7:
        if head.kind == "uvarint":
            data[head.start : head.end] = uvarint(count + 1)
        elif head.kind == "length32":
            data[head.start : head.end] = struct.pack(">i", count)


def drop(shape: Shape, data: bytearray, rng: Random) -> None:
    if shape.marks:
        mark = rng.choice(shape.marks)
        del data[mark.start : mark.end]


def splice(shape: Shape, data: bytearray, rng: Random) -> None:
    """A piece of the message in place of another."""
    if len(shape.marks) > 1:
        target, source = rng.choice(shape.marks), rng.choice(shape.marks)
        data[target.start : target.end] = shape.data[source.start : source.end]


def flip(shape: Shape, data: bytearray, rng: Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        if data:
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def append(shape: Shape, data: bytearray, rng: Random) -> None:
    data += rng.choice((b"\x00", b"\xff" * 4, bytes(100), rng.randbytes(20)))


def keep(shape: Shape, data: bytearray, rng: Random) -> None:
    """Nothing wrong at all: hostile contents alone, and what the reader must not refuse."""


MUTATIONS: Final[tuple[Mutation, ...]] = (
    truncate, truncate, lengths, lengths, nulls, near_lengths, numbers, numbers, texts, texts, tags, tags, repeat,
    drop, splice, flip, flip, append, keep, keep, keep,
)  # fmt: skip


def mutate(shape: Shape, rng: Random, *, kept: float = 0.0) -> tuple[str, bytes]:
    """The name of what was done, and the bytes. A share is `kept` as it is: against what stands behind the decoder."""
    if kept and rng.random() < kept:
        return keep.__name__, shape.data
    data = bytearray(shape.data)
    names = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        mutation = rng.choice(MUTATIONS)
        mutation(shape, data, rng)
        names.append(mutation.__name__)
    return "+".join(names), bytes(data)
