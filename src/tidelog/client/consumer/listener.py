"""What an application may do when partitions come and go."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Protocol

from tidelog.client.metadata import TopicPartition


class RebalanceListener(Protocol):
    """Any of these, plain or async; a listener need not have them all. They are called while the application asks for records."""

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> object:
        """New ones; the place to seek."""

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> object:
        """About to go: the last moment to commit."""

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> object:
        """Gone already, others may read them: commits fail. Without this method `on_partitions_revoked` is called."""


async def call(listener: RebalanceListener | None, name: str, partitions: Collection[TopicPartition]) -> None:
    method = getattr(listener, name, None)
    if method is None and name == "on_partitions_lost":
        method = getattr(listener, "on_partitions_revoked", None)
    if method is None:
        return
    result = method(partitions)
    if inspect.isawaitable(result):
        await result
