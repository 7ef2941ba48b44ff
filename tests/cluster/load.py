"""Clients of two libraries that write and read all the time while a cluster is hurt, and the judgement on what they were told.

Two idempotent producers (confluent-kafka and our own) with acks=all, and two readers of the same libraries that read every partition from the beginning and may not be set back. Each send and poll is
recorded; `judge` waits until everything is in sync, lets both libraries read it all once more, and has the history checked: nothing that was acknowledged is lost or doubled, no offset
changes its value, nobody skips anything.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import confluent_kafka

from tests.cluster.processes import QUICK, SETTLE_SECONDS, Processes, wait_until
from tidelog.client import Consumer, Producer, TopicPartition
from tidelog.client.errors import LogTruncatedError, NoOffsetError
from tidelog.testing.history import ANOMALIES, Anomaly, Report, check
from tidelog.testing.history.clients.confluent import ConfluentConsumer, ConfluentProducer
from tidelog.testing.history.clients.own import OwnConsumer, OwnProducer
from tidelog.testing.history.operations import Outcome, Poll, Send, Value
from tidelog.testing.history.recorder import Recorder

PACE_SECONDS: Final = 0.01
"""Between two records of a producer: enough that something is under way at every instant, and few enough to check hours of it."""
DELIVERY_MS: Final = 240_000
"""Longer than any fault lasts: who may retry for that long loses nothing."""
REQUEST_MS: Final = 5_000
"""A broker that is paused answers nobody; its clients are to notice before the test is over."""
METADATA_MS: Final = 1_000
"""A leader that is cut off from the controller does not know that others lead. It acknowledges nothing and says nothing: as with Kafka, its clients look elsewhere when their metadata are too old."""
POLL_RECORDS_MAX: Final = 500


class Tally(Recorder):
    """A recorder that also counts how far everybody is."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path)
        self.acknowledged: Counter[tuple[str, int]] = Counter()
        """By producer and partition."""
        self.ends: dict[int, int] = {}
        """Of each partition, behind the last record that was acknowledged."""
        self.position: dict[tuple[str, int], int] = {}
        """By reader and partition."""

    def sent(self, send: Send, offset: int = -1, *, partition: int | None = None) -> None:
        super().sent(send, offset, partition=partition)
        index = partition if partition is not None else send.partition
        assert index is not None
        self.acknowledged[send.process, index] += 1
        self.ends[index] = max(self.ends.get(index, 0), offset + 1)

    def polled(self, poll: Poll, records: Iterable[tuple[TopicPartition, int, Value]]) -> None:
        records = list(records)
        super().polled(poll, records)
        for tp, offset, _value in records:
            self.position[poll.process, tp.partition] = offset + 1

    def check(self, anomalies: Iterable[Anomaly] = ANOMALIES) -> Report:
        """Of all that was recorded so far; recording goes on."""
        with self._lock:
            return check(self.history, anomalies)


