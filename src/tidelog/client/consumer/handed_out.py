"""What the application was given, and how far it has dealt with that.

A record counts as dealt with when the next one is asked for. Between `positions`, which is behind everything that was taken from the fetched bytes, and what may be
committed lie the records that an iteration holds back (`held`), the one that it gave out last, and those of the last poll. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from tidelog.client.consumer.positions import Positions, Spot
from tidelog.client.consumer.records import ConsumerRecord
from tidelog.client.metadata import TopicPartition


class HandedOut:
    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self.held: list[ConsumerRecord] = []
        """For `async for`, the next one last. The blocking twin takes from it in its own thread."""
        self.last: ConsumerRecord | None = None
        """What an iteration gave out last."""
        self._in_hand: Mapping[TopicPartition, int] = {}  # the first offsets of what `poll` gave out last

    # ---- records out

    def next_held(self) -> ConsumerRecord | None:
        held = self.held
        if not held:
            return None
        # First the mark, then the record: in between a commit in another thread must not count it as dealt with.
        self.last = record = held[-1]
        held.pop()
        return record

    def take_held(self, count: int) -> list[ConsumerRecord]:
        """Somebody iterated, and polls now: what the iteration had not given out comes first."""
        records = self.held[-count:][::-1]
        del self.held[-count:]
        return records

    def give(self, first_offsets: Mapping[TopicPartition, int]) -> None:
        """Records from these offsets on are in the application's hands."""
        self._in_hand = first_offsets

    def dealt_with(self) -> None:
        """The application asks for more: it is done with what it had."""
        self.last, self._in_hand = None, {}

    # ---- records that are nobody's any more

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        self._keep(lambda tp: tp not in partitions)

    def cut(self, tp: TopicPartition, offset: int) -> int | None:
        """The log was cut there: what is held of it from there on is gone. Returns the next offset that the application would have got; None if nothing is held."""
        next_offset = first_of(reversed(self.held)).get(tp)
        if next_offset is not None:
            self.held = [r for r in self.held if (r.topic, r.partition) != tp or r.offset < offset]
        return next_offset

    def keep_assigned(self) -> None:
        self._keep(lambda tp: tp in self._positions)

    def _keep(self, wanted: Callable[[TopicPartition], bool]) -> None:
        self.held = [r for r in self.held if wanted(TopicPartition(r.topic, r.partition))]

    # ---- how far

    def consumed(self) -> dict[TopicPartition, Spot]:
        """Positions behind what was given out."""
        spots = self._positions.offsets()
        for record in {TopicPartition(each.topic, each.partition): each for each in self.held}.values():
            # Also where the position itself is being looked for, because it is not in the log any more.
            spots[TopicPartition(record.topic, record.partition)] = Spot(record.offset, record.leader_epoch)
        return spots

    def safe(self) -> dict[TopicPartition, Spot]:
        """Positions behind what the application has dealt with, as far as we know. One that has moved back meanwhile is what counts."""
        spots = self.consumed()
        in_hand = dict(self._in_hand)
        if (last := self.last) is not None:
            in_hand[TopicPartition(last.topic, last.partition)] = last.offset
        for tp, offset in in_hand.items():
            if tp in spots and offset < spots[tp].offset:
                spots[tp] = Spot(offset, spots[tp].leader_epoch)
        return spots


def first_of(records: Iterable[ConsumerRecord]) -> Mapping[TopicPartition, int]:
    """The lowest offset of each partition in records that are in order."""
    found: dict[TopicPartition, int] = {}
    for record in records:
        found.setdefault(TopicPartition(record.topic, record.partition), record.offset)
    return found
