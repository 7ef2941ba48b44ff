"""Frames come out whole however the bytes come in."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.receive import FrameReceiver
from tidelog.errors import ProtocolError

LIMIT = 1 << 20


def feed(receiver: FrameReceiver, data: bytes, cuts: list[int]) -> list[bytes]:
    frames: list[bytes] = []
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(edges):
        piece = memoryview(data)[start:end]
        while piece:
            target = receiver.buffer()
            assert len(target) > 0
            count = min(len(target), len(piece))
            target[:count] = piece[:count]
            frames += [bytes(frame) for frame in receiver.received(count)]
            piece = piece[count:]
    return frames


@given(
    st.lists(st.one_of(st.integers(4, 300), st.integers(65_000, 66_100), st.just(200_000)), max_size=8),
    st.lists(st.integers(0, 1 << 20), max_size=12),
)
def test_any_cut_gives_the_same_frames(sizes: list[int], cuts: list[int]) -> None:
    bodies = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    assert feed(FrameReceiver(LIMIT), stream, cuts) == bodies


def test_a_frame_keeps_its_bytes_when_more_arrive() -> None:
    receiver = FrameReceiver(LIMIT)
    kept = []
    for letter in (b"a", b"b"):
        data = (8).to_bytes(4, "big") + letter * 8
        receiver.buffer()[: len(data)] = data
        kept += list(receiver.received(len(data)))
    assert [bytes(frame) for frame in kept] == [b"a" * 8, b"b" * 8]


@given(st.lists(st.tuples(st.sampled_from([70_000, 100_000, 300_000]), st.integers(0, 6)), max_size=30))
def test_memory_is_used_again_only_when_nobody_looks_at_it(frames: list[tuple[int, int]]) -> None:
    receiver = FrameReceiver(LIMIT)
    held: list[tuple[bytes, memoryview]] = []
    for number, (size, forgotten) in enumerate(frames):
        body = bytes([number % 250 + 1]) * size
        piece = memoryview(len(body).to_bytes(4, "big") + body)
        while piece:
            target = receiver.buffer()
            count = min(len(target), len(piece))
            target[:count] = piece[:count]
            held += [
                (body, frame[10:]) for frame in receiver.received(count)
            ]  # a view of a view is one as well
            piece = piece[count:]
        del target
        assert all(bytes(view) == whole[10:] for whole, view in held)
        if forgotten < len(held):
            del held[forgotten]


@pytest.mark.parametrize("size", [200_000, (8 << 20) + 200])
def test_large_frames_share_memory_one_after_the_other(size: int) -> None:
    """Also answers with 8 MiB of records, which `scan` asks for: a header stands before them."""
    receiver = FrameReceiver(2 * size)
    places = set()
    for _ in range(5):
        assert feed(receiver, size.to_bytes(4, "big") + b"x" * size, []) == [b"x" * size]
        places.add(id(receiver._kept[0]))
    assert len(places) == len(receiver._kept) == 1


@pytest.mark.parametrize(
    ("prefix", "says"),
    [
        (b"HTTP", "HTTP server"),
        (b"\x15\x03\x03\x00", "TLS"),
        (b"\xff\xff\xff\xff", "-1 bytes"),
        (b"\x00\x00\x00\x00", "0 bytes"),
        ((LIMIT + 1).to_bytes(4, "big"), "at most"),
    ],
)
def test_lengths_that_make_no_sense_are_refused_before_allocation(prefix: bytes, says: str) -> None:
    receiver = FrameReceiver(LIMIT)
    receiver.buffer()[:4] = prefix
    with pytest.raises(ProtocolError, match=says):
        list(receiver.received(4))
