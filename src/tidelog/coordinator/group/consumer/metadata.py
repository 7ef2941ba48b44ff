"""The topics that groups subscribe to, as far as assignments depend on them: a hash that changes when an assignment may have to (KIP-1101).

Owns the hash and when topics have changed. The hash is over name, id and number of partitions, the same on every broker and in
every run; it is not Kafka's, so a group that moves between the two is assigned anew once.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from tidelog.coordinator.group.world import Topics


class TopicMetadata:
    __slots__ = ("_hashes", "_names", "_names_generation", "_new_topics_offset", "generation", "topics")

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self.generation = 0
        """Grows with every change: a group compares it with the one it last looked at."""
        self._new_topics_offset = topics.offset
        self._names: frozenset[str] | None = None
        self._names_generation = -1
        self._hashes: dict[str, int] = {}

    def changed(self) -> None:
        self.generation += 1
        self._hashes.clear()

    @property
    def new_topics_offset(self) -> int:
        """The metadata offset as of which there are topics that were not there before: what patterns matched at an older one may be too
        little. At first nothing is known, so everything counts as new. Looked for when a group with patterns asks: few do.
        """
        self.look()
        return self._new_topics_offset

    def look(self) -> None:
        """Topics that come from now on are new to those whose patterns are about to be matched."""
        if self._names_generation != self.generation:
            names = frozenset(self.topics.names())
            if self._names is None or not names <= self._names:
                self._new_topics_offset = self.topics.offset
            self._names, self._names_generation = names, self.generation

    def hash_of(self, names: Iterable[str]) -> int:
        """Topics that do not exist count for nothing, so no topics at all are 0; the order does not matter."""
        total = sum(self._hash(name) for name in names) & 0xFFFF_FFFF_FFFF_FFFF
        return total - (1 << 64) if total >= 1 << 63 else total

    def ids_of(self, names: Iterable[str]) -> frozenset[bytes]:
        """Of those that exist."""
        found = (self.topics.id_of(name) for name in names)
        return frozenset(topic_id for topic_id in found if topic_id is not None)

    def _hash(self, name: str) -> int:
        known = self._hashes.get(name)
        if known is None:
            known = self._hashes[name] = self._compute(name)
        return known

    def _compute(self, name: str) -> int:
        topic_id = self.topics.id_of(name)
        partitions = self.topics.partitions(name)
        if topic_id is None or partitions is None:
            return 0
        # The id has a fixed length and the count has one too: no two topics are the same bytes.
        content = topic_id + partitions.to_bytes(4, "big") + name.encode()
        return int.from_bytes(blake2b(content, digest_size=8).digest(), "big")
