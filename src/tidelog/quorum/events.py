"""What can happen to a node of the quorum. `QuorumCore.step` takes one of these and the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from tidelog.quorum.values import SnapshotId


@dataclass(frozen=True, slots=True)
class Started:
    """The node is up. Before anything else."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """The deadline that the core has named is here. Ticks too many do no harm."""


@dataclass(frozen=True, slots=True)
class Received:
    """A request of a peer. Whoever sends the `Answer` knows the token."""

    token: int
    request: Any


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back for a `Send`, or None: nothing will."""

    request_id: int
    response: Any | None


@dataclass(frozen=True, slots=True)
class Appended:
    """An append is in the log, though not yet durable: what was fetched, a leader change, or the controller's records."""


@dataclass(frozen=True, slots=True)
class AppendRefused:
    """What was fetched is no sound continuation of the log. Nothing was written."""

    reason: str


@dataclass(frozen=True, slots=True)
class Truncated:
    """The end of the log was cut."""


@dataclass(frozen=True, slots=True)
class Synced:
    """The log is durable as far as it says of itself."""


@dataclass(frozen=True, slots=True)
class SnapshotWritten:
    """A piece of a snapshot that is being fetched stands in its file."""


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """A fetched snapshot is durable, and the log begins where it ends."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class SnapshotRefused:
    """A fetched snapshot is not sound, and has been thrown away."""

    reason: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A hint: the connection to a node was lost, or cannot be made."""

    node_id: int


@dataclass(frozen=True, slots=True)
class Resign:
    """Whoever leads here does not want to lead any more."""


Event: TypeAlias = (
    Started
    | Ticked
    | Received
    | Answered
    | Appended
    | AppendRefused
    | Truncated
    | Synced
    | SnapshotWritten
    | SnapshotInstalled
    | SnapshotRefused
    | Disconnected
    | Resign
)
