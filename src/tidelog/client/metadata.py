"""What a Metadata answer says about the cluster, as frozen values. No I/O, no retries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidelog.client.addresses import Address
from tidelog.wire.messages.metadata import MetadataResponse, MetadataResponseTopic

ZERO_ID = bytes(16)


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    node_id: int
    address: Address
    rack: str | None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    partition: int
    leader: int
    """Node id, or -1 while there is none."""
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    error_code: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    topic_id: bytes
    is_internal: bool
    error_code: int
    partitions: Mapping[int, PartitionInfo]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    cluster_id: str | None = None
    controller_id: int = -1
    brokers: Mapping[int, BrokerInfo] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    doubted: frozenset[str] = frozenset()
    """Topics whose leaders turned out not to be who we thought; what was known of them still tells older news from newer."""

    def leader_of(self, tp: TopicPartition) -> PartitionInfo | None:
        """The partition, if its leader is known, not doubted, and among the brokers."""
        topic = self.topics.get(tp.topic) if tp.topic not in self.doubted else None
        info = topic.partitions.get(tp.partition) if topic is not None else None
        return info if info is not None and info.leader in self.brokers else None

    def topic_name(self, topic_id: bytes) -> str | None:
        return next((t.name for t in self.topics.values() if t.topic_id == topic_id), None)

    def updated_by(self, response: MetadataResponse, *, everything: bool) -> ClusterMetadata:
        """Brokers are replaced; topics too if all were asked for, otherwise only those in the answer.

        A broker that has not heard of an election yet may answer late: a leader of an older epoch than we know is no news (KIP-320).
        """
        answered = {
            topic.name: _not_older(topic, self.topics.get(topic.name))
            for topic in map(_topic, response.topics)
            if topic.name
        }
        return ClusterMetadata(
            cluster_id=response.cluster_id or self.cluster_id,
            controller_id=response.controller_id,
            brokers={
                b.node_id: BrokerInfo(b.node_id, Address(b.host, b.port), b.rack) for b in response.brokers
            },
            topics=answered if everything else {**self.topics, **answered},
            doubted=frozenset() if everything else self.doubted - answered.keys(),
        )

    def doubting(self, topics: Iterable[str]) -> ClusterMetadata:
        return replace(self, doubted=self.doubted | set(topics))


def _not_older(topic: TopicInfo, known: TopicInfo | None) -> TopicInfo:
    if known is None or known.topic_id != topic.topic_id:
        return topic
    newer = {
        number: before
        for number, before in known.partitions.items()
        if number in topic.partitions and 0 <= topic.partitions[number].leader_epoch < before.leader_epoch
    }
    return replace(topic, partitions={**topic.partitions, **newer}) if newer else topic


def _topic(topic: MetadataResponseTopic) -> TopicInfo:
    partitions = {
        p.partition_index: PartitionInfo(
            partition=p.partition_index,
            leader=p.leader_id,
            leader_epoch=p.leader_epoch,
            replicas=tuple(p.replica_nodes),
            isr=tuple(p.isr_nodes),
            offline_replicas=tuple(p.offline_replicas),
            error_code=p.error_code,
        )
        for p in sorted(topic.partitions, key=lambda p: p.partition_index)
    }
    return TopicInfo(topic.name or "", topic.topic_id, topic.is_internal, topic.error_code, partitions)
