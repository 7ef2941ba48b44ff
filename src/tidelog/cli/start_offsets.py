"""Where a consumer begins and, if it is to stop, where it ends."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.client.cluster import ClusterClient, PartitionMissingError
from tidelog.client.metadata import TopicPartition
from tidelog.client.offsets import EARLIEST, LATEST, list_offsets


async def partitions_of(
    cluster: ClusterClient, topic: str, chosen: Sequence[int] | None
) -> list[TopicPartition]:
    info = await cluster.topic(topic)
    for partition in chosen or ():
        if partition not in info.partitions:
            raise PartitionMissingError(TopicPartition(topic, partition), len(info.partitions))
    return [TopicPartition(topic, partition) for partition in dict.fromkeys(chosen or info.partitions)]


async def end_offsets(
    cluster: ClusterClient, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    found = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    return {tp: found[tp].offset for tp in partitions}


async def start_offsets(
    cluster: ClusterClient,
    partitions: Sequence[TopicPartition],
    *,
    from_beginning: bool = False,
    offset: int | None = None,
    timestamp_ms: int | None = None,
) -> dict[TopicPartition, int]:
    """The end, unless an option says otherwise. Negative offsets count from the end and stop at the first record."""
    if offset is not None and offset >= 0:
        return dict.fromkeys(partitions, offset)
    if timestamp_ms is not None:
        found = await list_offsets(cluster, dict.fromkeys(partitions, timestamp_ms))
        late = [tp for tp in partitions if found[tp].offset < 0]
        ends = await end_offsets(cluster, late) if late else {}
        return {tp: ends[tp] if tp in ends else found[tp].offset for tp in partitions}
    if not from_beginning and offset is None:
        return await end_offsets(cluster, partitions)
    firsts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    if offset is None:
        return {tp: firsts[tp].offset for tp in partitions}
    ends = await end_offsets(cluster, partitions)
    return {tp: max(firsts[tp].offset, ends[tp] + offset) for tp in partitions}
