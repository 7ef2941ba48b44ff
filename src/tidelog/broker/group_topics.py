"""The cluster's topics as the group coordinator sees them: always those of the latest metadata."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tidelog.config.resolve import BrokerConfig
from tidelog.controller.image import MetadataImage, ResourceType


class ImageTopics:
    """Implements `tidelog.coordinator.group.world.Topics`."""

    __slots__ = ("_config", "_image")

    def __init__(self, image: Callable[[], MetadataImage], config: Callable[[], BrokerConfig]) -> None:
        self._image = image
        self._config = config

    @property
    def offset(self) -> int:
        return self._image().offset

    def names(self) -> Collection[str]:
        return self._image().topics_by_name.keys()

    def partitions(self, name: str) -> int | None:
        topic = self._image().topics_by_name.get(name)
        return None if topic is None else len(topic.partitions)

    def id_of(self, name: str) -> bytes | None:
        topic = self._image().topics_by_name.get(name)
        return None if topic is None else topic.topic_id

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._image().topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def group_config(self, group_id: str) -> Mapping[str, int]:
        """The broker's own value of what may change while it runs, and above it what the group says."""
        interval_ms = self._config().int("group.consumer.assignment.interval.ms")
        return {"consumer.assignment.interval.ms": interval_ms} | {
            name: int(value)
            for name, value in self._image().config(ResourceType.GROUP, group_id).items()
            if name.startswith("consumer.") and value.isdecimal()
        }
