"""The producer: records in, acknowledged records on brokers, for asyncio.

    async with Producer("localhost:9092", linger_ms=20) as producer:
        delivery = await producer.send("orders", b"one pizza", key=b"table 7")
        where = await delivery          # partition, offset, timestamp; or what went wrong

`send` waits only for room in the buffer and, the first time, for the topic's metadata. What is sent when, and what an answer means, is decided by
`accumulator`, `sender` and `sequences`, which know no sockets; this file has the sockets, the timers and the futures. A look at what is to do
is a callback of the loop, not a task: it happens when a batch is full, when one has lingered, when an answer is there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from tidelog.client.backoff import Deadline
from tidelog.client.cluster import ClusterClient, PartitionMissingError
from tidelog.client.connection import Connection
from tidelog.client.errors import (
    BufferExhaustedError,
    ClientError,
    ClosedError,
    DeliveryFailedError,
    check,
)
from tidelog.client.links import Links
from tidelog.client.metadata import ZERO_ID, TopicInfo, TopicPartition
from tidelog.client.partitioner import Partitioner, UniformSticky, partition_for_key
from tidelog.client.producer.accumulator import Accumulator
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.delivery import Delivery, RecordMetadata
from tidelog.client.producer.sender import Answer, Fate, Outgoing, Sender, SenderSettings
from tidelog.client.producer.sequences import Sequences
from tidelog.client.serialization import Serializer
from tidelog.client.settings import ProducerSettings
from tidelog.ports import Rng, SystemRng
from tidelog.records.record import Headers
from tidelog.wire.api import ApiKey
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

if TYPE_CHECKING:
    from tidelog.client.producer.arrow import ArrowDelivery

T = TypeVar("T")
logger = logging.getLogger(__name__)

LAST_VERSION_WITH_NAMES: Final = 12
YIELD_SECONDS: Final = 0.002
"""`send` seldom has to wait; a loop of sends lets the rest of the program run this often."""
FAILURES_KEPT: Final = 100


class OutgoingRecord(NamedTuple):
    """A record before it is serialized, as interceptors see it; they return another one."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


Interceptor = Callable[[OutgoingRecord], OutgoingRecord]


