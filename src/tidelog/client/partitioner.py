"""Which partition a record goes to, byte-compatible with Kafka's Java producer.

Keyed records must land where every other client puts them: murmur2 with Java's seed, sign bit dropped, modulo the
partition count. This file is pure: it draws no randomness of its own and knows no broker.
"""

from __future__ import annotations

from collections.abc import Sequence

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes | bytearray | memoryview) -> int:
    """MurmurHash2 (32 bit) as an unsigned integer; Java shows the same bits as a signed one."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    aligned = length & ~3
    for i in range(0, aligned, 4):
        k = (int.from_bytes(data[i : i + 4], "little") * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    tail = data[aligned:]
    if tail:
        h = ((h ^ int.from_bytes(tail, "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def partition_for_key(key: bytes | bytearray | memoryview, partition_count: int) -> int:
    """The partition of a keyed record. It changes with the partition count: that is why adding partitions moves keys."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitioner:
    """Records without a key fill one batch before the next partition has its turn (the idea of KIP-480).

    The turn goes round instead of being drawn, so that a short input spreads evenly.
    """

    __slots__ = ("_available", "_next")

    def __init__(self, available: Sequence[int], start: int = 0) -> None:
        if not available:
            raise ValueError("a sticky partitioner needs at least one partition")
        self._available = list(available)
        self._next = start % len(self._available)

    @property
    def current(self) -> int:
        return self._available[self._next]

    def batch_closed(self, partition: int) -> None:
        """The batch of `partition` is on its way; if it was the sticky one, move on."""
        if partition == self.current:
            self._next = (self._next + 1) % len(self._available)
