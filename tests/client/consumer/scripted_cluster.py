"""A cluster of three brokers with one partition, whose leader, log and temper a test changes as it likes.

Each node listens on a port of its own and answers ApiVersions, Metadata, Fetch, OffsetForLeaderEpoch and ListOffsets from the state here, as Kafka's brokers would. A node is dead
(nobody listens, connections end), silent (takes connections and answers nothing), or well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from tests.client.conftest import versions_answer
from tidelog.client.metadata import TopicPartition
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire.api import ApiKey, spec
from tidelog.wire.codec import decode
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.headers import RequestHeader, decode_request_header, encode_response
from tidelog.wire.messages import fetch, list_offsets, metadata
from tidelog.wire.messages import offset_for_leader_epoch as epochs

TP = TopicPartition("orders", 0)
NODES = 3
WAIT_SECONDS = 0.02


class Entry(NamedTuple):
    leader_epoch: int
    value: bytes


class ScriptedCluster:
    def __init__(self) -> None:
        self.leader = 0
        self.leader_epoch = 0
        self.log: list[Entry] = []
        self.ports: dict[int, int] = {}
        self.silent: set[int] = set()
        self.speechless: set[tuple[int, ApiKey]] = set()
        """Nodes that do not answer one API."""
        self.asked: list[tuple[int, ApiKey]] = []
        self.codes: dict[ApiKey, list[ErrorCode]] = {}
        """What the next answers of an API say, before they are as they should be."""
        self.outdated: dict[int, tuple[int, int]] = {}
        """Nodes that still tell of this leader and epoch."""
        self.has_forgotten_epochs = False
        self.records_at_once = 1_000
        self._servers: dict[int, asyncio.Server] = {}
        self._writers: dict[int, set[asyncio.StreamWriter]] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.ports[node]}" for node in range(NODES))

    async def __aenter__(self) -> ScriptedCluster:
        for node in range(NODES):
            await self.revive(node)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for node in list(self._servers):
            self.die(node)

    # ---- what a test does

    def write(self, *values: bytes) -> None:
        self.log += (Entry(self.leader_epoch, value) for value in values)

    def elect(self, node: int, *, cut_at: int | None = None) -> None:
        """A new leader, whose log may be shorter."""
        self.leader, self.leader_epoch = node, self.leader_epoch + 1
        if cut_at is not None:
            del self.log[cut_at:]

    async def revive(self, node: int) -> None:
        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
            return self._serve(node, reader, writer)

        server = await asyncio.start_server(serve, "127.0.0.1", self.ports.get(node, 0))
        self._servers[node] = server
        self.ports[node] = server.sockets[0].getsockname()[1]

    def die(self, node: int) -> None:
        self._servers.pop(node).close()
        for writer in self._writers.pop(node, set()):
            writer.transport.abort()

    # ---- the brokers

    async def _serve(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.setdefault(node, set()).add(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = memoryview(await reader.readexactly(size))
                header, position = decode_request_header(frame, 0)
                self.asked.append((node, ApiKey(header.api_key)))
                body = decode(spec(header.api_key).request_class, header.api_version, frame[position:])
                reply = await self._answer(node, header, body)
                while node in self.silent or (node, ApiKey(header.api_key)) in self.speechless:
                    await asyncio.sleep(WAIT_SECONDS)
                    if writer.is_closing():
                        return
                parts = encode_response(header.api_key, header.api_version, header.correlation_id, reply)
                writer.write(b"".join(map(bytes, parts)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _answer(self, node: int, header: RequestHeader, body: Any) -> Any:
        if header.api_key == ApiKey.API_VERSIONS:
            return versions_answer(
                METADATA=(0, 12), FETCH=(4, 12), OFFSET_FOR_LEADER_EPOCH=(2, 4), LIST_OFFSETS=(1, 9)
            )
        if header.api_key == ApiKey.METADATA:
            return self._metadata(node, body)
        code = self._code(node, ApiKey(header.api_key))
        if header.api_key == ApiKey.FETCH:
            return await self._fetch(node, body, code)
        if header.api_key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
            return self._end_of_epoch(body, code)
        assert header.api_key == ApiKey.LIST_OFFSETS
        (partition,) = body.topics[0].partitions
        offset = 0 if partition.timestamp == -2 else len(self.log)
        answer = list_offsets.ListOffsetsPartitionResponse(
            partition_index=0, error_code=code, offset=offset, leader_epoch=self.leader_epoch
        )
        topic = list_offsets.ListOffsetsTopicResponse(name=TP.topic, partitions=[answer])
        return list_offsets.ListOffsetsResponse(topics=[topic])

    def _code(self, node: int, key: ApiKey) -> ErrorCode:
        if codes := self.codes.get(key):
            return codes.pop(0)
        return ErrorCode.NONE if node == self.leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _metadata(self, node: int, body: Any) -> metadata.MetadataResponse:
        leader, leader_epoch = self.outdated.get(node, (self.leader, self.leader_epoch))
        partition = metadata.MetadataResponsePartition(
            partition_index=0,
            leader_id=leader,
            leader_epoch=leader_epoch,
            replica_nodes=list(range(NODES)),
            isr_nodes=[leader],
        )
        asked = body.topics is None or any(topic.name == TP.topic for topic in body.topics)
        return metadata.MetadataResponse(
            brokers=[
                metadata.MetadataResponseBroker(node_id=node, host="127.0.0.1", port=port)
                for node, port in self.ports.items()
            ],
            controller_id=0,
            topics=[metadata.MetadataResponseTopic(name=TP.topic, partitions=[partition])] if asked else [],
        )

    async def _fetch(self, node: int, body: Any, code: ErrorCode) -> fetch.FetchResponse:
        data = fetch.PartitionData(partition_index=0, error_code=code, high_watermark=len(self.log))
        if body.topics and code == ErrorCode.NONE:
            (asked,) = body.topics[0].partitions
            if asked.current_leader_epoch != self.leader_epoch:
                data.error_code = ErrorCode.FENCED_LEADER_EPOCH
            elif asked.fetch_offset > len(self.log):
                data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            else:
                data.records = self._records(asked.fetch_offset)
        if not data.records:
            await asyncio.sleep(WAIT_SECONDS)
        return fetch.FetchResponse(
            responses=[fetch.FetchableTopicResponse(topic=TP.topic, partitions=[data])]
        )

    def _records(self, offset: int) -> bytes:
        """Each in a batch of its own."""
        return b"".join(
            build_batch([Record(number, 1, None, entry.value, ())], partition_leader_epoch=entry.leader_epoch)
            for number, entry in enumerate(self.log[offset : offset + self.records_at_once], offset)
        )

    def _end_of_epoch(self, body: Any, code: ErrorCode) -> epochs.OffsetForLeaderEpochResponse:
        (asked,) = body.topics[0].partitions
        answer = epochs.EpochEndOffset(partition=0, error_code=code)
        if code == ErrorCode.NONE:
            upto = [entry for entry in self.log if entry.leader_epoch <= asked.leader_epoch]
            if not self.has_forgotten_epochs:
                answer.end_offset = len(upto)
                answer.leader_epoch = upto[-1].leader_epoch if upto else asked.leader_epoch
        topic = epochs.OffsetForLeaderTopicResult(topic=TP.topic, partitions=[answer])
        return epochs.OffsetForLeaderEpochResponse(topics=[topic])


async def until(holds: Callable[[], object], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)
