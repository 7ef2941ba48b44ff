"""A member of a group by aiokafka: the classic protocol, eager."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError

from tests.groups.members.options import Options, Stop, parse
from tests.groups.members.pen import Pen

REBALANCE_MILLISECONDS_MAX = 60_000
COMMIT_SECONDS_MAX = 10.0
BATCH_RECORDS_MAX = 50


class AiokafkaMember(ConsumerRebalanceListener):  # type: ignore[misc]
    """The listener runs beside the loop that reads: only what is owned at that moment is taken."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pen = Pen(options.output)
        self._progress = options.progress(self._pen)
        self._owned: set[int] = set()
        self._revocations = 0
        self._consumer: Any = AIOKafkaConsumer(
            bootstrap_servers=options.bootstrap,
            group_id=options.group,
            group_instance_id=options.instance_id,
            partition_assignment_strategy=(RangePartitionAssignor,),
            session_timeout_ms=options.session_timeout_ms,
            heartbeat_interval_ms=options.heartbeat_interval_ms,
            rebalance_timeout_ms=REBALANCE_MILLISECONDS_MAX,
            enable_auto_commit=not options.commits_by_hand,
            auto_commit_interval_ms=options.auto_commit_interval_ms,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
            # The library waits this long for a JoinGroup, which the broker holds while it waits for other members.
            request_timeout_ms=REBALANCE_MILLISECONDS_MAX + 10_000,
        )

    async def run(self) -> None:
        stop = Stop()
        self._consumer.subscribe([self._options.topic], listener=self)
        await self._consumer.start()
        self._pen.write("started")
        while not stop:
            try:
                batches = await self._consumer.getmany(timeout_ms=100, max_records=BATCH_RECORDS_MAX)
            except KafkaError as failure:
                self._complain(failure)
                continue
            await self._read(batches)
            await self._maybe_commit()
        if self._options.commits_by_hand:
            await self._commit()
        self._pen.write("left")  # stop() does not call the listener
        self._owned.clear()
        await self._consumer.stop()
        self._pen.write("closed")

    async def _read(self, batches: dict[TopicPartition, list[Any]]) -> None:
        """While a commit is awaited everything may change hands: what is left of the batch is old then."""
        revocations = self._revocations
        for where, records in batches.items():
            for record in records:
                if where.partition in self._owned:
                    self._progress.received(where.partition, record.offset, record.value)
                await self._maybe_commit()
                if self._revocations != revocations:
                    return

    async def _maybe_commit(self) -> None:
        if self._options.commits_by_hand and self._progress.commit_is_due():
            await self._commit()

    def _complain(self, failure: KafkaError) -> None:
        fatal = not failure.retriable
        self._pen.write("complaint", error=type(failure).__name__, text=str(failure), fatal=fatal)
        if fatal:
            os._exit(3)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        numbers = {partition.partition for partition in assigned}
        self._pen.partitions("assigned", numbers)
        self._owned |= numbers

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        numbers = {partition.partition for partition in revoked}
        self._owned -= numbers
        self._revocations += 1
        if self._options.commits_by_hand:
            await self._commit()
        self._progress.forget(numbers)
        self._pen.partitions("revoked", numbers)

    async def _commit(self) -> None:
        number, positions = self._progress.begin_commit()
        if not positions:
            return
        offsets = {
            TopicPartition(self._options.topic, partition): offset for partition, offset in positions.items()
        }
        try:
            await asyncio.wait_for(self._consumer.commit(offsets), COMMIT_SECONDS_MAX)
        except (KafkaError, TimeoutError) as failure:
            self._progress.refused(number, type(failure).__name__)
        else:
            self._progress.committed(number, positions)


async def main() -> None:
    await AiokafkaMember(parse()).run()  # the library wants to be made on a running loop


if __name__ == "__main__":
    asyncio.run(main())
