"""Ranges of offsets off the brokers, fetched ahead of whoever decodes them.

One request a round and leader holds all ranges of a task that are not done, so that a task of many small ones costs no more round trips than one of a single range.
A range is done when the next offset is behind its end: markers, aborted data and compaction leave gaps, so nothing is counted. A log that has lost what is asked
for is told apart from one that is only slow (`loss`): the first is an error or, if the user wants it so, passed over with a warning; the second is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog.client.cluster import ClusterClient, PartitionMissingError, TopicMissingError
from tidelog.client.consumer.records import Aborted, Chunk
from tidelog.client.errors import BrokerError, ClientError
from tidelog.client.metadata import ZERO_ID, TopicPartition
from tidelog.client.offsets import EARLIEST, LATEST, list_offsets
from tidelog.client.settings import ConsumerSettings
from tidelog.spark.fetch_requests import fetch
from tidelog.spark.fetch_sizes import FetchSizes
from tidelog.spark.loss import Cause, DataLossError, Loss
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch import PartitionData

logger = logging.getLogger(__name__)

READY_MAX: Final = 1
"""Answers that wait to be decoded, beside the one that is on its way."""
EMPTY_ANSWERS_MAX: Final = 2
ID_TRIES: Final = 4
MISSING_TRIES: Final = 4


class TaskRange(NamedTuple):
    """Offsets [start, end) of a partition of the topic with that id (hexadecimal; empty: whatever has the name)."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Fetched(NamedTuple):
    chunk: Chunk
    end_offset: int


class _Answer(NamedTuple):
    fetched: list[Fetched]
    is_last: bool
    error: Exception | None = None


@dataclass(slots=True)
class _Open:
    """A range that is not done."""

    wanted: TaskRange
    tp: TopicPartition
    position: int
    progress_at: float
    """Who got something last comes last in the next request."""
    waiting_since: float
    preferred_node: int = -1
    empty_answers: int = 0
    is_done: bool = False
    tries: int = field(default=0)


