"""The invariants of replication (RELIABILITY §8), each a small class that is told what happens and knows when it must not.

They are predicates over the ledger: logs, what leaders have committed, what clients were told. Where one looks into the product (whom a
leader counts), its docstring says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidelog.replication.assignment import NO_LEADER, Assignment
from tidelog.testing.sim.storage_checks import Violation

if TYPE_CHECKING:
    from tidelog.replication.isr import Proposal
    from tidelog.replication.leader import Leader, ReplicaFetch
    from tidelog.testing.sim.replication_ledger import Batch, Ledger, Replica, State


class Invariant:
    """Nothing happens unless a subclass says so."""

    ledger: Ledger

    def opened(self, replica: Replica, before: Replica | None) -> None:
        """A broker has opened its log in a new run; `before` is the last one."""

    def began_to_lead(self, replica: Replica) -> None: ...

    def appended(self, replica: Replica, before: int) -> None:
        """Its log had `before` batches."""

    def truncated(self, replica: Replica, removed: list[Batch]) -> None: ...

    def watermark_moved(self, replica: Replica, before: int) -> None: ...

    def was_committed(self, replica: Replica, batch: Batch) -> None: ...

    def fetch_counted(self, replica: Replica, fetch: ReplicaFetch) -> None: ...

    def stepped(self, replica: Replica) -> None: ...

    def image_changed(self, image: State) -> None: ...

    def produced(self, batch: Batch, *, acks_all: bool) -> None: ...

    def was_read(self, batch: Batch) -> None: ...

    def latest_told(self, leader_epoch: int, offset: int, told_before: int) -> None: ...

    def ended(self) -> None: ...

    def broken(self, what: str) -> Violation:
        return Violation(type(self).__name__, f"at {self.ledger.now:.3f} s: {what}")


class OffsetsMeanOneThing(Invariant):
    """I1, I24: below any replica's high watermark stands what was committed there, and nothing else, ever."""

    def watermark_moved(self, replica: Replica, before: int) -> None:
        committed = self.ledger.by_offset
        for batch in reversed(replica.batches):
            if batch.last_offset < before:
                break
            known = committed.get(batch.base_offset)
            if batch.last_offset < replica.high_watermark and known is not None and known != batch:
                raise self.broken(
                    f"broker {replica.broker.broker_id} has {batch} where {known} was committed"
                )


class WatermarksInOrder(Invariant):
    """I5: log start, last stable offset, high watermark and log end stand in this order; no run of a broker takes a watermark back."""

    def stepped(self, replica: Replica) -> None:
        log = replica.broker.log
        if not log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset:
            raise self.broken(
                f"{log.log_start_offset} ≤ {log.last_stable_offset} ≤ {log.high_watermark} ≤ {log.log_end_offset} is wrong"
            )

    def watermark_moved(self, replica: Replica, before: int) -> None:
        if replica.high_watermark < before:
            raise self.broken(
                f"the high watermark of broker {replica.broker.broker_id} went from {before} to {replica.high_watermark}"
            )


class LeadersAreComplete(Invariant):
    """I19: whoever is elected has all that was ever committed, and so all that was acknowledged with acks=all or read."""

    def began_to_lead(self, replica: Replica) -> None:
        ledger = self.ledger
        if replica.leader is None or replica.leader.epoch < ledger.controller.assignment.leader_epoch:
            return  # an election of the past: others have been elected since, and are looked at themselves
        for number, batch in enumerate(ledger.committed):
            if number >= len(replica.batches) or replica.batches[number] != batch:
                raise self.broken(
                    f"broker {replica.broker.broker_id} leads epoch {replica.leader.epoch} up to {replica.end_offset} without {batch}"
                )


