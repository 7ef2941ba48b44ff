"""Plain values of the quorum: how a log ends, what a vote is about, which settings hold.

Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

NO_NODE: Final = -1
TOPIC: Final = "__cluster_metadata"
TOPIC_ID: Final = bytes(15) + b"\x01"
PARTITION: Final = 0


class LogEnd(NamedTuple):
    """Where a log ends, and the epoch of its last record. The greater of two ends is the one that Raft calls more up to date."""

    epoch: int
    offset: int


class SnapshotId(NamedTuple):
    """It stands for everything below `end_offset`; `epoch` is that of the last batch it stands for."""

    end_offset: int
    epoch: int


class ElectionState(NamedTuple):
    """What a node must never forget (I11): its epoch, whom it has voted for in it, and who leads it."""

    epoch: int = 0
    leader_id: int | None = None
    voted_id: int | None = None


@dataclass(frozen=True, slots=True)
class Voters:
    """Who counts. Fixed as long as the cluster lives."""

    ids: tuple[int, ...]

    @staticmethod
    def of(ids: Iterable[int]) -> Voters:
        voters = Voters(tuple(sorted(ids)))
        if not voters.ids or len(set(voters.ids)) < len(voters.ids):
            raise ValueError(f"a quorum needs voters, each of them once, not {voters.ids}")
        return voters

    def __contains__(self, node_id: int) -> bool:
        return node_id in self.ids

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def majority(self) -> int:
        return len(self.ids) // 2 + 1

    def others(self, node_id: int) -> tuple[int, ...]:
        return tuple(voter for voter in self.ids if voter != node_id)

    def reached(self, values: Sequence[float]) -> float:
        """The greatest value that a majority has reached, given one value for every voter."""
        count = len(self.ids)
        if len(values) != count:
            raise ValueError(f"{len(values)} values for {count} voters")
        return sorted(values, reverse=True)[count // 2]


@dataclass(frozen=True, slots=True)
class QuorumSettings:
    """Times are in seconds; the names are those of Kafka's `controller.quorum.*` settings. Made for a new leader within two seconds."""

    node_id: int
    voters: Voters
    cluster_id: str | None = None
    directory_id: bytes = bytes(16)
    election_timeout_s: float = 0.5
    election_backoff_max_s: float = 0.25
    fetch_timeout_s: float = 1.5
    request_timeout_s: float = 1.0
    retry_backoff_s: float = 0.02
    fetch_max_bytes: int = 1 << 20
    fetch_snapshot_max_bytes: int = 1 << 20

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.voters

    @property
    def is_alone(self) -> bool:
        return self.voters.ids == (self.node_id,)

    @property
    def fetch_wait_s(self) -> float:
        """How long a leader may keep a fetch. Several must fit into the fetch timeout: their coming and going is the heartbeat."""
        return min(self.fetch_timeout_s / 4, self.request_timeout_s / 2)

    @property
    def suspicion_s(self) -> float:
        """Longest wait between losing the connection to the leader and asking others what they think of it."""
        return self.election_timeout_s / 5
