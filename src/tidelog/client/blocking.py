"""Producer, Consumer and Admin for programs without an event loop: the same names, the same settings, no `await`.

    from tidelog.client.blocking import Consumer, Producer

    with Producer("localhost:9092") as producer:
        producer.send("orders", b"one pizza", key=b"table 7")

Each has a thread with an event loop in which the asyncio client works; heartbeats and retries go on whatever the application does. `send` hands a record over and
returns; what crosses the threads is a list, not a future for each record. A consumer belongs to one thread at a time, a producer to any number.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidelog.client.blocking_admin import Admin
from tidelog.client.consumer import consumer as asyncio_consumer
from tidelog.client.consumer.listener import RebalanceListener
from tidelog.client.consumer.records import ConsumerRecord
from tidelog.client.errors import BufferExhaustedError, ClosedError, DeliveryFailedError
from tidelog.client.groups import Committed, Membership
from tidelog.client.loop_thread import LoopThread
from tidelog.client.metadata import TopicPartition
from tidelog.client.offsets import FoundOffset
from tidelog.client.producer import producer as asyncio_producer
from tidelog.client.producer.delivery import Delivery as AsyncioDelivery
from tidelog.client.producer.delivery import RecordMetadata
from tidelog.client.settings import ConsumerSettings, ProducerSettings
from tidelog.records.record import Headers

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Admin", "Consumer", "Delivery", "Producer"]

T = TypeVar("T")
HANDED_OVER_MAX: Final = 10_000
"""Records between the threads; more are waited for. The rest of the bound is `buffer.memory`."""
REFUSED_KEPT: Final = 1_000
"""Deliveries that failed before they were sent, until `flush` or `close`; more are only counted."""


class Delivery:
    """What `send` returns. `result` waits for the acknowledgement."""

    __slots__ = ("_error", "_found", "_is_seen", "_producer")

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._is_seen = False  # somebody has heard that it failed
        self._found: AsyncioDelivery | None = None
        self._error: BaseException | None = None

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is, or what went wrong. TimeoutError after `timeout` seconds; the record is still on its way then."""
        return self._producer._thread.run(self._wait(), timeout)

    async def _wait(self) -> RecordMetadata:
        await self._producer._drain()
        if self._error is not None:
            self._is_seen = True
            raise self._error
        assert self._found is not None
        return await self._found

    def done(self) -> bool:
        return self._error is not None or (self._found is not None and self._found.done())


