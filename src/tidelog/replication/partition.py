"""A partition on this broker: its log, its role, and who waits for what.

The high watermark is the offset below which records are committed: consumers read below it, and an acks=all produce is
answered when it passes the batch. What a replica counts for depends on the durability it promises (D10):

* `fsync`: only what it has fdatasync'ed. The group commit calls `flushed` when a sync is done.
* `replicated`: what it has written to the page cache.

A partition leads or follows, as the metadata says (`assign`): `leader.py` knows how far the others are and who is in sync, `follower.py`
what the leader's answers do to the log. With one replica the leader is alone, and the watermark follows that replica.

This file must never read a clock or a socket: waiting is a callback, time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from tidelog.errors import RequestError
from tidelog.internal_topics import is_internal_topic
from tidelog.records.batch import TRANSACTIONAL_FLAG
from tidelog.records.validation import BatchRules, validate_for_append
from tidelog.replication.assignment import NO_LEADER, Assignment
from tidelog.replication.follower import Follower
from tidelog.replication.isr import IsrAnswer, Proposal
from tidelog.replication.leader import ALONE, Leader, ReplicaFetch, ReplicationSettings
from tidelog.replication.truncation import EpochEnd, divergence
from tidelog.replication.watermark import counted_end
from tidelog.storage.disk import Buffer
from tidelog.storage.log import AppendResult, FlushTicket, Log
from tidelog.storage.log_read import check_range
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch import PartitionData

OnCommitted: TypeAlias = Callable[[ErrorCode], None]


class Watcher(Protocol):
    """Somebody who waits for a partition to have more to read."""

    def wake(self) -> None: ...


class FlushQueue(Protocol):
    """The group commit, as a partition sees it."""

    def request(self, partition: Partition, /) -> None: ...


class Partition:
    __slots__ = (
        "_committing", "_end_watchers", "_flush_queue", "_min_isr", "_settings", "_watchers", "broker_id", "durable",
        "follower", "index", "internal", "leader", "leader_epoch", "log", "on_synced", "rules", "stopped_with", "topic",
        "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: bytes,
        log: Log,
        *,
        broker_id: int,
        rules: BatchRules,
        durable: bool,
        flush_queue: FlushQueue,
        min_isr: int = 1,
        settings: ReplicationSettings = ALONE,
    ) -> None:
        self.topic = topic
        self.index = index
        self.internal = is_internal_topic(topic)
        self.topic_id = topic_id
        self.log = log
        self.broker_id = broker_id
        self.rules = rules
        self.durable = durable
        self.leader_epoch = -1
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.stopped_with: ErrorCode | None = None
        self.on_synced: Callable[[Partition], None] | None = None
        """Told when a flush is done: the fetcher that waits to say how far this replica has got."""
        self._flush_queue = flush_queue
        self._min_isr = min_isr
        self._settings = settings
        self._committing: deque[tuple[int, OnCommitted, bool]] = deque()
        self._watchers: dict[Watcher, None] = {}
        self._end_watchers: dict[Watcher, None] = {}

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    # ---- the role

    def assign(self, assignment: Assignment, *, now: float = 0.0) -> None:
        """What the metadata says. Anything older than what is known already is left aside."""
        if self.stopped_with is not None or assignment.leader_epoch < self.leader_epoch:
            return
        if assignment.leader_epoch == self.leader_epoch:
            if self.leader is not None and self.leader.reassigned(assignment, min_isr=self._min_isr, now=now):
                self._end_recovery()
                self._isr_changed()
            return
        self.leader_epoch = assignment.leader_epoch
        if assignment.leader == self.broker_id:
            self._lead(assignment, now)
        else:
            self._follow(assignment)

    def _lead(self, assignment: Assignment, now: float) -> None:
        """Where the epoch begins is written down before anything else happens in it (KIP-279).

        Whoever waits since an earlier epoch that was led here goes on waiting: the records are where they were.
        """
        self.follower = None
        self.log.start_epoch(assignment.leader_epoch)
        self.leader = Leader(
            self.broker_id, self.log, assignment, self._settings, min_isr=self._min_isr, now=now
        )
        if self.durable and self.log.recovery_point < self.log.log_end_offset:
            self._flush_queue.request(self)  # what recovery found may be in the page cache only
        self._end_recovery()
        self._advance()
        self.wake_watchers()

    def _end_recovery(self) -> None:
        assert self.leader is not None
        isr = self.leader.recovered()
        if isr is not None:
            self.leader.propose(self, isr)

    def _follow(self, assignment: Assignment) -> None:
        """Nothing is cut: only the leader's epochs can say what has to go."""
        self.leader = None
        self.follower = Follower(self.log, assignment.leader, assignment.leader_epoch)
        self._release_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.durable and self.log.recovery_point < self.log.log_end_offset:
            self._flush_queue.request(self)
        self.wake_watchers()

    @property
    def fetches_from(self) -> int:
        """The broker that this one replicates the partition from; NO_LEADER if it need not."""
        return self.follower.leader_id if self.follower is not None else NO_LEADER

    # ---- writing

    def append(
        self,
        records: Buffer,
        *,
        now_ms: int,
        produce_version: int,
        from_client: bool = True,
        acks_all: bool = True,
    ) -> AppendResult:
        """Validate and append one batch of a client, or of a coordinator of this broker. Raises RequestError, or DiskError when the directory must go offline.

        With `acks_all` it is refused while fewer replicas are in sync than `min.insync.replicas` asks for.
        """
        leader = self.leader
        if leader is None:
            raise self._refusal()
        if acks_all and leader.isr.below_min:
            raise RequestError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self!r} has {len(leader.isr.committed)} replicas in sync, min.insync.replicas is {self._min_isr}",
            )
        validated = validate_for_append(
            records, self.rules, now_ms, from_client=from_client, produce_version=produce_version
        )
        if validated.header[5] & TRANSACTIONAL_FLAG:
            # Nothing could ever end the transaction that this batch would open, and readers would wait for its end (I44).
            raise RequestError(
                ErrorCode.INVALID_TXN_STATE,
                f"{self!r} takes no transactional records: no transaction is open",
            )
        result = self.log.append_as_leader(
            validated.batch, validated.header, leader_epoch=self.leader_epoch, now_ms=now_ms
        )
        if self.durable:
            self._flush_queue.request(self)
        elif not result.duplicate:
            log = self.log
            if leader.remotes:
                if len(leader.isr.maximal) == 1:
                    self._advance()  # all others are out of sync; else nothing is committed before a follower has it
            else:
                self._advance_high_watermark(log.log_end_offset)
            if log.log_end_offset - log.recovery_point >= log.config.flush_messages:
                self._flush_queue.request(self)
        if self._end_watchers:
            self._wake(self._end_watchers)
        return result

    def _refusal(self) -> RequestError:
        if self.stopped_with is not None:
            return RequestError(self.stopped_with, f"{self!r} is not served by this broker any more")
        return RequestError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"{self!r} is not led by this broker in epoch {self.leader_epoch}",
        )

    def flushed(self, ticket: FlushTicket) -> None:
        """The group commit synced everything below the ticket's end."""
        self.log.finish_flush(ticket)
        if self.durable and self.leader is not None:
            self._advance()
        if self.on_synced is not None:
            self.on_synced(self)

    def is_committed(self, offset: int) -> bool:
        return self.log.high_watermark > offset

    def when_committed(self, last_offset: int, done: OnCommitted, *, patient: bool = False) -> None:
        """Call `done` once the record at `last_offset` is committed, or will never be by this leader.

        A producer hears at once when too few are left in sync, and sends again; who is `patient` waits until there are enough.

        Waiters stand in order of arrival. A retried duplicate may wait for an offset below its neighbours'; it is released
        with them, which is never too early.
        """
        if self.leader is None:
            done(self._refusal().code)
        elif self.is_committed(last_offset):
            done(ErrorCode.NONE)
        else:
            self._committing.append((last_offset, done, patient))

    def _advance(self) -> None:
        """Of a leader: something that the high watermark depends on has changed."""
        assert self.leader is not None
        own_end = counted_end(self.log, durable=self.durable)
        self._advance_high_watermark(self.leader.committed_end(own_end))

    def _advance_high_watermark(self, offset: int) -> None:
        if offset <= self.log.high_watermark:
            return
        self.log.set_high_watermark(offset)
        committing = self._committing
        while committing and committing[0][0] < offset:
            committing.popleft()[1](ErrorCode.NONE)
        self._wake(self._watchers)

    def _release_all(self, code: ErrorCode) -> None:
        committing, self._committing = self._committing, deque()
        for _, done, _ in committing:
            done(code)

    def _isr_changed(self) -> None:
        assert self.leader is not None
        if self.leader.isr.below_min and self._committing:
            waiting, self._committing = self._committing, deque()
            self._committing.extend(waiter for waiter in waiting if waiter[2])
            for _, done, patient in waiting:
                if not patient:
                    done(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        self._advance()

    def set_durable(self, durable: bool) -> None:
        """Change what this replica counts for. Turned off, whatever is written counts at once."""
        self.durable = durable
        if durable:
            self._flush_queue.request(self)
        elif self.leader is not None:
            self._advance()

    def set_min_isr(self, min_isr: int) -> None:
        self._min_isr = min_isr
        if self.leader is not None:
            self.leader.isr.require(min_isr, len(self.leader.replicas))
            self._isr_changed()

    # ---- followers of this leader

    def check_replica_fetch(self, fetch: ReplicaFetch) -> EpochEnd | None:
        """Whether a follower may be served: None, or where its log parts from this one. RequestError if it must not be.

        A follower in another leader epoch than ours is fenced whatever it asks (H3): its log may still change under another leader.
        """
        leader = self.leader
        if leader is None:
            raise self._refusal()
        self._check_replica_epoch(fetch.leader_epoch)
        leader.check_fetch(fetch)
        found = divergence(self.log, last_fetched_epoch=fetch.last_fetched_epoch, fetch_offset=fetch.offset)
        if found is None:
            check_range(self.log, fetch.offset)
        return found

    def _check_replica_epoch(self, epoch: int) -> None:
        if epoch < 0:
            raise RequestError(
                ErrorCode.UNKNOWN_LEADER_EPOCH, f"a replica of {self!r} fetches without an epoch"
            )
        self.check_leader_epoch(epoch)

    def replica_fetched(self, fetch: ReplicaFetch, *, now: float) -> None:
        """A fetch that `check_replica_fetch` has let pass has come: the follower has all below its offset."""
        leader = self.leader
        assert leader is not None
        leader.fetched(fetch, now=now)
        isr = leader.joining(fetch.broker_id, now=now)
        if isr is not None:
            leader.propose(self, isr)
        self._advance()

    def has_told(self, broker_id: int, high_watermark: int) -> None:
        """An answer on its way to a follower carries this high watermark."""
        replica = None if self.leader is None else self.leader.remotes.get(broker_id)
        if replica is not None:
            replica.told_high_watermark = high_watermark

    def has_news_for(self, broker_id: int) -> bool:
        """More is committed than the follower was told: who reads from it waits for that (KIP-392)."""
        replica = None if self.leader is None else self.leader.remotes.get(broker_id)
        return replica is not None and replica.told_high_watermark < self.log.high_watermark

    def check_isr(self, *, now: float) -> None:
        """From time to time: those who have not caught up for too long are proposed to leave."""
        if self.leader is None:
            return
        self._end_recovery()
        self.leader.look(now=now)
        isr = self.leader.without_late(now=now)
        if isr is not None:
            self.leader.propose(self, isr)
        self._advance()  # one who was about to join may not be any more

    def isr_unanswered(self, proposal: Proposal) -> None:
        """Nobody knows what became of it, and it will be said again."""
        if self.leader is not None:
            self.leader.isr.unanswered(proposal)

    def isr_answered(self, proposal: Proposal, answer: IsrAnswer, *, now: float) -> None:
        if self.leader is not None and self.leader.answered(self, proposal, answer, now=now):
            self._isr_changed()

    # ---- following

    def is_synced(self) -> bool:
        """All that is here counts: the next fetch may claim it."""
        return counted_end(self.log, durable=self.durable) >= self.log.log_end_offset

    def apply_fetched(self, follower: Follower, data: PartitionData, *, now_ms: int) -> None:
        """The leader's answer to a fetch of this very role. Raises what `Follower.apply` raises."""
        moved = follower.apply(data, now_ms=now_ms)
        log = self.log
        unflushed = log.log_end_offset - log.recovery_point
        if unflushed > 0 and (self.durable or unflushed >= log.config.flush_messages):
            self._flush_queue.request(self)
        if moved:
            self.wake_watchers()

    # ---- reading

    def visible_end(self, *, committed_only: bool) -> int:
        """The first offset that a consumer may not read. A follower's is behind its leader's, never ahead."""
        return self.log.last_stable_offset if committed_only else self.log.high_watermark

    def check_latest(self) -> None:
        """Whether the end may be told to a consumer: RequestError while an earlier leader may have told of a later one (I49)."""
        if self.leader is None or not self.leader.is_settled(self.log.high_watermark):
            raise RequestError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"the high watermark of {self!r} has not reached the beginning of leader epoch {self.leader_epoch} yet",
            )

    def check_readable(self, offset: int) -> None:
        """A consumer that was sent here from the leader (KIP-392) may be ahead of this follower: what it asks for is on its way, and nothing is out of range (H10).

        Between the high watermark that is known here and the log's end it waits, as it would at the leader.
        """
        if self.leader is None and offset > self.log.log_end_offset:
            raise RequestError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"{self!r} ends at {self.log.log_end_offset} here, offset {offset} was asked for",
            )

    def check_leader_epoch(self, epoch: int) -> None:
        """A client that knows another leader epoch than ours must not be served (KIP-320)."""
        if self.stopped_with is not None:
            raise RequestError(self.stopped_with)
        if epoch < 0 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise RequestError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"{self!r} is at leader epoch {self.leader_epoch}, the request at {epoch}",
            )
        raise RequestError(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{self!r} is at leader epoch {self.leader_epoch}, the request at {epoch}",
        )

    def watch(self, watcher: Watcher) -> None:
        """Be woken by what consumers may read."""
        self._watchers[watcher] = None

    def watch_end(self, watcher: Watcher) -> None:
        """Be woken by whatever is appended, as followers want it."""
        self._end_watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
        self._end_watchers.pop(watcher, None)

    def wake_watchers(self) -> None:
        self._wake(self._watchers)
        self._wake(self._end_watchers)

    def _wake(self, watchers: dict[Watcher, None]) -> None:
        for watcher in watchers:
            watcher.wake()

    # ---- the end

    def delete_records(self, before_offset: int) -> int:
        """Move the log start up to `before_offset` (-1: the high watermark); returns the new log start."""
        if self.leader is None:
            raise self._refusal()
        high_watermark = self.log.high_watermark
        target = high_watermark if before_offset == -1 else before_offset
        if not 0 <= target <= high_watermark:
            raise RequestError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self!r} can be deleted up to its high watermark {high_watermark}, not up to {before_offset}",
            )
        self.log.advance_log_start_offset(target)
        self.wake_watchers()
        return self.log.log_start_offset

    def stop(self, code: ErrorCode) -> None:
        """Serve no more: the topic is deleted or the directory offline. Whoever waits is told."""
        self.stopped_with = code
        self.leader = None
        self.follower = None
        self._release_all(code)
        self.wake_watchers()
