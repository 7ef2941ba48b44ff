"""Starts a real broker on what a crash left, and asks it over the wire for everything that a client can learn.

The broker is the whole of it, metadata, recovery, partitions and sockets; only its disk may be the simulated one. `show` speaks to any
broker, so a process on real files is asked the same.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from types import TracebackType
from typing import Any, Final, Self

from tidelog.broker.node import Broker
from tidelog.broker.node_shell import StartError
from tidelog.config.resolve import BrokerConfig
from tidelog.errors import CorruptDataError
from tidelog.records.batch import iter_headers
from tidelog.storage.disk import Disk
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.inodes import Machine
from tidelog.testing.syscalls.history import LATEST, TOPIC_RESOURCE, History, SentBatch, TopicHistory, body_of
from tidelog.testing.syscalls.verdict import Shown, ShownBatch, ShownPartition, ShownTopic
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.headers import RequestHeader, decode_response, encode_request
from tidelog.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest
from tidelog.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidelog.wire.messages.metadata import MetadataRequest
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.types import ZERO_UUID

EARLIEST: Final = -2
FETCH_BYTES: Final = 1 << 20
REMEMBERED_BATCHES: Final = 5  # of each producer and partition
DYNAMIC_TOPIC_CONFIG: Final = 1

_VERSIONS: Final[dict[type, tuple[ApiKey, int]]] = {
    MetadataRequest: (ApiKey.METADATA, 12),
    DescribeConfigsRequest: (ApiKey.DESCRIBE_CONFIGS, 4),
    ListOffsetsRequest: (ApiKey.LIST_OFFSETS, 7),
    FetchRequest: (ApiKey.FETCH, 12),
    ProduceRequest: (ApiKey.PRODUCE, 9),
    InitProducerIdRequest: (ApiKey.INIT_PRODUCER_ID, 4),
}


class _Asking:
    """One connection to a broker; one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(self, request: Any) -> Any:
        (answer,) = await self.ask_all([request])
        return answer

    async def ask_all(self, requests: Sequence[Any]) -> list[Any]:
        """All at once, and the answers in their order."""
        for request in requests:
            key, version = _VERSIONS[type(request)]
            self._writer.write(encode_request(RequestHeader(key, version, 1, "after the crash"), request))
        answers = []
        for request in requests:
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            frame = await self._reader.readexactly(size)
            answers.append(decode_response(*_VERSIONS[type(request)], frame)[1])
        return answers


async def show(port: int, history: History, *, retry: bool = True) -> Shown:
    """Everything that the broker on this port tells. `history` says which batches to send again, unless it is only to be looked at."""
    async with _Asking(port) as broker:
        metadata = await broker.ask(MetadataRequest(topics=None, allow_auto_topic_creation=False))
        topics = {topic.name: topic for topic in metadata.topics}
        settings = await _settings(broker, {name: _known_settings(history, name) for name in topics})
        keys = [(name, part.partition_index) for name, topic in topics.items() for part in topic.partitions]
        starts = await _offsets(broker, keys, EARLIEST)
        ends = await _offsets(broker, keys, LATEST)
        batches = await _read(broker, starts, ends)
        retries = await _retries(
            broker,
            {key: end for key, end in ends.items() if isinstance(end, int)},
            {
                name: _life_of(history, name, topic.topic_id) if retry else None
                for name, topic in topics.items()
            },
        )
        producer = await broker.ask(
            InitProducerIdRequest(transactional_id=None, producer_id=-1, producer_epoch=-1)
        )
        assert producer.error_code == 0, ErrorCode(producer.error_code).name
    return Shown(
        {
            name: ShownTopic(
                topic.topic_id,
                settings[name],
                {
                    part.partition_index: _partition(
                        (name, part.partition_index), starts, ends, batches, retries
                    )
                    for part in topic.partitions
                },
            )
            for name, topic in topics.items()
        },
        producer.producer_id,
    )


_Key = tuple[str, int]


def _partition(
    key: _Key,
    starts: dict[_Key, int | str],
    ends: dict[_Key, int | str],
    batches: dict[_Key, list[ShownBatch] | str],
    retries: dict[_Key, dict[tuple[int, int], int | str]],
) -> ShownPartition | str:
    start, end, found = starts[key], ends[key], batches.get(key, [])
    if isinstance(start, str):
        return start
    if isinstance(end, str):
        return end
    return found if isinstance(found, str) else ShownPartition(start, end, tuple(found), retries[key])


def _known_settings(history: History, name: str) -> list[str]:
    return sorted({setting for life in history.topics.get(name, ()) for setting in life.settings})


async def _settings(broker: _Asking, wanted: dict[str, list[str]]) -> dict[str, dict[str, str | None]]:
    if not wanted:
        return {}
    resources = [
        DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=names)
        for name, names in wanted.items()
    ]
    response = await broker.ask(DescribeConfigsRequest(resources=resources))
    return {
        result.resource_name: {
            config.name: config.value
            for config in result.configs
            if config.config_source == DYNAMIC_TOPIC_CONFIG
        }
        for result in response.results
    }