class Producer:
    def __init__(self, bootstrap_servers: str | Iterable[str], *arguments: Any, **options: Any) -> None:
        """As the asyncio producer's."""
        self._inner = asyncio_producer.Producer(bootstrap_servers, *arguments, **options)
        self.settings = self._inner.settings
        self._inbox: deque[tuple[tuple[str, Any, Any, Headers, int | None, int | None], Delivery]] = deque()
        self._room = threading.Condition()
        self._is_draining = False
        self._refused: list[Delivery] = []
        self._refused_uncounted = 0
        self._turn = asyncio.Lock()
        self._drained: asyncio.Task[None] | None = None
        self._is_closed = False
        self._thread = LoopThread("tidelog-producer")

    @classmethod
    def configured(cls, config: Mapping[str, Any], **more: Any) -> Producer:
        servers, settings = ProducerSettings.configured(config)
        return cls(servers, settings, **more)

    def __enter__(self) -> Producer:
        try:
            self._thread.run(self._inner.start())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Take a record; any thread may call this. Waits while the brokers do not keep up, `max.block.ms` at most."""
        if self._is_closed:
            raise ClosedError("the producer is closed: no more records can be sent")
        delivery = Delivery(self)
        inbox = self._inbox
        if len(inbox) >= HANDED_OVER_MAX:
            self._wait_for_room()
        inbox.append(((topic, value, key, headers, partition, timestamp_ms), delivery))
        if not self._is_draining:
            self._is_draining = True
            self._thread.loop.call_soon_threadsafe(self._begin_draining)
        return delivery

    def send_and_wait(self, topic: str, value: Any = None, **more: Any) -> RecordMetadata:
        return self.send(topic, value, **more).result()

    def send_arrow(self, topic: str, data: Any, **columns: Any) -> list[Any]:
        """Every row of Arrow data as a record; returns when all are acknowledged, with where they went."""

        async def send() -> list[Any]:
            return list(await (await self._inner.send_arrow(topic, data, **columns)))

        return self._thread.run(send())

    def flush(self) -> None:
        """Everything sent so far is acknowledged when this returns. DeliveryFailedError if some of it, that nobody waited for, was not."""

        async def flush() -> None:
            await self._drain()
            await self._inner.flush()
            self._raise_refused()

        self._thread.run(flush())

    def close(self) -> None:
        """Deliver what was sent, then end."""
        if self._is_closed:
            return
        self._is_closed = True

        async def close() -> None:
            await self._drain()
            await self._inner.close()
            self._raise_refused()

        try:
            self._thread.run(close())
        finally:
            self._thread.stop()

    def partitions_for(self, topic: str) -> list[int]:
        return self._thread.run(self._inner.partitions_for(topic))

    # -- between the threads ----------------------------------------------------------------------------------------

    def _wait_for_room(self) -> None:
        with self._room:
            if not self._room.wait_for(
                lambda: len(self._inbox) < HANDED_OVER_MAX // 2 or self._is_closed,
                self.settings.max_block_ms / 1000,
            ):
                raise BufferExhaustedError(
                    f"no room for another record within max.block.ms={self.settings.max_block_ms}: brokers take them too slowly,"
                    f" and buffer.memory={self.settings.buffer_memory} bytes are used up"
                )

    def _begin_draining(self) -> None:
        self._drained = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        """Everything that was handed over before this was called is sent, or has failed, when it returns."""
        inbox, send = self._inbox, self._inner.send
        async with self._turn:
            while True:
                while inbox:
                    (topic, value, key, headers, partition, timestamp_ms), delivery = inbox.popleft()
                    try:
                        delivery._found = await send(
                            topic,
                            value,
                            key=key,
                            headers=headers,
                            partition=partition,
                            timestamp_ms=timestamp_ms,
                        )
                    except Exception as error:  # noqa: BLE001 (also of serializers; whoever asks for the delivery gets it, or else `flush`)
                        self._refuse(delivery, error)
                    if len(inbox) == HANDED_OVER_MAX // 4:
                        self._tell_room()
                self._is_draining = False
                self._tell_room()
                if not inbox:  # somebody may have come between the last look and the flag
                    return
                self._is_draining = True

    def _refuse(self, delivery: Delivery, error: Exception) -> None:
        delivery._error = error
        if len(self._refused) < REFUSED_KEPT:
            self._refused.append(delivery)
        else:
            self._refused_uncounted += 1

    def _raise_refused(self) -> None:
        """What `send` took over and could not be sent at all is not forgotten because nobody has asked."""
        unseen = [each for each in self._refused if not each._is_seen]
        count = len(unseen) + self._refused_uncounted
        self._refused, self._refused_uncounted = [], 0
        if unseen:
            first = unseen[0]._error
            raise DeliveryFailedError(f"{count} records could not be sent; the first: {first}") from first

    def _tell_room(self) -> None:
        with self._room:
            self._room.notify_all()


class Consumer:
    def __init__(self, bootstrap_servers: str | Iterable[str], *arguments: Any, **options: Any) -> None:
        """As the asyncio consumer's."""
        self._inner = asyncio_consumer.Consumer(bootstrap_servers, *arguments, **options)
        self.settings = self._inner.settings
        self._is_closed = False
        self._thread = LoopThread("tidelog-consumer")
        self._run = self._thread.run

    @classmethod
    def configured(cls, config: Mapping[str, Any], **more: Any) -> Consumer:
        servers, settings = ConsumerSettings.configured(config)
        return cls(servers, settings, **more)

    def __enter__(self) -> Consumer:
        try:
            self._run(self._inner.start())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self, *, commit: bool | None = None) -> None:
        if self._is_closed:
            return
        self._is_closed = True

        async def close() -> None:
            await self._inner.close(commit=commit)
            await asyncio.sleep(0.01)  # whoever waits in another thread hears of it

        try:
            self._run(close())
        finally:
            self._thread.stop()

    def _do(self, call: Callable[[], T]) -> T:
        """In the loop's thread: what it touches has one writer."""

        async def do() -> T:
            return call()

        return self._run(do())

    # -- records ----------------------------------------------------------------------------------------------------

    def poll(self, *, timeout_ms: int = 1_000, max_records: int | None = None) -> list[ConsumerRecord]:
        return self._run(self._inner.poll(timeout_ms=timeout_ms, max_records=max_records))

    def poll_arrow(self, *, timeout_ms: int = 1_000, **more: Any) -> pa.RecordBatch:
        return self._run(self._inner.poll_arrow(timeout_ms=timeout_ms, **more))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        record = self._inner.take_held()
        if record is not None:
            return record
        try:
            return self._run(self._inner.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    # -- what to read -----------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """The listener is called in the loop's thread, while this one waits in a poll; it must not call this consumer."""
        self._do(lambda: self._inner.subscribe(topics, pattern=pattern, listener=listener))

    def unsubscribe(self) -> None:
        self._do(self._inner.unsubscribe)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._do(lambda: self._inner.assign(partitions))

    def assignment(self) -> frozenset[TopicPartition]:
        return self._inner.assignment()

    def subscription(self) -> frozenset[str]:
        return self._inner.subscription()

    def group_metadata(self) -> Membership:
        return self._inner.group_metadata()

    # -- positions --------------------------------------------------------------------------------------------------

    def seek(self, tp: TopicPartition, offset: int, *, leader_epoch: int = -1) -> None:
        self._do(lambda: self._inner.seek(tp, offset, leader_epoch=leader_epoch))

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        self._do(lambda: self._inner.seek_to_beginning(partitions))

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        self._do(lambda: self._inner.seek_to_end(partitions))

    def seek_to_time(self, times_ms: Mapping[TopicPartition, int] | int) -> None:
        self._do(lambda: self._inner.seek_to_time(times_ms))

    def pause(self, *partitions: TopicPartition) -> None:
        self._do(lambda: self._inner.pause(*partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        self._do(lambda: self._inner.resume(*partitions))

    def paused(self) -> frozenset[TopicPartition]:
        return self._inner.paused()

    def position(self, tp: TopicPartition) -> int:
        return self._run(self._inner.position(tp))

    def positions(self) -> dict[TopicPartition, int]:
        return self._do(self._inner.positions)

    def lag(self, tp: TopicPartition) -> int | None:
        return self._inner.lag(tp)

    # -- commits and questions --------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, int | Committed] | None = None) -> None:
        self._run(self._inner.commit(offsets))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | Committed] | None = None,
        callback: Callable[[Mapping[TopicPartition, Committed], BaseException | None], None] | None = None,
    ) -> None:
        """The callback is called in the loop's thread."""
        self._do(lambda: self._inner.commit_async(offsets, callback))

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        return self._run(self._inner.committed(partitions))

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return self._run(self._inner.beginning_offsets(partitions))

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return self._run(self._inner.end_offsets(partitions))

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset | None]:
        return self._run(self._inner.offsets_for_times(times_ms))

    def partitions_for(self, topic: str) -> list[int]:
        return self._run(self._inner.partitions_for(topic))

    def topics(self) -> frozenset[str]:
        return self._run(self._inner.topics())

    def parallel(self, handler: Callable[[ConsumerRecord], Any], **options: Any) -> None:
        """Until the consumer is closed from another thread, or Ctrl-C. The handler, a plain function, runs in threads."""
        self._run(self._inner.parallel(handler, **options))
