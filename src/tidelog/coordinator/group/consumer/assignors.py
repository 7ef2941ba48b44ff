"""Who should read what: the two assignors that run on the server.

Both are pure functions of the members, what they subscribe to, what they were last meant to have, and the topics. They give the same
answer in every process: nothing depends on the order of a set or on a clock. Every partition of a topic that somebody subscribes to goes
to exactly one of its subscribers.

* `uniform`: equal shares, moving as little as possible. Nobody has a partition that a subscriber with two fewer could have; where all
  subscribe to the same topics, no two members differ by more than one.
* `range`: each topic is cut into runs, in the order of the members. Topics with the same subscribers and the same number of partitions are
  cut alike, so that who reads partition 3 of one reads partition 3 of the other (co-partitioned joins).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, NamedTuple, TypeAlias

from tidelog.coordinator.group.consumer.member import TopicPartitions

Place: TypeAlias = tuple[bytes, int]


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    member_id: str
    instance_id: str | None
    topics: frozenset[bytes]
    current: TopicPartitions
    """Its part of the target assignment so far."""


Assignor: TypeAlias = Callable[[Sequence[Subscriber], Mapping[bytes, int]], dict[str, TopicPartitions]]
"""From members and the number of partitions of each topic, by its id, to what each member should have."""


def uniform(members: Sequence[Subscriber], partitions: Mapping[bytes, int]) -> dict[str, TopicPartitions]:
    balance = _Balance(sorted(members, key=lambda member: member.member_id), partitions)
    balance.keep()
    balance.hand_out()
    balance.even_out()
    return balance.result()


def range_(members: Sequence[Subscriber], partitions: Mapping[bytes, int]) -> dict[str, TopicPartitions]:
    """Static members come first, by instance id: a restart changes their member ids, and must not change their runs."""
    ordered = sorted(members, key=lambda one: (one.instance_id is None, one.instance_id or "", one.member_id))
    result: dict[str, dict[bytes, frozenset[int]]] = {member.member_id: {} for member in ordered}
    for topic_id, subscribers in _subscribers(ordered, partitions).items():
        share, extra = divmod(partitions[topic_id], len(subscribers))
        start = 0
        for position, index in enumerate(subscribers):
            end = start + share + (position < extra)
            if end > start:
                result[ordered[index].member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(result)


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": range_}


class _Kind:
    """Topics that the same members subscribe to: where one of them may go, all of them may."""

    __slots__ = ("subscribers", "topics")

    def __init__(self, subscribers: list[int]) -> None:
        self.subscribers = subscribers
        self.topics: list[bytes] = []


class _Balance:
    """Loads are numbers of partitions. Members are known by their place in the sorted list."""

    __slots__ = ("_kind_of", "_kinds", "_load", "_members", "_partitions", "_pools", "_taken", "_wanting")

    def __init__(self, members: list[Subscriber], partitions: Mapping[bytes, int]) -> None:
        self._members = members
        self._partitions = partitions
        self._kinds = _kinds(members, partitions)
        self._kind_of = {topic_id: kind for kind in self._kinds for topic_id in kind.topics}
        self._load = [0] * len(members)
        self._wanting = sorted({index for kind in self._kinds for index in kind.subscribers})
        self._pools: list[dict[_Kind, list[Place]]] = [{} for _ in members]
        self._taken: dict[bytes, set[int]] = {topic_id: set() for topic_id in self._kind_of}

    def keep(self) -> None:
        """Everybody keeps what there still is and what it still subscribes to."""
        for index, member in enumerate(self._members):
            for topic_id in sorted(member.current):
                if topic_id not in self._kind_of or topic_id not in member.topics:
                    continue
                count, taken = self._partitions[topic_id], self._taken[topic_id]
                kept = sorted(
                    place for place in member.current[topic_id] if place < count and place not in taken
                )
                taken.update(kept)
                self._pool(index, self._kind_of[topic_id]).extend((topic_id, partition) for partition in kept)
                self._load[index] += len(kept)

    def hand_out(self) -> None:
        """What nobody has goes to the least loaded; first the topics that few subscribe to, since those have the least choice."""
        for kind in sorted(self._kinds, key=lambda kind: (len(kind.subscribers), kind.topics[0])):
            waiting = [(self._load[index], index) for index in kind.subscribers]
            heapify(waiting)
            for topic_id in kind.topics:
                taken = self._taken[topic_id]
                for partition in range(self._partitions[topic_id]):
                    if partition not in taken:
                        load, index = waiting[0]
                        self._pool(index, kind).append((topic_id, partition))
                        self._load[index] = load + 1
                        heapreplace(waiting, (load + 1, index))

    def even_out(self) -> None:
        """Move single partitions from those who have most, until nobody could have one from somebody who has two more.

        Each move makes the sum of the squared loads smaller, so it ends.
        """
        loads = [self._load[index] for index in self._wanting]
        if not loads or max(loads) - min(loads) < 2:
            return
        for index, pools in enumerate(self._pools):
            for pool in pools.values():
                self._put_in_giving_order(pool, self._members[index].current)
        while self._one_round():
            pass

    def result(self) -> dict[str, TopicPartitions]:
        result: dict[str, TopicPartitions] = {}
        for index, member in enumerate(self._members):
            found: dict[bytes, list[int]] = {}
            for pool in self._pools[index].values():
                for topic_id, partition in pool:
                    found.setdefault(topic_id, []).append(partition)
            result[member.member_id] = {topic_id: frozenset(found[topic_id]) for topic_id in sorted(found)}
        return result

    def _one_round(self) -> bool:
        """Whether anything moved. A member that has given may now be one that others could give to: the next round sees that."""
        receivers: dict[_Kind, list[tuple[int, int]]] = {}
        for kind in self._kinds:
            receivers[kind] = [(self._load[index], index) for index in kind.subscribers]
            heapify(receivers[kind])
        givers = [(-self._load[index], index) for index in self._wanting]
        heapify(givers)
        having = Counter(self._load[index] for index in self._wanting)  # how many have so many
        least = min(having)  # it never sinks: whoever gives has more left than whoever gets had
        moved = False
        while givers:
            load, giver = heappop(givers)
            if -load != self._load[giver]:  # it received something meanwhile
                heappush(givers, (-self._load[giver], giver))
                continue
            found = self._best_receiver(giver, receivers, least)
            if found is not None:
                kind, receiver = found
                self._pool(receiver, kind).append(self._pools[giver][kind].pop())
                having.subtract((self._load[giver], self._load[receiver]))
                self._load[giver] -= 1
                self._load[receiver] += 1
                having.update((self._load[giver], self._load[receiver]))
                while not having[least]:
                    least += 1
                heappush(givers, (-self._load[giver], giver))
                moved = True
        return moved

    def _best_receiver(
        self, giver: int, receivers: dict[_Kind, list[tuple[int, int]]], least: int
    ) -> tuple[_Kind, int] | None:
        """Who has fewest of those that may have something of the giver's; nobody has fewer than `least`."""
        best: tuple[_Kind, int] | None = None
        room = self._load[giver] - 1  # whoever gets one must then have no more than the giver has left
        for kind, pool in self._pools[giver].items():
            if not pool:
                continue
            waiting = receivers[kind]
            while waiting[0][0] != self._load[waiting[0][1]]:
                heapreplace(waiting, (self._load[waiting[0][1]], waiting[0][1]))
            load, index = waiting[0]
            if load < room:
                room = load
                best = kind, index
                if load == least:
                    break
        return best

    def _put_in_giving_order(self, pool: list[Place], current: TopicPartitions) -> None:
        """Given from the end: first what the member did not have before, then the last partition of each topic in turn."""
        counts: dict[bytes, int] = {}
        ranks: dict[Place, int] = {}
        for place in sorted(pool, reverse=True):
            ranks[place] = counts.get(place[0], 0)
            counts[place[0]] = ranks[place] + 1
        pool.sort(
            key=lambda place: (place[1] not in current.get(place[0], frozenset()), -ranks[place], place[0])
        )

    def _pool(self, index: int, kind: _Kind) -> list[Place]:
        pools = self._pools[index]
        if kind not in pools:
            pools[kind] = []
        return pools[kind]