class _Threaded:
    """A client in a thread of its own. What ends it before its time is kept, and fails the test."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topic: str,
        partitions: int,
        tally: Tally,
        *,
        pace_seconds: float = PACE_SECONDS,
    ) -> None:
        self.name = name
        self._pace_seconds = pace_seconds
        self.failure: BaseException | None = None
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._tally = tally
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def begin_stop(self) -> None:
        self._stopping.set()

    def stop(self) -> None:
        self.begin_stop()
        self._thread.join(DELIVERY_MS / 1000 + 60)
        assert not self._thread.is_alive(), f"{self.name} does not come to an end"

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as failure:  # noqa: BLE001 - told by the test's thread
            self.failure = failure

    def _run(self) -> None:
        raise NotImplementedError


class ConfluentWriter(_Threaded):
    def _run(self) -> None:
        inner = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "delivery.timeout.ms": DELIVERY_MS,
                "socket.timeout.ms": REQUEST_MS,
                "request.timeout.ms": REQUEST_MS,
                "topic.metadata.refresh.interval.ms": METADATA_MS,
                **QUICK,
            }
        )
        producer = ConfluentProducer(inner, self._tally, self.name)
        number = 0
        while not self._stopping.is_set():
            value = f"{self.name}-{number}".encode()
            producer.produce(self._topic, value, partition=number % self._partitions)
            number += 1
            inner.poll(self._pace_seconds)
        left = inner.flush(DELIVERY_MS / 1000)
        assert left == 0, f"{left} records are without an answer"


class OwnWriter(_Threaded):
    def _run(self) -> None:
        asyncio.run(self._write())

    async def _write(self) -> None:
        async with Producer(
            self._bootstrap,
            linger_ms=2,
            delivery_timeout_ms=DELIVERY_MS,
            request_timeout_ms=REQUEST_MS,
            metadata_max_age_ms=METADATA_MS,
        ) as inner:
            producer = OwnProducer(inner, self._tally, self.name)
            number = 0
            while not self._stopping.is_set():
                value = f"{self.name}-{number}".encode()
                await producer.send(self._topic, value, partition=number % self._partitions)
                number += 1
                await asyncio.sleep(self._pace_seconds)
            await producer.flush()


def _confluent_consumer(bootstrap: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "socket.timeout.ms": REQUEST_MS,
            "fetch.wait.max.ms": 100,
            "topic.metadata.refresh.interval.ms": METADATA_MS,
            **QUICK,
        }
    )


class ConfluentReader(_Threaded):
    final = False

    def _run(self) -> None:
        inner = _confluent_consumer(self._bootstrap)
        consumer = ConfluentConsumer(inner, self._tally, self.name, final=self.final)
        consumer.assign(
            [confluent_kafka.TopicPartition(self._topic, index, 0) for index in range(self._partitions)]
        )
        while not self._stopping.is_set():
            for message in consumer.consume(POLL_RECORDS_MAX, 0.1):
                error = message.error()
                # Of a broker that is away it speaks, too, and goes on. Being set back is another matter.
                assert error is None or error.code() not in _SET_BACK, f"{self.name}: {error}"
        inner.close()


_SET_BACK: Final = frozenset(
    {
        confluent_kafka.KafkaError._AUTO_OFFSET_RESET,
        confluent_kafka.KafkaError._LOG_TRUNCATION,
        confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE,
    }
)


class OwnReader(_Threaded):
    final = False

    def _run(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        async with Consumer(
            self._bootstrap,
            auto_offset_reset="none",
            request_timeout_ms=REQUEST_MS,
            metadata_max_age_ms=METADATA_MS,
            fetch_max_wait_ms=100,
        ) as inner:
            consumer = OwnConsumer(inner, self._tally, self.name, final=self.final)
            partitions = [TopicPartition(self._topic, index) for index in range(self._partitions)]
            consumer.assign(partitions)
            for tp in partitions:
                consumer.seek(tp, 0)
            while not self._stopping.is_set():
                try:
                    await consumer.poll(timeout_ms=100)
                except (NoOffsetError, LogTruncatedError) as error:
                    raise AssertionError(f"{self.name} was set back: {error}") from error


class _FinalConfluentReader(ConfluentReader):
    final = True


class _FinalOwnReader(OwnReader):
    final = True


class Load:
    """All four of them. Inside the `with` they go on; at its end the producers get their last answers."""

    def __init__(
        self, cluster: Processes, topic: str, partitions: int, *, pace_seconds: float = PACE_SECONDS
    ) -> None:
        self.tally = Tally(cluster.root / "history.jsonl")
        self._pace_seconds = pace_seconds
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self._writers: list[_Threaded] = [
            self._client(ConfluentWriter, "confluent-writer"),
            self._client(OwnWriter, "own-writer"),
        ]
        self._readers: list[_Threaded] = [
            self._client(ConfluentReader, "confluent-reader"),
            self._client(OwnReader, "own-reader"),
        ]

    def _client(self, kind: Callable[..., _Threaded], name: str) -> _Threaded:
        return kind(
            name,
            self._cluster.bootstrap,
            self._topic,
            self._partitions,
            self.tally,
            pace_seconds=self._pace_seconds,
        )

    def __enter__(self) -> Self:
        for client in (*self._readers, *self._writers):
            client.start()
        try:
            self.goes_on()
        except BaseException:
            self._stop(self._readers + self._writers)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"what clients did is in {self._cluster.root / 'history.jsonl'}")
            for client in (*self._readers, *self._writers):
                client.begin_stop()  # whoever waits for a broken cluster ends with the process
            return
        self._stop(self._writers)

    def _stop(self, clients: Iterable[_Threaded]) -> None:
        clients = list(clients)
        for client in clients:
            client.begin_stop()
        for client in clients:
            client.stop()
        self._raise_failures()

    def _raise_failures(self) -> None:
        for client in (*self._readers, *self._writers):
            if client.failure is not None:
                raise AssertionError(f"{client.name} has ended") from client.failure

    # ---- what must go on

    def goes_on(self, partitions: Iterable[int] | None = None, *, records: int = 5) -> None:
        """Both producers get so many more records acknowledged, and both readers read them, in each of these partitions."""
        partitions = list(range(self._partitions) if partitions is None else partitions)
        wanted = {
            (writer.name, index): self.tally.acknowledged[writer.name, index] + records
            for writer in self._writers
            for index in partitions
        }

        def acknowledged() -> bool:
            self._raise_failures()
            return all(self.tally.acknowledged[key] >= count for key, count in wanted.items())

        self._wait(acknowledged, f"{records} more records of both producers in {partitions}")
        self._everything_is_read(partitions)

    def _everything_is_read(self, partitions: Iterable[int]) -> None:
        ends = {index: self.tally.ends.get(index, 0) for index in partitions}

        def read() -> bool:
            self._raise_failures()
            return all(
                self.tally.position.get((reader.name, index), 0) >= end
                for reader in self._readers
                for index, end in ends.items()
            )

        self._wait(read, f"both readers have read up to {ends}")

    def _wait(self, is_true: Callable[[], bool], what: str) -> None:
        try:
            wait_until(is_true, what)
        except TimeoutError as error:
            error.add_note(
                f"acknowledged: {dict(self.tally.acknowledged)}, read up to: {self.tally.position}"
            )
            raise

    def acknowledged_in(self, partition: int) -> int:
        return sum(self.tally.acknowledged[writer.name, partition] for writer in self._writers)

    def told(self) -> str:
        acknowledged, read = sum(self.tally.acknowledged.values()), sum(self.tally.position.values())
        return f"{acknowledged} records acknowledged, {read} read"

    # ---- the judgement

    def judge(self) -> Report:
        """After the load has ended."""
        self._cluster.wait_until_in_sync(self._topic)
        self._everything_is_read(range(self._partitions))
        self._stop(self._readers)
        read_all(self._cluster.bootstrap, self._topic, self._partitions, self.tally)
        self.tally.close()
        history = self.tally.history
        report = check(history)
        report.raise_if_dirty()
        outcomes = Counter(send.outcome for send in history.sends)
        assert outcomes.keys() == {Outcome.OK}, (
            f"idempotent producers that may retry lost records: {outcomes}"
        )
        return report


def read_all(bootstrap: str, topic: str, partitions: int, tally: Tally) -> None:
    """Everything from the beginning to the end, by both libraries, as the last look of the history."""
    inner = _confluent_consumer(bootstrap)
    ends = {
        index: inner.get_watermark_offsets(confluent_kafka.TopicPartition(topic, index), timeout=60)[1]
        for index in range(partitions)
    }
    inner.close()
    readers: list[Any] = [
        kind(name, bootstrap, topic, partitions, tally)
        for kind, name in ((_FinalConfluentReader, "confluent-at-last"), (_FinalOwnReader, "own-at-last"))
    ]
    for reader in readers:
        reader.start()
    deadline = time.monotonic() + SETTLE_SECONDS
    for reader in readers:
        while any(tally.position.get((reader.name, index), 0) < end for index, end in ends.items()):
            if reader.failure is not None:
                raise AssertionError(f"{reader.name} has ended") from reader.failure
            assert time.monotonic() < deadline, f"{reader.name} read up to {tally.position} of {ends}"
            time.sleep(0.05)
    for reader in readers:
        reader.stop()
