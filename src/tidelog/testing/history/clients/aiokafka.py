"""aiokafka, recorded."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable
from typing import Any

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history.clients.asyncio_base import AsyncioConsumer, AsyncioProducer


class AiokafkaProducer(AsyncioProducer):
    async def send(
        self, topic: str, value: Any = None, *, partition: int | None = None, **more: Any
    ) -> asyncio.Future[Any]:
        async with self._turn:
            send = self._begin_send(topic, partition, value)
            taking = self.client.send(topic, value=value, partition=partition, **more)
            future: asyncio.Future[Any] = await self._take(send, taking)

        def delivered(future: asyncio.Future[Any]) -> None:
            if future.cancelled():
                self.recorder.unknown(send, "cancelled")
            elif (error := future.exception()) is not None:
                self._not_sent(send, error, getattr(error, "errno", None))
            else:
                metadata = future.result()
                self.recorder.sent(send, metadata.offset, partition=metadata.partition)

        future.add_done_callback(delivered)
        return future

    async def send_and_wait(self, topic: str, value: Any = None, **more: Any) -> Any:
        return await (await self.send(topic, value, **more))


class AiokafkaConsumer(AsyncioConsumer):
    async def getmany(self, *partitions: Any, **more: Any) -> dict[Any, list[Any]]:
        poll = self._begin_poll()
        batches: dict[Any, list[Any]] = await self._polling(poll, self.client.getmany(*partitions, **more))
        self._polled(poll, [record for records in batches.values() for record in records])
        return batches

    async def getone(self, *partitions: Any) -> Any:
        poll = self._begin_poll()
        record = await self._polling(poll, self.client.getone(*partitions))
        self._polled(poll, [record])
        return record

    def seek(self, partition: Any, offset: int) -> None:
        self.client.seek(partition, offset)
        self.recorder.seek(self.process, TopicPartition(*partition), offset)

    async def seek_to_beginning(self, *partitions: Any) -> None:
        await self.client.seek_to_beginning(*partitions)
        for tp in partitions or self.client.assignment():
            self.recorder.seek(self.process, TopicPartition(*tp), 0)

    async def seek_to_end(self, *partitions: Any) -> None:
        await self.client.seek_to_end(*partitions)
        for tp in partitions or self.client.assignment():
            self.recorder.seek(self.process, TopicPartition(*tp), None)

    def subscribe(self, topics: Iterable[str], *, listener: Any = None) -> None:
        from aiokafka import ConsumerRebalanceListener

        moved = self._moved

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                moved(assigned=assigned)
                if listener is not None:
                    await _finished(listener.on_partitions_assigned(assigned))

            async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                if listener is not None:
                    await _finished(listener.on_partitions_revoked(revoked))
                moved(revoked=revoked)

        topics = list(topics)
        self.recorder.subscribe(self.process, topics)
        self.client.subscribe(topics, listener=Listener())


async def _finished(result: Any) -> None:
    if inspect.isawaitable(result):
        await result
