"""What a changed min.insync.replicas means for eligible leaders (KIP-966, I23).

Owns one rule. As long as the ISR is below the minimum the high watermark stands still, and whoever is in the ELR lacks nothing. A new value
changes that only where the ISR now has enough members: there the ELR is void. Everywhere else it must stay, above all where the ISR is empty: to lower
the minimum is what people do when brokers are gone, and it must not cost them the replicas that could still lead.

Kafka writes one record that clears every ELR of the topic, or of all topics. So do we where that comes to the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidelog.controller.elections import MIN_INSYNC_REPLICAS, below_min
from tidelog.controller.image import MetadataImage, PartitionImage, ResourceKey, ResourceType, TopicImage
from tidelog.controller.metadata_records import ClearElrRecord, PartitionChangeRecord
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.result import ControllerSettings


def void_elr_records(
    image: MetadataImage, key: ResourceKey, after: Mapping[str, str], settings: ControllerSettings
) -> list[MetadataRecord]:
    """`key`, a topic or all brokers, is about to have the settings `after`."""
    if key.type == ResourceType.TOPIC:
        topics = [image.topics_by_name[key.name]]
    else:
        topics = list(image.topics_by_name.values())
    default = image.broker_defaults if key.type == ResourceType.TOPIC else after
    void: list[MetadataRecord] = []
    kept = False
    for topic in topics:
        own = after if key.type == ResourceType.TOPIC else image.config(ResourceType.TOPIC, topic.name)
        text = own.get(MIN_INSYNC_REPLICAS, default.get(MIN_INSYNC_REPLICAS))
        minimum = settings.min_insync_replicas if text is None else int(text)
        for index, partition in _with_candidates(topic):
            if below_min(partition, partition.isr, minimum):
                kept = True
            else:
                void.append(
                    PartitionChangeRecord(
                        index, topic.topic_id, eligible_leader_replicas=[], last_known_elr=[]
                    )
                )
    return void if kept else [ClearElrRecord(key.name)]


def _with_candidates(topic: TopicImage) -> Iterator[tuple[int, PartitionImage]]:
    return (
        (index, partition)
        for index, partition in topic.partitions.items()
        if partition.elr or partition.last_known_elr
    )
