"""Questions about the cluster itself: its brokers, its controllers, its partitions with all that the metadata says of them; and elections.

Kafka's own requests, answered by any Kafka. What only Tidelog tells is in `replica_states.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from tidelog.client.addresses import Address
from tidelog.client.cluster import CONTROLLER, ClusterClient
from tidelog.client.errors import (
    BrokerError,
    BrokerUnreachableError,
    ClientError,
    ConnectionLostError,
    RequestTimedOutError,
    UnsupportedRequestError,
    check,
)
from tidelog.client.metadata import TopicPartition
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages import describe_quorum as quorum_messages
from tidelog.wire.messages import describe_topic_partitions as partition_messages
from tidelog.wire.messages import elect_leaders as election_messages
from tidelog.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

METADATA_TOPIC: Final = "__cluster_metadata"
QUORUM_ASKED_MAX: Final = 5
"""Brokers that are asked about the quorum at once: some may be cut off from it."""
QUORUM_OTHERS_S: Final = 0.5
"""For the others, once one has answered: it may know of an earlier leader only."""


class ClusterBroker(NamedTuple):
    broker_id: int
    address: Address
    rack: str | None
    is_fenced: bool


class ClusterDescription(NamedTuple):
    cluster_id: str
    brokers: tuple[ClusterBroker, ...]


class QuorumReplica(NamedTuple):
    """Times are those of the leader's clock; None: it has not fetched from this leader."""

    replica_id: int
    log_end_offset: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None
    address: Address | None


class QuorumDescription(NamedTuple):
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]


class PartitionDescription(NamedTuple):
    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    last_known_elr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


