"""The producer: records in, acknowledged records on brokers, for asyncio.

    async with Producer("localhost:9092", linger_ms=20) as producer:
        delivery = await producer.send("orders", b"one pizza", key=b"table 7")
        where = await delivery          # partition, offset, timestamp; or what went wrong

`send` waits only for room in the buffer and, the first time, for the topic's metadata. What is sent when, and what an answer means, is decided by
`accumulator`, `sender` and `sequences`, which know no sockets; `shipping` has those. This file is what an application calls.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from tidelog.client.cluster import ClusterClient
from tidelog.client.errors import ClientError, ClosedError
from tidelog.client.partitioner import Partitioner, partition_for_key
from tidelog.client.producer.accumulator import Accumulator
from tidelog.client.producer.delivery import BatchCallback, Delivery, RecordMetadata
from tidelog.client.producer.record import Interceptor, OutgoingRecord, as_bytes, as_headers
from tidelog.client.producer.room import Room
from tidelog.client.producer.sender import Fate, Sender, SenderSettings
from tidelog.client.producer.sequences import Sequences
from tidelog.client.producer.shipping import Shipping
from tidelog.client.producer.topics import KnownTopic, ProducerTopics
from tidelog.client.serialization import Serializer
from tidelog.client.settings import ProducerSettings
from tidelog.ports import Rng, SystemRng
from tidelog.records.record import Headers

if TYPE_CHECKING:
    from tidelog.client.producer.arrow import ArrowDelivery

logger = logging.getLogger(__name__)

YIELD_SECONDS: Final = 0.002
"""`send` seldom has to wait; a loop of sends lets the rest of the program run this often."""


class Producer:
    def __init__(
        self,
        bootstrap_servers: str | Iterable[str],
        settings: ProducerSettings | None = None,
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        partitioner: Partitioner | None = None,
        interceptors: Sequence[Interceptor] = (),
        on_batch: BatchCallback | None = None,
        rng: Rng | None = None,
        **options: Any,
    ) -> None:
        """Settings either as one value or as options of the same names. `on_batch` hears what became of each batch; it must not wait for anything."""
        if settings is not None and options:
            raise TypeError(f"either settings or options, not both: {', '.join(options)}")
        self.settings = settings or ProducerSettings(**options)
        self._rng = rng or SystemRng()
        self._cluster = ClusterClient(bootstrap_servers, self.settings, rng=self._rng)
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._partitioner = partitioner
        self._interceptors = tuple(interceptors)
        self._on_batch = on_batch
        self._is_started = self._is_closing = self._is_closed = False

    @classmethod
    def configured(cls, config: Mapping[str, Any], **more: Any) -> Producer:
        """From Kafka's own names: `Producer.configured({"bootstrap.servers": "…", "linger.ms": 20})`."""
        servers, settings = ProducerSettings.configured(config)
        return cls(servers, settings, **more)

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the cluster. `async with` does it, and `send` too, if nobody has."""
        if self._is_started:
            return
        self._is_started = True
        settings, loop = self.settings, asyncio.get_running_loop()
        self._loop = loop
        self.accumulator = Accumulator(
            batch_size=settings.batch_size,
            linger_ms=settings.linger_ms,
            buffer_memory=settings.buffer_memory,
            max_request_size=settings.max_request_size,
            new_done=loop.create_future,
        )
        sequences = Sequences() if settings.enable_idempotence else None
        sender = Sender(
            self.accumulator,
            sequences,
            SenderSettings(
                max_in_flight=settings.max_in_flight_requests_per_connection,
                max_request_bytes=settings.max_request_size,
                delivery_timeout_ms=settings.delivery_timeout_ms,
                retries=settings.retries,
                retry_backoff_ms=settings.retry_backoff_ms,
                retry_backoff_max_ms=settings.retry_backoff_max_ms,
            ),
            self._rng,
        )
        self.topics = ProducerTopics(
            self._cluster,
            settings,
            self._rng,
            waiting=lambda: (batch.tp for batch in self.accumulator.unfinished),
            changed=lambda: self.shipping.look_soon(),
        )
        self.room = Room(
            self.accumulator,
            max_block_ms=settings.max_block_ms,
            hurry=lambda: self.shipping.look_soon(),
        )
        self.shipping = Shipping(
            self._cluster,
            settings,
            sender,
            sequences,
            want_leaders=self.topics.ask_for_leaders,
            settled=self.room.tell_next,
            on_batch=self._on_batch,
        )
        self._yielded_at = loop.time()
        try:
            await self._cluster.retrying(
                partial(self._cluster.refresh_metadata, []), timeout_ms=settings.max_block_ms
            )
        except BaseException:
            await self._end()
            raise

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            try:
                await self.close()
            except ClientError as second:
                logger.warning("while closing: %s", second)

    async def flush(self) -> None:
        """Everything sent so far is acknowledged when this returns. DeliveryFailedError if some of it, that nobody waited for, was not."""
        if not self._is_started:
            return
        batches = self.accumulator.hurry()
        self.shipping.look_soon()
        while batches:
            batch = batches.pop()
            fate: Fate = await asyncio.shield(batch.done)
            batches.extend(fate.parts)
        self.shipping.raise_failures()

    async def close(self, *, timeout_ms: int | None = None) -> None:
        """Deliver what was sent, then end. What is not delivered within `timeout_ms` (the delivery timeout, if not given) fails."""
        if self._is_closed or self._is_closing:
            return
        self._is_closing = True
        if not self._is_started:
            self._is_closed = True
            return
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self.flush()
        except TimeoutError:
            pass
        finally:
            self.shipping.fail_all(lambda batch: ClosedError(f"{batch.tp}: the producer was closed"))
            await self._end()
        self.shipping.raise_failures()

    async def _end(self) -> None:
        self._is_closed = True
        self.room.close()
        await self.topics.close()
        await self.shipping.close()
        await self._cluster.close()

    # -- records in -------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Take a record. Await what this returns to learn where it went. Waits for room for `max.block.ms` at most.

        Budget: 4.4 µs for a record of 100 B, its way to the socket included (`bench/budgets.py`).
        """
        if self._is_closing or not self._is_started:
            await self._may_send()
        if self._interceptors:
            record = OutgoingRecord(topic, value, key, headers, partition, timestamp_ms)
            for intercept in self._interceptors:
                record = intercept(record)
            topic, value, key, headers, partition, timestamp_ms = record
        if self._key_serializer is not None:
            key = self._key_serializer(key)
        if self._value_serializer is not None:
            value = self._value_serializer(value)
        if value is not None and value.__class__ is not bytes:
            value = as_bytes(topic, "value", value)
        if key is not None and key.__class__ is not bytes:
            key = as_bytes(topic, "key", key)
        if headers:
            headers = as_headers(topic, headers)
        known = self.topics.known.get(topic)
        if known is None:
            known = await self.topics.learn(topic)
        if partition is None:
            partition = self._choose(known, key, value)
        tp = known.partitions.get(partition)
        if tp is None:
            tp = await self.topics.find_partition(topic, partition)
        timestamp = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        now = self._loop.time()
        place = None
        if not self.room.waiters:
            place = self.accumulator.append(tp, timestamp, key, value, headers, now)
        if place is None:
            place = await self.room.wait(
                lambda: self.accumulator.append(tp, timestamp, key, value, headers, self._loop.time())
            )
        if place.batch_is_full:
            self.shipping.look_soon()
        elif place.number == 0:
            self.shipping.wake_at(place.batch.ready_at)
        if now - self._yielded_at > YIELD_SECONDS:
            self._yielded_at = now
            await asyncio.sleep(0)
        return Delivery(place.batch, place.number, timestamp)

    async def send_and_wait(self, topic: str, value: Any = None, **more: Any) -> RecordMetadata:
        """`send`, and wait for the acknowledgement: simple, and slow for many records, each of which travels alone."""
        return await (await self.send(topic, value, **more))

    async def send_arrow(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        value: str | None = "value",
        headers: str | None = None,
        partition: str | int | None = None,
        timestamp: str | None = None,
    ) -> ArrowDelivery:
        """Every row of an Arrow RecordBatch, Table or RecordBatchReader as a record; the arguments name columns (`partition` may be a number).

        Keyed rows go where Kafka's clients put them. Await what this returns for where the rows went. Needs the `arrow` extra.
        """
        from tidelog.client.producer.arrow import send_arrow

        await self._may_send()
        return await send_arrow(
            self, topic, data, key=key, value=value, headers=headers, partition=partition, timestamp=timestamp
        )

    async def partitions_for(self, topic: str) -> list[int]:
        await self._may_send()
        return sorted((await self.topics.get(topic)).partitions)

    async def _may_send(self) -> None:
        if self._is_closing:
            raise ClosedError("the producer is closed: no more records can be sent")
        await self.start()

    def _choose(self, known: KnownTopic, key: bytes | None, value: bytes | None) -> int:
        if self._partitioner is not None:
            return self._partitioner(known.info.name, key, value, known.count)
        if key is not None and not self.settings.partitioner_ignore_keys:
            return partition_for_key(key, known.count)
        sticky = known.sticky
        chosen = sticky.current
        if sticky.took(len(key or b"") + len(value or b"") + 8):
            sticky.turn(
                self._loads(known) if self.settings.partitioner_adaptive_partitioning_enable else None
            )
        return chosen

    def _loads(self, known: KnownTopic) -> list[int]:
        return [self.accumulator.waiting(tp) for tp in known.partitions.values()]
