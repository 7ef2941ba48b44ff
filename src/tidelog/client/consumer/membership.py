"""A consumer in its group: carries what a member asks to the coordinator and back, and keeps the heartbeats going.

One task asks the state machine what to do, sends it, and sleeps until something happens. Heartbeats go out whatever the application does; partitions change hands only
while it asks for records (`polling`), because only then has it dealt with what it was given. JoinGroup is answered when everybody has joined, and a broker
answers in order: joining has a connection of its own, so that heartbeats and commits never wait behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from tidelog.client.cluster import ClusterClient
from tidelog.client.consumer.classic_member import JOIN, ClassicMember
from tidelog.client.consumer.consumer_member import ConsumerMember
from tidelog.client.consumer.member import Question
from tidelog.client.errors import BrokerError, ClientError, CommitFailedError, FencedInstanceError
from tidelog.client.groups import NO_IDS, Committed, Groups
from tidelog.client.groups import Membership as Name
from tidelog.client.metadata import TopicPartition
from tidelog.client.settings import ConsumerSettings
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest
from tidelog.wire.messages.leave_group import LeaveGroupRequest
from tidelog.wire.messages.sync_group import SyncGroupRequest

logger = logging.getLogger(__name__)

LEAVE_SECONDS: Final = 5.0
"""Leaving is a courtesy to the others, who wait for the session timeout otherwise."""
_KEYS: Final[dict[type, ApiKey]] = {
    JoinGroupRequest: ApiKey.JOIN_GROUP,
    SyncGroupRequest: ApiKey.SYNC_GROUP,
    HeartbeatRequest: ApiKey.HEARTBEAT,
    LeaveGroupRequest: ApiKey.LEAVE_GROUP,
    ConsumerGroupHeartbeatRequest: ApiKey.CONSUMER_GROUP_HEARTBEAT,
}
_GONE: Final = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.FENCED_MEMBER_EPOCH,
)


class GroupMembership:
    def __init__(
        self,
        cluster: ClusterClient,
        groups: Groups,
        settings: ConsumerSettings,
        member: ClassicMember | ConsumerMember,
        *,
        changed: Callable[[], None],
        activity: Callable[[], object] = lambda: None,
    ) -> None:
        """`changed`: something waits for the application. `activity`: what it was given last; another one is a sign of life."""
        assert settings.group_id is not None
        self.member = member
        self._cluster = cluster
        self._groups = groups
        self._settings = settings
        self._group_id: str = settings.group_id
        self._changed = changed
        self._activity = activity
        self._last_activity: object = None
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._is_polling = False
        self._dealt: dict[str, int] = {}
        self._task = asyncio.create_task(self._run())

    @property
    def name(self) -> Name:
        """In whose name offsets are committed."""
        return Name(self.member.member_id, self.member.generation, self._settings.group_instance_id)

    def polling(self, is_polling: bool) -> None:
        """The application asks for records, or has got them."""
        now = self._loop.time()
        self._is_polling = is_polling
        self.member.polled(now)
        if is_polling and not self.member.is_settled:
            self._send_due(now)  # at once: polls that find records are over before the task runs
            self._wake.set()

    def _send_due(self, now: float) -> bool:
        question = self.member.next_request(now, is_polling=self._is_polling)
        if question is not None:
            self._send(question)
        return question is not None

    def subscribe(self, topics: frozenset[str], *, pattern: str | None = None) -> None:
        now = self._loop.time()
        if isinstance(self.member, ConsumerMember):
            self.member.subscribe(topics, now, pattern=pattern)
        else:
            self.member.subscribe(topics, now)
        self._wake.set()

    def done(self) -> None:
        self.member.done(self._loop.time())
        self._wake.set()

    def metadata_changed(self) -> None:
        """The leader of a classic group calls for a new deal when topics have grown."""
        if isinstance(self.member, ClassicMember) and any(
            self._partition_count(topic) != count for topic, count in self._dealt.items()
        ):
            self._dealt = {}
            self.member.topics_changed(self._loop.time())
            self._wake.set()

    # -- the task ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self.member.failure is None:
                self._wake.clear()
                await self._step()
                if self.member.pending is not None or self.member.failure is not None:
                    self._changed()
        except Exception as error:
            # Whatever ends this task, the application must notice.
            self.member.failure = ClientError(f"the membership of group {self._group_id} ended: {error!r}")
            self._changed()
            raise

    async def _step(self) -> None:
        member = self.member
        if member.wants_coordinator:
            await self._find_coordinator()
            return
        if isinstance(member, ClassicMember) and (topics := member.topics_to_deal) is not None:
            await self._deal(member, topics)
            return
        if isinstance(member, ConsumerMember) and member.unknown_ids:
            await self._learn(member)
        now = self._loop.time()
        if (activity := self._activity()) is not self._last_activity:
            self._last_activity = activity
            member.polled(now)
        if self._send_due(now):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(max(member.next_look_at(now), now + 0.001)):
                await self._wake.wait()

    async def _find_coordinator(self) -> None:
        self._groups.forget(self._group_id)
        try:
            await self._groups.coordinator(self._group_id)
        except ClientError as error:
            if not error.retriable:
                self.member.failure = error
                return
            logger.debug("no coordinator of group %s: %s", self._group_id, error)
            await asyncio.sleep(self._cluster.backoff().next_seconds())
            return
        self.member.found_coordinator()

    async def _deal(self, member: ClassicMember, topics: frozenset[str]) -> None:
        try:
            await self._cluster.refresh_metadata(topics)
        except ClientError as error:
            logger.debug("no metadata to deal out by: %s", error)
            await asyncio.sleep(self._cluster.backoff().next_seconds())
            return
        counts = {topic: self._partition_count(topic) for topic in topics}
        member.deal(counts)
        self._dealt = counts

    def _partition_count(self, topic: str) -> int:
        info = self._cluster.metadata.topics.get(topic)
        return len(info.partitions) if info is not None else 0

    async def _learn(self, member: ConsumerMember) -> None:
        """Topics in the assignment come by id. One that nobody knows may be too new, or gone already: the next heartbeat tells."""
        with suppress(ClientError):
            await self._cluster.refresh_metadata(None)
        names = {info.topic_id: info.name for info in self._cluster.metadata.topics.values()}
        member.learn({each: names[each] for each in member.unknown_ids if each in names}, self._loop.time())
        if member.unknown_ids:
            await asyncio.sleep(self._cluster.backoff().next_seconds())

    def _send(self, question: Question) -> None:
        work = asyncio.create_task(self._ask(question))
        work.add_done_callback(partial(self._came_back, question))

    async def _ask(self, question: Question) -> Any:
        node = await self._groups.coordinator(self._group_id)
        connection = await self._cluster.connection(node, lane="join" if question.kind == JOIN else "group")
        answer = asyncio.ensure_future(
            connection.request(
                _KEYS[type(question.message)], question.message, timeout_ms=question.timeout_ms
            )
        )
        while not (await asyncio.wait({answer}, timeout=self._settings.request_timeout_ms / 1000))[0]:
            # It may have its reasons, for minutes: a group is joined when everybody has. Or it is not there any more, which others know.
            if await self._has_moved_from(node):
                connection.abort()
        return answer.result()

    async def _has_moved_from(self, node: int) -> bool:
        self._groups.forget(self._group_id)
        try:
            return await self._groups.coordinator(self._group_id) != node
        except ClientError as error:
            logger.debug("who coordinates group %s is not known: %s", self._group_id, error)
            return False

    def _came_back(self, question: Question, work: asyncio.Task[Any]) -> None:
        if work.cancelled():
            return
        now = self._loop.time()
        error = work.exception()
        if isinstance(error, ClientError):
            logger.debug("%s to group %s: %s", question.kind, self._group_id, error)
            self.member.unanswered(question, error, now)
        elif error is not None:
            self.member.failure = ClientError(f"{question.kind} to group {self._group_id}: {error!r}")
        else:
            generation = self.member.generation
            self.member.answered(question, work.result(), now)
            if generation != self.member.generation and self.member.is_member:
                logger.info(
                    "group %s: member %s is in generation %d",
                    self._group_id,
                    self.member.member_id,
                    self.member.generation,
                )
        self._wake.set()
        if self.member.pending is not None or self.member.failure is not None:
            self._changed()

    # -- commits ----------------------------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: dict[TopicPartition, Committed],
        *,
        topic_ids: Mapping[str, bytes] = NO_IDS,
        timeout_ms: int | None = None,
    ) -> None:
        """CommitFailedError: the group goes on without this member, and others may have its partitions."""
        if not offsets:
            return
        if not self.member.is_member:  # in nobody's name a broker might take it
            raise self._commit_failed("it is not a member at this moment")
        try:
            await self._groups.commit(
                self._group_id, offsets, member=self.name, topic_ids=topic_ids, timeout_ms=timeout_ms
            )
        except BrokerError as error:
            if error.code in _GONE:
                raise self._commit_failed(error.name) from error
            if error.code == ErrorCode.REBALANCE_IN_PROGRESS:
                raise CommitFailedError(
                    f"group {self._group_id} rebalances: nothing was committed; poll, so that this member can join, and commit again what is still its own"
                ) from error
            if error.code == ErrorCode.FENCED_INSTANCE_ID:
                raise FencedInstanceError(str(error)) from error
            raise

    def _commit_failed(self, why: str) -> CommitFailedError:
        settings = self._settings
        session = f"session.timeout.ms={settings.session_timeout_ms}"
        if settings.group_protocol == "consumer":
            session = "the group's consumer.session.timeout.ms"
        return CommitFailedError(
            f"group {self._group_id} goes on without this member ({why}): records since the last commit will be read again by others."
            f" It asked for no records for more than max.poll.interval.ms={settings.max_poll_interval_ms}, or was not heard of for"
            f" {session}: take fewer records at a time (max.poll.records), or raise the setting"
        )

    # -- the end ----------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Never fails: the session would end anyway."""
        self._task.cancel()
        await asyncio.wait({self._task})
        message = self.member.leave()
        if message is None:
            return
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                node = await self._groups.coordinator(self._group_id)
                connection = await self._cluster.connection(node, lane="group")
                await connection.request(_KEYS[type(message)], message)
        except (ClientError, TimeoutError) as error:
            logger.debug("left without a word: %s", error)
