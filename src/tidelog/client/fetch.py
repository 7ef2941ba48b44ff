"""Reading partitions from given offsets: a fetch loop that knows leaders, positions and ends.

One request per leader is outstanding; the next one leaves before the answer at hand is given to the caller, so the
broker works while the caller decodes. The position of a partition moves over whole batches by their headers alone, and
only forwards. Records are not decoded here unless asked (`records_of`): bulk readers take the bytes as they came.
Groups, sessions and read_committed are not this file's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tidelog.client.backoff import Deadline
from tidelog.client.cluster import ClusterClient
from tidelog.client.connection import Connection
from tidelog.client.errors import BrokerError, ClientError, MalformedResponseError, check
from tidelog.client.metadata import ZERO_ID, TopicPartition
from tidelog.client.offsets import EARLIEST, LATEST, list_offsets
from tidelog.errors import CorruptDataError
from tidelog.records.batch import crc_matches, iter_headers
from tidelog.records.record import Record, iter_records
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

LAST_VERSION_WITH_NAMES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """Kafka's consumer settings of the same names (dots as underscores), with Kafka's defaults."""

    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 * 1024 * 1024
    max_partition_fetch_bytes: int = 1024 * 1024
    retry_timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class FetchedRun:
    """Whole batches of one partition. The first may begin before `start_offset`, the last may pass `end_offset`."""

    tp: TopicPartition
    start_offset: int
    end_offset: int | None
    records: memoryview
    next_offset: int
    high_watermark: int
    latency_seconds: float
    """From asking to the answer, the broker's wait for data included."""


