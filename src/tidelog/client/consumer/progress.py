"""Which records of a partition are done when they are done out of order, and who may be worked on next.

`Progress` knows the lowest offset that is not done: only up to there may be committed, however much behind it is finished. `Lanes` keeps records of one key
(or one partition) in their order, one at a time, while others go on. Both are bounded by what their owner puts in. Pure.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tidelog.client.consumer.records import ConsumerRecord
from tidelog.client.metadata import TopicPartition

T = TypeVar("T")


class Progress:
    """Of one partition. Offsets are begun in rising order and finished in any."""

    __slots__ = ("_done", "_open", "next_offset")

    def __init__(self, offset: int) -> None:
        self.next_offset = offset
        """The lowest one that can begin next."""
        self._open: list[int] = []  # begun, the lowest first; a heap with finished ones in it
        self._done: set[int] = set()

    def begin(self, offset: int) -> None:
        if offset < self.next_offset:
            raise ValueError(f"offset {offset} after {self.next_offset - 1}: records begin in order")
        heapq.heappush(self._open, offset)
        self.next_offset = offset + 1

    def finish(self, offset: int) -> None:
        self._done.add(offset)
        while self._open and self._open[0] in self._done:
            self._done.remove(heapq.heappop(self._open))

    def go_back(self, offset: int) -> None:
        """From there on everything begins anew, what is done already included."""
        self._open = sorted(each for each in self._open if each < offset)
        self._done = {each for each in self._done if each < offset}
        self.next_offset = offset

    @property
    def safe_offset(self) -> int:
        """Everything below is done: what may be committed."""
        return self._open[0] if self._open else self.next_offset

    @property
    def in_work(self) -> int:
        return len(self._open) - len(self._done)


class Lanes(Generic[T]):
    """Items in lanes; of each lane one is out at a time, the oldest first."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[T]] = {}  # of lanes whose head is out: what stands behind it
        self._free: deque[tuple[Hashable, T]] = deque()
        self._count = 0

    def __len__(self) -> int:
        """Items that are in, out or waiting."""
        return self._count

    def put(self, lane: Hashable, item: T) -> None:
        self._count += 1
        behind = self._waiting.get(lane)
        if behind is None:
            self._waiting[lane] = deque()
            self._free.append((lane, item))
        else:
            behind.append(item)

    def take(self) -> tuple[Hashable, T] | None:
        """The next item that may go out."""
        return self._free.popleft() if self._free else None

    def finish(self, lane: Hashable) -> None:
        """What was out of this lane is done: the next one may go."""
        self._count -= 1
        behind = self._waiting[lane]
        if behind:
            self._free.append((lane, behind.popleft()))
        else:
            del self._waiting[lane]

    def drop(self, is_dropped: Callable[[T], bool]) -> list[T]:
        """Items that are not out yet go. Returns them."""
        dropped: list[T] = []
        for behind in self._waiting.values():
            dropped += (item for item in behind if is_dropped(item))
            kept = [item for item in behind if not is_dropped(item)]
            behind.clear()
            behind.extend(kept)
        free, self._free = self._free, deque()
        for lane, item in free:
            if not is_dropped(item):
                self._free.append((lane, item))
                continue
            dropped.append(item)
            behind = self._waiting[lane]
            if behind:
                self._free.append((lane, behind.popleft()))
            else:
                del self._waiting[lane]
        self._count -= len(dropped)
        return dropped


def lane_of(record: ConsumerRecord, order_by: str | None) -> Hashable:
    """Records of one lane are worked on one after the other. Without a key there is no order to keep."""
    tp = TopicPartition(record.topic, record.partition)
    if order_by == "partition":
        return tp
    if order_by == "key" and record.key is not None:
        return (tp, record.key)
    return (tp, record.offset, None)
