"""The map of keys: its hash is the one it claims to be, it holds what a dictionary would, and it says when it is full."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compaction.compaction_world import SECRET
from tidelog.records import compaction_kernels as kernels
from tidelog.records.builder import build_batch
from tidelog.records.compaction import SLOT_BYTES, OffsetMap, read_chunk
from tidelog.records.record import Record

# From the reference implementation of SipHash-2-4 with 128 bits: the key is 00 01 … 0f, the message 00 01 … of this length.
VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    16: "6ee2a4ca67b054bbfd3315bf85230577",
}


@pytest.mark.parametrize("length", VECTORS)
def test_the_hash_is_siphash(length: int) -> None:
    message = np.frombuffer(bytes(range(length)) or b"\0", np.uint8)
    secret = np.frombuffer(SECRET, "<u8").astype(np.uint64)
    low, high = kernels.hashed(message, 0, length, secret)
    assert (int(low).to_bytes(8, "little") + int(high).to_bytes(8, "little")).hex() == VECTORS[length]


def new_map(slots: int = 1000, load_factor: float = 0.9) -> OffsetMap:
    return OffsetMap(slots * SLOT_BYTES, load_factor=load_factor, secret=SECRET)


def add(offset_map: OffsetMap, keys: list[bytes | None], *, base: int = 0, start: int = 0) -> int | None:
    chunk = read_chunk(build_batch([Record(base + n, 0, key, b"v") for n, key in enumerate(keys)]))
    return offset_map.add(chunk, start_offset=start, without=np.zeros(1, np.bool_))


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=200), st.integers(0, 100))
@settings(max_examples=100)
def test_it_holds_the_latest_offset_of_each_key(keys: list[bytes], start: int) -> None:
    offset_map = new_map()
    assert add(offset_map, list(keys), start=start) is None
    expected = {key: offset for offset, key in enumerate(keys) if offset >= start}
    assert {key: offset_map.get(key) for key in expected} == expected
    assert offset_map.entries == len(expected)
    assert offset_map.get(b"a key that was never there, longer than any") is None


def test_records_without_a_key_are_not_in_it() -> None:
    offset_map = new_map()
    add(offset_map, [None, b"", b"a", None])
    assert (offset_map.entries, offset_map.get(b""), offset_map.get(b"a")) == (2, 1, 2)


def test_it_says_where_it_was_full_and_knows_all_before() -> None:
    offset_map = new_map(slots=10, load_factor=0.5)
    keys: list[bytes | None] = [b"%d" % (n % 5) for n in range(20)] + [b"one more", b"0"]
    assert add(offset_map, keys) == 20
    assert offset_map.entries == offset_map.capacity == 5
    assert [offset_map.get(b"%d" % n) for n in range(5)] == [15, 16, 17, 18, 19]
    assert offset_map.get(b"one more") is None


@pytest.mark.parametrize("factor", [0.01, 0.5, 0.9, 0.99, 1.0])
def test_a_nearly_full_map_still_finds_its_keys(factor: float) -> None:
    offset_map = new_map(slots=101, load_factor=factor)
    keys: list[bytes | None] = [b"key %d" % n for n in range(200)]
    full_at = add(offset_map, keys)
    assert full_at == offset_map.capacity
    assert 1 <= offset_map.capacity <= 100, "one slot is always free"
    for n in range(200):
        assert offset_map.get(b"key %d" % n) == (n if n < full_at else None)


def test_a_small_log_gets_a_small_map() -> None:
    small = OffsetMap(128 << 20, load_factor=0.9, secret=SECRET, keys_max=9)
    assert 9 <= small.capacity < 20
    none = OffsetMap(128 << 20, load_factor=0.9, secret=SECRET, keys_max=0)
    assert none.get(b"anything") is None


def test_batches_that_are_left_out_leave_no_trace() -> None:
    first = build_batch([Record(0, 0, b"a", b"1")])
    second = build_batch([Record(1, 0, b"a", b"2"), Record(2, 0, b"b", b"2")])
    chunk = read_chunk(first + second)
    offset_map = new_map()
    offset_map.add(chunk, start_offset=0, without=np.array([False, True]))
    assert (offset_map.get(b"a"), offset_map.get(b"b")) == (0, None)
