"""What kind of cluster a seed means: nodes, roles, topics, settings, clients. The swarm: each seed is another corner of what is possible.

Times are stretched against the product's defaults, so that a simulated minute has fewer heartbeats and as many decisions. One paragraph says all of it (`Shape.told`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

from tidelog.coordinator.group.settings import GroupSettings

CONTROLLERS_FROM: Final = 100
"""Ids of nodes that are controllers only."""


@dataclass(frozen=True, slots=True)
class TopicShape:
    name: str
    partitions: int
    replication: int


@dataclass(frozen=True, slots=True)
class Shape:
    seconds: float = 60.0
    """Of the phase in which everything may go wrong: what comes after it is as long as the cluster needs."""
    voters: tuple[int, ...] = (0, 1, 2)
    brokers: tuple[int, ...] = (0, 1, 2)
    racks: int = 0
    topics: tuple[TopicShape, ...] = ()
    offsets: TopicShape = field(default_factory=lambda: TopicShape("__consumer_offsets", 2, 3))
    durable: bool = True
    min_isr: int = 2
    heartbeat_s: float = 0.7
    session_s: float = 2.5
    election_s: float = 0.6
    quorum_fetch_s: float = 2.4
    lag_s: float = 2.5
    fetch_wait_ms: int = 1500
    fetch_bytes_max: int = 1 << 20
    segment_bytes: int = 1500
    sync_s: float = 0.004
    slow_disk: float = 0.0
    checkpoint_s: float = 3.0
    snapshot_bytes: int = 2500
    commit_timeout_ms: int = 1500
    drift: float = 0.0
    skew_ms: int = 0
    producers: int = 2
    weak_producers: int = 1
    """Of acks=1."""
    burst: int = 0
    """So many batches a producer of acks=1 writes now and then, one right after the other."""
    readers: int = 1
    members: int = 2
    think_s: float = 0.8
    churn: bool = False
    """A topic that is made, deleted and made again."""
    encoded: bool = False

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted({*self.voters, *self.brokers}))

    @property
    def group_settings(self) -> GroupSettings:
        return GroupSettings(
            consumer_heartbeat_interval_ms=1500,
            consumer_session_timeout_ms=5000,
            consumer_assignment_interval_ms=0,
        )

    def told(self) -> str:
        topics = ", ".join(f"{each.name} {each.partitions}×{each.replication}" for each in self.topics)
        roles = "combined" if set(self.voters) & set(self.brokers) else "separate"
        return (
            f"{len(self.voters)} voters, {len(self.brokers)} brokers, {roles}; {topics}; min.isr {self.min_isr},"
            f" {'fsync' if self.durable else 'replicated'}, lag {self.lag_s} s, fetches of {self.fetch_bytes_max} bytes, segments of {self.segment_bytes},"
            f" syncs {self.sync_s * 1000:.0f} ms ({self.slow_disk:.3f} slow), {self.producers}+{self.weak_producers} producers every {self.think_s} s, bursts of {self.burst},"
            f" {self.readers} readers, {self.members} members{', a topic that comes and goes' if self.churn else ''}"
        )


def shape_of(seed: int) -> Shape:
    rng = Random(f"shape/{seed}")
    voters, brokers = rng.choices(
        ((3, 3), (3, 4), (1, 1), (1, 3), (3, 5), (5, 5), (3, 7)), (60, 12, 5, 8, 8, 4, 3)
    )[0]
    separate = voters > 1 and rng.random() < 0.15
    broker_ids = tuple(range(brokers))
    voter_ids = (
        tuple(CONTROLLERS_FROM + number for number in range(voters)) if separate else broker_ids[:voters]
    )
    replication = min(brokers, rng.choice((3, 3, 3, 3, 2, 4, 5)))
    min_isr = min(replication, rng.choice((1, 2, 2, 2, 2, 3)))
    topics = [TopicShape("orders", rng.choice((1, 1, 2)), replication)]
    if rng.random() < 0.3:
        topics.append(TopicShape("events", 1, min(brokers, rng.choice((1, 2, 3)))))
    return Shape(
        voters=voter_ids,
        brokers=broker_ids,
        racks=rng.choice((0, 0, 2, 3)),
        topics=tuple(topics),
        offsets=TopicShape("__consumer_offsets", rng.choice((1, 2)), min(brokers, 3)),
        durable=rng.random() < 0.5,
        min_isr=min_isr,
        lag_s=rng.choice((1.5, 2.5, 4.0)),
        fetch_wait_ms=rng.choice((800, 1500, 2000)),
        fetch_bytes_max=rng.choice((1, 300, 2000, 1 << 20)),
        segment_bytes=rng.choice((700, 1500, 6000)),
        sync_s=rng.choice((0.002, 0.01, 0.05)),
        slow_disk=rng.choice((0.0, 0.0, 0.005, 0.03)),
        checkpoint_s=rng.choice((2.0, 5.0, 20.0)),
        snapshot_bytes=rng.choice((1500, 4000, 1 << 30)),
        drift=rng.choice((0.0, 0.001, 0.05)),
        skew_ms=rng.choice((0, 2000, 3_600_000)),
        producers=rng.choice((1, 2, 3)),
        weak_producers=rng.choice((0, 1, 1)),
        burst=Random(f"burst/{seed}").choice((0, 20, 40)),
        readers=rng.choice((1, 2)),
        members=rng.choice((0, 1, 2, 3)),
        think_s=rng.choice((0.3, 0.8, 1.5)),
        churn=rng.random() < 0.25,
        encoded=rng.random() < 0.1,
    )