class CandidatesAreComplete(Invariant):
    """I20, I22: every member of ISR and ELR that runs has all that is committed, from the moment it is one."""

    def opened(self, replica: Replica, before: Replica | None) -> None:
        self._check()

    def was_committed(self, replica: Replica, batch: Batch) -> None:
        self._check()

    def truncated(self, replica: Replica, removed: list[Batch]) -> None:
        self._check()

    def image_changed(self, image: State) -> None:
        self._check()

    def _check(self) -> None:
        ledger = self.ledger
        controller, end = ledger.controller, ledger.committed_end
        for broker_id in (*controller.assignment.isr, *controller.elr):
            replica = ledger.replicas.get(broker_id)
            known = controller.registrations.get(broker_id)
            if replica is None or known is None or not replica.broker.process.alive:
                continue
            if known.incarnation != replica.broker.incarnation:
                continue  # it has not registered yet, and may be told that it is none any more
            if replica.end_offset < end and replica.broker.log.log_end_offset < end:
                raise self.broken(
                    f"broker {broker_id} may be elected and has {replica.end_offset} of {end} committed offsets;"
                    f" ISR {controller.assignment.isr}, ELR {controller.elr}"
                )


class EnoughCountTowardsTheWatermark(Invariant):
    """I21: a leader moves its watermark over the maximal ISR, while that has enough members. Looks at whom the leader counts."""

    def watermark_moved(self, replica: Replica, before: int) -> None:
        leader, controller = replica.leader, self.ledger.controller
        if leader is None or replica.high_watermark <= before:
            return
        # It may have heard of several changes in this one step, and have moved its watermark by any of them.
        epoch = leader.isr.partition_epoch
        passed = range(
            min(replica.partition_epoch + 1, epoch) if replica.partition_epoch >= 0 else epoch, epoch + 1
        )
        known = max((controller.isr_of.get(each, ()) for each in passed), key=len)
        if len(known) < controller.effective_min:
            raise self.broken(
                f"broker {replica.broker.broker_id} committed up to {replica.high_watermark} with the ISR {known},"
                f" {controller.effective_min} are needed"
            )
        if leader.epoch != controller.assignment.leader_epoch:
            return
        missing = set(controller.assignment.isr) - leader.isr.maximal
        if missing:
            raise self.broken(f"the leader does not count {missing}, which are in the ISR")
        for broker_id in leader.isr.maximal - {replica.broker.broker_id}:
            remote = leader.remotes[broker_id]
            if remote.log_end_offset < replica.high_watermark:
                raise self.broken(
                    f"broker {broker_id} had claimed {remote.log_end_offset} of {replica.high_watermark}"
                )


class CountedIsSynced(Invariant):
    """D10, M33: in `durability=fsync` whatever is committed was synced by everybody who counts, the leader too. Looks at how far each one's flushes have got."""

    def watermark_moved(self, replica: Replica, before: int) -> None:
        leader = replica.leader
        if leader is None or replica.high_watermark <= before or not replica.broker.partition.durable:
            return
        for broker_id in leader.isr.maximal:
            counted = self.ledger.replicas.get(broker_id)
            if counted is None or not counted.broker.process.alive or self._has_come_back(leader, counted):
                continue
            synced = counted.broker.log.recovery_point
            if synced < replica.high_watermark and counted.broker.partition.stopped_with is None:
                raise self.broken(
                    f"broker {replica.broker.broker_id} committed up to {replica.high_watermark}, and broker {broker_id} has synced up to {synced}"
                )

    def _has_come_back(self, leader: Leader, counted: Replica) -> bool:
        """What counts is what its earlier run had. That may be gone, and the leader need not have heard yet that the controller has taken it from the ISR."""
        broker = counted.broker
        remote = leader.remotes.get(broker.broker_id)
        is_earlier = remote is not None and remote.broker_epoch != broker.broker_epoch
        return is_earlier and broker.broker_id not in self.ledger.controller.assignment.isr


