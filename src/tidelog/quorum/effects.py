"""What the core wants done, as values, and the order in which it is done.

Whatever a step says, its effects come out of an `Outbox` in this order: the election state is made durable, then the log changes, then requests and
answers leave, then this node's own listeners are told. So nothing is ever said that a crash could take back (I11, M13), by construction.
Two effects take their time, and the core waits for their events before it relies on them: `Sync` (`Synced`) and `InstallSnapshot`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from tidelog.quorum.values import ElectionState, SnapshotId


class PersistState(NamedTuple):
    """Durable before the next effect."""

    state: ElectionState


class Truncate(NamedTuple):
    """Cut everything at or above an offset: it is not what the leader has."""

    offset: int


class AppendLeaderChange(NamedTuple):
    """The first batch of a leader's epoch."""

    epoch: int
    voters: tuple[int, ...]
    granting: tuple[int, ...]


class AppendFetched(NamedTuple):
    """Batches as the leader has them, offsets and epochs included."""

    records: bytes


class WriteSnapshot(NamedTuple):
    """A piece of a snapshot, at its position in the file. Position 0 begins the file anew."""

    snapshot: SnapshotId
    position: int
    data: bytes


class InstallSnapshot(NamedTuple):
    """All of it is there: make it durable, and let the log begin where it ends."""

    snapshot: SnapshotId


class Sync(NamedTuple):
    """Make the log durable; `Synced` when it is."""


class Send(NamedTuple):
    """A request to another node; `Answered` with this id in any case."""

    request_id: int
    to: int
    request: Any


class Answer(NamedTuple):
    """The answer to what was `Received` with this token."""

    token: int
    response: Any


class Committed(NamedTuple):
    """Everything below stands for ever (I12)."""

    high_watermark: int


class LoadSnapshot(NamedTuple):
    """The listeners' state is to be thrown away for that of a snapshot."""

    snapshot: SnapshotId


class LeaderIs(NamedTuple):
    """Who leads this epoch, as far as this node knows."""

    leader_id: int | None
    epoch: int


Effect: TypeAlias = (
    PersistState
    | Truncate
    | AppendLeaderChange
    | AppendFetched
    | WriteSnapshot
    | InstallSnapshot
    | Sync
    | Send
    | Answer
    | Committed
    | LoadSnapshot
    | LeaderIs
)


class Outbox:
    """Collects the effects of one step."""

    __slots__ = ("changes", "messages", "news", "state", "sync")

    def __init__(self) -> None:
        self.state: ElectionState | None = None
        self.changes: list[Effect] = []
        self.sync = False
        self.messages: list[Effect] = []
        self.news: list[Effect] = []

    def in_order(self) -> list[Effect]:
        effects: list[Effect] = []
        if self.state is not None:
            effects.append(PersistState(self.state))
        effects += self.changes
        if self.sync:
            effects.append(Sync())
        effects += self.messages
        effects += self.news
        return effects
