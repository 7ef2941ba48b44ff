"""Two pieces of the simulated broker's shell: a group commit that takes its time, and a follower's fetch on its way through the leader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from tidelog.errors import CorruptDataError, RequestError
from tidelog.replication.fetch_session import FetchContext, FetchTarget
from tidelog.replication.leader import ReplicaFetch
from tidelog.replication.partition import Partition
from tidelog.replication.purgatory import FetchPurgatory
from tidelog.testing.sim.events import Process
from tidelog.testing.sim.storage_checks import Violation
from tidelog.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

if TYPE_CHECKING:
    from tidelog.testing.sim.replication_broker import SimBroker


class SimFlushQueue:
    """The group commit: a sync takes its time, and what is asked for meanwhile is the next one's."""

    def __init__(self, process: Process, rng: Random, sync_s: float) -> None:
        self._process = process
        self._rng = rng
        self.sync_s = sync_s
        self._wanted = False
        self._running = False

    def request(self, partition: Partition, /) -> None:
        self._wanted = True
        if not self._running:
            self._running = True
            self._process.call_soon(lambda: self._begin(partition))

    def _begin(self, partition: Partition) -> None:
        self._wanted = False
        ticket = partition.log.begin_flush() if partition.stopped_with is None else None
        if ticket is None:
            self._running = False
            return
        slow = 40.0 if self._rng.random() < 0.02 else 1.0

        def done() -> None:
            ticket.run()
            partition.flushed(ticket)
            if self._wanted:
                self._begin(partition)
            else:
                self._running = False

        self._process.call_later(self._rng.random() * self.sync_s * slow, done)


class ServedFetch:
    """A follower's fetch on its way: looked at once, and perhaps parked until there is more."""

    def __init__(
        self, broker: SimBroker, request: FetchRequest, context: FetchContext, respond: Callable[[Any], None]
    ) -> None:
        self._broker = broker
        self._request = request
        self._context = context
        self._respond = respond
        self._told_leader = False

    def serve(self, purgatory: FetchPurgatory) -> None:
        answer = self._look()
        if answer is not None:
            answer()
        else:
            purgatory.park(
                [self._broker.partition],
                max_wait_ms=self._request.max_wait_ms,
                look=self._look,
                complete=lambda: self._answer([self._read(target) for target in self._context.targets]),
                whole_log=True,
            )

    def _look(self) -> Callable[[], None] | None:
        found = [self._read(target) for target in self._context.targets]
        if found and not any(
            data.error_code or data.records or data.diverging_epoch.epoch >= 0 for data in found
        ):
            return None
        return lambda: self._answer(found)

    def _read(self, target: FetchTarget) -> PartitionData:
        broker = self._broker
        partition, log = broker.partition, broker.log
        state = self._request.replica_state
        fetch = ReplicaFetch(
            state.replica_id,
            state.replica_epoch,
            target.current_leader_epoch,
            target.fetch_offset,
            target.last_fetched_epoch,
            target.log_start_offset,
        )
        data = PartitionData(
            partition_index=0, high_watermark=log.high_watermark, log_start_offset=log.log_start_offset
        )
        try:
            diverging = partition.check_replica_fetch(fetch)
            if diverging is not None:
                return replace(data, diverging_epoch=EpochEndOffset(*diverging))
            if not self._told_leader:
                self._told_leader = True
                broker.on_counted(fetch)
                partition.replica_fetched(fetch, now=broker.process.monotonic())
                data.high_watermark = log.high_watermark
            found = log.read(target.fetch_offset, target.max_bytes, end_offset=log.log_end_offset)
        except RequestError as error:
            return replace(data, error_code=error.code)
        except CorruptDataError as error:
            raise Violation("LogsAreSound", f"broker {broker.broker_id}: {error}") from error
        if found.range is not None:
            data.records = found.range.read()
            found.range.release()
        return data

    def _answer(self, found: list[PartitionData]) -> None:
        session = self._context.session
        answered = []
        for target, data in zip(self._context.targets, found, strict=True):
            must_answer = session is None or session.must_answer(
                target.key,
                has_records=bool(data.records),
                error=data.error_code,
                diverging=data.diverging_epoch.epoch >= 0,
                high_watermark=data.high_watermark,
                log_start_offset=data.log_start_offset,
            )
            if must_answer or not self._context.incremental:
                answered.append(data)
        topics = (
            [FetchableTopicResponse(topic_id=self._broker.partition.topic_id, partitions=answered)]
            if answered
            else []
        )
        self._respond(FetchResponse(session_id=self._context.session_id, responses=topics))
