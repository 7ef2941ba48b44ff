"""Real clients against a real broker, recorded: what they did is in the history, and there is nothing wrong with it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from tidelog import client as own
from tidelog.client.errors import BrokerError
from tidelog.client.metadata import TopicPartition
from tidelog.testing import Cluster
from tidelog.testing.history import History, check
from tidelog.testing.history.clients.aiokafka import AiokafkaConsumer, AiokafkaProducer
from tidelog.testing.history.clients.confluent import ConfluentConsumer, ConfluentProducer
from tidelog.testing.history.clients.kafka_python import KafkaPythonConsumer, KafkaPythonProducer
from tidelog.testing.history.clients.own import OwnConsumer, OwnProducer
from tidelog.testing.history.files import read_histories
from tidelog.testing.history.operations import Outcome, Rebalance
from tidelog.testing.history.recorder import Recorder

TOPIC = "t"
RECORDS = 40
SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(config={"group.initial.rebalance.delay.ms": 0}) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    return cluster.create_topic(name, 2)


def reading(history: History, count: int) -> Callable[[], bool]:
    """Whether so many values are still to be read; fails when that takes too long."""
    deadline = time.monotonic() + SECONDS_MAX

    def go_on() -> bool:
        read = {value for poll in history.polls for pairs in poll.records.values() for _, value in pairs}
        assert time.monotonic() < deadline, f"{len(read)} of {count} values were read in {SECONDS_MAX} s"
        return len(read) < count

    return go_on


def check_all(history: History, topic: str, *, subscribed: bool = False) -> None:
    report = check(history)
    report.raise_if_dirty()
    assert {send.value for send in history.sends} == {f"{number}" for number in range(RECORDS)}
    assert all(send.outcome is Outcome.OK and send.offset >= 0 for send in history.sends)
    assert {send.partition for send in history.sends} == {0, 1}
    read = {value for poll in history.polls for pairs in poll.records.values() for _, value in pairs}
    assert read == {send.value for send in history.sends}
    assert {tp.topic for poll in history.polls for tp in poll.records} == {topic}
    gained = {tp for move in history.moves if isinstance(move, Rebalance) for tp in move.assigned}
    assert len(gained) == (2 if subscribed else 0)


# ---- the same with each library: half of it assigned and read from the beginning, half of it in a group


def with_confluent(servers: str, topic: str, recorder: Recorder, group: str | None) -> None:
    producer = ConfluentProducer(
        confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True}), recorder, "p"
    )
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode(), partition=number % 2)
    assert producer.flush(SECONDS_MAX) == 0
    settings = {"bootstrap.servers": servers, "group.id": group or "nobody", "auto.offset.reset": "earliest"}
    consumer = ConfluentConsumer(confluent_kafka.Consumer(settings), recorder, "c", final=True)
    if group is not None:
        consumer.subscribe([topic])
    else:
        consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(2)])
    go_on = reading(recorder.history, RECORDS)
    consumer.poll(0.1)
    while go_on():
        consumer.consume(7, 0.2)
    consumer.close()


def with_kafka_python(servers: str, topic: str, recorder: Recorder, group: str | None) -> None:
    producer = KafkaPythonProducer(
        kafka.KafkaProducer(bootstrap_servers=servers, enable_idempotence=True, acks="all"), recorder, "p"
    )
    for number in range(RECORDS):
        producer.send(topic, str(number).encode(), partition=number % 2)
    producer.flush(SECONDS_MAX)
    producer.close()
    inner = kafka.KafkaConsumer(bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest")
    consumer = KafkaPythonConsumer(inner, recorder, "c", final=True)
    if group is not None:
        consumer.subscribe([topic])
    else:
        consumer.assign([kafka.TopicPartition(topic, index) for index in range(2)])
        consumer.seek_to_beginning()
    go_on = reading(recorder.history, RECORDS)
    while go_on():
        # kafka-python 3.0.12 loses its assignment for good if a poll's time is over while the group's answer is on its way.
        consumer.poll(timeout_ms=5_000, max_records=7)
    consumer.close()


async def with_aiokafka(servers: str, topic: str, recorder: Recorder, group: str | None) -> None:
    inner = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
    await inner.start()
    producer = AiokafkaProducer(inner, recorder, "p")
    for number in range(RECORDS - 1):
        await producer.send(topic, str(number).encode(), partition=number % 2)
    await producer.send_and_wait(topic, str(RECORDS - 1).encode(), partition=1)
    await producer.flush()
    await producer.stop()
    reader = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest"
    )
    consumer = AiokafkaConsumer(reader, recorder, "c", final=True)
    if group is not None:
        consumer.subscribe([topic])
    await reader.start()
    if group is None:
        consumer.assign([aiokafka.TopicPartition(topic, index) for index in range(2)])
        await consumer.seek_to_beginning()
    await consumer.getone()
    go_on = reading(recorder.history, RECORDS)
    while go_on():
        await consumer.getmany(timeout_ms=200, max_records=7)
    await consumer.stop()


async def with_own(servers: str, topic: str, recorder: Recorder, group: str | None) -> None:
    async with own.Producer(servers) as inner:
        producer = OwnProducer(inner, recorder, "p")
        for number in range(RECORDS - 1):
            await producer.send(topic, str(number).encode(), partition=number % 2)
        await producer.send_and_wait(topic, str(RECORDS - 1).encode(), partition=1)
        await producer.flush()
    async with own.Consumer(servers, group_id=group, auto_offset_reset="earliest") as reader:
        consumer = OwnConsumer(reader, recorder, "c", final=True)
        if group is not None:
            consumer.subscribe([topic])
        else:
            consumer.assign([TopicPartition(topic, index) for index in range(2)])
            consumer.seek_to_beginning()
        go_on = reading(recorder.history, RECORDS)
        while go_on():
            await consumer.poll(timeout_ms=200, max_records=7)


LIBRARIES: dict[str, Callable[..., Any]] = {
    "confluent": with_confluent,
    "kafka-python": with_kafka_python,
    "aiokafka": with_aiokafka,
    "own": with_own,
}


@pytest.mark.parametrize("group", [None, "kitchen"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_recorded(cluster: Cluster, topic: str, library: str, group: str | None) -> None:
    recorder = Recorder()
    work = LIBRARIES[library]
    name = None if group is None else f"{group}-{library}"
    result = work(cluster.bootstrap_servers, topic, recorder, name)
    if asyncio.iscoroutine(result):
        asyncio.run(result)
    check_all(recorder.history, topic, subscribed=group is not None)


# ---- what goes wrong


def test_what_a_client_does_not_take_has_failed(cluster: Cluster, topic: str) -> None:
    recorder = Recorder()
    inner = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "message.max.bytes": 2000, "log_level": 0}
    )
    producer = ConfluentProducer(inner, recorder, "p", label=len)
    with pytest.raises(confluent_kafka.KafkaException):
        producer.produce(topic, bytes(5000))
    assert [(send.value, send.outcome) for send in recorder.history.sends] == [(5000, Outcome.FAIL)]


def test_what_a_broker_refuses_has_failed(cluster: Cluster) -> None:
    small = cluster.create_topic("small", 1, config={"max.message.bytes": 1000})
    recorder = Recorder()
    told: list[Any] = []
    producer = ConfluentProducer(
        confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers}), recorder, "p", label=len
    )
    producer.produce(small, bytes(5000), partition=0, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(SECONDS_MAX) == 0
    assert recorder.history.sends[0].outcome is Outcome.FAIL
    assert "MSG_SIZE_TOO_LARGE" in recorder.history.sends[0].why
    assert len(told) == 1, "the application hears of it too"

    async def send() -> None:
        async with own.Producer(cluster.bootstrap_servers) as inner:
            mine = OwnProducer(inner, recorder, "p2", label=len)
            with pytest.raises(BrokerError):
                await mine.send_and_wait(small, bytes(4000), partition=0)
            await mine.close()

    asyncio.run(send())
    assert recorder.history.sends[1].outcome is Outcome.FAIL


def test_without_a_broker_nobody_knows() -> None:
    with Cluster(topics=["gone"]) as cluster:
        recorder = Recorder()
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "message.timeout.ms": 300, "log_level": 0}
        producer = ConfluentProducer(confluent_kafka.Producer(settings), recorder, "p")
        producer.produce("gone", b"a", partition=0)
        assert producer.flush(SECONDS_MAX) == 0
        cluster.stop()
        producer.produce("gone", b"b", partition=0)
        assert producer.flush(SECONDS_MAX) == 0
    assert [send.outcome for send in recorder.history.sends] == [Outcome.OK, Outcome.INFO]


def test_many_threads_may_send(cluster: Cluster, topic: str) -> None:
    recorder = Recorder()
    inner = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True}
    )
    producer = ConfluentProducer(inner, recorder, "p")

    def send(thread: int) -> None:
        for number in range(100):
            producer.produce(topic, f"{thread} {number}".encode(), partition=number % 2)
            producer.poll(0)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert producer.flush(SECONDS_MAX) == 0
    assert sum(send.outcome is Outcome.OK for send in recorder.history.sends) == 400
    check(recorder.history).raise_if_dirty()


class Transactional:
    """A producer of confluent-kafka or kafka-python, as far as its transactions go."""

    def __init__(self) -> None:
        self.fails = False

    def begin_transaction(self) -> None: ...

    def commit_transaction(self, *_: Any) -> None:
        if self.fails:
            raise TimeoutError("no answer")

    abort_transaction = commit_transaction

    def produce(self, topic: str, value: bytes, **_: Any) -> None: ...


def test_transactions_are_recorded() -> None:
    recorder = Recorder()
    inner = Transactional()
    producer = ConfluentProducer(inner, recorder, "p")
    producer.begin_transaction()
    producer.produce("t", b"a", partition=0)
    producer.commit_transaction()
    producer.produce("t", b"outside", partition=0)
    producer.begin_transaction()
    inner.fails = True
    with pytest.raises(TimeoutError):
        producer.commit_transaction()
    inner.fails = False
    producer.abort_transaction()
    first, second = recorder.history.transactions
    assert [send.value for send in first.sends] == ["a"] and second.sends == []
    assert [(each.is_commit, each.outcome) for each in first.endings] == [(True, "ok")]
    assert [(each.is_commit, each.outcome) for each in second.endings] == [(True, "info"), (False, "ok")]


# ---- several processes

SENDING = """
import sys
from pathlib import Path
import confluent_kafka
from tidelog.testing.history.clients.confluent import ConfluentProducer
from tidelog.testing.history.recorder import Recorder

