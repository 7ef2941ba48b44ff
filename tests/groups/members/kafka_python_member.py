"""A member of a group by kafka-python: the classic protocol."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import IllegalStateError, KafkaError

from tests.groups.members.options import Options, Stop, parse
from tests.groups.members.pen import Pen

ASSIGNORS = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}
COMMIT_MILLISECONDS_MAX = 10_000
BATCH_RECORDS_MAX = 50
POLL_MS = 1_000
"""Not less: the library (3.0.12) loses its assignment if a poll's time is over while the group's answer is on its way."""


class KafkaPythonMember(ConsumerRebalanceListener):  # type: ignore[misc]
    """The listener runs on the library's own thread while poll() waits for it, where nothing may be committed.

    So what was read since the last commit is read again by the next owner.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pen = Pen(options.output)
        self._progress = options.progress(self._pen)
        self._owned: set[int] = set()
        self._consumer: Any = KafkaConsumer(
            bootstrap_servers=options.bootstrap,
            group_id=options.group,
            group_instance_id=options.instance_id,
            partition_assignment_strategy=tuple(ASSIGNORS[name] for name in options.assignor.split(",")),
            session_timeout_ms=options.session_timeout_ms,
            heartbeat_interval_ms=options.heartbeat_interval_ms,
            enable_auto_commit=not options.commits_by_hand,
            auto_commit_interval_ms=options.auto_commit_interval_ms,
            auto_offset_reset="earliest",
            max_poll_records=BATCH_RECORDS_MAX,
            fetch_max_wait_ms=100,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
        )

    def run(self) -> None:
        stop = Stop()
        self._consumer.subscribe([self._options.topic], listener=self)
        self._pen.write("started")
        while not stop:
            try:
                batches = self._consumer.poll(timeout_ms=POLL_MS)
            except KafkaError as failure:
                self._complain(failure)
                continue
            self._read(batches)
            self._maybe_commit()
        self._consumer.close()
        self._pen.write("closed")

    def _read(self, batches: dict[TopicPartition, list[Any]]) -> None:
        for where, records in batches.items():
            for record in records:
                if where.partition in self._owned:
                    self._progress.received(where.partition, record.offset, record.value)
                    self._maybe_commit()

    def _maybe_commit(self) -> None:
        if self._options.commits_by_hand and self._progress.commit_is_due():
            self._commit()

    def _complain(self, failure: KafkaError) -> None:
        fatal = not failure.retriable
        self._pen.write("complaint", error=type(failure).__name__, text=str(failure), fatal=fatal)
        if fatal:
            os._exit(3)

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        numbers = {partition.partition for partition in assigned}
        self._pen.partitions("assigned", numbers)
        self._owned |= numbers

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._gone("revoked", revoked)

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._gone("lost", lost)

    def _gone(self, event: str, partitions: Iterable[TopicPartition]) -> None:
        numbers = {partition.partition for partition in partitions}
        self._owned -= numbers
        self._progress.forget(numbers)
        self._pen.partitions(event, numbers)

    def _commit(self) -> None:
        number, positions = self._progress.begin_commit()
        if not positions:
            return
        topic = self._options.topic
        offsets = {
            TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in positions.items()
        }
        try:
            self._consumer.commit(offsets, timeout_ms=COMMIT_MILLISECONDS_MAX)
        except (KafkaError, IllegalStateError) as failure:
            self._progress.refused(number, type(failure).__name__)
        else:
            self._progress.committed(number, positions)


if __name__ == "__main__":
    KafkaPythonMember(parse()).run()
