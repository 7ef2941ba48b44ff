"""Talking to a broker with nothing but the wire codec: a socket, a request, its answer.

The broker is ours, in-process and shared by all tests of a worker. TIDELOG_TEST_BOOTSTRAP=host:port runs the same questions
against any Kafka: what a test in `test_api_*.py` expects of the `wire` fixture was checked in this way against
Apache Kafka 4.3.1. Tests that look inside the broker use `launch` and are skipped there.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from tidelog.broker import connection
from tidelog.broker.api import fetch as fetch_api
from tidelog.broker.api import list_offsets as list_offsets_api
from tidelog.broker.apis import APIS
from tidelog.records.builder import BatchBuilder
from tidelog.testing.faulty_disk import FaultyDisk
from tidelog.wire.api import spec
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.headers import RequestHeader, decode_response, encode_request
from tidelog.wire.messages import create_topics, fetch, list_offsets, metadata, produce

NOW_MS = time.time_ns() // 1_000_000
ANSWER_SECONDS_MAX = 20.0
_KEYS = {spec(key).request_class: int(key) for key in APIS}


def code(answer: Any) -> str:
    """The name of an answer's error."""
    return ErrorCode(answer.error_code).name


def batch(*values: bytes, timestamp: int = NOW_MS, **settings: Any) -> bytes:
    """One batch with a record per value, without keys, a millisecond apart."""
    builder = BatchBuilder(**settings)
    for number, value in enumerate(values or (b"hello",)):
        builder.append(timestamp + number, None, value)
    return bytes(builder.build())


class Topic(NamedTuple):
    name: str
    id: bytes


