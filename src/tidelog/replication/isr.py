"""The in-sync replicas of a partition as its leader knows them: what the controller has committed, and what was asked of it.

A leader never changes its ISR by itself. It proposes (AlterPartition, KIP-497), with both epochs of the partition so that the
controller can tell a proposal that comes too late, and with the broker epochs that the members fetched with (KIP-903). One proposal
at a time:

    committed ──propose──▶ pending ──accepted──▶ committed, as the answer says
                              │  ╰───refused────▶ committed, as before, or withdrawn if it was said more than once
                              ╰──nobody knows───▶ pending, until newer metadata or an answer comes

A refusal speaks of one request. Of a proposal that was said again, because an answer had not come, another copy may still be under way, on a connection that was given up, and may be accepted after
the refusal of its repetition: when the broker that was out of service is back. So such a proposal stays pending, and the ISR as it is is proposed in its place (`withdraw`): that
changes nothing but the partition epoch, and whatever speaks of the one before comes too late.

While a proposal is pending the controller may already go by it, or not: whatever depends on the ISR counts the members of both, the
*maximal* ISR (I21, M5). Joining is one function (I22): `may_join`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from tidelog.replication.assignment import Assignment
from tidelog.replication.replica_state import UNKNOWN_BROKER_EPOCH, RemoteReplica
from tidelog.wire.error_codes import ErrorCode

NOT_DONE: Final = frozenset((ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED))
"""Answers that say for certain that the request has changed nothing. After any other error newer metadata is on its way."""


class Member(NamedTuple):
    """-1: a broker epoch that the leader does not know; the controller then goes by the partition epoch alone."""

    broker_id: int
    broker_epoch: int


class Proposal(NamedTuple):
    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[Member, ...]

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(member.broker_id for member in self.isr)


class IsrAnswer(NamedTuple):
    """What the controller made of a proposal; without an error, how the partition stands now."""

    error: ErrorCode
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()


class KnownBrokers(Protocol):
    """The other brokers, as far as this one's metadata goes."""

    def may_join(self, broker_id: int, broker_epoch: int, /) -> bool:
        """It is registered with this epoch, not fenced and not shutting down."""
        ...


class EveryBroker:
    """Of a partition with one replica nobody asks."""

    __slots__ = ()

    def may_join(self, broker_id: int, broker_epoch: int, /) -> bool:
        return True


class Isr:
    __slots__ = (
        "_effective_min",
        "below_min",
        "committed",
        "is_repeated",
        "leader_epoch",
        "maximal",
        "partition_epoch",
        "pending",
    )

    def __init__(self, assignment: Assignment, *, min_isr: int) -> None:
        self.leader_epoch = assignment.leader_epoch
        self.partition_epoch = assignment.partition_epoch
        self.committed = assignment.isr
        self.pending: Proposal | None = None
        self.is_repeated = False
        """What is pending was said, was not answered, and may be under way more than once."""
        self.maximal: frozenset[int] = frozenset(assignment.isr)
        self._effective_min = 1
        self.below_min = False
        self.require(min_isr, len(assignment.replicas))

    def require(self, min_isr: int, replicas: int) -> None:
        """`min.insync.replicas`; of fewer replicas nobody can ask for more than there are."""
        self._effective_min = min(min_isr, replicas)
        self.below_min = len(self.committed) < self._effective_min

    def propose(self, proposal: Proposal) -> None:
        assert self.pending is None, f"{self.pending} is under way"
        self.pending = proposal
        self.is_repeated = False
        self.maximal = maximal_isr(self.committed, proposal.broker_ids)

    def unanswered(self, proposal: Proposal) -> None:
        """It will be said again."""
        if proposal is self.pending:
            self.is_repeated = True

    def withdraw(self, as_it_is: Proposal) -> None:
        """What is pending was refused, and may still be accepted: whoever counts now does so until the controller has taken this instead."""
        assert self.pending is not None and as_it_is.broker_ids == self.committed
        self.pending = as_it_is

    def committed_as(self, isr: tuple[int, ...], partition_epoch: int) -> bool:
        """The controller's word, from an answer or from metadata, whichever is newer. False: it says nothing new."""
        if partition_epoch <= self.partition_epoch:
            return False
        self.partition_epoch = partition_epoch
        self._settle(isr)
        return True

    def answered(self, proposal: Proposal, answer: IsrAnswer) -> bool:
        """True if something changed. The answer to a proposal that is not pending any more says nothing new."""
        if proposal is not self.pending:
            return False
        if answer.error == ErrorCode.NONE:
            return answer.leader_epoch == self.leader_epoch and self.committed_as(
                answer.isr, answer.partition_epoch
            )
        if answer.error not in NOT_DONE or self.is_repeated:
            return False
        self._settle(self.committed)
        return True

    def _settle(self, isr: tuple[int, ...]) -> None:
        self.committed = isr
        self.pending = None
        self.is_repeated = False
        self.maximal = frozenset(isr)
        self.below_min = len(isr) < self._effective_min


def maximal_isr(committed: tuple[int, ...], proposed: tuple[int, ...]) -> frozenset[int]:
    """Everyone whom the controller may hold for in sync while it has a proposal on its desk."""
    return frozenset((*committed, *proposed))


def may_join(
    replica: RemoteReplica, brokers: KnownBrokers, *, high_watermark: int, epoch_start_offset: int
) -> bool:
    """Whether a follower may be proposed for the ISR: from then on it may be elected, so it must hold all that is committed.

    The high watermark alone does not show that: a new leader's may be behind what its predecessor had committed, and only where its
    own epoch begins is known to be above all of it (KIP-320's fourth rule). And only a fetch in this epoch, of the broker's
    present run, says anything about its log (KIP-903).
    """
    return (
        replica.has_fetched
        and has_reached(replica, high_watermark)
        and has_reached(replica, epoch_start_offset)
        and brokers.may_join(replica.broker_id, replica.broker_epoch)
    )


def has_reached(replica: RemoteReplica, offset: int) -> bool:
    return replica.log_end_offset >= offset


def members(
    broker_ids: tuple[int, ...], own: Member, remotes: Mapping[int, RemoteReplica]
) -> tuple[Member, ...]:
    """With the broker epoch of each one's last fetch."""
    return tuple(
        own
        if broker_id == own.broker_id
        else Member(
            broker_id, remotes[broker_id].broker_epoch if broker_id in remotes else UNKNOWN_BROKER_EPOCH
        )
        for broker_id in broker_ids
    )