class Election(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


class ElectionOutcome(NamedTuple):
    """`error` is NONE for a partition that has a new leader."""

    tp: TopicPartition
    error: ErrorCode
    message: str | None


async def _request(cluster: ClusterClient, key: ApiKey, request: object, at: Address | None) -> Any:
    """To the broker at an address: one that is cut off from the others knows only what was. Else to whichever we are connected to."""
    connection = await (cluster.connection() if at is None else cluster.connection_to(at))
    return await connection.request(key, request)


async def describe_cluster(cluster: ClusterClient, *, at: Address | None = None) -> ClusterDescription:
    """The brokers, those that are fenced too where the cluster tells of them (Kafka 4.0 and later)."""

    async def ask() -> ClusterDescription:
        response: DescribeClusterResponse = await _request(
            cluster, ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(include_fenced_brokers=True), at
        )
        check(response.error_code, "the cluster", response.error_message)
        brokers = [
            ClusterBroker(b.broker_id, Address(b.host, b.port), b.rack, b.is_fenced) for b in response.brokers
        ]
        return ClusterDescription(response.cluster_id, tuple(sorted(brokers)))

    return await cluster.retrying(ask)


async def describe_quorum(cluster: ClusterClient, *, timeout_ms: int | None = None) -> QuorumDescription:
    """As the newest leader says it that some of the brokers know of: each sends the question on to the one that it knows, and waits for one if it knows none."""

    async def ask() -> QuorumDescription:
        brokers = [broker.address for broker in cluster.metadata.brokers.values()][:QUORUM_ASKED_MAX]
        if not brokers:
            raise BrokerUnreachableError("no broker is known that could be asked about the quorum")
        asking = [asyncio.create_task(_ask_quorum(cluster, address, timeout_ms)) for address in brokers]
        try:
            for first in asyncio.as_completed(asking):
                try:
                    await first
                except ClientError:
                    continue
                await asyncio.wait(asking, timeout=QUORUM_OTHERS_S)
                break
            done = [task for task in asking if task.done()]
            found = [task.result() for task in done if task.exception() is None]
            # Nobody: why the first one could not tell.
            return max(found, key=lambda each: each.leader_epoch) if found else done[0].result()
        finally:
            for task in asking:
                task.cancel()

    return await cluster.retrying(ask, timeout_ms=timeout_ms)


async def _ask_quorum(cluster: ClusterClient, address: Address, timeout_ms: int | None) -> QuorumDescription:
    request = quorum_messages.DescribeQuorumRequest(
        topics=[
            quorum_messages.RequestTopicData(
                METADATA_TOPIC, [quorum_messages.RequestPartitionData(partition_index=0)]
            )
        ]
    )
    connection = await cluster.connection_to(address, lane="quorum")
    response: quorum_messages.DescribeQuorumResponse = await connection.request(
        ApiKey.DESCRIBE_QUORUM, request, timeout_ms=timeout_ms
    )
    check(response.error_code, "the quorum of controllers", response.error_message)
    (part,) = response.topics[0].partitions
    check(part.error_code, "the quorum of controllers", part.error_message)
    addresses = {
        node.node_id: Address(node.listeners[0].host, node.listeners[0].port)
        for node in response.nodes
        if node.listeners
    }
    return QuorumDescription(
        part.leader_id,
        part.leader_epoch,
        part.high_watermark,
        _replicas(part.current_voters, addresses),
        _replicas(part.observers, {}),
    )


def _replicas(
    states: Iterable[quorum_messages.ReplicaState], addresses: Mapping[int, Address]
) -> tuple[QuorumReplica, ...]:
    return tuple(
        QuorumReplica(
            state.replica_id,
            state.log_end_offset,
            state.last_fetch_timestamp if state.last_fetch_timestamp >= 0 else None,
            state.last_caught_up_timestamp if state.last_caught_up_timestamp >= 0 else None,
            addresses.get(state.replica_id),
        )
        for state in states
    )


async def describe_partitions(
    cluster: ClusterClient, topics: Sequence[str] | None = None, *, at: Address | None = None
) -> list[PartitionDescription]:
    """Of some topics or of all, with eligible leaders and last known ones (KIP-966). Topics that do not exist are left out."""

    async def ask() -> list[PartitionDescription]:
        found: list[PartitionDescription] = []
        cursor = None
        while True:
            request = partition_messages.DescribeTopicPartitionsRequest(
                topics=[partition_messages.TopicRequest(name) for name in sorted(set(topics or ()))],
                cursor=cursor,
            )
            response: partition_messages.DescribeTopicPartitionsResponse = await _request(
                cluster, ApiKey.DESCRIBE_TOPIC_PARTITIONS, request, at
            )
            for topic in response.topics:
                if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    check(topic.error_code, f"topic {topic.name}")
                found += [_described(topic.name or "", part) for part in topic.partitions]
            cursor = response.next_cursor
            if cursor is None:
                return found

    try:
        return await cluster.retrying(ask)
    except UnsupportedRequestError:
        return await _from_metadata(cluster, topics)


def _described(
    topic: str, part: partition_messages.DescribeTopicPartitionsResponsePartition
) -> PartitionDescription:
    return PartitionDescription(
        topic,
        part.partition_index,
        part.leader_id,
        part.leader_epoch,
        tuple(part.replica_nodes),
        tuple(part.isr_nodes),
        tuple(part.eligible_leader_replicas or ()),
        tuple(part.last_known_elr or ()),
        tuple(part.offline_replicas),
    )


async def _from_metadata(cluster: ClusterClient, topics: Sequence[str] | None) -> list[PartitionDescription]:
    """What an older broker tells: the same without eligible leaders."""
    known = (await cluster.refresh_metadata(topics or None)).topics
    return [
        PartitionDescription(
            name, p.partition, p.leader, p.leader_epoch, p.replicas, p.isr, (), (), p.offline_replicas
        )
        for name, topic in sorted(known.items())
        if not topics or name in topics
        for p in topic.partitions.values()
    ]


async def elect_leaders(
    cluster: ClusterClient,
    election: Election,
    partitions: Iterable[TopicPartition] | None,
    *,
    timeout_ms: int = 30_000,
) -> list[ElectionOutcome]:
    """Of some partitions or of all; of all, only those that needed an election are told of.

    It is not asked twice: whoever asks again hears of elections that are not needed any more.
    """
    named: dict[str, list[int]] | None = None
    if partitions is not None:
        named = {}
        for tp in partitions:
            named.setdefault(tp.topic, []).append(tp.partition)
    request = election_messages.ElectLeadersRequest(
        election_type=election,
        topic_partitions=None
        if named is None
        else [election_messages.TopicPartitions(topic, indexes) for topic, indexes in named.items()],
        timeout_ms=timeout_ms,
    )

    async def ask() -> list[ElectionOutcome]:
        try:
            response: election_messages.ElectLeadersResponse = await cluster.request(
                ApiKey.ELECT_LEADERS, request, node=CONTROLLER, timeout_ms=timeout_ms + 5_000
            )
        except (ConnectionLostError, RequestTimedOutError) as error:
            error.retriable = False
            error.add_note("leaders may or may not have been elected: look before you try again")
            raise
        check(response.error_code, "electing leaders")
        return [
            ElectionOutcome(
                TopicPartition(topic.topic, result.partition_id),
                _known_code(result.error_code, result.error_message),
                result.error_message,
            )
            for topic in response.replica_election_results
            for result in topic.partition_result
        ]

    return await cluster.retrying(ask)


def _known_code(code: int, message: str | None) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        raise BrokerError(code, "electing leaders", message) from None
