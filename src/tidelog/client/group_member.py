"""One member of a classic consumer group: join, sync, heartbeat beside it, commit, leave.

The member is eager: whoever uses it gives up everything before it joins again. `join` returns what the member has got; from then on heartbeats
go out in the background until `rebalance` is set, which means that this generation is over, for the reason in `reason`. Then:
commit, and `join` again. What is committed is the caller's to say: only records that it has dealt with.

JoinGroup is answered when everybody has joined, and a broker answers in order: joining has a connection of its own, so that
heartbeats, commits and above all LeaveGroup never wait behind it. Never here: fetching, positions, static membership, cooperative protocols.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidelog.client.backoff import Deadline
from tidelog.client.connection import Connection
from tidelog.client.errors import BrokerError, ClientError, MalformedResponseError, check
from tidelog.client.group_protocol import (
    PROTOCOL_TYPE,
    RANGE,
    Subscriber,
    assign_ranges,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tidelog.client.groups import NOBODY, Groups, Membership
from tidelog.client.metadata import TopicPartition
from tidelog.errors import ProtocolError
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

logger = logging.getLogger(__name__)

LEAVE_SECONDS = 5.0
"""Leaving is a courtesy to the others, who wait for the session timeout otherwise."""
WAITED_SECONDS = 5.0
"""A join that fails after this was one of a group that waited for its members: no sign that the coordinator is gone."""
REASON_CHARACTERS_MAX = 255

_OVER: dict[int, str] = {
    ErrorCode.REBALANCE_IN_PROGRESS: "the group rebalances",
    ErrorCode.ILLEGAL_GENERATION: "the group went on without this member",
    ErrorCode.UNKNOWN_MEMBER_ID: "the coordinator removed this member",
}
_WHY_REFUSED: dict[int, str] = {
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        f"its members share no assignor with this one, which speaks {RANGE!r} only, or it is no group of consumers; "
        "use another group, or give its members the range assignor too"
    ),
    ErrorCode.GROUP_MAX_SIZE_REACHED: "it has as many members as group.max.size allows; stop one first",
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "the broker's group.min.session.timeout.ms and group.max.session.timeout.ms do not allow this session timeout"
    ),
    ErrorCode.INVALID_GROUP_ID: "this is no name for a group; choose another",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """Kafka's consumer settings of the same names (dots as underscores), with Kafka's defaults."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    """How long the others wait for this member to join again: the rebalance timeout of the protocol."""
    metadata_max_age_ms: int = 300_000
    retry_timeout_ms: int = 60_000


class MembershipLostError(BrokerError):
    """This generation is over; join again."""

    def __init__(self, code: int, about: str, message: str | None = None) -> None:
        super().__init__(code, about, message)
        self.retriable = True


class GroupMember:
    def __init__(
        self, groups: Groups, group_id: str, topics: Iterable[str], settings: MemberSettings | None = None
    ) -> None:
        self.group_id = group_id
        self.rebalance = asyncio.Event()
        self.reason = ""
        """Why `rebalance` is set, in words for a person."""
        self._groups = groups
        self._cluster = groups.cluster
        self._topics = frozenset(topics)
        self._settings = settings or MemberSettings()
        self._membership = NOBODY
        self._led: Mapping[str, int] | None = None  # partitions of each topic that we, as leader, dealt out
        self._heartbeats: asyncio.Task[None] | None = None
        self._waited_seconds = 0.0

    @property
    def member_id(self) -> str:
        return self._membership.member_id

    @property
    def generation(self) -> int:
        return self._membership.generation

    # -- joining ----------------------------------------------------------------------------------------------------

    async def join(self) -> frozenset[TopicPartition]:
        """Waits for the group, for as long as it takes; raises when nobody coordinates it, or it does not take us."""
        await self._stop_heartbeats()
        loop = asyncio.get_running_loop()
        backoff = self._cluster.backoff()
        patience = Deadline(loop.time(), self._settings.retry_timeout_ms)
        while True:
            self._waited_seconds = 0.0
            try:
                partitions = await self._join_and_sync()
                break
            except ClientError as error:
                if isinstance(error, MembershipLostError) or self._waited_seconds > WAITED_SECONDS:
                    patience = Deadline(loop.time(), self._settings.retry_timeout_ms)  # somebody coordinates
                if not error.retriable or patience.passed(loop.time()):
                    raise
                logger.debug("joining again: %s", error)
                self._groups.forget(self.group_id)
            await asyncio.sleep(backoff.next_seconds())
        self.rebalance.clear()
        self.reason = ""
        self._heartbeats = asyncio.create_task(self._beat())
        return partitions

    async def _join_and_sync(self) -> frozenset[TopicPartition]:
        node = await self._groups.coordinator(self.group_id)
        connection = await self._cluster.connection(node, lane="join")
        joined = await self._ask_to_join(connection)
        if (
            joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
        ):  # KIP-394: an id first, so that no join is lost track of
            self._membership = Membership(joined.member_id)
            joined = await self._ask_to_join(connection)
        self._check(joined.error_code, f"joining group {self.group_id}")
        self._membership = Membership(joined.member_id, joined.generation_id)
        self._led = None
        shares: list[SyncGroupRequestAssignment] = []
        if joined.leader == joined.member_id and not joined.skip_assignment:
            shares = await self._deal_out(joined)
        synced: SyncGroupResponse = await connection.request(
            ApiKey.SYNC_GROUP,
            SyncGroupRequest(
                group_id=self.group_id,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=joined.protocol_name,
                assignments=shares,
            ),
            timeout_ms=self._settings.max_poll_interval_ms + 5_000,
        )
        self._check(synced.error_code, f"getting partitions from group {self.group_id}")
        try:
            return decode_assignment(synced.assignment)
        except ProtocolError as error:
            raise MalformedResponseError(f"the partitions from group {self.group_id}: {error}") from error

    async def _ask_to_join(self, connection: Connection) -> JoinGroupResponse:
        protocol = JoinGroupRequestProtocol(name=RANGE, metadata=encode_subscription(self._topics))
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self._settings.max_poll_interval_ms,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[protocol],
            reason=self.reason[:REASON_CHARACTERS_MAX] or None,
        )
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        try:
            response: JoinGroupResponse = await connection.request(
                ApiKey.JOIN_GROUP, request, timeout_ms=self._settings.max_poll_interval_ms + 5_000
            )
            return response
        finally:
            self._waited_seconds = loop.time() - asked_at

    async def _deal_out(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """The leader's duty: everybody's partitions, of every topic that anybody reads."""
        subscribers: list[Subscriber] = []
        for member in joined.members:
            try:
                topics = decode_subscription(member.metadata)
            except ProtocolError as error:
                raise MalformedResponseError(
                    f"the subscription of member {member.member_id} of group {self.group_id} cannot be read: {error}"
                ) from error
            subscribers.append(Subscriber(member.member_id, member.group_instance_id, topics))
        self._led = await self._partition_counts({topic for s in subscribers for topic in s.topics})
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=encode_assignment(share))
            for member_id, share in assign_ranges(subscribers, self._led).items()
        ]

    async def _partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """A topic that does not exist (yet) has no partitions to deal out."""
        names = sorted(topics)
        known = (await self._cluster.refresh_metadata(names)).topics
        return {name: len(known[name].partitions) if name in known else 0 for name in names}

    # -- heartbeats -------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Until the generation is over. Whatever ends this task, whoever reads must notice: hence the `finally`."""
        loop = asyncio.get_running_loop()
        answered_at = looked_at = loop.time()
        try:
            while True:
                await asyncio.sleep(self._settings.heartbeat_interval_ms / 1000)
                try:
                    await self._heartbeat()
                    answered_at = loop.time()
                    if loop.time() - looked_at > self._settings.metadata_max_age_ms / 1000:
                        looked_at = loop.time()
                        await self._look_at_topics()
                except ClientError as error:
                    self._groups.forget(self.group_id)
                    silent_ms = (loop.time() - answered_at) * 1000
                    if isinstance(error, MembershipLostError) or not error.retriable:
                        self.reason = self.reason or str(error)
                        return
                    if silent_ms > self._settings.session_timeout_ms:
                        self.reason = f"no answer to heartbeats for {silent_ms / 1000:.0f} s ({error})"
                        return
                    logger.debug("heartbeat failed: %s", error)
        finally:
            self.rebalance.set()

    async def _heartbeat(self) -> None:
        node = await self._groups.coordinator(self.group_id)
        response: HeartbeatResponse = await self._cluster.request(
            ApiKey.HEARTBEAT,
            HeartbeatRequest(group_id=self.group_id, generation_id=self.generation, member_id=self.member_id),
            node=node,
            timeout_ms=self._settings.session_timeout_ms,
        )
        self._check(response.error_code, f"heartbeat to group {self.group_id}")

    async def _look_at_topics(self) -> None:
        """A topic with more partitions than were dealt out makes the leader call for a new deal."""
        if self._led is None:
            return
        now = await self._partition_counts(self._led)
        changed = [topic for topic, count in now.items() if count != self._led[topic]]
        if changed:
            self.reason = f"the partitions of {', '.join(changed)} have changed"
            raise MembershipLostError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {self.group_id}", self.reason)

    async def _stop_heartbeats(self) -> None:
        task, self._heartbeats = self._heartbeats, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure

    # -- commit and leave -------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """MembershipLostError: this generation is over, and others may read what was not committed."""
        if not offsets:
            return
        try:
            await self._groups.commit(self.group_id, offsets, member=self._membership)
        except BrokerError as error:
            if error.code in _OVER:
                self.rebalance.set()
                self._check(error.code, error.about)
            raise

    async def leave(self) -> None:
        """The others need not wait for this member's session to end. Never fails: it would end anyway."""
        await self._stop_heartbeats()
        member, self._membership = self._membership, NOBODY
        if not member.member_id:
            return
        identity = MemberIdentity(member_id=member.member_id, reason="the consumer was closed")
        request = LeaveGroupRequest(group_id=self.group_id, member_id=member.member_id, members=[identity])
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                node = await self._groups.coordinator(self.group_id)
                response: LeaveGroupResponse = await self._cluster.request(
                    ApiKey.LEAVE_GROUP, request, node=node
                )
                check(response.error_code, f"leaving group {self.group_id}")
        except (ClientError, TimeoutError) as error:
            logger.debug("left without a word: %s", error)

    # -- answers ----------------------------------------------------------------------------------------------------

    def _check(self, code: int, about: str) -> None:
        """Raise what an error code means to a member, after forgetting what it says is not true any more."""
        if code == ErrorCode.NONE:
            return
        if code in _OVER:
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._membership = NOBODY
            self.reason = _OVER[code]
            raise MembershipLostError(code, about, self.reason)
        raise BrokerError(code, about, _WHY_REFUSED.get(code))
