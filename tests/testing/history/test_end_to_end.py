"""Two libraries, one broker, and a network between them that fails: the history of it is clean."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import confluent_kafka

from tidelog import client as own
from tidelog.client.metadata import TopicPartition
from tidelog.testing import Cluster
from tidelog.testing.history import check
from tidelog.testing.history.clients.confluent import ConfluentConsumer, ConfluentProducer
from tidelog.testing.history.clients.own import OwnConsumer, OwnProducer
from tidelog.testing.history.operations import Outcome
from tidelog.testing.history.recorder import Recorder
from tidelog.testing.proxy import Direction, Proxy
from tools.peers.process import free_port

TOPIC = "orders"
PARTITIONS = [TopicPartition(TOPIC, index) for index in range(2)]
BURST = 40
STALL_SECONDS = 0.2
SECONDS_MAX = 60.0


def test_two_clients_and_a_failing_network() -> None:
    port = free_port()
    with Proxy(port) as proxy:
        advertised = {"advertised.listeners": f"PLAINTEXT://{proxy.address}"}
        with Cluster(port=port, topics={TOPIC: 2}, config=advertised) as cluster:
            recorder = Recorder()
            stop = threading.Event()
            reading = threading.Thread(target=read_along, args=(proxy.address, recorder, stop))
            reading.start()
            try:
                asyncio.run(send_and_read(proxy, cluster, recorder))
            finally:
                stop.set()
                reading.join()
    history = recorder.history
    check(history).raise_if_dirty()
    assert {send.outcome for send in history.sends} == {Outcome.OK}, "both try again until it is done"
    assert len(history.sends) == 2 * 6 * BURST
    assert any(poll.records for poll in history.polls if poll.process == "c1")


async def send_and_read(proxy: Proxy, cluster: Cluster, recorder: Recorder) -> None:
    first = ConfluentProducer(confluent_kafka.Producer(settings(proxy.address)), recorder, "p1")
    async with own.Producer(proxy.address) as inner:
        second = OwnProducer(inner, recorder, "p2")
        for number, fault in enumerate(faults(proxy, cluster)):
            sending = [asyncio.to_thread(send_burst, first, number), send_own_burst(second, number)]
            gathered = asyncio.gather(*sending, asyncio.to_thread(fault))
            await asyncio.wait_for(gathered, SECONDS_MAX)
    await read_everything(proxy.address, recorder)


def settings(servers: str) -> dict[str, object]:
    return {
        "bootstrap.servers": servers,
        "enable.idempotence": True,
        "linger.ms": 1,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 100,
        "log_level": 0,
    }


def faults(proxy: Proxy, cluster: Cluster) -> list[Callable[[], None]]:
    def stall() -> None:
        proxy.stall(Direction.BACKWARD)
        threading.Event().wait(STALL_SECONDS)
        proxy.heal()

    def cut() -> None:
        proxy.cut()
        proxy.heal()

    return [
        lambda: None,
        proxy.reset,
        lambda: proxy.drop_after(400),
        lambda: proxy.drop_after(100, Direction.BACKWARD),
        stall,
        lambda: (cut(), cluster.restart())[-1],
    ]


def send_burst(producer: ConfluentProducer, number: int) -> None:
    for index in range(BURST):
        producer.produce(TOPIC, f"p1 {number} {index}".encode(), partition=index % 2)
        producer.poll(0.001)
    assert producer.flush(SECONDS_MAX) == 0


async def send_own_burst(producer: OwnProducer, number: int) -> None:
    for index in range(BURST):
        await producer.send(TOPIC, f"p2 {number} {index}".encode(), partition=index % 2)
        await asyncio.sleep(0.001)
    await producer.flush()


def read_along(servers: str, recorder: Recorder, stop: threading.Event) -> None:
    more = {"group.id": "nobody", "enable.auto.commit": False, "auto.offset.reset": "error"}
    inner = confluent_kafka.Consumer(
        {
            name: value
            for name, value in settings(servers).items()
            if name not in ("enable.idempotence", "linger.ms")
        }
        | more
    )
    consumer = ConfluentConsumer(inner, recorder, "c1")
    consumer.assign([confluent_kafka.TopicPartition(*tp, 0) for tp in PARTITIONS])
    while not stop.is_set():
        consumer.consume(25, 0.05)
    consumer.close()


async def read_everything(servers: str, recorder: Recorder) -> None:
    async with own.Consumer(servers) as inner:
        consumer = OwnConsumer(inner, recorder, "c2", final=True)
        consumer.assign(PARTITIONS)
        consumer.seek_to_beginning()
        ends = await inner.end_offsets(PARTITIONS)
        async with asyncio.timeout(SECONDS_MAX):
            while any(inner.positions().get(tp, 0) < end for tp, end in ends.items()):
                await consumer.poll(timeout_ms=200, max_records=50)