class OnlyThisEpochCounts(Invariant):
    """I21, H3: what a leader learns of a follower comes from fetches in its own epoch, of the broker's latest run that it has heard of."""

    def __init__(self) -> None:
        self._runs: dict[tuple[int, int, int], int] = {}

    def fetch_counted(self, replica: Replica, fetch: ReplicaFetch) -> None:
        epoch = replica.broker.partition.leader_epoch
        if fetch.leader_epoch != epoch:
            raise self.broken(f"{fetch} was counted in epoch {epoch}")
        place = (replica.broker.incarnation, epoch, fetch.broker_id)
        if fetch.broker_epoch < self._runs.setdefault(place, fetch.broker_epoch):
            raise self.broken(f"{fetch} was counted after one of run {self._runs[place]}")
        self._runs[place] = fetch.broker_epoch

    def watermark_moved(self, replica: Replica, before: int) -> None:
        leader, broker = replica.leader, replica.broker
        if leader is None or replica.high_watermark <= before:
            return
        for other in leader.isr.maximal - {broker.broker_id}:
            if (broker.incarnation, leader.epoch, other) not in self._runs:
                raise self.broken(f"broker {other} counts in epoch {leader.epoch}, and has not fetched in it")


class _Claim(NamedTuple):
    """What a leader has heard of a follower last."""

    broker_epoch: int
    offset: int


class JoinersHaveFetched(Invariant):
    """I22, H7: whoever comes into an ISR had, when its leader proposed that, fetched all that was committed, in this epoch and in the run that the controller knows.

    What an earlier run had may not be there any more. A fetch of the present run that comes after the proposal proves nothing: it may begin at 0, and the proposal does not know of it.
    """

    def __init__(self) -> None:
        self._claims: dict[tuple[int, int], _Claim] = {}
        """Of the latest fetch, by leader epoch and broker."""
        self._proposed: dict[int, Proposal] = {}
        """The last one of each leader epoch that was looked at."""
        self._vouched_for: set[tuple[int, int, int, int]] = set()
        """Leader epoch, partition epoch, broker and its run: whom a leader has proposed with good reason."""
        self._known: Assignment | None = None

    def fetch_counted(self, replica: Replica, fetch: ReplicaFetch) -> None:
        self._claims[fetch.leader_epoch, fetch.broker_id] = _Claim(fetch.broker_epoch, fetch.offset)

    def stepped(self, replica: Replica) -> None:
        leader = replica.leader
        if leader is None or leader.isr.pending is None:
            return
        proposal = leader.isr.pending
        if proposal is self._proposed.get(leader.epoch):
            return
        self._proposed[leader.epoch] = proposal
        needed = max(replica.high_watermark, leader.epoch_start_offset)
        for broker_id in proposal.broker_ids:
            claim = self._claims.get((leader.epoch, broker_id))
            if claim is not None and claim.offset >= needed:
                self._vouched_for.add((leader.epoch, proposal.partition_epoch, broker_id, claim.broker_epoch))

    def image_changed(self, image: State) -> None:
        before, now = self._known, image.assignment
        self._known = now
        if before is None or before.leader_epoch != now.leader_epoch:
            return
        for broker_id in now.isr:
            if broker_id in before.isr:
                continue
            run = self.ledger.controller.registrations[broker_id].broker_epoch
            made_at = range(before.partition_epoch, now.partition_epoch)
            if not any((now.leader_epoch, each, broker_id, run) in self._vouched_for for each in made_at):
                raise self.broken(
                    f"broker {broker_id}, which is in run {run}, has come into the ISR of epoch {now.leader_epoch}, and nobody has proposed that run"
                    f" who knew that it has all that is committed; its last fetch was {self._claims.get((now.leader_epoch, broker_id))}"
                )


class IsrAndElrAreApart(Invariant):
    """I23, of the simulation's own controller."""

    def image_changed(self, image: State) -> None:
        isr = image.assignment.isr
        if set(isr) & set(image.elr):
            raise self.broken(f"ISR {isr} and ELR {image.elr} overlap")
        if len(isr) >= self.ledger.controller.effective_min and image.elr:
            raise self.broken(f"ISR {isr} is large enough for an ELR {image.elr}")
        leader = image.assignment.leader
        if leader != NO_LEADER and leader not in isr:
            raise self.broken(f"the leader {leader} is not in its ISR {isr}")