class Wire:
    """One connection. `ask` for one answer; `send` and `receive` apart for pipelining."""

    def __init__(self, port: int, host: str = "127.0.0.1", client_id: str | None = "wire") -> None:
        self.port = port
        self.client_id = client_id
        self._sock = socket.create_connection((host, port), timeout=ANSWER_SECONDS_MAX)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_ids = itertools.count(1)
        self._sent: list[tuple[int, int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._sock.close()

    # ---- frames

    def send(self, request: Any, version: int | None = None) -> None:
        self._sock.sendall(self._encoded(request, version))

    def send_together(self, *requests: Any) -> None:
        """So that they arrive at the same time."""
        self._sock.sendall(b"".join(self._encoded(request, None) for request in requests))

    def _encoded(self, request: Any, version: int | None) -> bytes:
        key = _KEYS[type(request)]
        if version is None:
            version = APIS[key].max_version
        correlation_id = next(self._correlation_ids)
        self._sent.append((key, version, correlation_id))
        return encode_request(RequestHeader(key, version, correlation_id, self.client_id), request)

    def receive(self, timeout: float = ANSWER_SECONDS_MAX) -> Any:
        """The next answer, checked to be that of the oldest request."""
        key, version, correlation_id = self._sent.pop(0)
        found, message = decode_response(key, version, self.receive_raw(timeout))
        assert found == correlation_id, "answers must come in the order of their requests"
        return message

    def ask(self, request: Any, version: int | None = None, timeout: float = ANSWER_SECONDS_MAX) -> Any:
        self.send(request, version)
        return self.receive(timeout)

    def send_raw(self, body: bytes) -> None:
        self._sock.sendall(struct.pack(">i", len(body)) + body)

    def send_bytes(self, data: bytes) -> None:
        self._sock.sendall(data)

    def receive_raw(self, timeout: float = ANSWER_SECONDS_MAX) -> bytes:
        self._sock.settimeout(timeout)
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            more = self._sock.recv(count - len(data))
            if not more:
                raise EOFError(f"the broker closed the connection after {len(data)} of {count} bytes")
            data += more
        return bytes(data)

    def is_silent(self, seconds: float = 0.15) -> bool:
        """Nothing arrives for a while, and the connection stays open."""
        self._sock.settimeout(seconds)
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        return False

    def is_closed(self, timeout: float = ANSWER_SECONDS_MAX) -> bool:
        """The broker hangs up without an answer."""
        self._sock.settimeout(timeout)
        try:
            return self._sock.recv(1) == b""
        except ConnectionError:
            return True

    # ---- frequent questions

    def create(self, name: str, partitions: int = 1, **config: str) -> Topic:
        configs = [
            create_topics.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in config.items()
        ]
        asked = create_topics.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=configs
        )
        (result,) = self.ask(create_topics.CreateTopicsRequest(topics=[asked], timeout_ms=10_000)).topics
        assert result.error_code == 0, result
        self._wait_until_led(name, partitions)
        return Topic(name, result.topic_id)

    def _wait_until_led(self, name: str, partitions: int) -> None:
        """Kafka answers CreateTopics before its partitions have a leader. Ours needs no second look."""
        request = list_offsets.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                list_offsets.ListOffsetsTopic(
                    name=name,
                    partitions=[
                        list_offsets.ListOffsetsPartition(partition_index=index, timestamp=-1)
                        for index in range(partitions)
                    ],
                )
            ],
        )
        for _ in range(200):
            answers = self.ask(request).topics[0].partitions
            if not any(answer.error_code for answer in answers):
                return
            time.sleep(0.02)
        raise AssertionError(f"{name} has no leaders: {answers}")

    def metadata(self, *names: str, version: int | None = None, create: bool = False) -> Any:
        topics = [metadata.MetadataRequestTopic(name=name) for name in names]
        return self.ask(metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=create), version)

    def produce(
        self,
        topic: Topic,
        records: bytes | None,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int | None = None,
        timeout_ms: int = 10_000,
    ) -> Any:
        """The answer for the one partition."""
        request = self.produce_request(topic, records, partition=partition, acks=acks, timeout_ms=timeout_ms)
        response = self.ask(request, version)
        return response.responses[0].partition_responses[0]

    @staticmethod
    def produce_request(
        topic: Topic, records: bytes | None, *, partition: int = 0, acks: int = -1, timeout_ms: int = 10_000
    ) -> Any:
        data = produce.PartitionProduceData(index=partition, records=records)
        return produce.ProduceRequest(
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[produce.TopicProduceData(name=topic.name, topic_id=topic.id, partition_data=[data])],
        )

    @staticmethod
    def fetch_request(
        topic: Topic,
        offset: int = 0,
        *,
        partition: int = 0,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = 1 << 20,
        isolation_level: int = 0,
        session_id: int = 0,
        session_epoch: int = -1,
        **more: Any,
    ) -> Any:
        asked = fetch.FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes, **more
        )
        return fetch.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=[fetch.FetchTopic(topic=topic.name, topic_id=topic.id, partitions=[asked])],
        )

    def fetch(self, topic: Topic, offset: int = 0, *, version: int | None = None, **more: Any) -> Any:
        """The answer for the one partition."""
        response = self.ask(self.fetch_request(topic, offset, **more), version)
        assert response.error_code == 0, response
        return response.responses[0].partitions[0]

    def offset_at(
        self, topic: Topic, timestamp: int, *, partition: int = 0, version: int | None = None
    ) -> Any:
        asked = list_offsets.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        request = list_offsets.ListOffsetsRequest(
            replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name=topic.name, partitions=[asked])]
        )
        return self.ask(request, version).topics[0].partitions[0]


# ---- the shared broker