class RangesFetch:
    """`next()` until it `is_over`; whoever stops before that calls `close()`. Both on the client's loop.

    A small range takes a single call: going from a thread to the loop and back costs as much as decoding it.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        settings: ConsumerSettings,
        ranges: Iterable[TaskRange],
        *,
        fail_on_data_loss: bool,
        patience_ms: int,
        sizes: FetchSizes | None = None,
    ) -> None:
        self._cluster = cluster
        self._sizes = sizes or FetchSizes()
        self._settings = settings
        self._fail_on_data_loss = fail_on_data_loss
        self._patience_ms = patience_ms
        self._ranges = [each for each in ranges if each.end > each.start]
        self._open: list[_Open] = []
        self._ready: asyncio.Queue[_Answer] = asyncio.Queue(READY_MAX)
        self._task: asyncio.Task[None] | None = None
        self.is_over = False
        """Nothing comes any more, and nothing is left to close."""

    def _start(self) -> None:
        now = asyncio.get_running_loop().time()
        self._open = [_Open(each, each.tp, each.start, now, now) for each in self._ranges]
        self._task = asyncio.create_task(self._run())

    async def next(self) -> list[Fetched]:
        """What came next; the last time it may be nothing."""
        if self._task is None:
            self._start()
        answer = await self._ready.get()
        self.is_over = answer.is_last
        if answer.error is not None:
            raise answer.error
        return answer.fetched

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        fetched: list[Fetched] = []
        try:
            while self._open:
                fetched = await self._round()
                self._open = [each for each in self._open if not each.is_done]
                # An answer has room for the first ones: those that got nothing are named first the next time.
                self._open.sort(key=lambda each: each.progress_at)
                if fetched and self._open:
                    await self._ready.put(_Answer(fetched, is_last=False))
                    self._begin_to_wait()  # however long the reader took for what it had
            await self._ready.put(_Answer(fetched, is_last=True))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - raised by whoever waits for records
            await self._ready.put(_Answer([], is_last=True, error=error))

    def _begin_to_wait(self) -> None:
        now = asyncio.get_running_loop().time()
        for each in self._open:
            each.waiting_since = now

    # -- a round ----------------------------------------------------------------------------------------------------

    async def _round(self) -> list[Fetched]:
        try:
            groups = await self._by_node()
        except (TopicMissingError, PartitionMissingError) as error:
            await self._missing(error)
            return []
        except ClientError as error:
            await self._wait_or_give_up(self._open, error)
            return []
        await self._check_ids()
        answers = await asyncio.gather(*(self._ask(node, ranges) for node, ranges in groups.items()))
        return [fetched for answer in answers for fetched in answer]

    async def _by_node(self) -> dict[int, list[_Open]]:
        by_tp = {each.tp: each for each in self._open if each.preferred_node < 0}
        groups: dict[int, list[_Open]] = {}
        leaders = await self._cluster.by_leader(by_tp)
        for node, tps in leaders.items():
            groups[node] = [by_tp[tp] for tp in tps]
        for each in self._open:
            if each.preferred_node >= 0:
                groups.setdefault(each.preferred_node, []).append(each)
        return groups

    async def _check_ids(self) -> None:
        """A topic that was made anew has other records at the same offsets. What we or a broker know of it may be old, so it is asked for a few times."""
        for _ in range(ID_TRIES):
            others = [each for each in self._open if self._is_other_topic(each)]
            if not others:
                return
            await self._cluster.refresh_metadata({each.tp.topic for each in others})
            if any(self._is_other_topic(each) for each in others):
                await asyncio.sleep(self._cluster.backoff().next_seconds())
        for each in others:
            if self._is_other_topic(each):
                why = f"topic {each.tp.topic} was deleted and made anew: offsets {each.position} to {each.wanted.end} of {each.tp} are gone"
                self._lose(each, Loss(each.tp, Cause.MADE_ANEW, each.position, None, why))

    def _is_other_topic(self, each: _Open) -> bool:
        info = self._cluster.metadata.topics.get(each.tp.topic)
        if not each.wanted.topic_id or info is None or info.topic_id == ZERO_ID:
            return False
        return info.topic_id.hex() != each.wanted.topic_id

    async def _ask(self, node: int, ranges: list[_Open]) -> list[Fetched]:
        ranges = [each for each in ranges if not each.is_done]
        if not ranges:
            return []
        settings = self._settings
        try:
            answers = await fetch(
                self._cluster,
                node,
                {each.tp: each.position for each in ranges},
                partition_bytes={each.tp: self._bytes_for(each) for each in ranges},
                bytes_max=settings.fetch_max_bytes,
                wait_ms=settings.fetch_max_wait_ms,
                timeout_ms=settings.fetch_max_wait_ms + settings.request_timeout_ms,
                reads_committed=settings.isolation_level == "read_committed",
                rack=settings.client_rack,
            )
        except ClientError as error:
            for each in ranges:
                each.preferred_node = -1
            self._cluster.forget_leaders({each.tp.topic for each in ranges})
            await self._wait_or_give_up(ranges, error)
            return []
        by_tp = {each.tp: each for each in ranges}
        fetched: list[Fetched] = []
        nothing: list[tuple[_Open, PartitionData]] = []
        for tp, data in answers:
            asked = by_tp.get(tp)
            if asked is None:
                continue
            found = await self._take(asked, data)
            if found is not None:
                fetched.append(found)
            elif data.error_code == ErrorCode.NONE and not asked.is_done:
                nothing.append((asked, data))
        if not fetched:
            for each, data in nothing:
                await self._nothing(each, data)
        return fetched

    def _bytes_for(self, each: _Open) -> int:
        left = each.wanted.end - each.position
        return self._sizes.wanted(each.tp, left, self._settings.max_partition_fetch_bytes)

    # -- answers ----------------------------------------------------------------------------------------------------

    async def _take(self, each: _Open, data: PartitionData) -> Fetched | None:
        if data.error_code != ErrorCode.NONE:
            await self._refused(each, data.error_code)
            return None
        if data.preferred_read_replica >= 0:
            each.preferred_node = data.preferred_read_replica
            return None
        if not data.records:
            return None
        aborted = None
        if self._settings.isolation_level == "read_committed":
            aborted = [Aborted(a.producer_id, a.first_offset) for a in data.aborted_transactions or ()]
        assert isinstance(data.records, memoryview), "what was decoded is a view into its frame"
        chunk = Chunk(each.tp, data.records, each.position, aborted=aborted)
        if not chunk.size or chunk.next_offset <= each.position:
            return None
        self._sizes.learn(each.tp, chunk.size, chunk.next_offset - each.position)
        each.position = chunk.next_offset
        each.progress_at = each.waiting_since = asyncio.get_running_loop().time()
        each.empty_answers = each.tries = 0
        each.is_done = each.position >= each.wanted.end
        return Fetched(chunk, each.wanted.end)

    async def _nothing(self, each: _Open, data: PartitionData) -> None:
        """No records, though they were asked for alone or nobody got any: there are none before the end of the log, or they are not to be seen yet."""
        visible = data.high_watermark
        if self._settings.isolation_level == "read_committed" and data.last_stable_offset >= 0:
            visible = min(visible, data.last_stable_offset)
        if visible >= each.wanted.end:
            each.empty_answers += 1
            if each.empty_answers >= EMPTY_ANSWERS_MAX:
                each.is_done = True  # compaction has left nothing behind this offset
            return
        if self._waited_ms([each]) > self._patience_ms:
            why = f"{each.tp}: offsets {each.position} to {each.wanted.end} were there when the query was planned, and now only those before {visible} can be read: its log was cut"
            self._lose(each, Loss(each.tp, Cause.CUT, each.position, None, why))
            return
        await asyncio.sleep(self._cluster.backoff().next_seconds())

    async def _refused(self, each: _Open, code: int) -> None:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if each.preferred_node >= 0:
                each.preferred_node = -1  # a follower that is behind; its leader knows better
                return
            await self._out_of_range(each)
            return
        each.preferred_node = -1
        self._cluster.forget_leaders([each.tp.topic])
        error = BrokerError(code, f"fetching from {each.tp}")
        if not error.retriable:
            raise error
        await self._wait_or_give_up([each], error)

    async def _out_of_range(self, each: _Open) -> None:
        try:
            earliest = (await list_offsets(self._cluster, {each.tp: EARLIEST}))[each.tp].offset
            latest = (await list_offsets(self._cluster, {each.tp: LATEST}))[each.tp].offset
        except (TopicMissingError, PartitionMissingError) as error:
            await self._missing(error)
            return
        if each.position < earliest:
            to = min(earliest, each.wanted.end)
            why = f"{each.tp}: offsets {each.position} to {to} were deleted before they were read, by retention or on demand; the log has {earliest} to {latest} now"
            self._lose(each, Loss(each.tp, Cause.AGED_OUT, each.position, earliest, why))
        elif each.position > latest:
            why = f"{each.tp} ends at offset {latest} now, and {each.position} to {each.wanted.end} were to be read: its log was cut"
            self._lose(each, Loss(each.tp, Cause.CUT, each.position, None, why))

    async def _missing(self, error: TopicMissingError | PartitionMissingError) -> None:
        """Brokers may hear late of what is there, so it is asked for a few times before it counts as deleted."""
        topics = self._cluster.metadata.topics
        gone = [
            each
            for each in self._open
            if each.tp.topic not in topics
            or topics[each.tp.topic].error_code
            or each.tp.partition not in topics[each.tp.topic].partitions
        ]
        for each in gone or self._open:
            each.tries += 1
            if each.tries >= MISSING_TRIES:
                why = f"{each.tp} was deleted: offsets {each.position} to {each.wanted.end} are gone"
                self._lose(each, Loss(each.tp, Cause.GONE, each.position, None, why))
        self._cluster.forget_leaders({each.tp.topic for each in self._open})
        self._open = [each for each in self._open if not each.is_done]
        if self._open:
            logger.info("%s", error)
            await asyncio.sleep(self._settings.retry_backoff_max_ms / 1000)

    def _lose(self, each: _Open, loss: Loss) -> None:
        if self._fail_on_data_loss:
            raise DataLossError([loss])
        logger.warning("going on after a loss (failOnDataLoss is false): %s", loss.explanation)
        each.waiting_since = asyncio.get_running_loop().time()
        if loss.goes_on_at is None or loss.goes_on_at >= each.wanted.end:
            each.is_done = True
        else:
            each.position = loss.goes_on_at

    def _waited_ms(self, ranges: Iterable[_Open]) -> float:
        return (asyncio.get_running_loop().time() - min(each.waiting_since for each in ranges)) * 1000

    async def _wait_or_give_up(self, ranges: Sequence[_Open], error: ClientError) -> None:
        waited_ms = self._waited_ms(ranges)
        if not error.retriable or waited_ms > self._patience_ms:
            error.add_note(
                f"gave up after {waited_ms:.0f} ms without records; kafkaConsumer.pollTimeoutMs is how long a task waits"
            )
            raise error
        logger.info("%s", error)
        await asyncio.sleep(self._cluster.backoff().next_seconds())
