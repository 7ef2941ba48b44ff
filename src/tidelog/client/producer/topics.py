"""The topics that a producer writes to: how many partitions they have, and the questions that find it out.

Sends that ask for the same topic at the same time share one question. Leaders are asked for again when a broker says that it is not one, and every
`metadata.max.age.ms`, by which a producer notices that a topic has grown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from tidelog.client.cluster import ClusterClient, PartitionMissingError
from tidelog.client.errors import ClientError
from tidelog.client.metadata import TopicInfo, TopicPartition
from tidelog.client.partitioner import UniformSticky
from tidelog.client.settings import ProducerSettings
from tidelog.ports import Rng

logger = logging.getLogger(__name__)


class KnownTopic:
    """What `send` needs to know of a topic."""

    __slots__ = ("count", "info", "partitions", "sticky")

    def __init__(self, info: TopicInfo, sticky_bytes: int, rng: Rng) -> None:
        self.info = info
        self.count = len(info.partitions)
        self.partitions = {number: TopicPartition(info.name, number) for number in info.partitions}
        self.sticky = UniformSticky(list(info.partitions), sticky_bytes, rng)

    def next_for_rows(self) -> int:
        """The partition for a slice of rows without keys; the next slice goes to another one."""
        chosen = self.sticky.current
        self.sticky.turn()
        return chosen


class ProducerTopics:
    def __init__(
        self,
        cluster: ClusterClient,
        settings: ProducerSettings,
        rng: Rng,
        *,
        waiting: Callable[[], Iterable[TopicPartition]],
        changed: Callable[[], None],
    ) -> None:
        """`waiting`: partitions that need leaders; `changed`: there may be some now."""
        self._cluster = cluster
        self._settings = settings
        self._rng = rng
        self._waiting = waiting
        self._changed = changed
        self._learning: dict[str, asyncio.Task[KnownTopic]] = {}
        self._asking: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._age_timer = self._loop.call_later(settings.metadata_max_age_ms / 1000, self._aged)
        self.known: dict[str, KnownTopic] = {}

    async def close(self) -> None:
        self._age_timer.cancel()
        tasks: list[asyncio.Task[KnownTopic] | asyncio.Task[None]] = [*self._learning.values()]
        if self._asking is not None:
            tasks.append(self._asking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def get(self, name: str) -> KnownTopic:
        return self.known.get(name) or await self.learn(name)

    async def learn(self, name: str) -> KnownTopic:
        task = self._learning.get(name)
        if task is None:
            task = self._learning[name] = asyncio.create_task(self._ask(name))
            task.add_done_callback(lambda _: self._learning.pop(name, None))
        return await asyncio.shield(task)

    async def find_partition(self, name: str, partition: int) -> TopicPartition:
        """Somebody names a partition that the topic does not have, as far as we know: it may have grown."""
        known = await self.learn(name)
        tp = known.partitions.get(partition)
        if tp is None:
            raise PartitionMissingError(TopicPartition(name, partition), known.count)
        return tp

    async def _ask(self, name: str) -> KnownTopic:
        max_block_ms = self._settings.max_block_ms
        try:
            info = await self._cluster.topic(name, create=True, timeout_ms=max_block_ms)
        except ClientError as error:
            error.add_note(f"topic {name} is not known after max.block.ms={max_block_ms}")
            raise
        return self._note(info)

    def _note(self, info: TopicInfo) -> KnownTopic:
        known = self.known.get(info.name)
        if known is None or known.count != len(info.partitions) or known.info.topic_id != info.topic_id:
            known = self.known[info.name] = KnownTopic(info, self._settings.batch_size, self._rng)
        return known

    # -- leaders ----------------------------------------------------------------------------------------------------

    def _aged(self) -> None:
        self._age_timer = self._loop.call_later(self._settings.metadata_max_age_ms / 1000, self._aged)
        if self.known:
            self.ask_for_leaders(self.known)

    def ask_for_leaders(self, topics: Iterable[str]) -> None:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._get_leaders(set(topics)))

    async def _get_leaders(self, topics: set[str]) -> None:
        """One question; whoever is still without a leader afterwards asks again, after a pause."""
        try:
            metadata = await self._cluster.refresh_metadata(topics)
            for topic in topics:
                info = metadata.topics.get(topic)
                if info is not None and not info.error_code and info.partitions:
                    self._note(info)
        except ClientError as error:
            logger.debug("no fresh metadata: %s", error)
        if not all(self._cluster.metadata.leader_of(tp) for tp in self._waiting()):
            await asyncio.sleep(self._cluster.backoff().next_seconds())
        self._asking = None
        self._changed()
