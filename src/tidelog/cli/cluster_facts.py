"""What a cluster tells of itself, gathered for people: brokers, controllers, partitions, and what each broker knows of its replicas.

Asks everybody and waits for nobody long: that a broker does not answer is one of the facts. Nothing is judged here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from tidelog.client.admin import Admin, Resource, ResourceType
from tidelog.client.cluster import ClusterClient
from tidelog.client.cluster_admin import (
    ClusterDescription,
    PartitionDescription,
    QuorumDescription,
    describe_cluster,
    describe_partitions,
    describe_quorum,
)
from tidelog.client.errors import ClientError, RequestTimedOutError
from tidelog.client.metadata import TopicPartition
from tidelog.client.offsets import LogDir, log_dirs_of
from tidelog.client.replica_states import Absence, BrokerState, ReplicaState, Since, Told, ask_every

T = TypeVar("T")

ANSWER_MS: Final = 3_000
PATIENCE: Final[Mapping[str, Any]] = {"connect_timeout_ms": 3_000, "request_timeout_ms": 5_000}
"""For clients of a cluster in which brokers may be dead or stand still."""


MIN_ISR: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"
LAG_MAX: Final = "replica.lag.time.max.ms"


class TopicRules(NamedTuple):
    """Settings that decide; None where they could not be asked for."""

    min_insync_replicas: int | None
    unclean_allowed: bool | None
    lag_max_ms: int | None


class Facts(NamedTuple):
    cluster: ClusterDescription
    quorum: QuorumDescription | ClientError
    """Or why nobody could tell."""
    partitions: Sequence[PartitionDescription]
    told: Mapping[int, Told | ClientError | None]
    """By broker; None: it is no Tidelog, and tells nothing of its replicas."""
    log_dirs: Mapping[int, Sequence[LogDir] | ClientError]

    @property
    def answers(self) -> list[Told]:
        """Of those that take part in the cluster; of the others only if nobody else answers: one that is cut off knows what was."""
        every = _answers(self.told)
        newest = _newest(self.told)
        if newest is None:
            return every
        parts = [told for told in every if _takes_part(newest, told.broker_id)]
        return parts or every

    def silence_of(self, broker_id: int) -> ClientError | None:
        """Why a broker could not be asked."""
        told = self.told.get(broker_id)
        return told if isinstance(told, ClientError) else None

    def state_of(self, broker_id: int) -> BrokerState | None:
        """As the broker with the newest metadata says it, since when as the one with the longest memory does."""
        newest = _newest(self.told)
        if newest is None or broker_id not in newest.brokers:
            return None
        state = newest.brokers[broker_id].state
        same = (told.brokers.get(broker_id) for told in (newest, *self.answers))
        return BrokerState(state, longest(each.since for each in same if each and each.state == state))

    def absence_of(self, tp: TopicPartition, broker_id: int) -> Absence | None:
        """None too for one that is in sync, whatever some broker has not heard yet."""
        if any((p.topic, p.partition) == tp and broker_id in p.isr for p in self.partitions):
            return None
        known = [
            absence
            for told in self.answers
            if tp in told.partitions and (absence := told.partitions[tp].absent.get(broker_id)) is not None
        ]
        if not known:
            return None
        since = longest(absence.since for absence in known)
        # The reason is read off the change itself: whoever saw it happen knows it best.
        why = next(absence.why for absence in known if absence.since == since)
        return Absence(why, since)

    def leaderless_since(self, tp: TopicPartition) -> Since | None:
        known = [told.partitions[tp].leaderless for told in self.answers if tp in told.partitions]
        times = [since for since in known if since is not None]
        return longest(times) if times else None

    def replica(self, tp: TopicPartition, broker_id: int) -> ReplicaState | None:
        """What a broker says of its own replica."""
        told = self.told.get(broker_id)
        return told.partitions.get(tp) if isinstance(told, Told) else None

    def leader_of(self, partition: PartitionDescription) -> ReplicaState | None:
        """What the leader says, if it does, and knows that it leads."""
        state = self.replica(TopicPartition(partition.topic, partition.partition), partition.leader)
        return state if state is not None and state.role == "leader" else None


def _answers(told: Mapping[int, Told | ClientError | None]) -> list[Told]:
    return [each for each in told.values() if isinstance(each, Told)]


def _newest(told: Mapping[int, Told | ClientError | None]) -> Told | None:
    return max(_answers(told), key=lambda each: each.metadata_offset, default=None)


def _takes_part(newest: Told, broker_id: int) -> bool:
    state = newest.brokers.get(broker_id)
    return state is not None and state.state in ("active", "shutting down")


def longest(times: Iterable[Since]) -> Since:
    """Of what several brokers say: the earliest that one saw happen; else the earliest from which on it was known to be so."""
    known = list(times)
    return min([since for since in known if since.is_exact] or known)


async def gather_facts(
    cluster: ClusterClient,
    *,
    topics: Sequence[str] | None = None,
    partitions: Sequence[TopicPartition] | None = None,
    with_log_dirs: bool = True,
) -> Facts:
    """Of all topics, or of some; of some `partitions`, what brokers say of these."""
    asked = {broker.broker_id: broker.address for broker in (await describe_cluster(cluster)).brokers}
    quorum, told = await asyncio.gather(
        _or_why_not(describe_quorum(cluster, timeout_ms=ANSWER_MS)),
        ask_every(cluster, asked.items(), partitions, timeout_ms=ANSWER_MS),
    )
    # Whoever was asked first may be cut off from the others, and know only what was.
    newest = _newest(told)
    best = None if newest is None else asked.get(newest.broker_id)
    description = await describe_cluster(cluster, at=best)
    active = [broker.broker_id for broker in description.brokers if not broker.is_fenced]
    described, log_dirs = await asyncio.gather(
        describe_partitions(cluster, topics, at=best), _log_dirs(cluster, active if with_log_dirs else [])
    )
    return Facts(description, quorum, described, told, log_dirs)


async def _log_dirs(
    cluster: ClusterClient, brokers: Sequence[int]
) -> dict[int, Sequence[LogDir] | ClientError]:
    answers = await asyncio.gather(
        *(_or_why_not(log_dirs_of(cluster, broker, timeout_ms=ANSWER_MS)) for broker in brokers)
    )
    return dict(zip(brokers, answers, strict=True))


async def _or_why_not(question: Awaitable[T]) -> T | ClientError:
    try:
        async with asyncio.timeout(ANSWER_MS / 1000):
            return await question
    except ClientError as error:
        return error
    except TimeoutError:
        return RequestTimedOutError(f"no answer within {ANSWER_MS} ms")


async def topic_rules(cluster: ClusterClient, topic: str, leader: int) -> TopicRules:
    """Settings that decide about a topic's partitions; None for what nobody could be asked about."""
    admin = Admin(cluster, timeout_ms=ANSWER_MS)
    own, brokers = await asyncio.gather(
        _or_why_not(admin.describe_configs(Resource(ResourceType.TOPIC, topic), [MIN_ISR, UNCLEAN])),
        _or_why_not(admin.describe_configs(Resource(ResourceType.BROKER, str(leader)), [LAG_MAX])),
    )
    values = {
        entry.name: entry.value
        for entries in (own, brokers)
        if not isinstance(entries, ClientError)
        for entry in entries
    }
    least, unclean, lag = (values.get(name) for name in (MIN_ISR, UNCLEAN, LAG_MAX))
    return TopicRules(
        None if least is None else int(least),
        None if unclean is None else unclean == "true",
        None if lag is None else int(lag),
    )
