"""The settings that are allowed and seldom meant, looked for in what a topic really has after a change."""

from __future__ import annotations

from tidelog.client.admin import Admin, Resource, ResourceType
from tidelog.client.metadata import TopicInfo
from tidelog.config.footguns import more_partitions_warnings, topic_warnings
from tidelog.config.resolve import BrokerConfig, TopicConfig


async def warnings_for(admin: Admin, info: TopicInfo, *, partitions_before: int | None = None) -> list[str]:
    """Sentences for stderr. Settings that another vendor's broker reports and we do not know are passed over."""
    entries = await admin.describe_configs(Resource(ResourceType.TOPIC, info.name))
    texts = {entry.name: entry.value for entry in entries if entry.value is not None}
    values = TopicConfig.resolve(texts, BrokerConfig.load())
    replicas = max((len(p.replicas) for p in info.partitions.values()), default=1)
    found = topic_warnings(
        values,
        replication_factor=replicas,
        partitions=len(info.partitions),
        brokers=len(admin.cluster.metadata.brokers),
    )
    if partitions_before is not None:
        compacted = "compact" in values.list("cleanup.policy")
        found += more_partitions_warnings(
            info.name, before=partitions_before, after=len(info.partitions), compacted=compacted
        )
    return found
