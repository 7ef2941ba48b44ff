"""What changed between two images, as far as a broker acts on it: topics that are gone, partitions, settings and brokers that are new or different.

Usually read off the delta that made the newer image. A node that has loaded a snapshot has no delta, only two images: the difference is then worked out,
and says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.controller.delta import MetadataDelta
from tidelog.controller.image import MetadataImage, PartitionImage, ResourceKey, TopicImage


class ImageChange(NamedTuple):
    deleted: list[TopicImage]
    """As they were."""
    partitions: Mapping[bytes, Mapping[int, PartitionImage]]
    """New and changed ones by topic id; none of deleted topics."""
    configs: frozenset[ResourceKey]
    brokers: frozenset[int]

    @property
    def is_empty(self) -> bool:
        return not (self.deleted or self.partitions or self.configs or self.brokers)


def of_delta(delta: MetadataDelta) -> ImageChange:
    return ImageChange(
        delta.topics.deleted,
        delta.topics.changed_partitions(),
        delta.changed_configs,
        frozenset(delta.registrations.changed_brokers),
    )


def between(before: MetadataImage, after: MetadataImage) -> ImageChange:
    return ImageChange(
        [topic for topic_id, topic in before.topics_by_id.items() if topic_id not in after.topics_by_id],
        {
            topic_id: changed
            for topic_id, topic in after.topics_by_id.items()
            if (changed := _changed_partitions(before.topics_by_id.get(topic_id), topic))
        },
        frozenset(
            key
            for key in before.configs.keys() | after.configs.keys()
            if before.configs.get(key) != after.configs.get(key)
        ),
        frozenset(
            broker
            for broker in before.brokers.keys() | after.brokers.keys()
            if before.brokers.get(broker) != after.brokers.get(broker)
        ),
    )


def _changed_partitions(before: TopicImage | None, after: TopicImage) -> dict[int, PartitionImage]:
    known: Mapping[int, PartitionImage] = {} if before is None else before.partitions
    return {
        index: partition for index, partition in after.partitions.items() if known.get(index) != partition
    }
