"""Which partition of `__consumer_offsets` a group is in: Java's hash of its name, so that Kafka's tools and this broker agree."""

from __future__ import annotations


def java_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 units, as a signed 32-bit number."""
    hashed = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(encoded), 2):
        hashed = (31 * hashed + (encoded[position] << 8 | encoded[position + 1])) & 0xFFFFFFFF
    return hashed - (1 << 32) if hashed >= 1 << 31 else hashed


def partition_of(group_id: str, partitions: int) -> int:
    """As Kafka has it: the least number, which has no positive counterpart, counts as 0."""
    hashed = java_hash(group_id)
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partitions
