"""Many records of a partition at the same time: a slow one holds up its own key, not its partition.

    await consumer.parallel(handle, order_by="key", workers=32, dead_letter_topic="orders.dlq")

Each record that is fetched gets a task; of a key (or a partition) one runs at a time, in order, and of all together `workers`. Only what is done without
a gap is committed, so a crash costs repeats of what was finished behind an unfinished record, and nothing else. A handler that fails is called again after a
pause, then its record goes to the retry topic if there is one, in the end to the dead-letter topic; without one the error ends everything, and the
record is read again. The number of records in work is bounded; polling goes on all the while, so that the group knows that this member lives.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidelog.client.backoff import pause_ms
from tidelog.client.consumer.listener import RebalanceListener, call
from tidelog.client.consumer.progress import Lanes, Progress, lane_of
from tidelog.client.consumer.records import ConsumerRecord
from tidelog.client.dead_letters import Origin, dead_letter_headers, origin_of
from tidelog.client.errors import ClientError, ClosedError, CommitFailedError, SettingsError
from tidelog.client.metadata import TopicPartition
from tidelog.ports import SystemRng

if TYPE_CHECKING:
    from tidelog.client.consumer.consumer import Consumer
    from tidelog.client.producer.producer import Producer

logger = logging.getLogger(__name__)

Handler = Callable[[ConsumerRecord], Awaitable[Any] | Any]
POLL_MS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSettings:
    order_by: str | None = "key"
    """"key": records of a key in order; "partition": as without this; None: no order."""
    workers: int = 16
    """Handlers that run at the same time."""
    pending_max: int = 1_000
    """Records that are in work or wait for it; at this many no more are fetched."""
    attempts: int = 3
    """How often a handler is called for a record before the record moves on."""
    backoff_ms: int = 200
    backoff_max_ms: int = 10_000
    retry_topic: str | None = None
    """Where a record waits for another round of attempts. It loses its place behind its key; the consumer must be subscribed to it."""
    retry_rounds: int = 3
    retry_delay_ms: int = 30_000
    dead_letter_topic: str | None = None
    commit_interval_ms: int = 1_000
    drain_ms: int = 30_000
    """How long handlers may take to finish when partitions are given up, or at the end."""

    def __post_init__(self) -> None:
        if self.order_by not in ("key", "partition", None):
            raise SettingsError(f'order_by is "key", "partition" or None, not {self.order_by!r}')
        for name in ("workers", "pending_max", "attempts"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is at least 1, not {getattr(self, name)}")


class Parallel:
    """One run. `safe_offsets` says what may be committed at any moment."""

    def __init__(
        self,
        consumer: Consumer,
        handler: Handler,
        settings: ParallelSettings,
        new_producer: Callable[[], Producer],
    ) -> None:
        self._consumer = consumer
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler)
        self._settings = settings
        self._new_producer = new_producer
        self._producer: Producer | None = None
        self._threads: ThreadPoolExecutor | None = None
        """Of its own: the loop's has a few more threads than the machine has processors, however many workers are asked for."""
        self._rng = SystemRng()
        self._lanes: Lanes[ConsumerRecord] = Lanes()
        self._progress: dict[TopicPartition, Progress] = {}
        self._slots = asyncio.Semaphore(settings.workers)
        self._tasks: dict[asyncio.Task[None], ConsumerRecord] = {}
        self._outdated: set[asyncio.Task[Any] | None] = (
            set()
        )  # whose records were read before the partition went back
        self._failure: BaseException | None = None
        self._listener: RebalanceListener | None = None

    def safe_offsets(self) -> dict[TopicPartition, int]:
        return {tp: each.safe_offset for tp, each in self._progress.items()}

    async def run(self) -> None:
        """Until the consumer is closed, this is cancelled, or a record can neither be dealt with nor be put aside."""
        consumer, settings = self._consumer, self._settings
        self._listener = consumer.begin_parallel(self)
        commit_at = time.monotonic() + settings.commit_interval_ms / 1000
        try:
            while self._failure is None:
                try:
                    for record in await consumer.poll(timeout_ms=POLL_MS):
                        self._begin(record)
                except ClosedError:
                    return
                self._start_what_can()
                self._hold_back()
                if time.monotonic() >= commit_at:
                    commit_at = time.monotonic() + settings.commit_interval_ms / 1000
                    await self._commit()
            raise self._failure
        finally:
            await self._drain(list(self._tasks), cancel=self._failure is not None)
            if not consumer.is_closed:
                await self._commit()
            consumer.end_parallel()
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)
            if self._producer is not None:
                await self._producer.close()

    # -- records ----------------------------------------------------------------------------------------------------

    def _begin(self, record: ConsumerRecord) -> None:
        tp = TopicPartition(record.topic, record.partition)
        progress = self._progress.get(tp)
        if progress is None:
            progress = self._progress[tp] = Progress(record.offset)
        elif record.offset < progress.next_offset:
            self._go_back(tp, progress, record.offset)
        progress.begin(record.offset)
        self._lanes.put(lane_of(record, self._settings.order_by), record)

    def _go_back(self, tp: TopicPartition, progress: Progress, offset: int) -> None:
        """Somebody sought back, or the log was cut and goes on there with other records. What is in work of before says nothing about what comes."""

        def comes_again(record: ConsumerRecord) -> bool:
            return (record.topic, record.partition) == tp and record.offset >= offset

        self._lanes.drop(comes_again)
        self._outdated.update(task for task, record in self._tasks.items() if comes_again(record))
        progress.go_back(offset)

    def _start_what_can(self) -> None:
        while (taken := self._lanes.take()) is not None:
            lane, record = taken
            task = asyncio.create_task(self._deal_with(lane, record))
            self._tasks[task] = record
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._outdated.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self._failure is None:
            self._failure = error

    def _hold_back(self) -> None:
        consumer, pending = self._consumer, len(self._lanes)
        if pending >= self._settings.pending_max:
            consumer.pause(*consumer.assignment())
        elif pending <= self._settings.pending_max // 2 and (paused := consumer.paused()):
            consumer.resume(*paused)

    async def _deal_with(self, lane: Hashable, record: ConsumerRecord) -> None:
        try:
            await self._try(record)
            progress = self._progress.get(TopicPartition(record.topic, record.partition))
            if progress is not None and asyncio.current_task() not in self._outdated:
                progress.finish(record.offset)  # else the partition has gone meanwhile, or gone back
        finally:
            self._lanes.finish(lane)
        self._start_what_can()

    async def _try(self, record: ConsumerRecord) -> None:
        """Returns when the record is dealt with, or put aside."""
        settings = self._settings
        origin = origin_of(record.headers)
        if origin is not None and record.topic == settings.retry_topic:
            await asyncio.sleep(max(0.0, origin.not_before_ms / 1000 - time.time()))
        for attempt in range(1, settings.attempts + 1):
            try:
                async with self._slots:
                    await self._call(record)
                return
            except Exception as error:  # noqa: BLE001 (whatever a handler raises)
                logger.info(
                    "%s-%d at %d: attempt %d: %r",
                    record.topic,
                    record.partition,
                    record.offset,
                    attempt,
                    error,
                )
                if attempt == settings.attempts:
                    await self._put_aside(record, origin, error)
                    return
            pause = pause_ms(
                self._rng, attempt - 1, first_ms=settings.backoff_ms, max_ms=settings.backoff_max_ms
            )
            await asyncio.sleep(pause / 1000)

    async def _call(self, record: ConsumerRecord) -> None:
        """A plain function runs in a thread: it may block."""
        if self._is_async:
            await self._handler(record)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._settings.workers, "tidelog-handler")
        call = partial(copy_context().run, self._handler, record)
        result = await asyncio.get_running_loop().run_in_executor(self._threads, call)
        if inspect.isawaitable(result):
            await result

    async def _put_aside(self, record: ConsumerRecord, origin: Origin | None, error: Exception) -> None:
        settings = self._settings
        before = origin.attempts if origin is not None else 0
        place = origin or Origin(record.topic, record.partition, record.offset, record.timestamp_ms)
        place = place._replace(
            reason=f"{type(error).__name__}: {error}",
            attempts=before + settings.attempts,
            group=self._consumer.settings.group_id or "",
            not_before_ms=time.time_ns() // 1_000_000 + settings.retry_delay_ms,
        )
        topic = settings.dead_letter_topic
        if settings.retry_topic is not None and before < settings.retry_rounds * settings.attempts:
            topic = settings.retry_topic
        if topic is None:
            error.add_note(
                f"the handler failed {settings.attempts} times for the record at offset {record.offset} of {record.topic}-{record.partition},"
                " and there is no dead_letter_topic to put it: nothing at or behind it is committed"
            )
            raise error
        if self._producer is None:
            self._producer = self._new_producer()
        await self._producer.send_and_wait(
            topic,
            record.value,
            key=record.key,
            headers=dead_letter_headers(record.headers, place),
            timestamp_ms=record.timestamp_ms if record.timestamp_ms >= 0 else None,
        )
        logger.warning(
            "%s-%d at %d went to %s: %s", record.topic, record.partition, record.offset, topic, place.reason
        )

    # -- partitions come and go -------------------------------------------------------------------------------------

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        await call(self._listener, "on_partitions_assigned", partitions)

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """What runs is finished first, as far as there is time; what waits is somebody else's."""
        await self._let_go(partitions, cancel=False)
        await call(self._listener, "on_partitions_revoked", partitions)

    async def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        await self._let_go(partitions, cancel=True)
        await call(self._listener, "on_partitions_lost", partitions)

    async def _let_go(self, partitions: Collection[TopicPartition], *, cancel: bool) -> None:
        self._lanes.drop(lambda record: (record.topic, record.partition) in partitions)
        concerned = [
            task for task, record in self._tasks.items() if (record.topic, record.partition) in partitions
        ]
        await self._drain(concerned, cancel=cancel)
        if not cancel:
            await self._commit(partitions)
        for tp in partitions:
            self._progress.pop(tp, None)

    async def _drain(self, tasks: Iterable[asyncio.Task[None]], *, cancel: bool) -> None:
        running = set(tasks)
        if not running:
            return
        if not cancel:
            _, running = await asyncio.wait(running, timeout=self._settings.drain_ms / 1000)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _commit(self, partitions: Collection[TopicPartition] | None = None) -> None:
        offsets = {tp: o for tp, o in self.safe_offsets().items() if partitions is None or tp in partitions}
        if not offsets or self._consumer.settings.group_id is None:
            return
        try:
            await self._consumer.commit_changed(offsets)
        except CommitFailedError as error:
            logger.warning("%s", error)
        except ClientError as error:
            logger.warning("committing failed: %s", error)