class RecoveryKeepsWhatWasSynced(Invariant):
    """I3: what a start finds is the beginning of what was there, at the borders of batches, and at least what had to be kept."""

    def opened(self, replica: Replica, before: Replica | None) -> None:
        if before is None or before.kept is None or (not replica.batches and not before.batches):
            return
        # What was appended in the step that ended the process nobody has seen.
        known = before.batches[: len(replica.batches)]
        if replica.batches[: len(before.batches)] != known:
            raise self.broken(f"broker {replica.broker.broker_id} found other batches than it had written")
        if replica.end_offset < before.kept:
            raise self.broken(
                f"broker {replica.broker.broker_id} found its log up to {replica.end_offset}, and had made it durable up to {before.kept}"
            )


class OnlyFollowersTruncate(Invariant):
    """I25: logs are cut by followers, and never where they hold what is committed."""

    def truncated(self, replica: Replica, removed: list[Batch]) -> None:
        for batch in removed:
            if self.ledger.by_offset.get(batch.base_offset) == batch:
                raise self.broken(f"broker {replica.broker.broker_id} cut off {batch}, which is committed")
        if replica.leader is not None and replica.broker.partition.leader is replica.leader:
            raise self.broken(f"broker {replica.broker.broker_id} leads and has cut its log")


class FollowersTakeFromTheirLeader(Invariant):
    """I25: what enters a follower's log stands, there, in the log of the leader that it follows; leaders take nothing from anybody."""

    def appended(self, replica: Replica, before: int) -> None:
        follower, leader = replica.broker.partition.follower, replica.broker.partition.leader
        if leader is not None and replica.batches[-1].leader_epoch != leader.epoch:
            raise self.broken(f"broker {replica.broker.broker_id} leads and took {replica.batches[-1]}")
        source = self.ledger.replicas.get(follower.leader_id) if follower is not None else None
        if (
            follower is None
            or source is None
            or source.leader is None
            or source.leader.epoch != follower.epoch
        ):
            return
        new = replica.batches[before:]
        if new != source.batches[before : len(replica.batches)]:
            raise self.broken(
                f"broker {replica.broker.broker_id} took {new[0]}, which broker {follower.leader_id} does not have in epoch {follower.epoch}"
            )


class ReadsAgree(Invariant):
    """I26: what was read once is what everybody reads there, and it was committed."""

    def was_read(self, batch: Batch) -> None:
        known = self.ledger.by_offset.get(batch.base_offset)
        if known != batch:
            raise self.broken(f"{batch} was read where {known} is committed")


class AcknowledgedIsCommitted(Invariant):
    """I27: an acks=all success is of a batch that is committed at the offset that was told, whoever told it."""

    def produced(self, batch: Batch, *, acks_all: bool) -> None:
        if not acks_all:
            return
        known = self.ledger.by_offset.get(batch.base_offset)
        if known is None or known._replace(leader_epoch=-1) != batch._replace(leader_epoch=-1):
            raise self.broken(f"{batch} was acknowledged where {known} is committed")