@pytest.fixture(autouse=True)
def every_complaint_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests complain faster than people: the limit of lines per second has a test of its own."""
    for module in (connection, fetch_api, list_offsets_api):
        monkeypatch.setattr(module.complaints, "lines_per_second", 1_000_000)


@pytest.fixture(scope="session")
def foreign() -> bool:
    """The tests run against a broker that is not ours."""
    return "TIDELOG_TEST_BOOTSTRAP" in os.environ


@pytest.fixture(scope="session")
def shared_broker(foreign: bool) -> Iterator[tuple[str, int]]:
    if foreign:
        host, _, port = os.environ["TIDELOG_TEST_BOOTSTRAP"].rpartition(":")
        yield host, int(port)
        return
    from tidelog.testing import Cluster

    with Cluster() as cluster:
        host, _, port = cluster.bootstrap_servers.rpartition(":")
        yield host, int(port)


@pytest.fixture
def connect(shared_broker: tuple[str, int]) -> Iterator[Callable[[], Wire]]:
    """More connections to the shared broker; they are closed after the test."""
    opened: list[Wire] = []

    def open_one() -> Wire:
        opened.append(Wire(shared_broker[1], shared_broker[0]))
        return opened[-1]

    yield open_one
    for wire in opened:
        wire.close()


@pytest.fixture
def wire(connect: Callable[[], Wire]) -> Wire:
    return connect()


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topic(wire: Wire, name: str) -> Topic:
    return wire.create(name)


@pytest.fixture
def nowhere() -> Topic:
    """A topic that does not exist."""
    return Topic(f"no-{uuid.uuid4().hex[:12]}", uuid.uuid4().bytes)


# ---- brokers of one's own


class OwnBroker:
    """A broker on a loop of its own, whose parts a test may look at, replace and break."""

    def __init__(self, properties: Mapping[str, str], disk: Any = None) -> None:
        self.properties = dict(properties)
        self.disk = disk
        self.broker: Any = None
        self.port = 0
        self._wires: list[Wire] = []

    def start(self) -> Self:
        ready = threading.Event()
        self._failure: BaseException | None = None

        async def serve() -> None:
            from tidelog.broker.node import Broker
            from tidelog.config.resolve import BrokerConfig

            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            self._clean = True
            self.broker = Broker(BrokerConfig.load(self.properties), disk=self.disk)
            await self.broker.start()
            self.port = self.broker.listeners[0].port
            ready.set()
            await self._stop.wait()
            await self.broker.stop(clean=self._clean)

        def run() -> None:
            try:
                asyncio.run(serve())
            except BaseException as failure:  # noqa: BLE001 - raised in the test's thread
                self._failure = failure
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        assert ready.wait(30), "the broker did not start"
        if self._failure is not None:
            self._thread.join()
            failure, self._failure = self._failure, None
            raise failure
        return self

    def stop(self) -> None:
        for wire in self._wires:
            wire.close()
        self._wires.clear()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)
            assert not self._thread.is_alive(), "the broker did not stop"
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def restart(self, *, clean: bool = True) -> None:
        """Not clean: the next start finds what a killed process would have left."""
        self._clean = clean
        self.stop()
        self.start()

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function on the broker's loop; a coroutine it returns is awaited there."""

        async def work() -> Any:
            result = function()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(30)

    def connect(self) -> Wire:
        wire = Wire(self.port)
        self._wires.append(wire)
        return wire


@pytest.fixture
def launch(tmp_path: Path, foreign: bool) -> Iterator[Callable[..., OwnBroker]]:
    """Start a broker: `launch(disk=…, dirs=2, **settings)` with `_` for `.` in the settings' names."""
    if foreign:
        pytest.skip("looks inside the broker")
    launched: list[OwnBroker] = []

    def start(*, disk: Any = None, dirs: int = 1, **settings: Any) -> OwnBroker:
        home = tmp_path / f"broker-{len(launched)}"
        properties = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": ",".join(str(home / f"d{number}") for number in range(dirs)),
            "durability": "replicated",
        } | {key.replace("_", "."): str(value) for key, value in settings.items()}
        launched.append(OwnBroker(properties, disk))
        return launched[-1].start()

    yield start
    for broker in launched:
        broker.stop()


# ---- disks that fail


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk()
    yield disk
    disk.release()
