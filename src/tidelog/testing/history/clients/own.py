"""`tidelog.client`, recorded: its asyncio producer and consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Any

from tidelog.client.consumer.listener import RebalanceListener, call
from tidelog.client.consumer.records import ConsumerRecord
from tidelog.client.metadata import TopicPartition
from tidelog.client.producer.delivery import Delivery, RecordMetadata
from tidelog.testing.history.clients.asyncio_base import AsyncioConsumer, AsyncioProducer
from tidelog.testing.history.operations import Send


class OwnProducer(AsyncioProducer):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._watches: set[asyncio.Task[None]] = set()

    async def send(
        self, topic: str, value: Any = None, *, partition: int | None = None, **more: Any
    ) -> Delivery:
        async with self._turn:
            send = self._begin_send(topic, partition, value)
            taking = self.client.send(topic, value, partition=partition, **more)
            delivery: Delivery = await self._take(send, taking)
        watch = asyncio.create_task(self._watch(send, delivery))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        return delivery

    async def _watch(self, send: Send, delivery: Delivery) -> None:
        try:
            metadata = await delivery
        except asyncio.CancelledError:
            self.recorder.unknown(send, "cancelled")
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, it is written down; who awaits the delivery gets it too)
            self._not_sent(send, error, getattr(error, "code", None))
        else:
            self.recorder.sent(send, metadata.offset, partition=metadata.partition)

    async def send_and_wait(self, topic: str, value: Any = None, **more: Any) -> RecordMetadata:
        return await (await self.send(topic, value, **more))

    async def flush(self) -> None:
        try:
            await self.client.flush()
        finally:
            await self._watched()

    async def close(self, **more: Any) -> None:
        try:
            await self.client.close(**more)
        finally:
            await self._watched()

    async def _watched(self) -> None:
        done = [watch for watch in self._watches if not watch.done()]
        await asyncio.gather(*done, return_exceptions=True)


class OwnConsumer(AsyncioConsumer):
    async def poll(self, **more: Any) -> list[ConsumerRecord]:
        poll = self._begin_poll()
        records: list[ConsumerRecord] = await self._polling(poll, self.client.poll(**more))
        self._polled(poll, records)
        return records

    def seek(self, tp: TopicPartition, offset: int, **more: Any) -> None:
        self.client.seek(tp, offset, **more)
        self.recorder.seek(self.process, tp, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        partitions = list(partitions)
        self.client.seek_to_beginning(partitions)
        for tp in partitions or self.client.assignment():
            self.recorder.seek(self.process, tp, 0)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        partitions = list(partitions)
        self.client.seek_to_end(partitions)
        for tp in partitions or self.client.assignment():
            self.recorder.seek(self.process, tp, None)

    def subscribe(self, topics: Iterable[str], *, listener: RebalanceListener | None = None) -> None:
        topics = list(topics)
        self.recorder.subscribe(self.process, topics)
        self.client.subscribe(topics, listener=_Listener(self, listener))


class _Listener:
    def __init__(self, consumer: OwnConsumer, listener: RebalanceListener | None) -> None:
        self._consumer = consumer
        self._listener = listener

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._consumer._moved(assigned=partitions)
        await call(self._listener, "on_partitions_assigned", partitions)

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        await call(self._listener, "on_partitions_revoked", partitions)
        self._consumer._moved(revoked=partitions)

    async def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        await call(self._listener, "on_partitions_lost", partitions)
        self._consumer._moved(revoked=partitions)