class AppendedOnce(Invariant):
    """I39: a batch of an idempotent producer is committed at one place only."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int, int], Batch] = {}

    def was_committed(self, replica: Replica, batch: Batch) -> None:
        if batch.producer_id < 0:
            return
        name = (batch.producer_id, batch.producer_epoch, batch.sequence)
        known = self._places.setdefault(name, batch)
        if known is not batch:
            raise self.broken(f"{batch} was committed before, as {known}")


class LatestNeverGoesBack(Invariant):
    """I49: who asks for the end is never told less than somebody was told before."""

    def latest_told(self, leader_epoch: int, offset: int, told_before: int) -> None:
        if offset < told_before:
            raise self.broken(f"epoch {leader_epoch} tells {offset}, {told_before} was told before")


class LateFollowersLeave(Invariant):
    """M34: a follower that has not caught up with its leader for much longer than the lag time is not in the ISR any more.

    A follower that is late from some moment on is known to be a lag time later, and is looked at within half of one. While the leader runs
    without a pause; a proposal that is under way is as good as having left, and so is what the controller has decided and the leader has not heard of.
    """

    PATIENCE = 2.0

    def __init__(self, lag_s: float) -> None:
        self._lag_s = lag_s
        self._leader: Leader | None = None
        self._ends: list[tuple[float, int]] = []
        """When the leader's log got so long: enough to know how long it was a lag time ago."""
        self._late_since: dict[int, float] = {}
        self._stepped_at = 0.0

    def stepped(self, replica: Replica) -> None:
        leader, now = replica.leader, self.ledger.now
        if leader is None or leader.epoch != self.ledger.controller.assignment.leader_epoch:
            return
        if leader is not self._leader:
            self._leader = leader
            self._ends = []
            self._late_since.clear()
        if now - self._stepped_at > self._lag_s / 2 or leader.isr.pending is not None:
            self._late_since.clear()
        self._stepped_at = now
        for gone in self._late_since.keys() - set(leader.isr.committed):
            del self._late_since[gone]
        needed = self._end_a_lag_ago(replica.end_offset)
        in_sync = self.ledger.controller.assignment.isr
        for broker_id in leader.isr.committed:
            follower = self.ledger.replicas.get(broker_id)
            if (
                follower is None
                or follower is replica
                or follower.end_offset >= needed
                or broker_id not in in_sync
            ):
                self._late_since.pop(broker_id, None)
                continue
            since = self._late_since.setdefault(broker_id, now)
            if now - since > self.PATIENCE * self._lag_s:
                raise self.broken(
                    f"broker {broker_id} has been late since {since:.3f} s, at {follower.end_offset} of {needed}, and is in the ISR"
                )

    def _end_a_lag_ago(self, end_offset: int) -> int:
        ends, horizon = self._ends, self.ledger.now - self._lag_s
        if not ends or ends[-1][1] != end_offset:
            ends.append((self.ledger.now, end_offset))
        while len(ends) > 1 and ends[1][0] <= horizon:
            ends.pop(0)
        return ends[0][1] if ends[0][0] <= horizon else 0


class EverythingIsSeen(Invariant):
    """I24, I46, I47: healed, every replica has the same log, in sync, with everything committed in it, and readers got to its end."""

    def ended(self) -> None:
        ledger = self.ledger
        controller = ledger.controller
        if set(controller.assignment.isr) != set(controller.assignment.replicas):
            raise self.broken(f"in sync are {controller.assignment.isr} of {controller.assignment.replicas}")
        logs = [ledger.replicas[broker_id].batches for broker_id in controller.assignment.replicas]
        if any(log != logs[0] for log in logs):
            raise self.broken(f"the logs differ: {[len(log) for log in logs]} batches")
        if ledger.committed != logs[0][: len(ledger.committed)]:
            raise self.broken("the logs are not what was committed")
        if len(ledger.committed) != len(logs[0]):
            raise self.broken(f"{len(ledger.committed)} of {len(logs[0])} batches are committed")


def invariants(lag_s: float) -> list[Invariant]:
    return [
        OffsetsMeanOneThing(),
        WatermarksInOrder(),
        LeadersAreComplete(),
        CandidatesAreComplete(),
        EnoughCountTowardsTheWatermark(),
        CountedIsSynced(),
        OnlyThisEpochCounts(),
        JoinersHaveFetched(),
        IsrAndElrAreApart(),
        RecoveryKeepsWhatWasSynced(),
        OnlyFollowersTruncate(),
        FollowersTakeFromTheirLeader(),
        ReadsAgree(),
        AcknowledgedIsCommitted(),
        AppendedOnce(),
        LatestNeverGoesBack(),
        LateFollowersLeave(lag_s),
        EverythingIsSeen(),
    ]
