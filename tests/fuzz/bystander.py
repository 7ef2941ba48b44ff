"""An ordinary client that wants nothing of all this: produces with acks=all, consumes what it produced, and takes the time.

A process of its own (`python -m tests.fuzz.bystander HOST:PORT TOPIC DIRECTORY`), so that the attackers' Python does not slow it down. Runs
until its standard input ends and prints what it saw as one JSON object. Beside it, a connection of its own asks ApiVersions twenty
times a second: the longest it waited is the longest the broker's loop stood still. What the machine itself did meanwhile is
measured too, because a busy one makes everybody late, and a busy disk everybody who waits for a sync.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import struct
import sys
import threading
import time
from functools import partial

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

INTERVAL_SECONDS = 0.05
PRODUCE_SECONDS = 0.01
WORK_BYTES, WORK_EVERY = 4 << 20, 4
END_SECONDS_MAX = 30.0
PING = struct.pack(">ihhih", 10, 18, 0, 1, -1)


class Ping(threading.Thread):
    """One small question after the other on a connection that never closes."""

    def __init__(self, host: str, port: int, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self._address = (host, port)
        self._stopping = stopping
        self.count = 0
        self.seconds_max = 0.0
        self.error: str | None = None

    def run(self) -> None:
        try:
            with socket.create_connection(self._address, timeout=60) as sock:
                while not self._stopping.wait(INTERVAL_SECONDS):
                    began = time.perf_counter()
                    sock.sendall(PING)
                    self._receive(sock)
                    self.seconds_max = max(self.seconds_max, time.perf_counter() - began)
                    self.count += 1
        except OSError as error:
            self.error = repr(error)

    @staticmethod
    def _receive(sock: socket.socket) -> None:
        wanted, data = 4, b""
        while len(data) < wanted:
            more = sock.recv(65536)
            if not more:
                raise ConnectionError("the broker closed the bystander's connection")
            data += more
            if len(data) >= 4:
                wanted = 4 + struct.unpack_from(">i", data)[0]


class Noise(threading.Thread):
    """What the machine itself does to somebody who sleeps, and to somebody who works.

    `seconds_max`: how late it wakes a sleeper. `slowdown`: how much longer some milliseconds of work take by the clock than on the
    processor at its best, because others use it too; the work is done without Python's own lock.
    """

    def __init__(self, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self._stopping = stopping
        self._work = bytes(WORK_BYTES)
        self.seconds_max = 0.0
        self._clock = 0.0
        self._turns = 0
        self._best = math.inf

    @property
    def slowdown(self) -> float:
        return max(1.0, self._clock / self._turns / self._best) if self._turns else 1.0

    def run(self) -> None:
        turn = 0
        while not self._stopping.is_set():
            began = time.perf_counter()
            time.sleep(INTERVAL_SECONDS)
            self.seconds_max = max(self.seconds_max, time.perf_counter() - began - INTERVAL_SECONDS)
            turn += 1
            if turn % WORK_EVERY == 0:
                began, used = time.perf_counter(), time.thread_time()
                hashlib.sha256(self._work)
                self._clock += time.perf_counter() - began
                self._turns += 1
                self._best = min(self._best, time.thread_time() - used)


class DiskNoise(threading.Thread):
    """How long the disk itself takes to keep a few bytes, beside the broker's files."""

    def __init__(self, directory: str, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self._path = os.path.join(directory, "disk-noise")
        self._stopping = stopping
        self.seconds_max = 0.0

    def run(self) -> None:
        with open(self._path, "wb", buffering=0) as file:
            while not self._stopping.wait(INTERVAL_SECONDS):
                began = time.perf_counter()
                file.write(b"noise")
                os.fdatasync(file.fileno())
                self.seconds_max = max(self.seconds_max, time.perf_counter() - began)


class Reader(threading.Thread):
    """Reads the topic from its beginning and remembers numbers, in order, and the longest way from producer to here."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bystander",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self.numbers: list[int] = []
        self.seconds_max = 0.0
        self.stop = threading.Event()
        self.settled = threading.Event()
        self.errors: list[str] = []

    def run(self) -> None:
        while not self.stop.is_set():
            for message in self._consumer.consume(500, timeout=0.05):
                if message.error():
                    self.errors.append(str(message.error()))
                    continue
                number, sent = (message.value() or b"").split(b" ")
                self.numbers.append(int(number))
                if self.settled.is_set():
                    self.seconds_max = max(self.seconds_max, time.perf_counter() - float(sent))
        self._consumer.close()


class Writer(threading.Thread):
    def __init__(self, bootstrap: str, topic: str, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 1,
                "delivery.timeout.ms": 20_000,
                "request.timeout.ms": 10_000,
            }
        )
        self._topic = topic
        self._stopping = stopping
        self.sent = 0
        self.acknowledged = 0
        self.failures: list[str] = []
        self.seconds_max = 0.0

    def run(self) -> None:
        while not self._stopping.wait(PRODUCE_SECONDS):
            began = time.perf_counter()
            self._producer.produce(
                self._topic,
                b"%d %.6f" % (self.sent, began),
                partition=0,
                on_delivery=partial(self._delivered, began),
            )
            self.sent += 1
            self._producer.poll(0)
        self._producer.flush(END_SECONDS_MAX)

    def _delivered(self, began: float, error: object, message: object) -> None:
        if error is None:
            self.acknowledged += 1
            self.seconds_max = max(self.seconds_max, time.perf_counter() - began)
        else:
            self.failures.append(str(error))


def main(bootstrap: str, topic: str, directory: str) -> None:
    host, _, port = bootstrap.rpartition(":")
    stopping = threading.Event()
    reader, writer = Reader(bootstrap, topic), Writer(bootstrap, topic, stopping)
    ping, noise, disk_noise = Ping(host, int(port), stopping), Noise(stopping), DiskNoise(directory, stopping)
    for thread in (reader, writer, ping, noise, disk_noise):
        thread.start()
    # A client needs a moment to find its broker and its producer id: that is its own time.
    while not reader.numbers or len(reader.numbers) < writer.sent - 20:
        time.sleep(0.01)
    writer.seconds_max = 0.0
    reader.settled.set()
    print("running", flush=True)
    sys.stdin.read()
    stopping.set()
    writer.join()
    deadline = time.monotonic() + END_SECONDS_MAX
    while len(reader.numbers) < writer.acknowledged and time.monotonic() < deadline:
        time.sleep(0.02)
    reader.stop.set()
    for thread in (reader, ping, noise, disk_noise):
        thread.join()
    print(
        json.dumps(
            {
                "sent": writer.sent,
                "acknowledged": writer.acknowledged,
                "failures": writer.failures[:5],
                "in_order_once": reader.numbers == list(range(writer.sent)),
                "received": len(reader.numbers),
                "read_errors": reader.errors[:5],
                "acknowledge_seconds_max": writer.seconds_max,
                "end_to_end_seconds_max": reader.seconds_max,
                "pings": ping.count,
                "ping_seconds_max": ping.seconds_max,
                "ping_error": ping.error,
                "noise_seconds_max": noise.seconds_max,
                "sync_seconds_max": disk_noise.seconds_max,
                "slowdown": noise.slowdown,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], sys.argv[3])
    except KafkaException as error:
        sys.exit(str(error))
