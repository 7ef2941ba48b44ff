"""confluent-kafka, recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history.clients.base import BlockingProducer, RecordedConsumer
from tidelog.testing.history.operations import Poll

ANY_PARTITION: Final = -1
OFFSET_BEGINNING: Final = -2


class ConfluentProducer(BlockingProducer):
    def produce(
        self,
        topic: str,
        value: Any = None,
        *,
        partition: int = ANY_PARTITION,
        on_delivery: Callable[[Any, Any], None] | None = None,
        **more: Any,
    ) -> None:
        with self._turn:
            send = self._begin_send(topic, None if partition == ANY_PARTITION else partition, value)

            def delivered(error: Any, message: Any) -> None:
                if error is None:
                    self.recorder.sent(send, message.offset(), partition=message.partition())
                else:
                    self._not_sent(send, error, error.code())
                if on_delivery is not None:
                    on_delivery(error, message)

            try:
                self.client.produce(topic, value, partition=partition, on_delivery=delivered, **more)
            except BaseException as error:  # its queue is full, or it takes no such record
                self.recorder.failed(send, repr(error))
                raise


class ConfluentConsumer(RecordedConsumer):
    def poll(self, timeout: float | None = None) -> Any:
        poll = self._begin_poll()
        try:
            message = self.client.poll() if timeout is None else self.client.poll(timeout)
        except BaseException as error:
            self.recorder.unknown(poll, repr(error))
            raise
        self._polled(poll, [] if message is None else [message])
        return message

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        poll = self._begin_poll()
        try:
            messages: list[Any] = self.client.consume(num_messages, timeout)
        except BaseException as error:
            self.recorder.unknown(poll, repr(error))
            raise
        self._polled(poll, messages)
        return messages

    def _polled(self, poll: Poll, messages: Iterable[Any]) -> None:
        self.recorder.polled(
            poll,
            [
                (TopicPartition(message.topic(), message.partition()), message.offset(), self._label(message.value()))
                for message in messages
                if message.error() is None
            ],
        )  # fmt: skip

    def assign(self, partitions: list[Any]) -> None:
        self.client.assign(partitions)
        positions = {TopicPartition(tp.topic, tp.partition): _position(tp.offset) for tp in partitions}
        self.recorder.assign(self.process, positions)

    def seek(self, partition: Any) -> None:
        self.client.seek(partition)
        tp = TopicPartition(partition.topic, partition.partition)
        self.recorder.seek(self.process, tp, _position(partition.offset))

    def subscribe(
        self,
        topics: list[str],
        on_assign: Callable[[Any, list[Any]], Any] | None = None,
        on_revoke: Callable[[Any, list[Any]], Any] | None = None,
        on_lost: Callable[[Any, list[Any]], Any] | None = None,
    ) -> None:
        def assigned(consumer: Any, partitions: list[Any]) -> None:
            self._moved(assigned=partitions)
            if on_assign is not None:
                on_assign(consumer, partitions)

        def revoked(consumer: Any, partitions: list[Any]) -> None:
            if on_revoke is not None:
                on_revoke(consumer, partitions)
            self._moved(revoked=partitions)

        def lost(consumer: Any, partitions: list[Any]) -> None:
            if on_lost is not None or on_revoke is not None:
                (on_lost or on_revoke)(consumer, partitions)  # type: ignore[misc]
            self._moved(revoked=partitions)

        self.recorder.subscribe(self.process, topics)
        self.client.subscribe(topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)


def _position(offset: int) -> int | None:
    """Where reading begins; None where only the broker knows."""
    if offset == OFFSET_BEGINNING:
        return 0
    return offset if offset >= 0 else None
