"""What changed about topics and partitions since an image.

Owns the working copies: a topic's partitions are copied once, when the first of them is touched, so that the 2,000
records of a large new topic cost 2,000 small steps and not 2,000 copies.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.controller.image import MetadataImage, PartitionImage, TopicImage
from tidelog.controller.metadata_records import (
    ClearElrRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from tidelog.controller.partition_image import merged, partition_from_record

_TopicMaps = tuple[Mapping[str, TopicImage], Mapping[bytes, TopicImage], int]


class TopicsDelta:
    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._touched: dict[bytes, TopicImage] = {}
        self._partitions: dict[bytes, dict[int, PartitionImage]] = {}
        self._created: dict[str, bytes] = {}
        self._removed: dict[bytes, TopicImage] = {}
        self._changed: dict[bytes, set[int]] = {}

    # ---- what a broker asks

    @property
    def created(self) -> list[TopicImage]:
        """Topics that the old image does not have, as they are now."""
        return [self._touched[topic_id] for topic_id in self._created.values()]

    @property
    def deleted(self) -> list[TopicImage]:
        """Topics of the old image that are gone. One that came and went within this delta is in neither list."""
        return [topic for topic in self._removed.values() if topic.topic_id in self._image.topics_by_id]

    def changed_partitions(self) -> dict[bytes, dict[int, PartitionImage]]:
        """New and changed partitions by topic id; those of deleted topics are not in here."""
        return {
            topic_id: {index: self._partitions[topic_id][index] for index in sorted(indexes)}
            for topic_id, indexes in self._changed.items()
            if topic_id in self._touched
        }

    def topic_of(self, topic_id: bytes) -> TopicImage:
        """The topic as it is after the changes so far."""
        touched = self._touched.get(topic_id)
        if touched is not None:
            return touched
        known = self._image.topics_by_id.get(topic_id)
        if known is None or topic_id in self._removed:
            raise ValueError(
                f"a record speaks of topic id {topic_id.hex()}, which does not exist at that point"
            )
        return known

    # ---- replay

    def create(self, record: TopicRecord) -> None:
        known = self._image.topics_by_name.get(record.name)
        if record.name in self._created or (known is not None and known.topic_id not in self._removed):
            raise ValueError(f"topic {record.name!r} is created although it exists")
        partitions: dict[int, PartitionImage] = {}
        self._partitions[record.topic_id] = partitions
        self._touched[record.topic_id] = TopicImage(record.name, record.topic_id, partitions)
        self._created[record.name] = record.topic_id

    def put_partition(self, record: PartitionRecord) -> None:
        self._open(record.topic_id)[record.partition_id] = partition_from_record(record)
        self._changed.setdefault(record.topic_id, set()).add(record.partition_id)

    def change_partition(self, record: PartitionChangeRecord) -> None:
        partitions = self._open(record.topic_id)
        before = partitions.get(record.partition_id)
        if before is None:
            topic = self.topic_of(record.topic_id).name
            raise ValueError(
                f"a record changes {topic}-{record.partition_id}, which does not exist at that point"
            )
        partitions[record.partition_id] = merged(before, record)
        self._changed.setdefault(record.topic_id, set()).add(record.partition_id)

    def clear_elr(self, record: ClearElrRecord) -> None:
        if record.topic_name:
            self._clear_elr_of(self._by_name(record.topic_name))
            return
        for topic_id in [*self._image.topics_by_id, *self._created.values()]:
            if topic_id not in self._removed:
                self._clear_elr_of(self.topic_of(topic_id))

    def remove(self, topic_id: bytes) -> str:
        """Returns the name that is free again."""
        topic = self.topic_of(topic_id)
        self._removed[topic_id] = topic
        self._touched.pop(topic_id, None)
        self._partitions.pop(topic_id, None)
        self._changed.pop(topic_id, None)
        if self._created.get(topic.name) == topic_id:
            del self._created[topic.name]
        return topic.name

    def apply(self) -> _TopicMaps:
        image = self._image
        if not self._touched and not self._removed:
            return image.topics_by_name, image.topics_by_id, image.partition_count
        by_name, by_id = dict(image.topics_by_name), dict(image.topics_by_id)
        count = image.partition_count
        for topic in self.deleted:
            del by_name[topic.name], by_id[topic.topic_id]
            count -= len(image.topics_by_id[topic.topic_id].partitions)
        for topic_id, topic in self._touched.items():
            before = by_id.get(topic_id)
            count += len(topic.partitions) - (len(before.partitions) if before is not None else 0)
            by_name[topic.name] = by_id[topic_id] = _in_order(topic)
        return by_name, by_id, count

    # ---- inside

    def _open(self, topic_id: bytes) -> dict[int, PartitionImage]:
        """The working copy of a topic's partitions, made when it is first needed."""
        partitions = self._partitions.get(topic_id)
        if partitions is None:
            topic = self.topic_of(topic_id)
            partitions = self._partitions[topic_id] = dict(topic.partitions)
            self._touched[topic_id] = topic._replace(partitions=partitions)
        return partitions

    def _by_name(self, name: str) -> TopicImage:
        topic_id = self._created.get(name)
        if topic_id is None:
            known = self._image.topics_by_name.get(name)
            if known is None:
                raise ValueError(f"a record speaks of topic {name!r}, which does not exist at that point")
            topic_id = known.topic_id
        return self.topic_of(topic_id)

    def _clear_elr_of(self, topic: TopicImage) -> None:
        for index, partition in list(topic.partitions.items()):
            if partition.elr or partition.last_known_elr:
                self.change_partition(
                    PartitionChangeRecord(
                        index, topic.topic_id, eligible_leader_replicas=[], last_known_elr=[]
                    )
                )


def _in_order(topic: TopicImage) -> TopicImage:
    """Partitions by rising number, and no longer the working copy: a delta may go on after `apply`."""
    return topic._replace(partitions=dict(sorted(topic.partitions.items())))
