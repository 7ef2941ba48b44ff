"""A consumer's place in its group: it joins and leaves, partitions change hands, offsets are committed in its name.

Partitions change hands only while the application asks for records, in its own time: what it has dealt with is committed first, its listener hears of it, and then
`positions` has them or has them no more. The group is left in the background, and nothing is joined before that is done. What a member of a group must do when
is `membership`'s business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from uuid import uuid4

from tidelog.client.cluster import ClusterClient
from tidelog.client.consumer.classic_member import ClassicMember
from tidelog.client.consumer.commits import Commits
from tidelog.client.consumer.consumer_member import ConsumerMember
from tidelog.client.consumer.handed_out import HandedOut
from tidelog.client.consumer.listener import RebalanceListener, call
from tidelog.client.consumer.member import Change, MemberSettings
from tidelog.client.consumer.membership import GroupMembership
from tidelog.client.consumer.positions import PartitionState, Positions, Spot
from tidelog.client.consumer.subscription import Subscription
from tidelog.client.groups import NOBODY, Groups, Membership
from tidelog.client.metadata import ZERO_ID, TopicPartition
from tidelog.client.settings import ConsumerSettings

logger = logging.getLogger(__name__)


class InGroup:
    def __init__(
        self,
        group_id: str,
        cluster: ClusterClient,
        settings: ConsumerSettings,
        subscription: Subscription,
        positions: Positions,
        handed_out: HandedOut,
        *,
        safe: Callable[[], Mapping[TopicPartition, Spot]],
        in_background: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        changed: Callable[[], None],
        moved: Callable[[], None],
    ) -> None:
        """`safe`: up to where the application has dealt with records; `changed`: there is something to do in its time; `moved`: other partitions are read."""
        self._group_id = group_id
        self._cluster = cluster
        self._groups = Groups(cluster)
        self._settings = settings
        self._subscription = subscription
        self._positions = positions
        self._handed_out = handed_out
        self._safe = safe
        self._in_background = in_background
        self._changed = changed
        self._moved = moved
        self.membership: GroupMembership | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._given_up: Mapping[TopicPartition, PartitionState] = {}  # while the group is being left
        self.is_ending = False
        self.listener: RebalanceListener | None = None
        self.commits = Commits(
            self._groups,
            group_id,
            timeout_ms=settings.default_api_timeout_ms,
            membership=lambda: self.membership,
            topic_ids=self._topic_ids,
        )

    @property
    def name(self) -> Membership:
        return self.membership.name if self.membership is not None else NOBODY

    def _topic_ids(self) -> dict[str, bytes]:
        """Of what was read."""
        states = {**self._positions.states, **self._given_up}
        return {tp.topic: state.topic_id for tp, state in states.items() if state.topic_id != ZERO_ID}

    # -- in and out -------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Or tell the group of another subscription."""
        if self._leaving is not None:
            return  # and then this is called again
        if self.membership is None:
            self.membership = GroupMembership(
                self._cluster,
                self._groups,
                self._settings,
                self._new_member(),
                changed=self._changed,
                activity=lambda: self._handed_out.last,
            )
        self.membership.subscribe(self._subscription.topics, pattern=self._subscription.server_pattern)

    def _new_member(self) -> ClassicMember | ConsumerMember:
        settings = self._settings
        of_member = MemberSettings(
            group_id=self._group_id,
            instance_id=settings.group_instance_id,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            max_poll_interval_ms=settings.max_poll_interval_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            rack=settings.client_rack or None,
        )
        if settings.group_protocol == "consumer":
            return ConsumerMember(of_member, str(uuid4()), assignor=settings.group_remote_assignor)
        return ClassicMember(of_member, settings.partition_assignment_strategy)

    def leave_soon(
        self, given_up: Mapping[TopicPartition, PartitionState], spots: Mapping[TopicPartition, Spot]
    ) -> None:
        """In the background, after a commit of `spots` if those happen by themselves."""
        if self.membership is not None and self._leaving is None:
            self._given_up = given_up
            self._leaving = self._in_background(self._leave(self.membership, spots, self.listener))

    async def _leave(
        self,
        membership: GroupMembership,
        spots: Mapping[TopicPartition, Spot],
        listener: RebalanceListener | None,
    ) -> None:
        try:
            if membership.member.is_member and self._given_up:
                if self._settings.enable_auto_commit:
                    await self.commits.commit_quietly(spots)
                await call(listener, "on_partitions_revoked", frozenset(self._given_up))
        finally:
            await membership.leave()
            self.membership = self._leaving = None
            self._given_up = {}
            if self._subscription.is_to_topics and not self.is_ending:
                self.join()

    async def left(self) -> None:
        """What is read next waits until the group of before is left."""
        if self._leaving is not None:
            await asyncio.shield(self._leaving)

    async def give_up(self) -> None:
        """The consumer ends: its listener hears of it while the partitions are still this member's."""
        if self._leaving is not None:
            await self._leaving
        elif self.membership is not None and self.membership.member.is_member and self._positions.states:
            await call(self.listener, "on_partitions_revoked", frozenset(self._positions.states))

    async def end(self) -> None:
        if self.membership is not None:
            await self.membership.leave()

    def metadata_changed(self) -> None:
        if self.membership is not None:
            self.membership.metadata_changed()

    # -- in the application's time ----------------------------------------------------------------------------------

    async def do_what_is_pending(self, membership: GroupMembership) -> None:
        """Partitions change hands: whoever asks for records waits for this. Raises what has ended the membership."""
        while (callback := membership.member.pending) is not None:
            change, partitions = callback
            self._log(change, partitions, membership.member.reason)
            if change is Change.TAKE:
                self.commits.forget(partitions)
                self._positions.add(partitions)
                await call(self.listener, "on_partitions_assigned", partitions)
            else:
                if change is Change.REVOKE:
                    if self._settings.enable_auto_commit:
                        await self.commits.commit_quietly(
                            {tp: spot for tp, spot in self._safe().items() if tp in partitions}
                        )
                    await call(self.listener, "on_partitions_revoked", partitions)
                else:
                    await call(self.listener, "on_partitions_lost", partitions)
                self._handed_out.drop(partitions)
                self._positions.remove(partitions)
            membership.done()
            self._moved()
        if membership.member.failure is not None:
            raise membership.member.failure

    def _log(self, change: Change, partitions: frozenset[TopicPartition], reason: str) -> None:
        if partitions:
            text = f"group {self._group_id}: this member {change.value}s {', '.join(map(str, sorted(partitions)))}"
            if change is Change.LOSE:
                logger.warning("%s, others may read them now: %s", text, reason)
            else:
                logger.info("%s", text)
