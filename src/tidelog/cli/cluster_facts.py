"""What a cluster tells of itself, gathered for people: brokers, controllers, partitions, and what each broker knows of its replicas.

Asks everybody and waits for nobody long: that a broker does not answer is one of the facts. Nothing is judged here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

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
from tidelog.client.errors import ClientError
from tidelog.client.metadata import TopicPartition
from tidelog.client.offsets import LogDir, log_dirs_of
from tidelog.client.replica_states import Absence, BrokerState, ReplicaState, Since, Told, ask_every

ANSWER_MS: Final = 3_000
PATIENCE: Final[Mapping[str, Any]] = {"connect_timeout_ms": 3_000, "request_timeout_ms": 10_000}
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
        return [told for told in self.told.values() if isinstance(told, Told)]

    def silence_of(self, broker_id: int) -> ClientError | None:
        """Why a broker could not be asked."""
        told = self.told.get(broker_id)
        return told if isinstance(told, ClientError) else None

    def state_of(self, broker_id: int) -> BrokerState | None:
        """As the broker with the newest metadata says it, since when as the one with the longest memory does."""
        newest = max(
            (told for told in self.answers if broker_id in told.brokers),
            key=lambda told: told.metadata_offset,
            default=None,
        )
        if newest is None:
            return None
        state = newest.brokers[broker_id].state
        same = (told.brokers.get(broker_id) for told in self.answers)
        return BrokerState(state, longest(each.since for each in same if each and each.state == state))

    def absence_of(self, tp: TopicPartition, broker_id: int) -> Absence | None:
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
    description = await describe_cluster(cluster)
    addresses = [(broker.broker_id, broker.address) for broker in description.brokers]
    active = [broker.broker_id for broker in description.brokers if not broker.is_fenced]
    described, quorum, told, log_dirs = await asyncio.gather(
        describe_partitions(cluster, topics),
        _or_why_not(describe_quorum(cluster, timeout_ms=ANSWER_MS)),
        ask_every(cluster, addresses, partitions, timeout_ms=ANSWER_MS),
        _log_dirs(cluster, active if with_log_dirs else []),
    )
    return Facts(description, quorum, described, told, log_dirs)


async def _log_dirs(
    cluster: ClusterClient, brokers: Sequence[int]
) -> dict[int, Sequence[LogDir] | ClientError]:
    answers = await asyncio.gather(
        *(_or_why_not(log_dirs_of(cluster, broker, timeout_ms=ANSWER_MS)) for broker in brokers)
    )
    return dict(zip(brokers, answers, strict=True))


async def _or_why_not(question: Any) -> Any:
    try:
        return await question
    except ClientError as error:
        return error


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
