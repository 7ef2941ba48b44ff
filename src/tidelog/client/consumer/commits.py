"""Offsets to the group: asked for by the application, or by themselves every `auto.commit.interval.ms`.

In a group they are committed in the member's name, so that a broker refuses those of a member that the group has given up; with partitions that were assigned
by hand, in nobody's. Topics that were read are named by their ids, so that no offset counts for another topic of the same name. What was committed last is remembered, and
not sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from tidelog.client.consumer.membership import GroupMembership
from tidelog.client.consumer.positions import Spot
from tidelog.client.errors import ClientError, CommitFailedError
from tidelog.client.groups import Committed, Groups
from tidelog.client.metadata import TopicPartition

logger = logging.getLogger(__name__)

CommitCallback = Callable[[Mapping[TopicPartition, Committed], BaseException | None], None]


class Commits:
    def __init__(
        self,
        groups: Groups,
        group_id: str,
        *,
        timeout_ms: int,
        membership: Callable[[], GroupMembership | None],
        topic_ids: Callable[[], Mapping[str, bytes]] = dict,
    ) -> None:
        self._groups = groups
        self._group_id = group_id
        self._timeout_ms = timeout_ms
        self._membership = membership
        self._topic_ids = topic_ids
        self._last: dict[TopicPartition, Spot] = {}

    async def commit(self, offsets: dict[TopicPartition, Committed]) -> None:
        membership = self._membership()
        for tp in offsets:
            self._last.pop(tp, None)  # not known until the coordinator has answered
        if membership is not None:
            await membership.commit(offsets, topic_ids=self._topic_ids(), timeout_ms=self._timeout_ms)
        elif offsets:
            await self._groups.commit(
                self._group_id, offsets, topic_ids=self._topic_ids(), timeout_ms=self._timeout_ms
            )
        self._last.update({tp: Spot(c.offset, c.leader_epoch) for tp, c in offsets.items()})

    async def commit_changed(self, spots: Mapping[TopicPartition, Spot]) -> None:
        changed = {
            tp: Committed(spot.offset, spot.leader_epoch)
            for tp, spot in spots.items()
            if self._last.get(tp) != spot
        }
        if changed:
            await self.commit(changed)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Others may have committed something else for these meanwhile."""
        for tp in partitions:
            self._last.pop(tp, None)

    async def commit_quietly(self, spots: Mapping[TopicPartition, Spot]) -> None:
        """By itself: what fails is tried again with the next one, or read again by whoever comes after."""
        try:
            await self.commit_changed(spots)
        except CommitFailedError as error:
            logger.warning("auto-commit: %s", error)
        except ClientError as error:
            logger.warning("auto-commit of %d partitions failed: %s", len(spots), error)

    async def every(self, interval_ms: int, spots: Callable[[], Mapping[TopicPartition, Spot]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await self.commit_quietly(spots())

    async def find(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Spot]:
        """Where to begin."""
        found = await self.committed(partitions)
        return {tp: Spot(each.offset, each.leader_epoch) for tp, each in found.items() if each is not None}

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        """Offsets of a transaction that is not over yet are waited for, whatever the isolation level, as Java's consumer does (KIP-447)."""
        found = await self._groups.offsets(self._group_id, partitions, require_stable=True)
        return {tp: found.get(tp) for tp in partitions}
