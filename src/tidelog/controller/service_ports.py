"""What the controller's runtime needs from the quorum, and when it does what.

The quorum's side of the contract, without which nothing here is safe: `ControllerService.lead` is called when this node leads an epoch *and*
everything before that epoch's first record is committed and in the image that comes with it; `committed` with an end offset that never goes back;
`lost` as soon as this node leads no more, before any other controller's records are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidelog.controller.metadata_log import EncodedBatch
from tidelog.errors import TidelogError


class NotLeaderError(TidelogError):
    """The quorum has another leader, or none: what was to be appended is not in the log."""


class MetadataQuorum(Protocol):
    """The replicated metadata log, as its leader writes it."""

    @property
    def end_offset(self) -> int:
        """Where the next record will be."""
        ...

    def append(self, batches: Sequence[EncodedBatch], *, epoch: int) -> int:
        """All of them, or NotLeaderError. Returns the end offset behind them; may call `committed` before it returns."""
        ...


@dataclass(frozen=True, slots=True)
class ControllerTimings:
    """Settings of the active controller that are about time, in seconds, and how much may wait for the quorum (D9)."""

    session_timeout_s: float = 2.0
    """broker.session.timeout.ms"""
    balance_interval_s: float | None = 300.0
    """leader.imbalance.check.interval.seconds; None: auto.leader.rebalance.enable is false"""
    leaderless_interval_s: float = 300.0
    """unclean.leader.election.interval.ms"""
    last_known_wait_s: float = 30.0
    """How long a partition that nobody in sync is left of waits for more logs to compare."""
    waiting_max: int = 10_000
    """Answers that wait for records to be committed, and changes that do."""
