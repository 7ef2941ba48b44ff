"""Everything that `topic describe` shows of one topic, gathered from metadata, leaders, log directories and configs."""

from __future__ import annotations

from typing import Any

from tidelog.cli.output import topic_id_text
from tidelog.client.admin import Admin, ConfigSource, Resource, ResourceType
from tidelog.client.cluster import ClusterClient
from tidelog.client.errors import UnsupportedRequestError
from tidelog.client.metadata import TopicInfo, TopicPartition
from tidelog.client.offsets import EARLIEST, LATEST, describe_log_dirs, list_offsets


async def describe_topic(cluster: ClusterClient, info: TopicInfo) -> dict[str, Any]:
    led = [TopicPartition(info.name, p.partition) for p in info.partitions.values() if p.leader >= 0]
    starts = await list_offsets(cluster, dict.fromkeys(led, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(led, LATEST))
    sizes = await _leader_sizes(cluster, info)
    configs = await Admin(cluster).describe_configs(Resource(ResourceType.TOPIC, info.name))
    partitions = []
    for p in info.partitions.values():
        tp = TopicPartition(info.name, p.partition)
        partitions.append(
            {
                "partition": p.partition,
                "leader": p.leader,
                "leader_epoch": p.leader_epoch,
                "replicas": list(p.replicas),
                "isr": list(p.isr),
                "offline_replicas": list(p.offline_replicas),
                "start_offset": starts[tp].offset if tp in starts else None,
                "end_offset": ends[tp].offset if tp in ends else None,
                "size_bytes": sizes.get(p.partition),
            }
        )
    return {
        "topic": info.name,
        "topic_id": topic_id_text(info.topic_id),
        "internal": info.is_internal,
        "partitions": partitions,
        "configs": {c.name: c.value for c in configs if c.source == ConfigSource.DYNAMIC_TOPIC_CONFIG},
    }


async def _leader_sizes(cluster: ClusterClient, info: TopicInfo) -> dict[int, int]:
    try:
        log_dirs = await describe_log_dirs(cluster)
    except UnsupportedRequestError:
        return {}  # some Kafka-compatible services keep their directories to themselves
    leaders = {p.partition: p.leader for p in info.partitions.values()}
    return {
        replica.partition: replica.size_bytes
        for log_dir in log_dirs
        for replica in log_dir.replicas
        if replica.topic == info.name and leaders.get(replica.partition) == replica.broker
    }
