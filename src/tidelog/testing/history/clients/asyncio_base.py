"""What the recording clients for asyncio share. Whoever asks for records or sends them does so from the loop of the client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history.clients.base import RecordedConsumer, RecordedProducer
from tidelog.testing.history.operations import Poll, Send


class AsyncioProducer(RecordedProducer):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._turn = asyncio.Lock()

    async def _take(self, send: Send, taking: Awaitable[Any]) -> Any:
        """Hand a record over to the client."""
        try:
            return await taking
        except asyncio.CancelledError as error:
            self.recorder.unknown(send, repr(error))
            raise
        except BaseException as error:
            self.recorder.failed(send, repr(error))
            raise

    async def begin_transaction(self) -> None:
        await self.client.begin_transaction()
        self._transaction = self.recorder.begin(self.process)

    async def commit_transaction(self) -> None:
        await self._end(self.client.commit_transaction, commit=True)

    async def abort_transaction(self) -> None:
        await self._end(self.client.abort_transaction, commit=False)

    async def _end(self, call: Callable[[], Awaitable[Any]], *, commit: bool) -> None:
        assert self._transaction is not None, "no transaction was begun through this wrapper"
        ending = self.recorder.end(self._transaction, commit=commit)
        try:
            await call()
        except BaseException as error:
            self.recorder.unknown(ending, repr(error))
            raise
        self.recorder.done(ending)
        self._transaction = None


class AsyncioConsumer(RecordedConsumer):
    async def _polling(self, poll: Poll, waiting: Awaitable[Any]) -> Any:
        try:
            return await waiting
        except BaseException as error:
            self.recorder.unknown(poll, repr(error))
            raise

    def _polled(self, poll: Poll, records: Iterable[Any]) -> None:
        self.recorder.polled(
            poll,
            [
                (TopicPartition(record.topic, record.partition), record.offset, self._label(record.value))
                for record in records
            ],
        )

    def assign(self, partitions: Iterable[Any]) -> None:
        partitions = list(partitions)
        self.client.assign(partitions)
        self.recorder.assign(self.process, {TopicPartition(*tp): None for tp in partitions})
