"""Fetch (1), versions 4-18.

5  log start offset            7  incremental sessions (KIP-227)     9  current leader epoch (KIP-320)
11 rack id (KIP-392)           12 flexible; diverging epoch          13 topic ids instead of names
15 replica state               16 leader hints on NOT_LEADER         17 directory id    18 high watermark of the follower

Answers are header bytes plus file ranges: data goes from the page cache to the socket. A fetch that finds fewer than
`min_bytes` waits for more, at most `max_wait_ms`; an error on any partition ends the wait at once.

Budget: 45 µs of CPU for a fetch of one partition (`bench/budgets.py`): everything is looked at once, and what was read is the answer
unless it is too little.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.leader_hints import LeaderHints
from tidelog.broker.limited_log import LimitedLog
from tidelog.broker.pending import Pending
from tidelog.errors import CorruptDataError, RequestError
from tidelog.replication.fetch_session import FetchContext, FetchTarget, PartitionKey, SessionError
from tidelog.replication.leader import ReplicaFetch
from tidelog.replication.partition import Partition
from tidelog.replication.read_replica import NO_PREFERENCE, preferred_read_replica
from tidelog.replication.replica_state import UNKNOWN_BROKER_EPOCH
from tidelog.replication.truncation import divergence
from tidelog.storage.cold_read import ColdBytes, find_cold, warm_all
from tidelog.storage.disk import DiskError, FileRange
from tidelog.wire.codec import request_decoder
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.fetch_frames import (
    FIRST_BY_ID,
    FIRST_WITH_LEADERS,
    Fetched,
    FetchedTopic,
    write_fetch_response,
)
from tidelog.wire.messages.fetch import FetchRequest
from tidelog.wire.types import ZERO_UUID, Part

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

READ_COMMITTED = 1
FIRST_FROM_FOLLOWERS = 11
PARKED_BYTES = 500
"""What a partition of a fetch takes while it waits, its place in a session included, about."""
WARM_ROUNDS_MAX = 4
"""Index, batches, and once more if the kernel dropped them meanwhile; then the loop waits for the disk."""
_LED_ELSEWHERE = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))
_new_tuple = tuple.__new__

complaints = LimitedLog(logging.getLogger("tidelog.broker"), lines_per_second=2)


def handle_frame(
    broker: Broker, context: RequestContext, frame: memoryview, position: int
) -> list[Part] | Pending:
    request, _ = request_decoder(FetchRequest, context.version)(frame, position)
    by_id = context.version >= FIRST_BY_ID
    try:
        fetch = broker.fetch_sessions.resolve(
            session_id=request.session_id,
            epoch=request.session_epoch,
            by_id=by_id,
            targets=_targets(broker, request, by_id=by_id) if request.topics else [],
            forgotten=_forgotten(request, by_id=by_id) if request.forgotten_topics_data else [],
            now=broker.clock.monotonic(),
        )
    except SessionError as error:
        return write_fetch_response(context.version, context.correlation_id, (), error_code=error.code)
    replica_id = request.replica_state.replica_id if context.version >= 15 else request.replica_id
    kind = _Fetch if replica_id < 0 else _ReplicaFetch
    if replica_id >= 0 and context.connection.when_closed is None:
        # A broker that dies closes this connection, too.
        context.connection.when_closed = lambda: broker.node.missing.lost(replica_id)
    return kind(broker, context, request, fetch).serve()


def _targets(broker: Broker, request: FetchRequest, *, by_id: bool) -> list[FetchTarget]:
    targets: list[FetchTarget] = []
    for topic in request.topics:
        name = (broker.partitions.topic_name(topic.topic_id) or "") if by_id else topic.topic
        targets += [
            FetchTarget(
                _key(topic.topic, topic.topic_id, wanted.partition, by_id=by_id),
                wanted.fetch_offset,
                wanted.partition_max_bytes,
                wanted.current_leader_epoch,
                wanted.last_fetched_epoch,
                wanted.log_start_offset,
                name,
            )
            for wanted in topic.partitions
        ]
    return targets


def _forgotten(request: FetchRequest, *, by_id: bool) -> list[PartitionKey]:
    return [
        _key(topic.topic, topic.topic_id, partition, by_id=by_id)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]


def _key(name: str, topic_id: bytes, partition: int, *, by_id: bool) -> PartitionKey:
    return _new_tuple(PartitionKey, ("", topic_id, partition) if by_id else (name, ZERO_UUID, partition))


class _Fetch:
    """One fetch request on its way: read, perhaps wait, answer."""

    __slots__ = (
        "broker",
        "committed_only",
        "context",
        "fetch",
        "limit_bytes",
        "min_bytes",
        "pending",
        "rack",
        "request",
    )
    of_replica = False

    def __init__(
        self, broker: Broker, context: RequestContext, request: FetchRequest, fetch: FetchContext
    ) -> None:
        self.broker = broker
        self.context = context
        self.request = request
        self.fetch = fetch
        self.committed_only = request.isolation_level == READ_COMMITTED
        self.limit_bytes = min(request.max_bytes, broker.fetch_bytes_max)
        # A reader that asks for more than fits into an answer would wait in vain.
        self.min_bytes = min(request.min_bytes, self.limit_bytes)
        # Only who says where it is, to a broker that looks at it, is sent elsewhere (KIP-392).
        self.rack = request.rack_id if broker.replica_selector is not None else ""
        self.pending: Pending | None = None

    def serve(self) -> list[Part] | Pending:
        cold = self._find_cold()
        if cold:
            self.pending = self._defer()
            self._warm(cold, WARM_ROUNDS_MAX)
            return self.pending
        found = self._read_all()
        if self.request.max_wait_ms > 0 and self.fetch.targets and self._is_too_little(found):
            self.pending = self._defer()
            self._park(found)
            return self.pending
        return self._answer(found)

    def _defer(self) -> Pending:
        """One fetch may wait while others behind it are served; the second waits alone, so that nobody parks thousands."""
        weight = PARKED_BYTES * len(self.fetch.targets)
        return self.context.defer(alone=self.context.connection.is_waiting, weight=weight)

    # ---- cold data

    def _find_cold(self, *, again: bool = False) -> list[ColdBytes]:
        """What the answer would have to wait for on the disk. Such a fetch leaves the loop until a thread has read it."""
        left = self.limit_bytes
        now = monotonic()
        cold: list[ColdBytes] = []
        for target in self.fetch.targets:
            partition = self.broker.partitions.find(target.name, target.key.partition)
            if partition is None or partition.stopped_with is not None:
                continue
            wanted = min(target.max_bytes, left)
            found = find_cold(partition.log, target.fetch_offset, wanted, now, index_was_warmed=again)
            if found is not None:
                cold.append(found)
                left -= found.size
                if left <= 0:
                    break
        return cold

    def _warm(self, cold: list[ColdBytes], rounds: int) -> None:
        reading = self.broker.read_in_thread(lambda: warm_all(cold))
        reading.add_done_callback(lambda done: self._warmed(done, rounds - 1))

    def _warmed(self, reading: asyncio.Future[None], rounds: int) -> None:
        partitions = self.broker.partitions
        error = reading.exception()
        if isinstance(error, DiskError):
            partitions.dir_failed(partitions.log_dir_containing(error.path), error)
        assert self.pending is not None
        if self.pending.connection.closed:
            return
        cold = self._find_cold(again=True) if rounds and error is None else None
        if cold:
            self._warm(cold, rounds)
            return
        found = self._read_all()
        if self.request.max_wait_ms > 0 and self._is_too_little(found):
            self._park(found)
        else:
            self._deliver(found)

    # ---- waiting

    def _is_too_little(self, found: list[_Read]) -> bool:
        """No partition has an error, and all together have fewer than `min_bytes`.

        Damage is no reason to hurry: readers who stand before it ask again at once, thousands of times a second.
        """
        available = 0
        for fetched, _ in found:
            error = fetched.error_code
            if (error and error != ErrorCode.CORRUPT_MESSAGE) or fetched.diverging is not None:
                return False
            if fetched.preferred != NO_PREFERENCE:
                return False
            available += len(fetched.records)
        return available < self.min_bytes

    def _park(self, found: list[_Read]) -> None:
        assert self.pending is not None
        _let_go(found)
        watched = [partition for _, partition in found if partition is not None]
        parked = self.broker.fetch_purgatory.park(
            watched,
            max_wait_ms=self.request.max_wait_ms,
            look=self._look,
            complete=self._complete,
            whole_log=self.of_replica,
            high_watermark=self.of_replica and self.broker.replica_selector is not None,
        )
        self.pending.on_cancel = parked.cancel

    def _look(self) -> Callable[[], None] | None:
        """Woken: the answer, if there is enough for one by now."""
        found = self._read_all()
        if self._is_too_little(found):
            _let_go(found)
            return None
        return lambda: self._deliver(found)

    def _complete(self) -> None:
        """The time is over: whatever there is."""
        self._deliver(self._read_all())

    def _deliver(self, found: list[_Read]) -> None:
        assert self.pending is not None
        self.pending.complete(self._answer(found), at_once=True)

    # ---- answering

    def _answer(self, found: list[_Read]) -> list[Part]:
        session, incremental = self.fetch.session, self.fetch.incremental
        topics: list[FetchedTopic] = []
        topic: FetchedTopic | None = None
        hints: LeaderHints | None = None
        context = self.context
        for target, (fetched, _) in zip(self.fetch.targets, found, strict=True):
            name, topic_id, _index = target.key
            if fetched.error_code in _LED_ELSEWHERE and context.version >= FIRST_WITH_LEADERS:
                hints = hints or LeaderHints(self.broker)
                fetched = fetched._replace(current_leader=hints.leader_of(target.name, fetched.partition))
            if session is not None:
                must_answer = session.must_answer(
                    target.key,
                    has_records=len(fetched.records) > 0,
                    error=fetched.error_code,
                    diverging=fetched.diverging is not None,
                    high_watermark=fetched.high_watermark,
                    log_start_offset=fetched.log_start_offset,
                    preferred=fetched.preferred != NO_PREFERENCE,
                )
                if incremental and not must_answer:
                    continue
            # As Kafka does, only neighbours share an entry: a session's order mixes topics.
            if topic is None or topic.topic_id != topic_id or topic.name != name:
                topic = _new_tuple(FetchedTopic, (name, topic_id, []))
                topics.append(topic)
            topic.partitions.append(fetched)
        return write_fetch_response(
            context.version,
            context.correlation_id,
            topics,
            session_id=self.fetch.session_id,
            endpoints=() if hints is None else hints.endpoints(context.connection.listener_name),
        )

    # ---- reading

    def _read_all(self) -> list[_Read]:
        """Every partition of the request, in its order, up to the size of an answer. What is not sent must be let go."""
        left = self.limit_bytes
        found: list[_Read] = []
        nothing_yet = True
        for target in self.fetch.targets:
            read = self._read(target, left, whole_first_batch=nothing_yet)
            size = len(read[0].records)
            if size:
                left -= size
                nothing_yet = False
            found.append(read)
        return found

    def _read(self, target: FetchTarget, left: int, *, whole_first_batch: bool) -> _Read:
        partition = None
        try:
            partition = self._partition(target)
            return self._read_partition(
                target, partition, left, whole_first_batch=whole_first_batch
            ), partition
        except RequestError as error:
            code = error.code
        except DiskError as error:
            assert partition is not None
            self.broker.partitions.disk_failed(partition, error)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        except CorruptDataError as error:
            complaints.error("%r cannot be read at offset %d: %s", partition, target.fetch_offset, error)
            code = ErrorCode.CORRUPT_MESSAGE
        return Fetched(target.key.partition, code, aborted=() if self.committed_only else None), partition

    def _partition(self, target: FetchTarget) -> Partition:
        if not target.name:
            # Unknown when the session heard of it; perhaps the topic is there by now.
            target.name = self.broker.partitions.topic_name(target.key.topic_id) or ""
            if not target.name:
                raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID)
        partition = self._find(target)
        if target.key.topic_id not in (ZERO_UUID, partition.topic_id):
            raise RequestError(ErrorCode.INCONSISTENT_TOPIC_ID)
        partition.check_leader_epoch(target.current_leader_epoch)
        return partition

    def _find(self, target: FetchTarget) -> Partition:
        partition = self.broker.partitions.find(target.name, target.key.partition)
        if partition is None or partition.leader is None:
            if partition is None or partition.follower is None or self.context.version < FIRST_FROM_FOLLOWERS:
                return self.broker.partitions.leader_of(target.name, target.key.partition)
            partition.check_readable(
                target.fetch_offset
            )  # KIP-392: its leader may have sent the consumer here
        return partition

    def _read_partition(
        self, target: FetchTarget, partition: Partition, left: int, *, whole_first_batch: bool
    ) -> Fetched:
        log, offset, index = partition.log, target.fetch_offset, target.key.partition
        last_stable_offset = log.last_stable_offset
        end = last_stable_offset if self.committed_only else log.high_watermark
        if target.last_fetched_epoch >= 0:
            diverging = divergence(log, last_fetched_epoch=target.last_fetched_epoch, fetch_offset=offset)
            if diverging is not None:
                return Fetched(
                    index,
                    0,
                    log.high_watermark,
                    last_stable_offset,
                    log.log_start_offset,
                    aborted=() if self.committed_only else None,
                    diverging=diverging,
                )
        if self.rack:
            preferred = preferred_read_replica(
                partition,
                self.broker.replica_selector,
                self.broker.rack_of,
                client_rack=self.rack,
                fetch_offset=offset,
            )
            if preferred != NO_PREFERENCE:
                return Fetched(
                    index,
                    0,
                    log.high_watermark,
                    last_stable_offset,
                    log.log_start_offset,
                    aborted=() if self.committed_only else None,
                    preferred=preferred,
                )
        if offset == log.log_end_offset:
            # Where a reader waits. Remembered, the bytes that will arrive are found without a search.
            log.positions.remember(offset, log.active, log.active.size)
            found = None
        else:
            read = log.read(
                offset,
                max(min(target.max_bytes, left), 0),
                end_offset=end,
                min_one_batch=whole_first_batch,
            )
            found = read.range
        aborted: list[tuple[int, int]] | None = None
        if self.committed_only:
            aborted = []
            if found is not None:
                ended = log.aborted_transactions(offset, read.upper_offset)
                aborted = [(each.producer_id, each.first_offset) for each in ended]
        records = b"" if found is None else found
        start = log.log_start_offset
        return _new_tuple(
            Fetched,
            (
                index,
                0,
                log.high_watermark,
                last_stable_offset,
                start,
                records,
                aborted,
                None,
                NO_PREFERENCE,
                None,
            ),
        )


class _ReplicaFetch(_Fetch):
    """A fetch of a follower: it says how far the follower is, and is answered with all that is in the log."""

    __slots__ = ("is_noted",)
    of_replica = True

    def serve(self) -> list[Part] | Pending:
        self.is_noted = False
        return super().serve()

    @property
    def _follower_id(self) -> int:
        request = self.request
        return request.replica_state.replica_id if self.context.version >= 15 else request.replica_id

    def _is_too_little(self, found: list[_Read]) -> bool:
        """Where consumers read from followers, those hear at once of what is committed."""
        if self.broker.replica_selector is not None:
            follower_id = self._follower_id
            if any(partition is not None and partition.has_news_for(follower_id) for _, partition in found):
                return False
        return super()._is_too_little(found)

    def _answer(self, found: list[_Read]) -> list[Part]:
        if self.broker.replica_selector is not None:
            for fetched, partition in found:
                if partition is not None and not fetched.error_code and fetched.diverging is None:
                    partition.has_told(self._follower_id, fetched.high_watermark)
        return super()._answer(found)

    def _find(self, target: FetchTarget) -> Partition:
        return self.broker.partitions.leader_of(target.name, target.key.partition)

    def _read_all(self) -> list[_Read]:
        found = super()._read_all()
        self.is_noted = (
            True  # what it says of itself was true when it came, and is not said again while it waits
        )
        return found

    def _read_partition(
        self, target: FetchTarget, partition: Partition, left: int, *, whole_first_batch: bool
    ) -> Fetched:
        log, offset, index = partition.log, target.fetch_offset, target.key.partition
        state = self.request.replica_state
        fetch = ReplicaFetch(
            self._follower_id,
            state.replica_epoch if self.context.version >= 15 else UNKNOWN_BROKER_EPOCH,
            target.current_leader_epoch,
            offset,
            target.last_fetched_epoch,
            target.log_start_offset,
        )
        diverging = partition.check_replica_fetch(fetch)
        if diverging is None and not self.is_noted:
            partition.replica_fetched(fetch, now=self.broker.clock.monotonic())
        records: bytes | FileRange = b""
        if diverging is None and offset < log.log_end_offset:
            read = log.read(
                offset,
                max(min(target.max_bytes, left), 0),
                end_offset=log.log_end_offset,
                min_one_batch=whole_first_batch,
            )
            records = b"" if read.range is None else read.range
        return Fetched(
            index,
            0,
            log.high_watermark,
            log.last_stable_offset,
            log.log_start_offset,
            records,
            None,
            diverging,
        )


_Read: TypeAlias = tuple[Fetched, Partition | None]
"""What was found, and where; nowhere if there is no such partition."""


def _let_go(found: list[_Read]) -> None:
    for fetched, _ in found:
        if isinstance(fetched.records, FileRange):
            fetched.records.release()
