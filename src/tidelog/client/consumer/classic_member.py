"""A member of a classic group: join, sync, heartbeats, and what a rebalance means for the partitions it has.

    OUT        in no group, or nothing subscribed to
    GIVING     a rebalance has begun: what must go waits for the application (`pending`), which hears of it when it asks for records
    JOINING    JoinGroup is asked, or about to be; the coordinator answers when all have joined
    SYNCING    SyncGroup is asked, or about to be; the leader deals out first (`deal`)
    IN         has its assignment; heartbeats go out, the application takes what is new

    OUT      subscribed, polled                    → GIVING
    GIVING   nothing pending, polled               → JOINING
    JOINING  answered                              → SYNCING; an id is required, or the member is unknown → JOINING
    SYNCING  answered                              → IN; the group rebalances again → JOINING
    IN       a heartbeat says rebalance            → GIVING
    IN       cooperative, something was given up   → GIVING (the second rebalance)
    IN       unknown member, wrong generation      → GIVING, everything is lost
    IN       no poll for max.poll.interval.ms      → OUT until the next poll, everything is lost

With eager assignors everything is given up before joining; with cooperative ones what the new assignment lacks is given up after it. A group speaks
cooperatively only if all its assignors do, as Kafka has it. Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from tidelog.client.consumer.assignors import ASSIGNORS, NO_GENERATION, Subscriber
from tidelog.client.consumer.member import NOTHING, Callback, Change, MemberSettings, Partitions, Question
from tidelog.client.consumer.member_protocol import (
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tidelog.client.errors import (
    BrokerError,
    ClientError,
    FencedInstanceError,
    MalformedResponseError,
    SettingsError,
)
from tidelog.errors import ProtocolError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from tidelog.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

JOIN: Final = "join"
BEAT: Final = "heartbeat"
SLACK_MS: Final = 5_000
"""A JoinGroup is answered after the rebalance timeout at the latest; this much later it is lost."""
REASON_CHARACTERS_MAX: Final = 255

_COORDINATOR_MOVED: Final = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_WHY_REFUSED: Final[dict[int, str]] = {
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        "its members share no assignor with this one (partition.assignment.strategy), or it is no group of consumers"
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "session.timeout.ms is outside of what the broker allows (group.min.session.timeout.ms to group.max.session.timeout.ms)"
    ),
    ErrorCode.GROUP_MAX_SIZE_REACHED: "it has as many members as group.max.size allows",
}


class Phase(Enum):
    OUT = "out"
    GIVING = "giving"
    JOINING = "joining"
    SYNCING = "syncing"
    IN = "in"


class ClassicMember:
    def __init__(self, settings: MemberSettings, assignors: Sequence[str]) -> None:
        unknown = [name for name in assignors if name not in ASSIGNORS]
        if unknown or not assignors:
            raise SettingsError(
                f"partition.assignment.strategy: {unknown or 'none given'}; there are {', '.join(ASSIGNORS)}"
            )
        self._settings = settings
        self._assignors = tuple(assignors)
        self._is_cooperative = all(ASSIGNORS[name].is_cooperative for name in assignors)
        self.owned: Partitions = NOTHING
        self.member_id = ""
        self.generation = NO_GENERATION
        self.failure: ClientError | None = None
        self.wants_coordinator = True
        self.phase = Phase.OUT
        self.reason = ""
        """Why the member joins (again), in words for a person and for the broker's log."""
        self._topics: frozenset[str] = frozenset()
        self._joined_with: frozenset[str] = frozenset()  # what the coordinator was told
        self._callbacks: list[Callback] = []
        self._serial = 0
        self._asked: dict[str, int] = {}  # the serial of what is outstanding, by kind
        self._ask_at = 0.0  # not before: a pause after a failure
        self._beat_at = 0.0
        self._polled_at = 0.0
        self._is_stalled = False  # left because nobody polled
        self._has_given_up = False  # in this generation, for others to get it in the next
        self._protocol: str | None = None
        self._remembered: tuple[Partitions, int] = NOTHING, NO_GENERATION  # the last assignment
        self._to_deal: list[JoinGroupResponseMember] | None = None
        self._dealt: list[SyncGroupRequestAssignment] = []

    # ---- what the consumer says

    @property
    def pending(self) -> Callback | None:
        return self._callbacks[0] if self._callbacks else None

    @property
    def is_settled(self) -> bool:
        return self.phase is Phase.IN and not self._callbacks

    @property
    def is_member(self) -> bool:
        return self.generation != NO_GENERATION

    def subscribe(self, topics: frozenset[str], now: float) -> None:
        """No topics: nothing to be in the group for; `leave` takes it out."""
        if topics == self._topics:
            return
        self._topics = topics
        if topics:
            self._rebalance("the subscription changed" if self.member_id else "", now)

    def polled(self, now: float) -> None:
        self._polled_at = now
        if self._is_stalled:
            self._is_stalled = False
            self._rebalance(f"no poll for max.poll.interval.ms={self._settings.max_poll_interval_ms}", now)

    def done(self, now: float) -> None:
        """The application has done what was `pending`."""
        callback = self._callbacks.pop(0)
        if callback.change is not Change.TAKE:
            self.owned -= callback.partitions
            self._has_given_up = self.phase is Phase.IN
        if not self._callbacks and self.phase is Phase.IN and self._has_given_up:
            self._rebalance("partitions were given up to be dealt out again", now)

    def found_coordinator(self) -> None:
        self.wants_coordinator = False

    def topics_changed(self, now: float) -> None:
        """For the leader: topics have partitions now that it did not deal out."""
        self._rebalance("the partitions of a topic have changed", now)

    # ---- requests

    def next_request(self, now: float, *, is_polling: bool) -> Question | None:
        """`is_polling`: the application asks for records at this moment; only then may partitions change hands."""
        if self.failure is not None or self.wants_coordinator:
            return None
        if self.phase is Phase.IN and not is_polling and self._has_stalled(now):
            return self._leave_stalled()
        if self.phase is Phase.IN and not self._callbacks and self._joined_with != self._topics:
            self._rebalance("the subscription changed", now)  # while the group was being joined
        if self.phase is Phase.GIVING and is_polling and not self._callbacks:
            self.phase = Phase.JOINING
        if JOIN not in self._asked and now >= self._ask_at:
            if self.phase is Phase.JOINING and is_polling:
                return self._ask(JOIN, self._join(), self._settings.max_poll_interval_ms + SLACK_MS)
            if self.phase is Phase.SYNCING and self._to_deal is None:
                return self._ask(JOIN, self._sync(), self._settings.max_poll_interval_ms + SLACK_MS)
        if self._beats and BEAT not in self._asked and now >= self._beat_at:
            self._beat_at = now + self._settings.heartbeat_interval_ms / 1000
            return self._ask(BEAT, self._beat(), self._settings.session_timeout_ms)
        return None

    def next_look_at(self, now: float) -> float:
        """When `next_request` may have another answer, if nothing happens before."""
        moments = [self._beat_at if self._beats else now + self._settings.heartbeat_interval_ms / 1000]
        if self._ask_at > now:
            moments.append(self._ask_at)
        if self.phase is Phase.IN:
            moments.append(self._polled_at + self._settings.max_poll_interval_ms / 1000)
        return min(moments)

    @property
    def _beats(self) -> bool:
        """Heartbeats go out in a generation, also while the application gives partitions up; a JoinGroup is a sign of life by itself."""
        return self.generation != NO_GENERATION and self.phase in (Phase.IN, Phase.GIVING)

    def _ask(self, kind: str, message: object, timeout_ms: int) -> Question:
        self._serial += 1
        self._asked[kind] = self._serial
        return Question(kind, self._serial, message, timeout_ms)

    def _join(self) -> JoinGroupRequest:
        settings = self._settings
        self._joined_with = self._topics
        return JoinGroupRequest(
            group_id=settings.group_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(
                    name=name,
                    metadata=encode_subscription(
                        self._topics,
                        assignor=name,
                        owned=self.owned,
                        generation=self.generation,
                        rack=settings.rack,
                        remembered=self._remembered,
                    ),
                )
                for name in self._assignors
            ],
            reason=self.reason[:REASON_CHARACTERS_MAX] or None,
        )

    def _sync(self) -> SyncGroupRequest:
        return SyncGroupRequest(
            group_id=self._settings.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._protocol,
            assignments=self._dealt,
        )

    def _beat(self) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=self._settings.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._settings.instance_id,
        )

    # ---- the leader's duty

    @property
    def topics_to_deal(self) -> frozenset[str] | None:
        """As leader: the topics whose numbers of partitions `deal` needs; None if there is nothing to deal out."""
        if self._to_deal is None:
            return None
        return frozenset(topic for member in self._subscribers() for topic in member.topics)

    def _subscribers(self) -> list[Subscriber]:
        assert self._to_deal is not None
        try:
            return [
                decode_subscription(member.member_id, member.group_instance_id, member.metadata)
                for member in self._to_deal
            ]
        except ProtocolError as error:
            self.failure = MalformedResponseError(
                f"a subscription in group {self._settings.group_id} cannot be read: {error}"
            )
            return []

    def deal(self, partition_counts: Mapping[str, int]) -> None:
        """Everybody's partitions, of every topic that anybody reads; a topic that does not exist (yet) has none."""
        subscribers = self._subscribers()
        self._to_deal = None
        if self.failure is not None:
            return
        assert self._protocol is not None
        shares = ASSIGNORS[self._protocol].assign(subscribers, partition_counts)
        self._dealt = [
            SyncGroupRequestAssignment(member_id=member_id, assignment=encode_assignment(share))
            for member_id, share in shares.items()
        ]

    # ---- answers

    def answered(self, question: Question, response: object, now: float) -> None:
        if self._asked.get(question.kind) != question.serial:
            return
        del self._asked[question.kind]
        if isinstance(response, JoinGroupResponse):
            self._joined(response, now)
        elif isinstance(response, SyncGroupResponse):
            self._synced(response, now)
        elif isinstance(response, HeartbeatResponse):
            self._beaten(response, question, now)

    def unanswered(self, question: Question, error: ClientError, now: float) -> None:
        """Nobody knows whether the coordinator heard it. Asking again is safe: it knows the member by its id."""
        if self._asked.get(question.kind) != question.serial:
            return
        del self._asked[question.kind]
        if not error.retriable:
            self.failure = error
            return
        self.wants_coordinator = True
        self._pause(now)
        if self.phase is Phase.SYNCING:
            self.phase = Phase.JOINING

    def _joined(self, response: JoinGroupResponse, now: float) -> None:
        code = response.error_code
        if code == ErrorCode.NONE:
            if self.phase is not Phase.JOINING:
                return
            self.member_id, self.generation = response.member_id, response.generation_id
            self._protocol, self._dealt = response.protocol_name, []
            self.phase = Phase.SYNCING
            if response.leader == response.member_id and not response.skip_assignment:
                if self._protocol not in ASSIGNORS:
                    self.failure = MalformedResponseError(
                        f"group {self._settings.group_id} has chosen the assignor {self._protocol!r}, which this member did not offer"
                    )
                self._to_deal = list(response.members)
            return
        if code == ErrorCode.MEMBER_ID_REQUIRED:  # KIP-394: an id first, so that no join is lost track of
            self.member_id = response.member_id
            return
        self._refused(code, f"joining group {self._settings.group_id}", now)

    def _synced(self, response: SyncGroupResponse, now: float) -> None:
        if response.error_code != ErrorCode.NONE:
            if self.phase is Phase.SYNCING:
                self.phase = Phase.JOINING
            self._refused(
                response.error_code, f"getting partitions from group {self._settings.group_id}", now
            )
            return
        if self.phase is not Phase.SYNCING:
            return
        try:
            assigned = decode_assignment(response.assignment)
        except ProtocolError as error:
            self.failure = MalformedResponseError(
                f"the partitions from group {self._settings.group_id}: {error}"
            )
            return
        self.phase, self.reason = Phase.IN, ""
        self._beat_at = now + self._settings.heartbeat_interval_ms / 1000
        self._remembered = assigned, self.generation
        gone, new = self.owned - assigned, assigned - self.owned
        if gone:
            self._callbacks.append(Callback(Change.REVOKE, gone))
        self.owned |= new
        self._callbacks.append(Callback(Change.TAKE, new))

    def _beaten(self, response: HeartbeatResponse, question: Question, now: float) -> None:
        code = response.error_code
        asked = question.message
        assert isinstance(asked, HeartbeatRequest)
        if code == ErrorCode.NONE or (asked.generation_id, asked.member_id) != (
            self.generation,
            self.member_id,
        ):
            return  # an answer about a generation that is over
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            if self.phase is Phase.IN:
                self._rebalance("the group rebalances", now)
            return
        self._refused(code, f"heartbeat to group {self._settings.group_id}", now)

    def _refused(self, code: int, about: str, now: float) -> None:
        if code in _COORDINATOR_MOVED:
            self.wants_coordinator = True
            self._pause(now)
        elif code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._removed(
                f"the coordinator removed this member, or had not heard of it for session.timeout.ms={self._settings.session_timeout_ms}",
                now,
            )
        elif code == ErrorCode.ILLEGAL_GENERATION:
            self._removed("the group went on without this member", now, keeps_id=True)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            if self.phase in (Phase.IN, Phase.SYNCING):
                self._rebalance("the group rebalances", now)
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._lose()
            self.failure = FencedInstanceError(
                f"{about}: another consumer uses group.instance.id={self._settings.instance_id}; give each its own"
            )
        elif BrokerError(code, about).retriable:
            self._pause(now)
        else:
            self.failure = BrokerError(code, about, _WHY_REFUSED.get(code))

    def _pause(self, now: float) -> None:
        self._ask_at = now + self._settings.retry_backoff_ms / 1000

    # ---- the way back in

    def _rebalance(self, reason: str, now: float) -> None:
        """This generation is over. Eager members give everything up first."""
        self.reason = reason
        self._has_given_up = False
        if self.phase in (Phase.GIVING, Phase.JOINING):
            return
        self._to_deal = None
        self.phase = Phase.GIVING
        self._ask_at = min(self._ask_at, now)
        if (
            self.owned and not self._is_cooperative and self.is_member
        ):  # else it is lost already, and waits to be told
            self._give(Change.REVOKE)

    def _removed(self, reason: str, now: float, *, keeps_id: bool = False) -> None:
        self.reason = reason
        self.generation = NO_GENERATION
        if not keeps_id:
            self.member_id = ""
        self._lose()
        self._to_deal = None
        self.phase = Phase.GIVING
        self._ask_at = min(self._ask_at, now)

    def _lose(self) -> None:
        if self.owned:
            self._give(Change.LOSE)

    def _give(self, change: Change) -> None:
        """Everything. What waits to be taken is then never taken."""
        never_taken = frozenset(
            tp for callback in self._callbacks if callback.change is Change.TAKE for tp in callback.partitions
        )
        self.owned -= never_taken
        self._callbacks = [Callback(change, self.owned)] if self.owned else []

    # ---- out

    def _has_stalled(self, now: float) -> bool:
        return now - self._polled_at > self._settings.max_poll_interval_ms / 1000

    def _leave_stalled(self) -> Question | None:
        """The application has not asked for records for too long: others shall have the partitions (KIP-62)."""
        message = self.leave()
        self._is_stalled = True
        self._lose()
        return None if message is None else self._ask("leave", message, self._settings.session_timeout_ms)

    def leave(self) -> object | None:
        """A static member says nothing: it may come back within its session timeout, and nobody need move meanwhile."""
        settings, member_id = self._settings, self.member_id
        self.phase, self.member_id, self.generation = Phase.OUT, "", NO_GENERATION
        self._asked.clear()
        self._to_deal = None
        if not member_id or settings.instance_id is not None:
            return None
        reason = self.reason or "the consumer was closed"
        return LeaveGroupRequest(
            group_id=settings.group_id,
            member_id=member_id,
            members=[MemberIdentity(member_id=member_id, reason=reason[:REASON_CHARACTERS_MAX])],
        )
