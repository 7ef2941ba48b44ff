"""Offsets that open transactions have staged: nobody reads them until the transaction's marker says that they count (I37).

Owns who has staged what, by partition and by producer id. When two commits are about one partition, the one whose record stands later
in the log is the one that stays, whatever the order of the markers: compaction keeps the later record too, and a coordinator that loads
a compacted log must arrive where the one that wrote it is (I36). So a commit outdates what was staged for its partition before it. What
is outdated is still open: a reader who wants stable offsets waits for the marker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.coordinator.group.offsets_values import CommittedOffset


class Place(NamedTuple):
    group_id: str
    topic: str
    partition: int


class _Staged(NamedTuple):
    order: int  # of its record among all staged ones
    offset: CommittedOffset | None  # None: outdated by a later commit


class PendingOffsets:
    __slots__ = ("_order", "_places", "_transactions")

    def __init__(self) -> None:
        # Group, then topic and partition, then producer id. Nothing in here is empty.
        self._places: dict[str, dict[tuple[str, int], dict[int, _Staged]]] = {}
        self._transactions: dict[int, dict[Place, None]] = {}
        self._order = 0

    def stage(self, place: Place, producer_id: int, offset: CommittedOffset) -> None:
        self._order += 1
        by_place = self._places.setdefault(place.group_id, {})
        by_producer = by_place.setdefault((place.topic, place.partition), {})
        by_producer[producer_id] = _Staged(self._order, offset)
        self._transactions.setdefault(producer_id, {})[place] = None

    def outdate(self, place: Place) -> None:
        """Another commit was made for the partition, later than all that is staged for it."""
        self._outdate_before(place, self._order + 1)

    def forget(self, place: Place) -> None:
        """The partition's offset was deleted, and with it what would have taken its place."""
        for producer_id in tuple(self._at(place)):
            self._remove(place, producer_id)

    def end(self, producer_id: int, *, committed: bool) -> Iterator[tuple[Place, CommittedOffset]]:
        """The transaction is over; what of it counts now. To be read to its end before anything else happens here."""
        for place in tuple(self._transactions.get(producer_id, ())):
            staged = self._remove(place, producer_id)
            if committed and staged.offset is not None:
                self._outdate_before(place, staged.order)
                yield place, staged.offset

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        by_place = self._places.get(group_id)
        return by_place is not None and (topic, partition) in by_place

    def has_group(self, group_id: str) -> bool:
        return group_id in self._places

    def groups(self) -> Iterator[str]:
        yield from self._places

    def places(self, group_id: str) -> Iterator[Place]:
        for topic, partition in self._places.get(group_id, ()):
            yield Place(group_id, topic, partition)

    def staged(self, place: Place) -> list[tuple[int, CommittedOffset | None]]:
        """Producer ids with what they staged, in the order of the records; None where it is outdated."""
        in_order = sorted(self._at(place).items(), key=lambda item: item[1].order)
        return [(producer_id, staged.offset) for producer_id, staged in in_order]

    def _at(self, place: Place) -> dict[int, _Staged]:
        by_place = self._places.get(place.group_id)
        return {} if by_place is None else by_place.get((place.topic, place.partition), {})

    def _outdate_before(self, place: Place, order: int) -> None:
        by_producer = self._at(place)
        for producer_id, staged in by_producer.items():
            if staged.order < order:
                by_producer[producer_id] = staged._replace(offset=None)

    def _remove(self, place: Place, producer_id: int) -> _Staged:
        by_place = self._places[place.group_id]
        by_producer = by_place[place.topic, place.partition]
        staged = by_producer.pop(producer_id)
        if not by_producer:
            del by_place[place.topic, place.partition]
            if not by_place:
                del self._places[place.group_id]
        places = self._transactions[producer_id]
        del places[place]
        if not places:
            del self._transactions[producer_id]
        return staged