class Fetcher:
    """`async for run in Fetcher(cluster, positions).runs():` until every partition is at its end, or for ever."""

    def __init__(
        self,
        cluster: ClusterClient,
        positions: Mapping[TopicPartition, int],
        settings: FetchSettings | None = None,
        *,
        end_offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self.positions = dict(positions)
        self._cluster = cluster
        self._settings = settings or FetchSettings()
        self._ends = dict(end_offsets or {})
        self._partition_bytes = dict.fromkeys(self.positions, self._settings.max_partition_fetch_bytes)

    async def runs(self) -> AsyncGenerator[FetchedRun, None]:
        outstanding: dict[asyncio.Future[FetchResponse], _Asked] = {}
        patience = _Patience(self._cluster, self._settings.retry_timeout_ms)
        ready: list[FetchedRun] = []
        try:
            while True:
                await self._launch(outstanding, patience)
                for run in ready:
                    yield run
                if not outstanding and all(map(self._at_end, self.positions)):
                    return
                ready = []
                if outstanding:
                    done, _ = await asyncio.wait(outstanding, return_when=asyncio.FIRST_COMPLETED)
                    for answer in done:
                        ready += await self._collect(answer, outstanding.pop(answer), patience)
        finally:
            for answer in outstanding:
                answer.cancel()

    def _at_end(self, tp: TopicPartition) -> bool:
        end = self._ends.get(tp)
        return end is not None and self.positions[tp] >= end

    # -- one request ------------------------------------------------------------------------------------------------

    async def _launch(
        self, outstanding: dict[asyncio.Future[FetchResponse], _Asked], patience: _Patience
    ) -> None:
        """Send a fetch to every leader that has none outstanding and leads something we still want."""
        waiting = {tp for asked in outstanding.values() for tp in asked.partitions}
        wanted = [tp for tp in self.positions if tp not in waiting and not self._at_end(tp)]
        busy = {asked.node for asked in outstanding.values()}
        try:
            for node, tps in (await self._cluster.by_leader(wanted)).items():
                if node not in busy:
                    connection = await self._cluster.connection(node, lane="fetch")
                    answer, asked = self._send(connection, node, tps)
                    outstanding[answer] = asked
        except ClientError as error:
            await patience.lost(error, wanted)

    def _send(
        self, connection: Connection, node: int, tps: list[TopicPartition]
    ) -> tuple[asyncio.Future[FetchResponse], _Asked]:
        settings = self._settings
        topics: dict[str, FetchTopic] = {}
        names_by_id: dict[bytes, str] = {}
        for tp in tps:
            info = self._cluster.metadata.topics[tp.topic]
            names_by_id[info.topic_id] = tp.topic
            topic = topics.setdefault(
                tp.topic, FetchTopic(topic=tp.topic, topic_id=info.topic_id, partitions=[])
            )
            topic.partitions.append(
                FetchPartition(
                    partition=tp.partition,
                    current_leader_epoch=info.partitions[tp.partition].leader_epoch,
                    fetch_offset=self.positions[tp],
                    last_fetched_epoch=-1,
                    log_start_offset=-1,
                    partition_max_bytes=self._partition_bytes[tp],
                )
            )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            session_id=0,
            session_epoch=-1,
            topics=list(topics.values()),
        )
        answer = connection.send(
            ApiKey.FETCH,
            request,
            at_most=LAST_VERSION_WITH_NAMES if ZERO_ID in names_by_id else None,
            timeout_ms=settings.fetch_max_wait_ms + self._cluster.settings.request_timeout_ms,
        )
        return answer, _Asked(node, frozenset(tps), names_by_id, asyncio.get_running_loop().time())

    async def _collect(
        self, answer: asyncio.Future[FetchResponse], asked: _Asked, patience: _Patience
    ) -> list[FetchedRun]:
        runs: list[FetchedRun] = []
        try:
            response = answer.result()
            check(response.error_code, "fetching")
        except ClientError as error:
            await patience.lost(error, asked.partitions)
            return runs
        latency = asyncio.get_running_loop().time() - asked.at
        failures: list[tuple[TopicPartition, int]] = []
        for topic in response.responses:
            name = topic.topic or asked.names_by_id.get(topic.topic_id, "")
            for data in topic.partitions:
                tp = TopicPartition(name, data.partition_index)
                if tp not in asked.partitions:
                    raise MalformedResponseError(
                        f"broker {asked.node} sent records of {tp}, which nobody asked for"
                    )
                if data.error_code != ErrorCode.NONE:
                    failures.append((tp, data.error_code))
                elif (run := self._advance(tp, data, latency)) is not None:
                    runs.append(run)
        if not failures:
            patience.restored()
        for tp, code in failures:
            if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise await self._out_of_range(tp)
            await patience.lost(BrokerError(code, f"fetching from {tp}"), [tp])
        return runs

    def _advance(self, tp: TopicPartition, data: PartitionData, latency: float) -> FetchedRun | None:
        if not data.records:
            return None
        assert isinstance(data.records, memoryview), "what was decoded is a view into its frame"
        view = data.records
        start, next_offset, whole_bytes = self.positions[tp], -1, 0
        try:
            for position, header in iter_headers(view):
                next_offset, whole_bytes = header.next_offset, position + header.size
        except CorruptDataError as error:
            raise MalformedResponseError(f"{tp}: {error}") from error
        if not whole_bytes:
            # Not even the first batch fits. Brokers since 0.10.1 send it whole (KIP-74); for others ask for more.
            self._partition_bytes[tp] = min(2 * self._partition_bytes[tp], (1 << 31) - 1)
            return None
        if next_offset <= start:
            return None
        self.positions[tp] = next_offset
        end = self._ends.get(tp)
        return FetchedRun(tp, start, end, view[:whole_bytes], next_offset, data.high_watermark, latency)

    async def _out_of_range(self, tp: TopicPartition) -> BrokerError:
        first = (await list_offsets(self._cluster, {tp: EARLIEST}))[tp].offset
        end = (await list_offsets(self._cluster, {tp: LATEST}))[tp].offset
        return BrokerError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"fetching from {tp}",
            f"offset {self.positions[tp]} is not there; the partition has offsets {first} to {end} (exclusive)",
        )


@dataclass(frozen=True, slots=True)
class _Asked:
    node: int
    partitions: frozenset[TopicPartition]
    names_by_id: Mapping[bytes, str]
    at: float


class _Patience:
    """How long failures may go on before they are the caller's problem; any success starts the count anew."""

    def __init__(self, cluster: ClusterClient, budget_ms: int) -> None:
        self._cluster = cluster
        self._budget_ms = budget_ms
        self._backoff = cluster.backoff()
        self._deadline: Deadline | None = None

    def restored(self) -> None:
        self._deadline = None
        self._backoff.reset()

    async def lost(self, error: ClientError, partitions: Iterable[TopicPartition]) -> None:
        """Wait before another try, or raise `error`."""
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = Deadline(now, self._budget_ms)
        if not error.retriable or self._deadline.passed(now):
            raise error
        self._cluster.forget_leaders({tp.topic for tp in partitions})
        await asyncio.sleep(self._backoff.next_seconds())


def records_of(run: FetchedRun) -> Iterator[Record]:
    """The records a reader at `start_offset` may see: CRC checked, control records and offsets outside left out."""
    for position, header in iter_headers(run.records):
        if header.is_control:
            continue
        if not crc_matches(run.records, position, header):
            raise CorruptDataError(
                f"{run.tp}: the batch at offset {header.base_offset} fails its CRC; the broker's copy or the network is damaged"
            )
        for record in iter_records(run.records, position, header):
            if record.offset < run.start_offset:
                continue
            if run.end_offset is not None and record.offset >= run.end_offset:
                return
            yield record
