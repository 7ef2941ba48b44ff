"""The role of a partition's leader: what it knows of its followers, what is committed because of them, who is in sync.

Decides and proposes; it appends nothing and answers nobody, that is the partition's business. A leader lives for one leader epoch:
the next one, of the same broker too, begins anew and counts nothing that it has not been told in its own epoch (I21).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tidelog.errors import RequestError
from tidelog.replication.assignment import Assignment
from tidelog.replication.isr import (
    NOT_DONE,
    EveryBroker,
    Isr,
    IsrAnswer,
    KnownBrokers,
    Member,
    Proposal,
    may_join,
    members,
)
from tidelog.replication.replica_state import UNKNOWN_BROKER_EPOCH, RemoteReplica, new_remotes
from tidelog.replication.watermark import committed_end
from tidelog.storage.log import Log
from tidelog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from tidelog.replication.partition import Partition

LAG_SECONDS_MAX: Final = 30.0
REFUSED_PAUSE_S: Final = 0.5
"""After the controller found a replica ineligible, nobody is proposed again for so long: its metadata is on the way to us."""


class ReplicaFetch(NamedTuple):
    """What a follower says of itself with a fetch of one partition."""

    broker_id: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int


class Proposals(Protocol):
    """The way to the controller. Each proposal is answered by `Partition.isr_answered`, or taken back by newer metadata."""

    def propose(self, partition: Partition, proposal: Proposal, /) -> None: ...


class ReplicationSettings(NamedTuple):
    """What partitions of a broker share."""

    broker_epoch: Callable[[], int] = lambda: UNKNOWN_BROKER_EPOCH
    lag_seconds_max: float = LAG_SECONDS_MAX
    proposals: Proposals | None = None
    brokers: KnownBrokers = EveryBroker()


ALONE: Final = ReplicationSettings()


class Standing(NamedTuple):
    """One replica as its leader sees it, for people who ask why."""

    broker_id: int
    log_end_offset: int
    in_sync: bool
    is_joining: bool
    """Not in sync, and waited for as if it were: it is about to join."""
    caught_up_ago: float | None
    """Seconds. None: it has not caught up in this leader epoch, as far as its leader knows."""
    fetched_ago: float | None
    holds_watermark: bool


class Leader:
    __slots__ = (
        "_broker_id",
        "_log",
        "_refused_until",
        "_settings",
        "epoch",
        "epoch_start_offset",
        "is_recovering",
        "isr",
        "remotes",
        "replicas",
    )

    def __init__(
        self,
        broker_id: int,
        log: Log,
        assignment: Assignment,
        settings: ReplicationSettings,
        *,
        min_isr: int,
        now: float,
    ) -> None:
        self._broker_id = broker_id
        self._log = log
        self._settings = settings
        self._refused_until = now
        self.epoch = assignment.leader_epoch
        self.epoch_start_offset = log.log_end_offset
        self.replicas = assignment.replicas
        self.is_recovering = assignment.is_recovering
        self.isr = Isr(assignment, min_isr=min_isr)
        others = tuple(other for other in assignment.replicas if other != broker_id)
        self.remotes = new_remotes(others, assignment.isr, now=now, lag_seconds_max=settings.lag_seconds_max)

    # ---- what is committed

    def committed_end(self, own_end: int) -> int:
        """The offset up to which all is committed, or -1 while nothing more can be."""
        if not self.remotes:
            return own_end
        for replica in self.remotes.values():
            # Nobody waits for a broker that has died meanwhile: it was fenced, and the metadata says so before anything else does.
            if replica.is_joining and replica.broker_id not in self.isr.maximal:
                replica.is_joining = self._settings.brokers.may_join(replica.broker_id, replica.broker_epoch)
        return committed_end(own_end, self.isr, self.remotes.values())

    def is_settled(self, high_watermark: int) -> bool:
        """The high watermark is known to be no lower than any that an earlier leader has told of (I49)."""
        return high_watermark >= self.epoch_start_offset

    # ---- followers

    def check_fetch(self, fetch: ReplicaFetch) -> None:
        """A fetch of an earlier run of a broker, or of one that is no replica, says nothing about a replica's log."""
        replica = self.remotes.get(fetch.broker_id)
        if replica is None:
            raise RequestError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {fetch.broker_id} is no replica of {self._log.name}",
            )
        if fetch.broker_epoch < replica.broker_epoch:
            raise RequestError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {fetch.broker_id} has fetched {self._log.name} with broker epoch {replica.broker_epoch}, not"
                f" {fetch.broker_epoch}",
            )

    def fetched(self, fetch: ReplicaFetch, *, now: float) -> None:
        """A follower has all below the offset of its fetch."""
        replica = self.remotes[fetch.broker_id]
        replica.fetched(
            fetch.offset,
            log_start_offset=fetch.log_start_offset,
            leader_end=self._log.log_end_offset,
            broker_epoch=fetch.broker_epoch,
            now=now,
        )
        self._look_at(replica, now)

    def look(self, *, now: float) -> None:
        """From time to time: whoever has stopped fetching is not about to join any more."""
        for replica in self.remotes.values():
            self._look_at(replica, now)

    def _look_at(self, replica: RemoteReplica, now: float) -> None:
        replica.is_joining = (
            replica.has_fetched
            and self._is_in_time(replica, now)
            and self._settings.brokers.may_join(replica.broker_id, replica.broker_epoch)
        )

    def _is_in_time(self, replica: RemoteReplica, now: float) -> bool:
        return replica.is_in_time(
            self._log.log_end_offset, now=now, lag_seconds_max=self._settings.lag_seconds_max
        )

    def low_watermark(self) -> int:
        """The log start that every replica has reached which has told of one: below it nothing is left anywhere."""
        starts = [replica.log_start_offset for replica in self.remotes.values() if replica.has_fetched]
        return min([self._log.log_start_offset, *starts])

    # ---- who is in sync

    def joining(self, broker_id: int, *, now: float) -> tuple[int, ...] | None:
        """The ISR with this follower, if it may join now."""
        isr = self.isr
        if isr.pending is not None or broker_id in isr.committed or now < self._refused_until:
            return None
        if self.is_recovering:
            return None  # alone until that is over (KIP-704)
        if not may_join(
            self.remotes[broker_id],
            self._settings.brokers,
            high_watermark=self._log.high_watermark,
            epoch_start_offset=self.epoch_start_offset,
        ):
            return None
        return tuple(other for other in self.replicas if other == broker_id or other in isr.committed)

    def recovered(self) -> tuple[int, ...] | None:
        """The ISR of a leader that was not in sync when it was chosen, and says now that it goes on from what it has: itself. None if there is nothing to say.

        There is nothing else to recover: its epoch has begun, followers cut their logs by it, and readers find out by it what is gone. Every proposal says that its
        leader has recovered.
        """
        return (self._broker_id,) if self.is_recovering and self.isr.pending is None else None

    def without_late(self, *, now: float) -> tuple[int, ...] | None:
        """The ISR without those who have not caught up for `replica.lag.time.max.ms`, if there are any."""
        isr = self.isr
        if isr.pending is not None:
            return None
        late = [broker_id for broker_id in isr.committed if self._is_late(broker_id, now)]
        return tuple(other for other in isr.committed if other not in late) if late else None

    def _is_late(self, broker_id: int, now: float) -> bool:
        replica = self.remotes.get(broker_id)
        if replica is None:
            return broker_id != self._broker_id
        return not self._is_in_time(replica, now)

    def propose(self, partition: Partition, broker_ids: tuple[int, ...]) -> None:
        proposals = self._settings.proposals
        if proposals is None:
            return
        own = Member(self._broker_id, self._settings.broker_epoch())
        proposal = Proposal(
            partition.topic_id,
            partition.index,
            self.epoch,
            self.isr.partition_epoch,
            members(broker_ids, own, self.remotes),
        )
        self.isr.propose(proposal)
        proposals.propose(partition, proposal)

    def answered(self, partition: Partition, proposal: Proposal, answer: IsrAnswer, *, now: float) -> bool:
        if answer.error == ErrorCode.INELIGIBLE_REPLICA:
            self._refused_until = now + REFUSED_PAUSE_S
        is_pending = proposal is self.isr.pending
        changed = self.isr.answered(proposal, answer)
        if is_pending and answer.error == ErrorCode.NONE:
            self.is_recovering = False
        if answer.error in NOT_DONE and proposal is self.isr.pending:
            self._withdraw(partition, proposal)
        return changed

    def _withdraw(self, partition: Partition, refused: Proposal) -> None:
        """Members of the ISR as it is need no proof of their runs: who is of another one has left it, with another partition epoch."""
        proposals = self._settings.proposals
        if proposals is None or refused.broker_ids == self.isr.committed:
            return
        as_they_are = tuple(Member(broker_id, UNKNOWN_BROKER_EPOCH) for broker_id in self.isr.committed)
        proposal = refused._replace(isr=as_they_are)
        self.isr.withdraw(proposal)
        proposals.propose(partition, proposal)

    def reassigned(self, assignment: Assignment, *, min_isr: int, now: float) -> bool:
        """Metadata of the same leader epoch. True if it says anything new."""
        if not self.isr.committed_as(assignment.isr, assignment.partition_epoch):
            return False
        if assignment.replicas != self.replicas:
            others = tuple(other for other in assignment.replicas if other != self._broker_id)
            known = new_remotes(
                others, assignment.isr, now=now, lag_seconds_max=self._settings.lag_seconds_max
            )
            # One that was taken away and comes back begins anew: its log may have been deleted meanwhile.
            self.remotes = {other: self.remotes.get(other, known[other]) for other in others}
            self.replicas = assignment.replicas
        self.isr.require(min_isr, len(assignment.replicas))
        self.is_recovering = assignment.is_recovering
        return True

    # ---- for people

    def standings(self, *, own_end: int, now: float) -> list[Standing]:
        """Every replica: how far it is, and whether it is what holds the high watermark. While too few are in sync nobody holds it: it stands."""
        ends = {other: replica.log_end_offset for other, replica in self.remotes.items()}
        ends[self._broker_id] = own_end
        waited_for = [
            other
            for other in self.replicas
            if other in self.isr.maximal or (other in self.remotes and self.remotes[other].is_joining)
        ]
        held = min((ends[other] for other in waited_for), default=own_end)
        is_held = held < self._log.log_end_offset and not self.isr.below_min
        return [
            self._standing(other, ends[other], is_held and other in waited_for and ends[other] == held, now)
            for other in self.replicas
        ]

    def _standing(self, broker_id: int, end: int, holds: bool, now: float) -> Standing:
        in_sync = broker_id in self.isr.committed
        replica = self.remotes.get(broker_id)
        if replica is None:
            return Standing(broker_id, end, in_sync, False, 0.0, 0.0, holds)
        has_fetched = replica.has_fetched
        return Standing(
            broker_id,
            end,
            in_sync,
            replica.is_joining and not in_sync,
            # Who is not in sync when an epoch begins counts as late from the start: that is no moment at which it had caught up.
            now - replica.caught_up_at if has_fetched and replica.has_caught_up else None,
            now - replica.fetched_at if has_fetched else None,
            holds,
        )
