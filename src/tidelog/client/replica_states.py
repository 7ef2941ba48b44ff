"""Asking Tidelog brokers how their replicas stand, and who is away, since when and why: a request that Kafka does not have.

It is not advertised, so it is sent unasked, on a connection of its own: a broker that does not know it hangs up. Every broker is asked for itself, and has little time:
that one of them does not answer is part of what is found out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple

from tidelog.client.addresses import Address
from tidelog.client.cluster import ClusterClient
from tidelog.client.connection import VersionRange
from tidelog.client.errors import (
    ClientError,
    ConnectionLostError,
    MalformedResponseError,
    RequestTimedOutError,
    check,
)
from tidelog.client.metadata import TopicPartition
from tidelog.wire.api import ApiKey
from tidelog.wire.tidelog_api import (
    ExplainedPartition,
    ExplainReplicasRequest,
    ExplainReplicasResponse,
    ExplainReplicasTopic,
)

ANSWER_MS: Final = 3_000


class Since(NamedTuple):
    """`is_exact` false: it was so already at that time, when the broker that tells of it had started."""

    at_ms: int
    is_exact: bool


class BrokerState(NamedTuple):
    state: str
    since: Since


class Absence(NamedTuple):
    """Of a replica from the ISR."""

    why: str
    since: Since


class Standing(NamedTuple):
    """A replica as its leader sees it. None: the leader has not heard from it in its epoch."""

    broker_id: int
    log_end_offset: int | None
    in_sync: bool
    is_joining: bool
    holds_watermark: bool
    caught_up_ms_ago: int | None
    fetched_ms_ago: int | None


class ReplicaState(NamedTuple):
    """One partition, as one broker tells of it. Offsets are None where it has no replica that works."""

    role: str
    """leader, follower, offline, or empty: no replica here."""
    problem: str
    leader_epoch: int
    log_start_offset: int | None
    high_watermark: int | None
    counted_end: int | None
    """Up to where this replica counts: with durability=fsync, what it has made durable."""
    log_end_offset: int | None
    below_min: bool
    standings: tuple[Standing, ...]
    absent: dict[int, Absence]
    leaderless: Since | None


class Told(NamedTuple):
    """What one broker knows."""

    broker_id: int
    now_ms: int
    controller_id: int
    metadata_offset: int
    brokers: dict[int, BrokerState]
    partitions: dict[TopicPartition, ReplicaState]


async def ask_every(
    cluster: ClusterClient,
    brokers: Iterable[tuple[int, Address]],
    partitions: Iterable[TopicPartition] | None,
    *,
    timeout_ms: int = ANSWER_MS,
) -> dict[int, Told | ClientError | None]:
    """By broker: what it tells, why it could not be asked, or None: it is no Tidelog. Without `partitions`: all that it has replicas of."""
    asked = list(brokers)
    wanted = None if partitions is None else list(partitions)
    answers = await asyncio.gather(
        *(_ask_in_time(cluster, address, wanted, timeout_ms) for _, address in asked), return_exceptions=True
    )
    found: dict[int, Told | ClientError | None] = {}
    for (broker_id, _), answer in zip(asked, answers, strict=True):
        if isinstance(answer, BaseException) and not isinstance(answer, ClientError):
            raise answer
        found[broker_id] = answer
    return found


async def _ask_in_time(
    cluster: ClusterClient, address: Address, partitions: list[TopicPartition] | None, timeout_ms: int
) -> Told | None:
    """The time holds for the connection and the answer together."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await _ask(cluster, address, partitions, timeout_ms)
    except TimeoutError:
        raise RequestTimedOutError(f"{address} did not answer within {timeout_ms} ms") from None


async def _ask(
    cluster: ClusterClient, address: Address, partitions: list[TopicPartition] | None, timeout_ms: int
) -> Told | None:
    connection = await cluster.connection_to(address, lane="explain")
    connection.versions.setdefault(ApiKey.EXPLAIN_REPLICAS, VersionRange(0, 0))
    try:
        response: ExplainReplicasResponse = await connection.request(
            ApiKey.EXPLAIN_REPLICAS, _request(partitions), timeout_ms=timeout_ms
        )
    except (ConnectionLostError, MalformedResponseError):
        return None
    check(response.error_code, f"the replicas of {address}", response.error_message)
    return Told(
        response.broker_id,
        response.now_ms,
        response.controller_id,
        response.metadata_offset,
        {b.broker_id: BrokerState(b.state, Since(b.since_ms, b.is_exact)) for b in response.brokers},
        {TopicPartition(p.topic, p.partition): _state(p) for p in response.partitions},
    )


def _request(partitions: list[TopicPartition] | None) -> ExplainReplicasRequest:
    if partitions is None:
        return ExplainReplicasRequest(topics=None)
    named: dict[str, list[int]] = {}
    for tp in partitions:
        named.setdefault(tp.topic, []).append(tp.partition)
    return ExplainReplicasRequest(
        topics=[ExplainReplicasTopic(topic, indexes) for topic, indexes in named.items()]
    )


def _state(told: ExplainedPartition) -> ReplicaState:
    return ReplicaState(
        told.role,
        told.problem,
        told.leader_epoch,
        _known(told.log_start_offset),
        _known(told.high_watermark),
        _known(told.counted_end),
        _known(told.log_end_offset),
        told.below_min,
        tuple(
            Standing(
                r.broker_id,
                _known(r.log_end_offset),
                r.in_sync,
                r.is_joining,
                r.holds_watermark,
                _known(r.caught_up_ms),
                _known(r.fetched_ms),
            )
            for r in told.replicas
        ),
        {a.broker_id: Absence(a.why, Since(a.since_ms, a.is_exact)) for a in told.absent},
        Since(told.leaderless_since_ms, told.leaderless_is_exact) if told.leaderless_since_ms >= 0 else None,
    )


def _known(value: int) -> int | None:
    return value if value >= 0 else None
