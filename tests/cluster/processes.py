"""Three brokers as processes, to be killed, stopped and started again; and clients whose every answer is recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tidelog.cli.local_cluster import LocalNode, free_ports, plan, write_properties
from tidelog.testing.history.clients.confluent import ConfluentConsumer, ConfluentProducer
from tidelog.testing.history.recorder import Recorder

HOST: Final = "127.0.0.1"
READY_SECONDS: Final = 90.0
SETTLE_SECONDS: Final = 90.0
"""Generous: these tests also run on a machine that is busy with others."""
QUICK: Final = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0}


class Processes:
    def __init__(self, root: Path, *, brokers: int = 3, settings: Mapping[str, str] | None = None) -> None:
        self.nodes: list[LocalNode] = [
            node._replace(port=port)
            for node, port in zip(
                plan(root, brokers=brokers, host=HOST, port=0), free_ports(HOST, brokers), strict=True
            )
        ]
        for node in self.nodes:
            write_properties(self.nodes, node, HOST, dict(settings or {}))
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._ready_from: dict[int, int] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def __enter__(self) -> Self:
        for node in self.nodes:
            self.launch(node.node_id)
        for node in self.nodes:
            self.wait_until_ready(node.node_id)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for node in self.nodes:
                error.add_note(f"node {node.node_id}: {node.log_file.read_text()[-3000:]}")
        for node_id in list(self._running):
            self.kill(node_id)

    def launch(self, node_id: int) -> None:
        node = self.nodes[node_id]
        with node.log_file.open("ab") as log:
            self._ready_from[node_id] = log.tell()
            self._running[node_id] = subprocess.Popen(
                [sys.executable, "-m", "tidelog", "start", "--config", str(node.properties_file)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def wait_until_ready(self, node_id: int) -> None:
        node = self.nodes[node_id]
        wait_until(
            lambda: b"is ready on" in node.log_file.read_bytes()[self._ready_from[node_id] :],
            f"node {node_id} is ready",
            READY_SECONDS,
        )

    def start(self, node_id: int) -> None:
        self.launch(node_id)
        self.wait_until_ready(node_id)

    def kill(self, node_id: int) -> None:
        process = self._running.pop(node_id, None)
        if process is not None:
            process.kill()
            process.wait()

    def stop(self, node_id: int) -> None:
        """A controlled shutdown."""
        process = self._running.pop(node_id)
        process.terminate()
        assert process.wait(60) == 0

    def signal(self, node_id: int, number: signal.Signals) -> None:
        os.kill(self._running[node_id].pid, number)

    # ---- what clients see

    def create_topic(self, name: str, partitions: int = 3) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUICK})
        admin.create_topics([NewTopic(name, partitions, 3)])[name].result(60)
        wait_until(lambda: None not in self.leaders(name).values(), f"{name} has leaders")

    def leaders(self, topic: str) -> dict[int, int | None]:
        """By partition; None while there is none."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUICK})
        found = admin.list_topics(topic, timeout=30).topics[topic].partitions
        return {index: each.leader if each.leader >= 0 else None for index, each in found.items()}

    def in_sync(self, topic: str) -> dict[int, set[int]]:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUICK})
        found = admin.list_topics(topic, timeout=30).topics[topic].partitions
        return {index: set(each.isrs) for index, each in found.items()}

    def wait_until_in_sync(self, topic: str) -> None:
        everybody = {node.node_id for node in self.nodes}
        wait_until(
            lambda: all(isr == everybody for isr in self.in_sync(topic).values()), f"{topic} is in sync"
        )


def wait_until(is_true: Callable[[], object], what: str, seconds: float = SETTLE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if is_true():
                return
        except confluent_kafka.KafkaException:
            pass  # nobody answers yet
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.1)


class Load:
    """An idempotent producer that sends all the time, and remembers what it was told."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, recorder: Recorder) -> None:
        inner = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "delivery.timeout.ms": 120_000,
                **QUICK,
            }
        )
        self._inner = inner
        self._producer = ConfluentProducer(inner, recorder, "producer")
        self._topic = topic
        self._partitions = partitions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = self.acknowledged = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_more(self, count: int = 50) -> None:
        """Until so many more are acknowledged: the cluster takes records."""
        wanted = self.acknowledged + count
        wait_until(lambda: self.acknowledged >= wanted, f"{count} more records are acknowledged")

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.produce(
                self._topic,
                b"%d" % self.sent,
                partition=self.sent % self._partitions,
                on_delivery=self._delivered,
            )
            self.sent += 1
            self._inner.poll(0.002)
        assert self._inner.flush(120) == 0

    def _delivered(self, error: object, _message: object) -> None:
        self.acknowledged += error is None


def read_all(bootstrap: str, topic: str, partitions: int, recorder: Recorder) -> None:
    """Everything from the beginning to the end, as the last look of the history."""
    inner = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, **QUICK}
    )
    consumer = ConfluentConsumer(inner, recorder, "reader", final=True)
    ends = {
        index: inner.get_watermark_offsets(confluent_kafka.TopicPartition(topic, index), timeout=60)[1]
        for index in range(partitions)
    }
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)])
    position = dict.fromkeys(range(partitions), 0)
    deadline = time.monotonic() + SETTLE_SECONDS
    while any(position[index] < end for index, end in ends.items()):
        assert time.monotonic() < deadline, f"read up to {position} of {ends}"
        for message in consumer.consume(1000, 1.0):
            if message.error() is None:
                position[message.partition()] = message.offset() + 1
    inner.close()
