"""Which brokers hold which replicas of a new partition.

Owns the striping: the first replicas of successive partitions walk over the racks in turn and over the brokers inside each
rack, the other replicas go to the racks that follow. So leaders and replicas are spread evenly, a partition has
replicas in as many racks as it can, and no broker twice. A fenced broker is taken only after its rack's others,
and never as first replica. Chance decides the order only, through the given `Rng`, and anew after each round: a broker's partitions
are not all followed by the same other one, which would get all of its leaderships when it fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from tidelog.errors import RequestError
from tidelog.ports import Rng
from tidelog.wire.error_codes import ErrorCode

T = TypeVar("T")


class UsableBroker(NamedTuple):
    broker_id: int
    rack: str | None
    fenced: bool


class _Rack:
    """Two walks over the brokers of one rack: one hands out leaders, one everything else, so that both stay even."""

    def __init__(self, brokers: list[UsableBroker]) -> None:
        self._active = [broker.broker_id for broker in brokers if not broker.fenced]
        self._fenced = [broker.broker_id for broker in brokers if broker.fenced]
        self._leader_turn = 0
        self._turn = 0

    def shuffle(self, rng: Rng) -> None:
        self._active = _shuffled(self._active, rng)
        self._fenced = _shuffled(self._fenced, rng)
        self._leader_turn = self._turn = 0

    @property
    def can_lead(self) -> bool:
        return bool(self._active)

    def next_leader(self) -> int:
        leader = self._active[self._leader_turn % len(self._active)]
        self._leader_turn += 1
        return leader

    def next_replica(self, taken: list[int]) -> int | None:
        for group in (self._active, self._fenced):
            for step in range(len(group)):
                broker = group[(self._turn + step) % len(group)]
                if broker not in taken:
                    self._turn += step + 1
                    return broker
        return None


class ReplicaPlacer:
    """Places partitions one after another; make one per topic."""

    def __init__(self, brokers: Iterable[UsableBroker], rng: Rng) -> None:
        usable = list(brokers)
        self._rng = rng
        self._broker_count = len(usable)
        self._active_count = sum(not broker.fenced for broker in usable)
        self._placed = 0
        by_rack: dict[str | None, list[UsableBroker]] = {}
        for broker in usable:
            by_rack.setdefault(broker.rack, []).append(broker)
        self._racks = [_Rack(members) for members in by_rack.values()]
        self._next_rack = 0

    def check(self, replication_factor: int) -> None:
        """RequestError(INVALID_REPLICATION_FACTOR) when no partition could have that many replicas now."""
        if replication_factor > self._broker_count:
            raise RequestError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"a replication factor of {replication_factor} needs as many brokers, and only {self._broker_count}"
                f" can take replicas: start more brokers, or ask for {max(1, self._broker_count)} or fewer replicas",
            )
        if not any(rack.can_lead for rack in self._racks):
            raise RequestError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "no broker can lead a partition now: every one is fenced or shutting down",
            )

    def place(self, replication_factor: int) -> tuple[int, ...]:
        """The replicas of the next partition, its preferred leader first."""
        self.check(replication_factor)
        if self._placed % self._active_count == 0:
            self._shuffle()
        self._placed += 1
        replicas = [self._leader_rack().next_leader()]
        rack = self._next_rack
        while len(replicas) < replication_factor:
            broker = self._racks[rack % len(self._racks)].next_replica(replicas)
            if broker is not None:
                replicas.append(broker)
            rack += 1
        return tuple(replicas)

    def _shuffle(self) -> None:
        self._racks = _shuffled(self._racks, self._rng)
        self._next_rack = 0
        for rack in self._racks:
            rack.shuffle(self._rng)

    def _leader_rack(self) -> _Rack:
        while True:
            rack = self._racks[self._next_rack]
            self._next_rack = (self._next_rack + 1) % len(self._racks)
            if rack.can_lead:
                return rack


def _shuffled(items: list[T], rng: Rng) -> list[T]:
    shuffled = list(items)
    for last in range(len(shuffled) - 1, 0, -1):
        other = rng.randrange(last + 1)
        shuffled[last], shuffled[other] = shuffled[other], shuffled[last]
    return shuffled
