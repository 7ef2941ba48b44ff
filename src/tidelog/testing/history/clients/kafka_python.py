"""kafka-python, recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history.clients.base import BlockingProducer, RecordedConsumer


class KafkaPythonProducer(BlockingProducer):
    def send(self, topic: str, value: Any = None, *, partition: int | None = None, **more: Any) -> Any:
        with self._turn:
            send = self._begin_send(topic, partition, value)
            try:
                future = self.client.send(topic, value=value, partition=partition, **more)
            except BaseException as error:
                self.recorder.failed(send, repr(error))
                raise
        future.add_callback(
            lambda metadata: self.recorder.sent(send, metadata.offset, partition=metadata.partition)
        )
        future.add_errback(lambda error: self._not_sent(send, error, getattr(error, "errno", None)))
        return future


class KafkaPythonConsumer(RecordedConsumer):
    def poll(self, *arguments: Any, **more: Any) -> dict[Any, list[Any]]:
        poll = self._begin_poll()
        try:
            batches: dict[Any, list[Any]] = self.client.poll(*arguments, **more)
        except BaseException as error:
            self.recorder.unknown(poll, repr(error))
            raise
        self.recorder.polled(
            poll,
            [
                (TopicPartition(record.topic, record.partition), record.offset, self._label(record.value))
                for records in batches.values()
                for record in records
            ],
        )
        return batches

    def assign(self, partitions: Iterable[Any]) -> None:
        partitions = list(partitions)
        self.client.assign(partitions)
        self.recorder.assign(self.process, {TopicPartition(*tp): None for tp in partitions})

    def seek(self, partition: Any, offset: int) -> None:
        self.client.seek(partition, offset)
        self.recorder.seek(self.process, TopicPartition(*partition), offset)

    def seek_to_beginning(self, *partitions: Any) -> None:
        self.client.seek_to_beginning(*partitions)
        for tp in partitions or self.client.assignment():
            self.recorder.seek(self.process, TopicPartition(*tp), 0)

    def seek_to_end(self, *partitions: Any) -> None:
        self.client.seek_to_end(*partitions)
        for tp in partitions or self.client.assignment():
            self.recorder.seek(self.process, TopicPartition(*tp), None)

    def subscribe(self, topics: Iterable[str], *, listener: Any = None) -> None:
        from kafka import ConsumerRebalanceListener

        moved = self._moved

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                moved(assigned=assigned)
                if listener is not None:
                    listener.on_partitions_assigned(assigned)

            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                if listener is not None:
                    listener.on_partitions_revoked(revoked)
                moved(revoked=revoked)

        topics = list(topics)
        self.recorder.subscribe(self.process, topics)
        self.client.subscribe(topics, listener=Listener())