async def _offsets(broker: _Asking, keys: list[_Key], timestamp: int) -> dict[_Key, int | str]:
    topics = [
        ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(index, timestamp=timestamp)])
        for name, index in keys
    ]
    if not topics:
        return {}
    response = await broker.ask(ListOffsetsRequest(replica_id=-1, topics=topics))
    return {
        (topic.name, part.partition_index): part.offset
        if part.error_code == 0
        else ErrorCode(part.error_code).name
        for topic in response.topics
        for part in topic.partitions
    }


async def _read(
    broker: _Asking, starts: dict[_Key, int | str], ends: dict[_Key, int | str]
) -> dict[_Key, list[ShownBatch] | str]:
    """Every batch from the log start to the high watermark, or what stood in the way."""
    found: dict[_Key, list[ShownBatch] | str] = {}
    wanted = {key: start for key, start in starts.items() if isinstance(start, int)}
    while wanted := {key: offset for key, offset in wanted.items() if offset < int(ends[key])}:
        topics = [
            FetchTopic(
                name, partitions=[FetchPartition(index, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)]
            )
            for (name, index), offset in wanted.items()
        ]
        response = await broker.ask(
            FetchRequest(replica_id=-1, max_bytes=1 << 26, session_epoch=-1, topics=topics)
        )
        for topic in response.responses:
            for part in topic.partitions:
                key = topic.topic, part.partition_index
                batches = found.setdefault(key, [])
                assert isinstance(batches, list)
                try:
                    new = _stored(part)
                except CorruptDataError as error:
                    new = str(error)
                if isinstance(new, str):
                    found[key] = new
                    del wanted[key]
                else:
                    batches += new
                    wanted[key] = new[-1].next_offset
    return found


def _stored(part: Any) -> list[ShownBatch] | str:
    if part.error_code != 0:
        return ErrorCode(part.error_code).name
    records = memoryview(part.records or b"")
    batches = [
        ShownBatch(
            header.base_offset, header.next_offset, body_of(records[position : position + header.size])
        )
        for position, header in iter_headers(records)
    ]
    return batches or "a fetch below the high watermark found nothing"


def _life_of(history: History, name: str, topic_id: bytes) -> TopicHistory | None:
    lives = [life for life in history.topics.get(name, ()) if life.topic_id == topic_id != ZERO_UUID]
    return lives[-1] if lives else None


async def _retries(
    broker: _Asking, ends: dict[_Key, int], lives: dict[str, TopicHistory | None]
) -> dict[_Key, dict[tuple[int, int], int | str]]:
    """Send the newest batches of every producer again that this broker should know."""
    outcomes: dict[_Key, dict[tuple[int, int], int | str]] = {key: {} for key in ends}
    tried: list[tuple[_Key, SentBatch]] = []
    for (name, index), end in ends.items():
        life = lives[name]
        known: dict[int, list[SentBatch]] = {}
        for batch in life.partitions[index].batches if life is not None and index in life.partitions else ():
            if batch.answered_at is not None and batch.producer_id >= 0 and batch.base_offset < end:
                known.setdefault(batch.producer_id, []).append(batch)
        for batches in known.values():
            newest = sorted(batches, key=lambda batch: batch.base_offset)[-REMEMBERED_BATCHES:]
            tried += [((name, index), batch) for batch in newest]
    answers = await broker.ask_all([_produce(key, batch.data) for key, batch in tried])
    for (key, batch), answer in zip(tried, answers, strict=True):
        result = answer.responses[0].partition_responses[0]
        outcome = result.base_offset if result.error_code == 0 else ErrorCode(result.error_code).name
        outcomes[key][batch.producer_id, batch.base_sequence] = outcome
    return outcomes


def _produce(key: _Key, data: bytes) -> ProduceRequest:
    partition = PartitionProduceData(key[1], data)
    topic = TopicProduceData(key[0], partition_data=[partition])
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])


async def started(disk: Disk, root: str, then: Callable[[int], Awaitable[Shown]]) -> Shown:
    """Start a broker in this process, let `then` ask it, and let go of it as a killed one would."""
    broker = Broker(BrokerConfig.load({"log.dirs": root, "listeners": "PLAINTEXT://127.0.0.1:0"}), disk=disk)
    try:
        await broker.start()
    except StartError as error:
        return Shown(failure=str(error))
    try:
        return await then(broker.listeners[0].port)
    finally:
        await broker.stop(clean=False)


def recover(disk: Disk, root: str, history: History, *, retry: bool = True) -> Shown:
    """What the broker shows that starts on this disk."""
    return asyncio.run(started(disk, root, lambda port: show(port, history, retry=retry)))


def as_disk(machine: Machine, seed: int = 0) -> SimDisk:
    disk = SimDisk(Random(seed))
    disk.machine = machine
    return disk
