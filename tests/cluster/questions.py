"""What single brokers say about their cluster, by questions over the wire: each is asked itself, not whoever a client library happens to choose."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from tidelog.client.addresses import Address
from tidelog.client.connection import Connection
from tidelog.client.errors import ClientError
from tidelog.wire.api import spec_of_request
from tidelog.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    RequestPartitionData,
    RequestTopicData,
)
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

HOST: Final = "127.0.0.1"
ANSWER_MS_MAX: Final = 3_000


class PartitionView(NamedTuple):
    leader: int | None
    leader_epoch: int
    replicas: frozenset[int]
    isr: frozenset[int]


def active_controller(ports: Iterable[int]) -> int | None:
    """As whoever knows of the newest epoch has it; None while there is none."""
    request = DescribeQuorumRequest(
        topics=[
            RequestTopicData(
                topic_name="__cluster_metadata", partitions=[RequestPartitionData(partition_index=0)]
            )
        ]
    )
    found = [(-1, -1)]
    for response in asyncio.run(_ask_all(ports, request)):
        if response is not None and not response.error_code:
            partition = response.topics[0].partitions[0]
            if not partition.error_code:
                found.append((partition.leader_epoch, partition.leader_id))
    leader_id = max(found)[1]
    return leader_id if leader_id >= 0 else None


def partitions_of(topic: str, port: int) -> dict[int, PartitionView]:
    """As one broker has them; nothing if it does not answer, or knows no such topic."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    (response,) = asyncio.run(_ask_all([port], request))
    if response is None:
        return {}
    return {
        partition.partition_index: PartitionView(
            partition.leader_id if partition.leader_id >= 0 else None,
            partition.leader_epoch,
            frozenset(partition.replica_nodes),
            frozenset(partition.isr_nodes),
        )
        for each in response.topics
        for partition in each.partitions
    }


def committed_offsets(group: str, topic: str, partitions: int, port: int) -> dict[int, int] | None:
    """As one broker tells them; None if it does not answer, or says that it is not the coordinator (yet, or any more)."""
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=list(range(partitions)))]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)])
    (response,) = asyncio.run(_ask_all([port], request, at_most=9))
    if response is None or response.groups[0].error_code:
        return None
    found = [each for topic in response.groups[0].topics for each in topic.partitions]
    assert not any(each.error_code for each in found), found
    return {each.partition_index: each.committed_offset for each in found}


async def _ask_all(ports: Iterable[int], request: Any, *, at_most: int | None = None) -> list[Any | None]:
    return await asyncio.gather(*(_ask(port, request, at_most) for port in ports))


async def _ask(port: int, request: Any, at_most: int | None) -> Any | None:
    try:
        connection = await Connection.open(
            Address(HOST, port),
            client_id="question",
            request_timeout_ms=ANSWER_MS_MAX,
            connect_timeout_ms=ANSWER_MS_MAX,
        )
    except ClientError:
        return None
    try:
        return await connection.request(spec_of_request(type(request)).key, request, at_most=at_most)
    except ClientError:
        return None
    finally:
        connection.abort()