servers, topic, name, path = sys.argv[1:]
settings = {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 1}
producer = ConfluentProducer(confluent_kafka.Producer(settings), Recorder(Path(path)), name)
acknowledged = 0


def delivered(error, message):
    global acknowledged
    acknowledged += 1
    if acknowledged == 200:
        print("well under way", flush=True)


number = 0
while True:
    producer.produce(topic, f"{name} {number}".encode(), partition=number % 2, on_delivery=delivered)
    producer.poll(0.001)
    number += 1
"""


def test_processes_that_are_killed_leave_a_history_each(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Two producers in processes of their own, killed in the middle; then everything is read, by another library."""
    paths = [tmp_path / "p1.jsonl", tmp_path / "p2.jsonl"]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", SENDING, cluster.bootstrap_servers, topic, path.stem, str(path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for path in paths
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "well under way\n"
        child.kill()
    for child in children:
        child.communicate()
    paths.append(tmp_path / "reader.jsonl")
    with Recorder(paths[2]) as recorder:
        asyncio.run(_read_everything(cluster.bootstrap_servers, topic, recorder))
    history = read_histories(paths)
    check(history).raise_if_dirty()
    assert sum(send.outcome is Outcome.OK for send in history.sends) >= 400
    assert {send.process for send in history.sends} == {"p1", "p2"}


async def _read_everything(servers: str, topic: str, recorder: Recorder) -> None:
    partitions = [TopicPartition(topic, index) for index in range(2)]
    async with own.Consumer(servers) as reader:
        consumer = OwnConsumer(reader, recorder, "reader", final=True)
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        ends = await reader.end_offsets(partitions)
        deadline = time.monotonic() + SECONDS_MAX
        while any(reader.positions().get(tp, 0) < end for tp, end in ends.items()):
            assert time.monotonic() < deadline
            await consumer.poll(timeout_ms=200)
