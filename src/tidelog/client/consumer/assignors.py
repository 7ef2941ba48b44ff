"""Who in a classic group gets which partitions: Kafka's four assignors, run by the member that the group has made its leader.

    range                 topic by topic, neighbours together: the same numbers of different topics meet in one member
    roundrobin            all partitions in a row, dealt out in turn
    sticky                as even as can be, and of all such ways the one that moves little
    cooperative-sticky    the same; a partition that changes hands is given to nobody until its owner has given it up

Members of other clients speak the same protocols and may lead the group, so names and the meaning of what members say are Kafka's; how an
even assignment is found is not prescribed. Pure and deterministic: the order of members and partitions decides, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.client.metadata import TopicPartition

RANGE: Final = "range"
ROUND_ROBIN: Final = "roundrobin"
STICKY: Final = "sticky"
COOPERATIVE_STICKY: Final = "cooperative-sticky"
NO_GENERATION: Final = -1

Assignment = dict[str, list[TopicPartition]]
"""By member id; every member is in it."""


class Subscriber(NamedTuple):
    """What one member has said of itself."""

    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    """In which the owned partitions were given to it; an older claim yields to a newer one."""


@dataclass(frozen=True, slots=True)
class Assignor:
    name: str
    assign: Callable[[Sequence[Subscriber], Mapping[str, int]], Assignment]
    is_cooperative: bool = False


def _in_order(subscribers: Iterable[Subscriber]) -> list[Subscriber]:
    """Static members first, by their instance id: so they get the same after a restart, whatever their new member id."""
    return sorted(subscribers, key=lambda s: (s.instance_id is None, s.instance_id or "", s.member_id))


def assign_ranges(subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]) -> Assignment:
    """The first members get one more where it does not come out even."""
    members = _in_order(subscribers)
    shares: Assignment = {member.member_id: [] for member in members}
    for topic in sorted(partition_counts):
        count = partition_counts[topic]
        interested = [member.member_id for member in members if topic in member.topics]
        first = 0
        for number, member_id in enumerate(interested):
            size = count // len(interested) + (number < count % len(interested))
            shares[member_id] += [TopicPartition(topic, p) for p in range(first, first + size)]
            first += size
    return shares


def assign_round_robin(subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]) -> Assignment:
    members = _in_order(subscribers)
    shares: Assignment = {member.member_id: [] for member in members}
    turn = 0
    for topic in sorted(partition_counts):
        if not any(topic in member.topics for member in members):
            continue
        for partition in range(partition_counts[topic]):
            while topic not in members[turn % len(members)].topics:
                turn += 1
            shares[members[turn % len(members)].member_id].append(TopicPartition(topic, partition))
            turn += 1
    return shares


def assign_sticky(subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]) -> Assignment:
    members = _in_order(subscribers)
    shares = _kept(members, partition_counts)
    if all(member.topics == members[0].topics for member in members):
        return _fill_up(
            shares,
            [
                TopicPartition(t, p)
                for t in sorted(members[0].topics)
                for p in range(partition_counts.get(t, 0))
            ],
        )
    readers: dict[str, list[str]] = {
        topic: [member.member_id for member in members if topic in member.topics]
        for topic in partition_counts
    }
    order = {member.member_id: number for number, member in enumerate(members)}
    taken = {tp for share in shares.values() for tp in share}
    free = [
        TopicPartition(topic, partition)
        for topic in sorted(partition_counts, key=lambda name: (len(readers[name]), name))
        for partition in range(partition_counts[topic])
        if readers[topic]
    ]
    # Topics with few readers come first: they have the least choice.
    for tp in free:
        if tp not in taken:
            least = min(readers[tp.topic], key=lambda member_id: (len(shares[member_id]), order[member_id]))
            shares[least].append(tp)
    _even_out(shares, readers, order)
    return {member_id: sorted(share) for member_id, share in shares.items()}


def _fill_up(shares: Assignment, partitions: Sequence[TopicPartition]) -> Assignment:
    """All read the same: everybody has the same number in the end, or one more, and keeps of its own as much as that allows."""
    least, more = divmod(len(partitions), len(shares))
    # Who has most may keep the one more: then fewest move.
    entitled = set(sorted(shares, key=lambda member_id: -len(shares[member_id]))[:more])
    quotas = {member_id: least + (member_id in entitled) for member_id in shares}
    kept = {member_id: sorted(share)[: quotas[member_id]] for member_id, share in shares.items()}
    taken = {tp for share in kept.values() for tp in share}
    free = iter([tp for tp in partitions if tp not in taken])
    for member_id, share in kept.items():
        share.extend(tp for _, tp in zip(range(quotas[member_id] - len(share)), free, strict=False))
    return {member_id: sorted(share) for member_id, share in kept.items()}


def _kept(members: Sequence[Subscriber], partition_counts: Mapping[str, int]) -> Assignment:
    """What each member may keep: it is subscribed to it, it exists, and nobody claims it with a later or the same generation."""
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        for tp in member.owned:
            if tp.topic not in member.topics or tp.partition >= partition_counts.get(tp.topic, 0):
                continue
            generation, _ = claims.get(tp, (NO_GENERATION - 1, None))
            if member.generation > generation:
                claims[tp] = (member.generation, member.member_id)
            elif member.generation == generation:
                claims[tp] = (generation, None)  # both cannot be right
    shares: Assignment = {member.member_id: [] for member in members}
    for tp in sorted(claims):
        owner = claims[tp][1]
        if owner is not None:
            shares[owner].append(tp)
    return shares


def _even_out(shares: Assignment, readers: Mapping[str, Sequence[str]], order: Mapping[str, int]) -> None:
    """Move partitions from who has more to who has at least two fewer, until nobody has; each move makes it more even, so it ends.

    The fullest member gives first, and to the emptiest that may take: no partition moves twice between the same two.
    """
    while True:
        moved = False
        for giver in sorted(shares, key=lambda member_id: (-len(shares[member_id]), order[member_id])):
            for tp in sorted(shares[giver], reverse=True):
                taker = min(
                    readers[tp.topic], key=lambda member_id: (len(shares[member_id]), order[member_id])
                )
                if len(shares[taker]) + 1 < len(shares[giver]):
                    shares[giver].remove(tp)
                    shares[taker].append(tp)
                    moved = True
        if not moved:
            return


def assign_cooperatively(
    subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
) -> Assignment:
    """As `assign_sticky`, less what somebody else still owns: it is given up first, and dealt out in the rebalance that follows."""
    target = assign_sticky(subscribers, partition_counts)
    owners: dict[TopicPartition, set[str]] = {}
    for member in subscribers:
        for tp in member.owned:
            owners.setdefault(tp, set()).add(member.member_id)
    return {
        member_id: [tp for tp in share if not owners.get(tp, set()) - {member_id}]
        for member_id, share in target.items()
    }


ASSIGNORS: Final[dict[str, Assignor]] = {
    assignor.name: assignor
    for assignor in (
        Assignor(RANGE, assign_ranges),
        Assignor(ROUND_ROBIN, assign_round_robin),
        Assignor(STICKY, assign_sticky),
        Assignor(COOPERATIVE_STICKY, assign_cooperatively, is_cooperative=True),
    )
}