class KnownTopic:
    """What `send` needs to know of a topic."""

    __slots__ = ("count", "info", "partitions", "sticky")

    def __init__(self, info: TopicInfo, sticky_bytes: int, rng: Rng) -> None:
        self.info = info
        self.count = len(info.partitions)
        self.partitions = {number: TopicPartition(info.name, number) for number in info.partitions}
        self.sticky = UniformSticky(list(info.partitions), sticky_bytes, rng)

    def next_for_rows(self) -> int:
        """The partition for a slice of rows without keys; the next slice goes to another one."""
        chosen = self.sticky.current
        self.sticky.turn()
        return chosen


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
        rng: Rng | None = None,
        **options: Any,
    ) -> None:
        """Settings either as one value or as options of the same names."""
        if settings is not None and options:
            raise TypeError(f"either settings or options, not both: {', '.join(options)}")
        self.settings = settings or ProducerSettings(**options)
        self._rng = rng or SystemRng()
        self._cluster = ClusterClient(bootstrap_servers, self.settings, rng=self._rng)
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._partitioner = partitioner
        self._interceptors = tuple(interceptors)
        self._topics: dict[str, KnownTopic] = {}
        self._learning: dict[str, asyncio.Task[KnownTopic]] = {}
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
        self._sequences = Sequences() if settings.enable_idempotence else None
        self._sender = Sender(
            self.accumulator,
            self._sequences,
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
        self._links = Links(self._cluster, lane="produce", changed=self.look_soon)
        self._look_handle: asyncio.Handle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._failures: dict[ProducerBatch, ClientError] = {}
        self._failures_uncounted = 0
        self._asking_leaders: asyncio.Task[None] | None = None
        self._asking_id: asyncio.Task[None] | None = None
        self._yielded_at = loop.time()
        self._age_timer = loop.call_later(settings.metadata_max_age_ms / 1000, self._metadata_aged)
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
        self.look_soon()
        while batches:
            batch = batches.pop()
            fate: Fate = await asyncio.shield(batch.done)
            batches.extend(fate.parts)
        self._raise_failures()

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
            self._settle(
                self._sender.fail_all(lambda batch: ClosedError(f"{batch.tp}: the producer was closed"))
            )
            await self._end()
        self._raise_failures()

    async def _end(self) -> None:
        self._is_closed = True
        self._age_timer.cancel()
        for handle in (self._look_handle, self._alarm):
            if handle is not None:
                handle.cancel()
        tasks = [
            task
            for task in (self._asking_leaders, self._asking_id, *self._learning.values())
            if task is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._room_waiters:
            waiter = self._room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
        await self._links.close()
        await self._cluster.close()

    def _raise_failures(self) -> None:
        unseen = [(batch, error) for batch, error in self._failures.items() if not batch.observed]
        uncounted, self._failures_uncounted = self._failures_uncounted, 0
        self._failures.clear()
        if not unseen:
            return
        count = sum(batch.count for batch, _ in unseen) + uncounted
        first = unseen[0][1]
        raise DeliveryFailedError(f"{count} records were not delivered; the first: {first}") from first

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
        """Take a record. Await what this returns to learn where it went. Waits for room for `max.block.ms` at most."""
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
            value = _as_bytes(topic, "value", value)
        if key is not None and key.__class__ is not bytes:
            key = _as_bytes(topic, "key", key)
        if headers:
            headers = _as_headers(topic, headers)
        known = self._topics.get(topic)
        if known is None:
            known = await self._learn(topic)
        if partition is None:
            partition = self._choose(known, key, value)
        tp = known.partitions.get(partition)
        if tp is None:
            tp = await self._find_partition(topic, partition)
        timestamp = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        now = self._loop.time()
        place = None
        if not self._room_waiters:
            place = self.accumulator.append(tp, timestamp, key, value, headers, now)
        if place is None:
            place = await self.when_there_is_room(
                lambda: self.accumulator.append(tp, timestamp, key, value, headers, self._loop.time())
            )
        if place.batch_is_full:
            self.look_soon()
        elif place.number == 0:
            self._wake_at(place.batch.ready_at)
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
        return sorted((await self.topic(topic)).partitions)

    async def topic(self, name: str) -> KnownTopic:
        return self._topics.get(name) or await self._learn(name)

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

    async def when_there_is_room(self, append: Callable[[], T | None]) -> T:
        """Try `append` until it finds room for its record or batch, in the order in which callers come."""
        settings = self.settings
        deadline = Deadline(self._loop.time(), settings.max_block_ms)
        while True:
            self.look_soon()
            waiter = self._loop.create_future()
            self._room_waiters.append(waiter)
            try:
                async with asyncio.timeout(deadline.remaining_ms(self._loop.time()) / 1000):
                    await waiter
            except TimeoutError:
                raise BufferExhaustedError(
                    f"no room for another record within max.block.ms={settings.max_block_ms}:"
                    f" {settings.buffer_memory - self.accumulator.free} of buffer.memory={settings.buffer_memory}"
                    " bytes wait for brokers. Send less at a time, raise buffer.memory, or look why brokers are slow"
                ) from None
            finally:
                if waiter in self._room_waiters:
                    self._room_waiters.remove(waiter)
            if self._is_closed:
                raise ClosedError("the producer was closed while a record waited for room")
            place = append()
            if place is not None:
                self._room_for_others()
                return place

    def _room_for_others(self) -> None:
        """The first in line tries; if there is room for it, it wakes the next."""
        while self._room_waiters:
            waiter = self._room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    # -- topics -----------------------------------------------------------------------------------------------------

    async def _learn(self, topic: str) -> KnownTopic:
        """Its partitions; several sends that ask at the same time share one question."""
        task = self._learning.get(topic)
        if task is None:
            task = self._learning[topic] = asyncio.create_task(self._ask_for_topic(topic))
            task.add_done_callback(lambda _: self._learning.pop(topic, None))
        return await asyncio.shield(task)

    async def _ask_for_topic(self, topic: str) -> KnownTopic:
        try:
            info = await self._cluster.topic(topic, create=True, timeout_ms=self.settings.max_block_ms)
        except ClientError as error:
            error.add_note(f"topic {topic} is not known after max.block.ms={self.settings.max_block_ms}")
            raise
        return self._note_topic(info)

    def _note_topic(self, info: TopicInfo) -> KnownTopic:
        known = self._topics.get(info.name)
        if known is None or known.count != len(info.partitions) or known.info.topic_id != info.topic_id:
            known = self._topics[info.name] = KnownTopic(info, self.settings.batch_size, self._rng)
        return known

    async def _find_partition(self, topic: str, partition: int) -> TopicPartition:
        """Somebody names a partition that the topic does not have, as far as we know: it may have grown."""
        known = await self._learn(topic)
        tp = known.partitions.get(partition)
        if tp is None:
            raise PartitionMissingError(TopicPartition(topic, partition), known.count)
        return tp

    def _metadata_aged(self) -> None:
        self._age_timer = self._loop.call_later(self.settings.metadata_max_age_ms / 1000, self._metadata_aged)
        if self._topics:
            self._ask_for_leaders(self._topics)

    def _ask_for_leaders(self, topics: Iterable[str]) -> None:
        if self._asking_leaders is None or self._asking_leaders.done():
            self._asking_leaders = asyncio.create_task(self._get_leaders(set(topics)))

    async def _get_leaders(self, topics: set[str]) -> None:
        """One question; whoever is still without a leader afterwards asks again, after a pause."""
        try:
            metadata = await self._cluster.refresh_metadata(topics)
            for topic in topics:
                info = metadata.topics.get(topic)
                if info is not None and not info.error_code and info.partitions:
                    self._note_topic(info)
        except ClientError as error:
            logger.debug("no fresh metadata: %s", error)
        if not all(self._cluster.metadata.leader_of(batch.tp) for batch in self.accumulator.unfinished):
            await asyncio.sleep(self._cluster.backoff().next_seconds())
        self._asking_leaders = None
        self.look_soon()

    # -- batches out ------------------------------------------------------------------------------------------------

    def look_soon(self) -> None:
        if self._look_handle is None and not self._is_closed:
            self._look_handle = self._loop.call_soon(self._look)

    def _wake_at(self, moment: float) -> None:
        if self._alarm is not None:
            if self._alarm.when() <= moment:
                return
            self._alarm.cancel()
        self._alarm = self._loop.call_at(moment, self._rang)

    def _rang(self) -> None:
        self._alarm = None
        self._look()

    def _look(self) -> None:
        """Send what can be sent, give up what has waited too long, and set the alarm for the next time."""
        self._look_handle = None
        if self._is_closed:
            return
        now = self._loop.time()
        self._settle(self._sender.expire(now))
        topics_unknown: set[str] = set()
        while True:
            drained = self._sender.drain(now, self._cluster.metadata, is_paused=self._links.is_paused)
            topics_unknown |= drained.topics_unknown
            if drained.wants_producer_id:
                self._ask_for_producer_id()
            if not drained.requests:
                break
            for outgoing in drained.requests:
                self._write(outgoing, now)
        if topics_unknown:
            self._ask_for_leaders(topics_unknown)
        moment = self._sender.next_look_at()
        if moment is not None:
            self._wake_at(moment)

    def _write(self, outgoing: Outgoing, now: float) -> None:
        settings = self.settings
        connection = self._links.connection(outgoing.node)
        topics: dict[str, TopicProduceData] = {}
        by_id: dict[bytes, str] = {}
        for batch in outgoing.batches:
            name, number = batch.tp
            data = topics.get(name)
            if data is None:
                info = self._cluster.metadata.topics.get(name)
                topic_id = info.topic_id if info is not None else ZERO_ID
                by_id[topic_id] = name
                data = topics[name] = TopicProduceData(name=name, topic_id=topic_id, partition_data=[])
            records = batch.seal(settings.codec, settings.compression_level)
            data.partition_data.append(PartitionProduceData(index=number, records=records))
        request = ProduceRequest(
            acks=settings.required_acks,
            timeout_ms=settings.request_timeout_ms,
            topic_data=list(topics.values()),
        )
        at_most = LAST_VERSION_WITH_NAMES if ZERO_ID in by_id else None
        try:
            if settings.required_acks == 0:
                connection.post(ApiKey.PRODUCE, request, at_most=at_most)
                self._heard(outgoing, {batch.tp: Answer(0) for batch in outgoing.batches})
                return
            answer = connection.send(ApiKey.PRODUCE, request, at_most=at_most)
        except ClientError as error:
            self._lost(outgoing, error)
            return
        answer.add_done_callback(partial(self._answered, outgoing, by_id, connection))

    def _answered(
        self,
        outgoing: Outgoing,
        by_id: Mapping[bytes, str],
        connection: Connection,
        answer: asyncio.Future[ProduceResponse],
    ) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if isinstance(error, ClientError):
            self._lost(outgoing, error)
            return
        response = answer.result()
        answers: dict[TopicPartition, Answer] = {}
        for topic in response.responses:
            name = topic.name or by_id.get(topic.topic_id, "")
            for each in topic.partition_responses:
                details = [
                    e.batch_index_error_message for e in each.record_errors if e.batch_index_error_message
                ]
                answers[TopicPartition(name, each.index)] = Answer(
                    each.error_code,
                    each.base_offset,
                    each.log_append_time_ms,
                    each.error_message or "; ".join(details) or None,
                )
        self._heard(outgoing, answers)

    def _heard(self, outgoing: Outgoing, answers: Mapping[TopicPartition, Answer]) -> None:
        fates, stale = self._sender.answered(outgoing, answers, self._loop.time())
        self._after(fates, stale)

    def _lost(self, outgoing: Outgoing, error: ClientError) -> None:
        fates, stale = self._sender.failed(outgoing, error, self._loop.time())
        self._after(fates, stale)

    def _after(self, fates: Iterable[Fate], stale: set[str]) -> None:
        self._settle(fates)
        if stale:
            self._cluster.forget_leaders(stale)
        self.look_soon()

    def _settle(self, fates: Iterable[Fate]) -> None:
        """Whoever waits for these batches hears of it."""
        has_room = False
        for fate in fates:
            batch = fate.batch
            batch.let_go()
            has_room = True
            if fate.error is not None:
                link = self._links.last_error
                if batch.attempts == 0 and link is not None:
                    fate.error.add_note(f"the last connection that failed: {link}")
                if len(self._failures) < FAILURES_KEPT:
                    self._failures[batch] = fate.error
                else:
                    self._failures_uncounted += batch.count
                logger.warning("%d records for %s were not delivered: %s", batch.count, batch.tp, fate.error)
            if not batch.done.done():
                batch.done.set_result(fate)
        if has_room:
            self._room_for_others()

    # -- producer ids -----------------------------------------------------------------------------------------------

    def _ask_for_producer_id(self) -> None:
        if self._asking_id is None or self._asking_id.done():
            self._asking_id = asyncio.create_task(self._get_producer_id())

    async def _get_producer_id(self) -> None:
        async def ask() -> InitProducerIdResponse:
            response: InitProducerIdResponse = await self._cluster.request(
                ApiKey.INIT_PRODUCER_ID,
                InitProducerIdRequest(
                    transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
                ),
            )
            check(response.error_code, "asking for a producer id (enable.idempotence)")
            return response

        try:
            answer = await self._cluster.retrying(ask, timeout_ms=self.settings.delivery_timeout_ms)
        except ClientError as error:
            failure = error
            if not failure.retriable:
                failure.add_note("without one, enable.idempotence=false is the only way to write")
                self._settle(self._sender.fail_all(lambda batch: failure))
            logger.warning("no producer id: %s", failure)
        else:
            assert self._sequences is not None
            self._sequences.begin(answer.producer_id, answer.producer_epoch)
        self._asking_id = None
        self.look_soon()


def _as_bytes(topic: str, what: str, given: object) -> bytes:
    """A copy of what could still change; TypeError for what is no bytes."""
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise TypeError(
        f"the {what} of a record for {topic} is {type(given).__name__}, not bytes: give it as bytes, or the producer a serializer"
    )


def _as_headers(topic: str, headers: Iterable[tuple[str, Any]]) -> Headers:
    checked: list[tuple[str, bytes | None]] = []
    for name, content in headers:
        if not isinstance(name, str):
            raise TypeError(
                f"a header of a record for {topic} is named by {type(name).__name__}, not by a string"
            )
        checked.append((name, None if content is None else _as_bytes(topic, f"header {name!r}", content)))
    return tuple(checked)
