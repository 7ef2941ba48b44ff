"""Which partition a record goes to, byte-compatible with Kafka's Java producer.

Keyed records must land where every other client puts them: murmur2 with Java's seed, sign bit dropped, modulo the
partition count. Records without a key fill batches, partition by partition. Pure: chance is an argument, no broker is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import unpack_from

from tidelog.ports import Rng

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_KEYS_REMEMBERED = 8192


def murmur2(data: bytes | bytearray | memoryview) -> int:
    """MurmurHash2 (32 bit) as an unsigned integer; Java shows the same bits as a signed one."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    words = length >> 2
    for k in unpack_from(f"<{words}I", data):
        k = (k * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    if length & 3:
        h = ((h ^ int.from_bytes(data[words << 2 :], "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


_remembered = lru_cache(_KEYS_REMEMBERED)(murmur2)
_KEY_BYTES_REMEMBERED = 64


def partition_for_key(key: bytes | bytearray | memoryview, partition_count: int) -> int:
    """The partition of a keyed record. It changes with the partition count: that is why adding partitions moves keys."""
    if type(key) is bytes and len(key) <= _KEY_BYTES_REMEMBERED:
        return (_remembered(key) & 0x7FFFFFFF) % partition_count
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


Partitioner = Callable[[str, bytes | None, bytes | None, int], int]
"""Of one's own: (topic, key, value, number of partitions) → partition."""


class UniformSticky:
    """Records without a key: one partition until it has got a batch full of bytes, then another by chance (KIP-794).

    All get the same share, however fast their brokers are, unless `loads` says how many batches wait for each: then those where
    fewer wait are drawn more often.
    """

    __slots__ = ("_bytes", "_partitions", "_rng", "_sticky_bytes", "current")

    def __init__(self, partitions: Sequence[int], sticky_bytes: int, rng: Rng) -> None:
        if not partitions:
            raise ValueError("a sticky partitioner needs at least one partition")
        self._partitions = list(partitions)
        self._sticky_bytes = max(1, sticky_bytes)
        self._rng = rng
        self._bytes = 0
        self.current = self._draw(None)

    def took(self, size: int) -> bool:
        """A record of `size` bytes went to `current`. True if another partition's turn has come: call `turn`."""
        self._bytes += size
        return self._bytes >= self._sticky_bytes

    def turn(self, loads: Sequence[int] | None = None) -> None:
        self._bytes = 0
        self.current = self._draw(loads)

    def _draw(self, loads: Sequence[int] | None) -> int:
        count = len(self._partitions)
        if loads is None or count == 1:
            return self._partitions[self._rng.randrange(count)]
        heaviest = max(loads) + 1
        drawn = self._rng.randrange(sum(heaviest - load for load in loads))
        for partition, load in zip(self._partitions, loads, strict=True):
            drawn -= heaviest - load
            if drawn < 0:
                return partition
        raise AssertionError("weights that do not sum up")
