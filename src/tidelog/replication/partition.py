"""A partition that this broker leads: append, what is committed, and who waits for it.

The high watermark is the offset below which records are committed: consumers read below it, and an acks=all produce is
answered when it passes the batch. What a replica counts for depends on the durability it promises (D10):

* `fsync`: only what it has fdatasync'ed. The group commit calls `flushed` when a sync is done.
* `replicated`: what it has written to the page cache.

With one replica the watermark follows that replica alone. This file must never read a clock or a socket: waiting is a
callback, time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from tidelog.errors import RequestError
from tidelog.internal_topics import is_internal_topic
from tidelog.records.batch import TRANSACTIONAL_FLAG
from tidelog.records.validation import BatchRules, validate_for_append
from tidelog.storage.disk import Buffer
from tidelog.storage.log import AppendResult, FlushTicket, Log
from tidelog.wire.error_codes import ErrorCode

OnCommitted: TypeAlias = Callable[[ErrorCode], None]


class Watcher(Protocol):
    """Somebody who waits for a partition to have more to read."""

    def wake(self) -> None: ...


class FlushQueue(Protocol):
    """The group commit, as a partition sees it."""

    def request(self, partition: Partition, /) -> None: ...


class Partition:
    __slots__ = (
        "_committing", "_flush_queue", "_watchers", "durable", "index", "internal", "leader_epoch", "log", "rules",
        "stopped_with", "topic", "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: bytes,
        log: Log,
        *,
        leader_epoch: int,
        rules: BatchRules,
        durable: bool,
        flush_queue: FlushQueue,
    ) -> None:
        self.topic = topic
        self.index = index
        self.internal = is_internal_topic(topic)
        self.topic_id = topic_id
        self.log = log
        self.leader_epoch = leader_epoch
        self.rules = rules
        self.durable = durable
        self.stopped_with: ErrorCode | None = None
        self._flush_queue = flush_queue
        self._committing: deque[tuple[int, OnCommitted]] = deque()
        self._watchers: dict[Watcher, None] = {}

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    def begin_leading(self) -> None:
        """After start-up: what recovery found on disk is ours alone, so all of it is committed once it is durable."""
        self.log.start_epoch(self.leader_epoch)
        if self.durable and self.log.recovery_point < self.log.log_end_offset:
            self.log.set_high_watermark(self.log.recovery_point)
            self._flush_queue.request(self)
        else:
            self.log.set_high_watermark(self.log.log_end_offset)

    def lead_in_epoch(self, leader_epoch: int) -> None:
        """The controller began a new leader epoch without moving the leader."""
        if leader_epoch > self.leader_epoch:
            self.leader_epoch = leader_epoch
            self.log.start_epoch(leader_epoch)

    # ---- writing

    def append(
        self, records: Buffer, *, now_ms: int, produce_version: int, from_client: bool = True
    ) -> AppendResult:
        """Validate and append one batch of a client, or of a coordinator of this broker. Raises RequestError, or DiskError when the directory must go offline."""
        if self.stopped_with is not None:
            raise RequestError(self.stopped_with, f"{self!r} is not served by this broker any more")
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
            self._advance_high_watermark(log.log_end_offset)
            if log.log_end_offset - log.recovery_point >= log.config.flush_messages:
                self._flush_queue.request(self)
        return result

    def flushed(self, ticket: FlushTicket) -> None:
        """The group commit synced everything below the ticket's end."""
        self.log.finish_flush(ticket)
        if self.durable and self.stopped_with is None:
            self._advance_high_watermark(self.log.recovery_point)

    def is_committed(self, offset: int) -> bool:
        return self.log.high_watermark > offset

    def when_committed(self, last_offset: int, done: OnCommitted) -> None:
        """Call `done` once the record at `last_offset` is committed, or will never be.

        Waiters stand in order of arrival. A retried duplicate may wait for an offset below its neighbours'; it is released
        with them, which is never too early.
        """
        if self.stopped_with is not None:
            done(self.stopped_with)
        elif self.is_committed(last_offset):
            done(ErrorCode.NONE)
        else:
            self._committing.append((last_offset, done))

    def _advance_high_watermark(self, offset: int) -> None:
        if offset <= self.log.high_watermark:
            return
        self.log.set_high_watermark(offset)
        committing = self._committing
        while committing and committing[0][0] < offset:
            committing.popleft()[1](ErrorCode.NONE)
        self.wake_watchers()

    def set_durable(self, durable: bool) -> None:
        """Change what this replica counts for. Turned off, whatever is written is committed at once."""
        self.durable = durable
        if durable:
            self._flush_queue.request(self)
        elif self.stopped_with is None:
            self._advance_high_watermark(self.log.log_end_offset)

    # ---- reading

    def visible_end(self, *, committed_only: bool) -> int:
        """The first offset that a consumer may not read."""
        return self.log.last_stable_offset if committed_only else self.log.high_watermark

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
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def wake_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.wake()

    # ---- the end

    def delete_records(self, before_offset: int) -> int:
        """Move the log start up to `before_offset` (-1: the high watermark); returns the new log start."""
        if self.stopped_with is not None:
            raise RequestError(self.stopped_with, f"{self!r} is not served by this broker any more")
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
        committing, self._committing = self._committing, deque()
        for _, done in committing:
            done(code)
        self.wake_watchers()
