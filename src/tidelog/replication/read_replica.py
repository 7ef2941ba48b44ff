"""Which replica a consumer should read from: the one in its own rack, if there is one (KIP-392). Off by default.

The leader decides, with what it knows of its followers from their fetches. A follower serves below its own high watermark, which is behind
the leader's, so only one that is in sync and has the offset is named; else, and always without a selector, the leader itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from tidelog.replication.partition import Partition

NO_PREFERENCE: Final = -1
RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""Kafka's name for it, in `replica.selector.class`."""


class ReadableReplica(NamedTuple):
    broker_id: int
    rack: str | None
    is_leader: bool
    log_end_offset: int
    caught_up_at: float


class ReplicaSelector(Protocol):
    def select(self, client_rack: str, replicas: Iterable[ReadableReplica], /) -> ReadableReplica | None: ...


class RackAwareSelector:
    """The leader if it is in the client's rack, else the one there that is furthest; nobody if the rack has none."""

    __slots__ = ()

    def select(self, client_rack: str, replicas: Iterable[ReadableReplica], /) -> ReadableReplica | None:
        if not client_rack:
            return None
        near = [replica for replica in replicas if replica.rack == client_rack]
        return max(
            near,
            key=lambda replica: (replica.is_leader, replica.log_end_offset, replica.caught_up_at),
            default=None,
        )


def preferred_read_replica(
    partition: Partition,
    selector: ReplicaSelector | None,
    rack_of: Callable[[int], str | None],
    *,
    client_rack: str,
    fetch_offset: int,
) -> int:
    """The broker to read from instead of this one, or NO_PREFERENCE."""
    leader = partition.leader
    if selector is None or not client_rack or leader is None or not leader.remotes:
        return NO_PREFERENCE
    own = partition.broker_id
    candidates = [ReadableReplica(own, rack_of(own), True, partition.log.log_end_offset, 0.0)]
    for broker_id, replica in leader.remotes.items():
        if (
            broker_id in leader.isr.committed
            and replica.has_fetched
            and replica.log_start_offset <= fetch_offset <= replica.log_end_offset
        ):
            candidates.append(
                ReadableReplica(
                    broker_id, rack_of(broker_id), False, replica.log_end_offset, replica.caught_up_at
                )
            )
    chosen = selector.select(client_rack, candidates)
    return NO_PREFERENCE if chosen is None or chosen.broker_id == own else chosen.broker_id


def selector_named(name: str | None) -> ReplicaSelector | None:
    """For `replica.selector.class`: Kafka's rack-aware one is known by its name, and no other class can be loaded."""
    return RackAwareSelector() if name == RACK_AWARE else None
