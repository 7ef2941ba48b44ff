"""A member of a consumer group (KIP-848): one heartbeat that says what it owns and brings what it should.

    OUT        in no group
    JOINING    the next heartbeat carries everything, with epoch 0
    IN         heartbeats at the interval that the coordinator wishes, and at once when there is something to say

The coordinator names the partitions that the member should have. What it has beyond them is given up first, then new ones are taken, then the member
says what it owns; the coordinator gives a partition to nobody else before that. A heartbeat whose answer was lost is repeated with
everything in it, because nobody knows what the coordinator has heard. Pure: time is an argument; topics come by id, and `learn` tells their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from tidelog.client.consumer.member import NOTHING, Callback, Change, MemberSettings, Partitions, Question
from tidelog.client.errors import BrokerError, ClientError, FencedInstanceError
from tidelog.client.metadata import TopicPartition
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

BEAT: Final = "heartbeat"
LEAVING: Final = -1
LEAVING_FOR_A_WHILE: Final = -2
_COORDINATOR_MOVED: Final = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_WHY_REFUSED: Final[dict[int, str]] = {
    ErrorCode.UNSUPPORTED_ASSIGNOR: "the broker has no such group.remote.assignor",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "it has as many members as group.consumer.max.size allows",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "the broker cannot read the pattern: it is RE2's syntax there",
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not have this protocol switched on: use group.protocol=classic",
}


class Phase(Enum):
    OUT = "out"
    JOINING = "joining"
    IN = "in"


class ConsumerMember:
    def __init__(self, settings: MemberSettings, member_id: str, *, assignor: str | None = None) -> None:
        """`member_id`: drawn by whoever makes the member; it stays the same through every epoch."""
        self._settings = settings
        self._assignor = assignor
        self.member_id = member_id
        self.generation = 0  # the member epoch
        self.owned: Partitions = NOTHING
        self.failure: ClientError | None = None
        self.reason = ""
        self.wants_coordinator = True
        self.phase = Phase.OUT
        self.unknown_ids: frozenset[bytes] = frozenset()
        """Topics in the assignment whose names are not known: look at the metadata, then `learn`."""
        self._topics: frozenset[str] = frozenset()
        self._pattern: str | None = None
        self._ids: dict[str, bytes] = {}
        self._target_by_id: dict[bytes, tuple[int, ...]] | None = None
        self._callbacks: list[Callback] = []
        self._serial = 0
        self._asked: int | None = None
        self._said_owned: Partitions | None = None  # None: the coordinator has not heard
        self._said_topics: tuple[frozenset[str], str | None] | None = None
        self._interval = settings.heartbeat_interval_ms / 1000
        self._beat_at = 0.0
        self._not_before = 0.0
        self._polled_at = 0.0
        self._is_stalled = False

    # ---- what the consumer says

    @property
    def pending(self) -> Callback | None:
        return self._callbacks[0] if self._callbacks else None

    @property
    def is_settled(self) -> bool:
        return (
            self.phase is Phase.IN
            and self._target_by_id is not None
            and not self._callbacks
            and self._said_owned == self.owned
        )

    @property
    def is_member(self) -> bool:
        return self.phase is Phase.IN

    def subscribe(self, topics: frozenset[str], now: float, *, pattern: str | None = None) -> None:
        if (topics, pattern) == (self._topics, self._pattern):
            return
        self._topics, self._pattern = topics, pattern
        if (topics or pattern) and self.phase is Phase.OUT:
            self._join(now)

    def polled(self, now: float) -> None:
        self._polled_at = now
        if self._is_stalled:
            self._is_stalled = False
            self._join(now)

    def done(self, now: float) -> None:
        callback = self._callbacks.pop(0)
        if callback.change is Change.TAKE:
            self.owned |= callback.partitions
        else:
            self.owned -= callback.partitions
        if not self._callbacks:
            self._reconcile()

    def found_coordinator(self) -> None:
        self.wants_coordinator = False

    def learn(self, names: Mapping[bytes, str], now: float) -> None:
        """Names of topics, by id."""
        self._ids.update({name: topic_id for topic_id, name in names.items()})
        self.unknown_ids -= names.keys()
        self._reconcile()

    def _join(self, now: float) -> None:
        self.phase, self.generation = Phase.JOINING, 0
        self._said_owned = self._said_topics = self._target_by_id = None
        self._beat_at = now

    # ---- requests

    def next_request(self, now: float, *, is_polling: bool) -> Question | None:
        if (
            self.failure is not None
            or self.wants_coordinator
            or self._asked is not None
            or self.phase is Phase.OUT
        ):
            return None
        has_stalled = not is_polling and now - self._polled_at > self._settings.max_poll_interval_ms / 1000
        if self.phase is Phase.IN and has_stalled:
            return self._leave_stalled()
        if self.phase is Phase.JOINING and (self._callbacks or not is_polling):
            return None
        if now < self._not_before or (now < self._beat_at and not self._has_news):
            return None
        self._beat_at = now + self._interval
        return self._ask(self._heartbeat())

    @property
    def _has_news(self) -> bool:
        if self.phase is Phase.JOINING or self._callbacks:
            return False
        return self._said_owned != self.owned or self._said_topics != (self._topics, self._pattern)

    def next_look_at(self, now: float) -> float:
        moments = [self._beat_at, self._not_before]
        if self.phase is Phase.IN:
            moments.append(self._polled_at + self._settings.max_poll_interval_ms / 1000)
        return min((moment for moment in moments if moment > now), default=now + self._interval)

    def _ask(self, message: object) -> Question:
        self._serial += 1
        self._asked = self._serial
        return Question(BEAT, self._serial, message, self._settings.session_timeout_ms)

    def _heartbeat(self) -> ConsumerGroupHeartbeatRequest:
        """Everything when it joins or nobody knows what the coordinator has heard, else what has changed."""
        settings = self._settings
        is_whole = self._said_topics is None
        request = ConsumerGroupHeartbeatRequest(
            group_id=settings.group_id,
            member_id=self.member_id,
            member_epoch=self.generation,
            instance_id=settings.instance_id if is_whole else None,
            rack_id=settings.rack if is_whole else None,
            rebalance_timeout_ms=settings.max_poll_interval_ms if is_whole else -1,
            server_assignor=self._assignor if is_whole else None,
        )
        subscription = (self._topics, self._pattern)
        if subscription != self._said_topics:
            request.subscribed_topic_names = sorted(self._topics)
            if self._pattern is not None or (
                self._said_topics is not None and self._said_topics[1] is not None
            ):
                request.subscribed_topic_regex = self._pattern or ""
            self._said_topics = subscription
        if (self._said_owned != self.owned and not self._callbacks) or is_whole:
            request.topic_partitions = self._by_id(self.owned)
            self._said_owned = self.owned
        return request

    def _by_id(self, partitions: Partitions) -> list[TopicPartitions]:
        found: dict[bytes, list[int]] = {}
        for tp in sorted(partitions):
            found.setdefault(self._ids[tp.topic], []).append(tp.partition)
        return [TopicPartitions(topic_id=topic_id, partitions=numbers) for topic_id, numbers in found.items()]

    # ---- answers

    def answered(self, question: Question, response: object, now: float) -> None:
        if self._asked != question.serial:
            return
        self._asked = None
        if not isinstance(response, ConsumerGroupHeartbeatResponse) or self.phase is Phase.OUT:
            return
        if response.error_code != ErrorCode.NONE:
            self._said_owned = self._said_topics = None
            self._refused(response.error_code, response.error_message, now)
            return
        self.phase, self.generation = Phase.IN, response.member_epoch
        if response.heartbeat_interval_ms > 0:
            self._interval = response.heartbeat_interval_ms / 1000
            self._beat_at = min(self._beat_at, now + self._interval)
        if response.assignment is not None:
            self._target_by_id = {
                t.topic_id: tuple(t.partitions) for t in response.assignment.topic_partitions
            }
            known = set(self._ids.values())
            self.unknown_ids = frozenset(topic_id for topic_id in self._target_by_id if topic_id not in known)
        self._reconcile()

    def unanswered(self, question: Question, error: ClientError, now: float) -> None:
        if self._asked != question.serial:
            return
        self._asked = None
        self._said_owned = self._said_topics = None
        if not error.retriable:
            self.failure = error
            return
        self.wants_coordinator = True
        self._pause(now)

    def _refused(self, code: int, message: str | None, now: float) -> None:
        about = f"heartbeat to group {self._settings.group_id}"
        if code in _COORDINATOR_MOVED:
            self.wants_coordinator = True
            self._pause(now)
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            self.reason = (
                "the coordinator removed this member, or had not heard of it for consumer.session.timeout.ms"
            )
            self._lose()
            self._join(now)
        elif code in (ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID):
            self._lose()
            self.failure = FencedInstanceError(
                f"{about}: another consumer uses group.instance.id={self._settings.instance_id}; give each its own"
            )
        elif BrokerError(code, about).retriable:
            self._pause(now)
        else:
            self.failure = BrokerError(code, about, _WHY_REFUSED.get(code, message))

    def _pause(self, now: float) -> None:
        self._not_before = now + self._settings.retry_backoff_ms / 1000

    # ---- reconciliation

    def _reconcile(self) -> None:
        """Give up first, then take: one step at a time, each answered for by the application."""
        if self._callbacks or self._target_by_id is None or self.unknown_ids or self.phase is not Phase.IN:
            return
        names = {topic_id: name for name, topic_id in self._ids.items()}
        target = frozenset(
            TopicPartition(names[topic_id], number)
            for topic_id, numbers in self._target_by_id.items()
            for number in numbers
        )
        if gone := self.owned - target:
            self._callbacks.append(Callback(Change.REVOKE, gone))
        elif new := target - self.owned:
            self._callbacks.append(Callback(Change.TAKE, new))

    def _lose(self) -> None:
        self._callbacks = [Callback(Change.LOSE, self.owned)] if self.owned else []

    # ---- out

    def _leave_stalled(self) -> Question | None:
        message = self.leave()
        self.reason = f"no poll for max.poll.interval.ms={self._settings.max_poll_interval_ms}"
        self._is_stalled = True
        self._lose()
        return None if message is None else self._ask(message)

    def leave(self) -> object | None:
        """A static member leaves for a while: its partitions are kept for it until its session ends."""
        was_in = self.phase is Phase.IN
        self.phase = Phase.OUT
        self._asked = None
        if not was_in:
            return None
        static = self._settings.instance_id is not None
        return ConsumerGroupHeartbeatRequest(
            group_id=self._settings.group_id,
            member_id=self.member_id,
            member_epoch=LEAVING_FOR_A_WHILE if static else LEAVING,
            instance_id=self._settings.instance_id,
        )
