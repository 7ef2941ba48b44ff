"""What the group coordinator sees of the world around it: who asks, and which topics there are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol


class Client(NamedTuple):
    """Who sent a request, and in which version."""

    id: str
    host: str
    version: int


class Topics(Protocol):
    """The cluster's topics, as they are now."""

    @property
    def offset(self) -> int:
        """Of the metadata they are read from: a larger one is newer."""
        ...

    def names(self) -> Collection[str]: ...

    def partitions(self, name: str) -> int | None:
        """How many partitions the topic has; None: there is no such topic."""
        ...

    def id_of(self, name: str) -> bytes | None: ...

    def name_of(self, topic_id: bytes) -> str | None: ...

    def group_config(self, group_id: str) -> Mapping[str, int]:
        """Settings of the group's own, as numbers, by Kafka's names."""
        ...
