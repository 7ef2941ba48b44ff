"""Keys land where Java's and librdkafka's producers put them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference

from tidelog.client.partitioner import murmur2, partition_for_key


def signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


@pytest.mark.parametrize(
    ("key", "java"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_the_values_java_gives(key: bytes, java: int) -> None:
    assert signed(murmur2(key)) == java


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_partition_agrees_with_an_independent_implementation(key: bytes, count: int) -> None:
    assert murmur2(key) == reference(key) & 0xFFFFFFFF
    assert partition_for_key(key, count) == (reference(key) & 0x7FFFFFFF) % count


def test_a_memoryview_hashes_like_its_bytes() -> None:
    assert murmur2(memoryview(b"xxfoobar")[2:]) == murmur2(b"foobar")
