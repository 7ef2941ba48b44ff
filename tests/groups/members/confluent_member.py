"""A member of a group by confluent-kafka: both protocols, eager and cooperative assignors."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.groups.members.options import Options, Stop, parse
from tests.groups.members.pen import Pen


class ConfluentMember:
    """Callbacks run inside poll(): nothing is read or committed beside them.

    While it reads it commits without waiting: a broker that holds back the answer to a JoinGroup answers nothing behind it on the
    same connection, and a member of a cooperative group is to read on meanwhile. What it hands back it commits at once.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pen = Pen(options.output)
        self._progress = options.progress(self._pen)
        self._on_their_way: list[tuple[int, dict[int, int]]] = []
        self._consumer = Consumer(self._settings())

    def _settings(self) -> dict[str, Any]:
        options = self._options
        settings: dict[str, Any] = {
            "bootstrap.servers": options.bootstrap,
            "group.id": options.group,
            "group.protocol": options.protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": not options.commits_by_hand,
            "auto.commit.interval.ms": options.auto_commit_interval_ms,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "fetch.wait.max.ms": 100,
            "socket.timeout.ms": 10_000,
            "on_commit": self._answered,
            "log_level": 4,
        }
        if options.protocol == "classic":
            settings |= {
                "partition.assignment.strategy": options.assignor,
                "session.timeout.ms": options.session_timeout_ms,
                "heartbeat.interval.ms": options.heartbeat_interval_ms,
            }
        if options.instance_id is not None:
            settings["group.instance.id"] = options.instance_id
        return settings

    def run(self) -> None:
        stop = Stop()
        self._consumer.subscribe(
            [self._options.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        self._pen.write("started")
        while not stop:
            message = self._consumer.poll(0.1)
            if message is not None and message.error():
                self._complain(message.error())
            elif message is not None:
                self._progress.received(message.partition(), message.offset(), message.value())
            if self._options.commits_by_hand and self._progress.commit_is_due():
                self._commit_later()
        self._consumer.close()
        self._pen.write("closed")

    def _complain(self, error: KafkaError) -> None:
        fatal = error.fatal() or error.code() == KafkaError._FATAL
        self._pen.write("complaint", error=error.name(), text=str(error), fatal=fatal)
        if fatal:
            os._exit(3)

    def _assigned(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        self._pen.partitions("assigned", _numbers(partitions))

    def _revoked(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        numbers = _numbers(partitions)
        if self._options.commits_by_hand:
            self._commit(numbers)
        self._progress.forget(numbers)
        # The last thing before the library hands them back: from here on they may be another member's.
        self._pen.partitions("revoked", numbers)

    def _lost(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        self._progress.forget(_numbers(partitions))
        self._pen.partitions("lost", _numbers(partitions))

    def _commit_later(self) -> None:
        number, positions = self._progress.begin_commit()
        if positions:
            self._on_their_way.append((number, positions))
            self._consumer.commit(offsets=self._offsets(positions), asynchronous=True)

    def _answered(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """The library says for what an answer came, not which of the commits it belongs to."""
        asked = {partition.partition: partition.offset for partition in partitions}
        for number, positions in self._on_their_way:
            if positions == asked:
                self._on_their_way.remove((number, positions))
                self._note(number, error, partitions)
                return

    def _commit(self, partitions: Iterable[int]) -> None:
        number, positions = self._progress.begin_commit(partitions)
        if not positions:
            return
        try:
            answers = self._consumer.commit(offsets=self._offsets(positions), asynchronous=False)
        except KafkaException as failure:
            self._note(number, failure.args[0], [])
        else:
            self._note(number, None, answers)

    def _offsets(self, positions: dict[int, int]) -> list[TopicPartition]:
        topic = self._options.topic
        return [TopicPartition(topic, partition, offset) for partition, offset in positions.items()]

    def _note(self, number: int, error: KafkaError | None, answers: list[TopicPartition]) -> None:
        errors = [error, *(answer.error for answer in answers)]
        refused = [found.name() for found in errors if found is not None]
        if refused:
            self._progress.refused(number, refused[0])
        if error is None:
            taken = {answer.partition: answer.offset for answer in answers if answer.error is None}
            self._progress.committed(number, taken)


def _numbers(partitions: Iterable[TopicPartition]) -> list[int]:
    return [partition.partition for partition in partitions]


if __name__ == "__main__":
    ConfluentMember(parse()).run()
