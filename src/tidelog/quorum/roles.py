"""What a node of the quorum can be, and how it gets from one to the other.

    unattached    knows no leader of its epoch. A voter waits for its election timeout, or for somebody else's; an observer asks around.
    follower      knows the leader and fetches from it.
    prospective   has not heard from a leader for too long, and asks the voters whether they would vote for it (pre-vote, KIP-996).
    candidate     would be elected: it has begun a new epoch, voted for itself, and asks for votes.
    leader        has a majority's votes. The only one who appends.
    resigned      was the leader of this epoch, and is no more; it tells the others (EndQuorumEpoch).

A voter begins unattached, or as a follower of whom it followed before. From there:

    from          to            because
    any           unattached    somebody is in a later epoch; or a vote is given to somebody
    any           follower      somebody leads this epoch or a later one (BeginQuorumEpoch, or an answer tells)
    unattached    prospective   the election timeout is over; or the last leader wants this node as successor
    follower      prospective   nothing was fetched within the fetch timeout; or the connection to the leader is lost, and a moment has passed
    prospective   candidate     a majority would vote for it
    prospective   follower      a majority would not, or time is up: it follows whom it followed before …
    prospective   unattached    … or nobody, and waits a while
    candidate     leader        a majority has voted for it
    candidate     unattached    a majority has not, or time is up: it waits a while
    leader        resigned      a majority has not fetched within the fetch timeout (check-quorum); or its user wants it so
    resigned      unattached    time is up

Only `candidate` begins an epoch, and only a majority of voters who have lost their leader lets a node become one. So a node that was cut off comes back
without disturbing anybody (I16). A quorum of one skips the asking. An observer is never anything but unattached or a follower.

These classes only remember; `transitions` makes them, `election`, `leading` and `following` act on them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tidelog.quorum.values import SnapshotId

NEVER = float("inf")


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """The one request to a node that is under way, or when the next is due. `ended`: there is nothing more to ask."""

    request_id: int | None = None
    retry_at: float = NEVER
    failures: int = 0
    ended: bool = False

    @property
    def under_way(self) -> bool:
        return self.request_id is not None


@dataclass(slots=True, eq=False, repr=False)
class Unattached:
    deadline: float
    call: Call = field(default_factory=Call)  # an observer's, to find the leader
    asked: int = 0  # how many voters it has asked


@dataclass(slots=True, eq=False, repr=False)
class SnapshotFetch:
    """A snapshot on its way from the leader."""

    snapshot: SnapshotId
    position: int = 0
    is_whole: bool = False


@dataclass(slots=True, eq=False, repr=False)
class Follower:
    leader_id: int
    deadline: float
    call: Call = field(default_factory=Call)
    waits_for_disk: bool = False
    """What was fetched is being written or synced, or the log is being cut. The next fetch claims it (I14), and waits."""
    leader_high_watermark: int = -1
    snapshot: SnapshotFetch | None = None
    is_forgiving: bool = False
    """It did not run for a while itself, and has not heard from the leader since."""


@dataclass(slots=True, eq=False, repr=False)
class Prospective:
    deadline: float
    calls: dict[int, Call]
    granted: list[int]
    refused: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class Candidate:
    deadline: float
    calls: dict[int, Call]
    granted: list[int]
    refused: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class Replica:
    """What the leader knows of another node, from its fetches."""

    end_offset: int = -1  # -1: has not fetched in this epoch
    fetched_at: float = -NEVER
    fetched_before_at: float = -NEVER
    caught_up_at: float = -NEVER
    leader_end_then: int = -1


@dataclass(slots=True, eq=False, repr=False)
class ParkedFetch:
    token: int
    offset: int
    max_bytes: int
    deadline: float


@dataclass(slots=True, eq=False, repr=False)
class Leader:
    epoch_start_offset: int
    began_at: float
    replicas: dict[int, Replica]  # the other voters
    calls: dict[int, Call]
    granted: list[int]
    announce_at: float
    observers: dict[int, Replica] = field(default_factory=dict)
    parked: dict[int, ParkedFetch] = field(default_factory=dict)  # by replica, one each
    is_forgiving: bool = False
    """It did not run for a while itself, and nobody has fetched since."""


@dataclass(slots=True, eq=False, repr=False)
class Resigned:
    deadline: float
    calls: dict[int, Call]
    successors: tuple[int, ...]


Role: TypeAlias = Unattached | Follower | Prospective | Candidate | Leader | Resigned
