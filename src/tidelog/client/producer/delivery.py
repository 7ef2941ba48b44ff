"""What `send` gives back: a promise of where the record went, for whoever wants to know.

A batch has one future, not each record: a `Delivery` is a batch and a number. It may be awaited any number of times, by any number of tasks; giving up
waiting does not take the record back. Whoever counts and does not care for single records hears of whole batches (`BatchReport`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from tidelog.client.errors import ClientError
from tidelog.client.metadata import TopicPartition
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.sender import UNKNOWN_OFFSET, Fate


class RecordMetadata(NamedTuple):
    """Where a record is. The offset is -1 where the broker does not say: acks=0, or a repeat that it recognised."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class BatchReport(NamedTuple):
    """What became of a batch. The offset of its first record is -1 where the broker does not say, and where there is an error."""

    tp: TopicPartition
    record_count: int
    size_bytes: int
    """As it went over the wire, compressed."""
    base_offset: int
    error: ClientError | None


BatchCallback = Callable[[BatchReport], None]


class Delivery:
    __slots__ = ("_batch", "_number", "_timestamp")

    def __init__(self, batch: ProducerBatch, number: int, timestamp: int) -> None:
        self._batch = batch
        self._number = number
        self._timestamp = timestamp

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return self._wait().__await__()

    async def _wait(self) -> RecordMetadata:
        while True:
            done: asyncio.Future[Fate] = self._batch.done
            fate = done.result() if done.done() else await asyncio.shield(done)
            if not fate.parts:
                return self._result(fate)
            self._move(fate)

    @property
    def partition(self) -> int:
        return self._batch.tp.partition

    def done(self) -> bool:
        """Whether waiting would return, or raise, at once."""
        while self._batch.done.done():
            fate: Fate = self._batch.done.result()
            if not fate.parts:
                return True
            self._move(fate)
        return False

    def _move(self, fate: Fate) -> None:
        """The batch was taken apart; the record is in one of the parts."""
        for part in fate.parts:
            if self._number < part.count:
                self._batch = part
                return
            self._number -= part.count
        raise AssertionError(f"the parts of a batch have fewer records than the batch: {fate}")

    def _result(self, fate: Fate) -> RecordMetadata:
        batch = self._batch
        batch.observed = True
        if fate.error is not None:
            raise fate.error.with_traceback(None)
        offset = fate.base_offset if fate.base_offset == UNKNOWN_OFFSET else fate.base_offset + self._number
        timestamp = self._timestamp if fate.log_append_time_ms < 0 else fate.log_append_time_ms
        return RecordMetadata(batch.tp.topic, batch.tp.partition, offset, timestamp)
