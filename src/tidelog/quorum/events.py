"""What can happen to a node of the quorum. `QuorumCore.step` takes one of these and the time."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from tidelog.quorum.values import SnapshotId


class Started(NamedTuple):
    """The node is up. Before anything else."""


class Ticked(NamedTuple):
    """The deadline that the core has named is here. Ticks too many do no harm."""


class Received(NamedTuple):
    """A request of a peer. Whoever sends the `Answer` knows the token."""

    token: int
    request: Any


class Answered(NamedTuple):
    """What came back for a `Send`, or None: nothing will."""

    request_id: int
    response: Any | None


class Appended(NamedTuple):
    """An append is in the log, though not yet durable: what was fetched, a leader change, or the controller's records."""


class AppendRefused(NamedTuple):
    """What was fetched is no sound continuation of the log. Nothing was written."""

    reason: str


class Truncated(NamedTuple):
    """The end of the log was cut."""


class Synced(NamedTuple):
    """The log is durable as far as it says of itself."""


class SnapshotWritten(NamedTuple):
    """A piece of a snapshot that is being fetched stands in its file."""


class SnapshotInstalled(NamedTuple):
    """A fetched snapshot is durable, and the log begins where it ends."""

    snapshot: SnapshotId


class SnapshotRefused(NamedTuple):
    """A fetched snapshot is not sound, and has been thrown away."""

    reason: str


class Disconnected(NamedTuple):
    """A hint: the connection to a node was lost, or cannot be made."""

    node_id: int


class Resign(NamedTuple):
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