def _kinds(members: list[Subscriber], partitions: Mapping[bytes, int]) -> list[_Kind]:
    kinds: dict[tuple[int, ...], _Kind] = {}
    for topic_id, classes, subscribers in _topics_with_classes(members, partitions):
        kind = kinds.get(classes)
        if kind is None:
            kind = kinds[classes] = _Kind(
                sorted(index for number in classes for index in subscribers[number])
            )
        kind.topics.append(topic_id)
    return list(kinds.values())


def _subscribers(members: list[Subscriber], partitions: Mapping[bytes, int]) -> dict[bytes, list[int]]:
    return {topic_id: kind.subscribers for kind in _kinds(members, partitions) for topic_id in kind.topics}


def _topics_with_classes(
    members: list[Subscriber], partitions: Mapping[bytes, int]
) -> list[tuple[bytes, tuple[int, ...], list[list[int]]]]:
    """Each topic that is there and wanted, by id, with the classes of members that want it: a class are those with the same subscription.

    Going by classes makes a thousand members with one subscription as cheap as one member.
    """
    classes: dict[frozenset[bytes], list[int]] = {}
    for index, member in enumerate(members):
        classes.setdefault(member.topics, []).append(index)
    wanted: dict[bytes, list[int]] = {}
    for number, topics in enumerate(classes):
        for topic_id in topics:  # of a set: the order does not show, since each topic has its own list
            if topic_id in partitions:
                wanted.setdefault(topic_id, []).append(number)
    subscribers = list(classes.values())
    return [(topic_id, tuple(wanted[topic_id]), subscribers) for topic_id in sorted(wanted)]
