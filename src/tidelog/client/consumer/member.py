"""What both group protocols have in common: a member asks, hears, and tells its consumer what to give up and what to take.

A member is a state machine without sockets and clocks. `next_request` says what to ask now, `answered` and `unanswered` what came of it; an answer
that belongs to no outstanding question (late, repeated, out of order) changes nothing. What concerns the application waits in `pending` until the
shell has done it and says `done`: giving partitions up, with a commit before, and taking new ones. Fatal errors stay in `failure`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from tidelog.client.errors import ClientError
from tidelog.client.metadata import TopicPartition

Partitions = frozenset[TopicPartition]
NOTHING: Partitions = frozenset()


class Change(Enum):
    REVOKE = "revoke"
    """Still ours for a moment: positions can be committed."""
    LOSE = "lose"
    """Not ours any more: others may be reading them."""
    TAKE = "take"


class Callback(NamedTuple):
    change: Change
    partitions: Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    group_id: str
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    retry_backoff_ms: int = 100
    rack: str | None = None


class Question(NamedTuple):
    """A request to the coordinator. Of each `kind` at most one is outstanding."""

    kind: str
    serial: int
    message: object
    timeout_ms: int


class Member(Protocol):
    owned: Partitions
    member_id: str
    generation: int
    failure: ClientError | None
    reason: str
    """Why the member joins (again), or has lost its partitions, in words for a person."""
    wants_coordinator: bool
    """The coordinator is not who we thought: look for it, then say `found_coordinator`."""

    @property
    def pending(self) -> Callback | None: ...

    @property
    def is_settled(self) -> bool:
        """In the group, with an assignment, and nothing to do."""
        ...

    @property
    def is_member(self) -> bool:
        """Whether it may commit in its own name."""
        ...

    def subscribe(self, topics: frozenset[str], now: float) -> None: ...

    def polled(self, now: float) -> None: ...

    def next_request(self, now: float, *, is_polling: bool) -> Question | None: ...

    def next_look_at(self, now: float) -> float: ...

    def answered(self, question: Question, response: object, now: float) -> None: ...

    def unanswered(self, question: Question, error: ClientError, now: float) -> None: ...

    def done(self, now: float) -> None: ...

    def found_coordinator(self) -> None: ...

    def leave(self) -> object | None:
        """The last request, if there is anything to leave. The member is out of the group afterwards."""
        ...
