"""The consumer: records of topics in order, alone or shared with a group, for asyncio.

    async with Consumer("localhost:9092", group_id="kitchen", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            cook(record.value)

A record counts as dealt with when the next one is asked for: then its offset may be committed, by itself (`enable.auto.commit`) or by `commit()`. Partitions
change hands only while the application asks for records. What is read is `subscription`'s business, what is fetched `fetching`'s, where the consumer stands `positions`' and
`handed_out`'s, the group and offsets for it `in_group`'s; this file is what an application calls.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from tidelog.client.backoff import Deadline
from tidelog.client.cluster import ClusterClient
from tidelog.client.consumer.commits import CommitCallback
from tidelog.client.consumer.fetching import Fetching
from tidelog.client.consumer.handed_out import HandedOut, first_of
from tidelog.client.consumer.in_group import InGroup
from tidelog.client.consumer.listener import RebalanceListener
from tidelog.client.consumer.parallel import Handler, Parallel, ParallelSettings
from tidelog.client.consumer.positions import EARLIEST, LATEST, PartitionState, Positions, Spot, Want
from tidelog.client.consumer.records import Chunk, ConsumerRecord
from tidelog.client.consumer.subscription import Subscription
from tidelog.client.errors import ClientError, ClosedError, RecordError, SettingsError
from tidelog.client.groups import NOBODY, Committed, Membership
from tidelog.client.metadata import TopicPartition
from tidelog.client.offsets import FoundOffset, list_offsets
from tidelog.client.serialization import Deserializer
from tidelog.client.settings import ConsumerSettings
from tidelog.ports import Rng, SystemRng

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

ITERATION_POLL_MS: Final = 60_000
Partitions = Iterable[TopicPartition]


class Consumer:
    def __init__(
        self,
        bootstrap_servers: str | Iterable[str],
        settings: ConsumerSettings | None = None,
        *,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        rng: Rng | None = None,
        **options: Any,
    ) -> None:
        """Settings either as one value or as options of the same names."""
        if settings is not None and options:
            raise TypeError(f"either settings or options, not both: {', '.join(options)}")
        self.settings = settings or ConsumerSettings(**options)
        self._bootstrap_servers = (
            bootstrap_servers if isinstance(bootstrap_servers, str) else list(bootstrap_servers)
        )
        self._cluster = ClusterClient(self._bootstrap_servers, self.settings, rng=rng or SystemRng())
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._positions = Positions(bytes_ahead=self.settings.fetch_max_bytes)
        self._handed_out = HandedOut(self._positions)
        self._subscription = Subscription(
            server_matches=self.settings.group_protocol == "consumer",
            exclude_internal=self.settings.exclude_internal_topics,
        )
        self._group: InGroup | None = None
        if self.settings.group_id is not None:
            self._group = InGroup(
                self.settings.group_id,
                self._cluster,
                self.settings,
                self._subscription,
                self._positions,
                self._handed_out,
                safe=self._safe,
                in_background=self._in_background,
                changed=lambda: self._news.set(),
                moved=self._look_for_more,
            )
        self._listener_before: RebalanceListener | None = None
        self._parallel: Parallel | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_started = self._is_closing = self._is_closed = False

    @classmethod
    def configured(cls, config: Mapping[str, Any], **more: Any) -> Consumer:
        """From Kafka's own names: `Consumer.configured({"bootstrap.servers": "…", "group.id": "kitchen"})`."""
        servers, settings = ConsumerSettings.configured(config)
        return cls(servers, settings, **more)

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the cluster. `async with` does it, and the first poll too, if nobody has."""
        if self._is_closed:
            raise ClosedError("the consumer is closed")
        if self._is_started:
            return
        self._is_started = True
        settings = self.settings
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._metadata_wanted = asyncio.Event()
        self._fetching = Fetching(
            self._cluster,
            settings,
            self._positions,
            find_committed=self._group.commits.find if self._group is not None else None,
            arrived=self._news.set,
            cut_held=self._handed_out.cut,
        )
        try:
            await self._cluster.retrying(
                lambda: self._cluster.refresh_metadata([]), timeout_ms=settings.default_api_timeout_ms
            )
        except BaseException:
            await self._end()
            raise
        self._in_background(self._watch_metadata())
        if self._group is not None and settings.enable_auto_commit:
            self._in_background(self._group.commits.every(settings.auto_commit_interval_ms, self._safe))
        if self._group is not None and self._subscription.is_to_topics:
            self._group.join()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, *, commit: bool | None = None) -> None:
        """Commit if that happens by itself (or as `commit` says), give up the partitions, leave the group, end."""
        if self._is_closing:
            return
        self._is_closing = True
        if not self._is_started:
            self._is_closed = True
            return
        self._handed_out.dealt_with()
        by_itself = self.settings.enable_auto_commit or self._parallel is not None
        try:
            if self._group is not None:
                self._group.is_ending = True
                if by_itself if commit is None else commit:
                    await self._group.commits.commit_quietly(self._safe())
                await self._group.give_up()
        finally:
            await self._end()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def _end(self) -> None:
        self._is_closed = True
        self._news.set()  # whoever waits for records waits in vain
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._group is not None:
            await self._group.end()
        await self._fetching.close()
        await self._cluster.close()

    # -- what to read -----------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Share these topics, or all that match a pattern, with the rest of the group. Replaces the subscription of before."""
        if self._group is None:
            raise SettingsError("subscribe needs a group.id: give the consumer one, or use assign")
        self._subscription.subscribe(topics, pattern, self._cluster.metadata.topics)
        self._group.listener = listener
        if self._is_started:
            self._metadata_wanted.set()
            self._group.join()

    def unsubscribe(self) -> None:
        """Read nothing. The group is left in the background, after a commit if those happen by themselves; whatever is read next waits for that."""
        self._handed_out.dealt_with()
        spots, given_up = self._safe(), self._positions.states
        self._subscription.clear()
        self._positions.assign(())
        self._handed_out.keep_assigned()
        if self._group is not None:
            self._group.leave_soon(given_up, spots)

    def assign(self, partitions: Partitions) -> None:
        """Read these, whatever others do. Positions begin at what the group has committed, if there is a group, else by `auto.offset.reset`."""
        self._subscription.assign()
        self._positions.assign([TopicPartition(*tp) for tp in partitions])
        self._handed_out.keep_assigned()
        self._look_for_more()

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions.states)

    def subscription(self) -> frozenset[str]:
        return self._subscription.topics

    def group_metadata(self) -> Membership:
        """In whose name this consumer commits: its member id and the generation of the group; nobody's while it is in none."""
        return self._group.name if self._group is not None else NOBODY

    async def _watch_metadata(self) -> None:
        """New topics that match a pattern, new partitions of those that are read, new leaders."""
        while True:
            self._metadata_wanted.clear()
            try:
                everything = self._subscription.pattern is not None
                known = {tp.topic for tp in self._positions.states} | self._subscription.topics
                if everything or known:
                    await self._cluster.refresh_metadata(
                        None if everything else known, create=self.settings.allow_auto_create_topics
                    )
                matches_others = self._subscription.match(self._cluster.metadata.topics)
                if self._group is not None:
                    if matches_others:
                        self._group.join()
                    self._group.metadata_changed()
            except ClientError as error:
                logger.debug("no fresh metadata: %s", error)
                await asyncio.sleep(self._cluster.backoff().next_seconds())
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.metadata_max_age_ms / 1000):
                    await self._metadata_wanted.wait()

    # -- records ----------------------------------------------------------------------------------------------------

    async def poll(self, *, timeout_ms: int = 1_000, max_records: int | None = None) -> list[ConsumerRecord]:
        """Up to `max.poll.records` records, as soon as there are any; none after `timeout_ms`. Those of the last poll count as dealt with."""
        count = max_records or self.settings.max_poll_records
        self._handed_out.dealt_with()
        records = self._handed_out.take_held(count) or await self._wait_for_records(timeout_ms, count)
        self._handed_out.give(first_of(records))
        return records

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """One record after the other, for ever: waits when there is none. Each counts as dealt with when the next one is asked for."""
        handed_out = self._handed_out
        while (record := handed_out.next_held()) is None:
            handed_out.dealt_with()
            try:
                records = await self._wait_for_records(ITERATION_POLL_MS, self.settings.max_poll_records)
            except ClosedError:
                raise StopAsyncIteration from None
            handed_out.held = records[::-1]
        return record

    def take_held(self) -> ConsumerRecord | None:
        """The next record of an iteration, if it is at hand; for the blocking twin, from its own thread."""
        return self._handed_out.next_held()

    async def _wait_for_records(self, timeout_ms: int, count: int) -> list[ConsumerRecord]:
        records: list[ConsumerRecord] | None = await self._wait_for(
            lambda: self._positions.next_records(count), timeout_ms
        )
        if records is None:
            return []
        if self._key_deserializer is None and self._value_deserializer is None:
            return records
        return self._deserialized(records)

    async def _wait_for(self, take: Callable[[], Any], timeout_ms: int) -> Any:
        """What `take` finds, as soon as it finds something; None when the time is up."""
        if not self._is_started or self._is_closed:
            await self.start()
        if not self._positions.states and not self._subscription.is_to_topics:
            raise ValueError("nothing to read: subscribe to topics or assign partitions first")
        deadline = Deadline(self._loop.time(), timeout_ms)
        group = self._group
        if group is not None:
            await group.left()
        membership = group.membership if group is not None else None
        try:
            await asyncio.sleep(0)  # heartbeats and fetches go on, however fast records are asked for
            while True:
                if group is not None and membership is not None:
                    membership.polling(True)
                    await group.do_what_is_pending(membership)
                if self._fetching.errors:
                    raise self._fetching.errors.popleft()
                self._news.clear()
                found = take()
                if found:
                    self._fetching.look_soon()
                    return found
                if deadline.passed(self._loop.time()):
                    return None
                self._fetching.look_soon()
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline.at):
                        await self._news.wait()
                if self._is_closed:
                    raise ClosedError("the consumer was closed")
        finally:
            if membership is not None:
                membership.polling(False)

    async def poll_arrow(
        self,
        *,
        timeout_ms: int = 1_000,
        columns: Sequence[str] = ("topic", "partition", "offset", "timestamp", "key", "value"),
    ) -> pa.RecordBatch:
        """What was fetched of one partition as an Arrow RecordBatch, no row of which was ever a Python object; no rows after `timeout_ms`.

        More columns: timestamp_type, headers, producer_id, producer_epoch, partition_leader_epoch. Needs the `arrow` extra.
        """
        from tidelog.client.consumer.arrow import poll_arrow

        return await poll_arrow(self, timeout_ms=timeout_ms, columns=columns)

    async def wait_for_chunk(self, timeout_ms: int) -> tuple[PartitionState, Chunk] | None:
        """Fetched bytes of one partition; whoever takes them moves its position."""
        if self._handed_out.held or any(state.ready for state in self._positions.states.values()):
            raise ValueError(
                "records of an iteration or a poll are not all given out: read them to their end, or seek, before reading columns"
            )
        self._handed_out.dealt_with()
        found: tuple[PartitionState, Chunk] | None = await self._wait_for(
            self._positions.next_chunk, timeout_ms
        )
        if found is not None:
            self._handed_out.give({found[1].tp: found[1].start_offset})
        return found

    def _deserialized(self, records: Sequence[ConsumerRecord]) -> list[ConsumerRecord]:
        """Up to the first that cannot be; its own error comes when it is the first that is asked for."""
        done: list[ConsumerRecord] = []
        for record in records:
            try:
                if self._key_deserializer is not None:
                    record = record._replace(key=self._key_deserializer(record.key))
                if self._value_deserializer is not None:
                    record = record._replace(value=self._value_deserializer(record.value))
            except Exception as error:
                for tp, offset in first_of(records[len(done) :]).items():
                    self._move(tp, Spot(offset))
                if done:
                    return done
                tp = TopicPartition(record.topic, record.partition)
                raise RecordError(
                    f"the record at offset {record.offset} of {tp} cannot be deserialized: {error!r};"
                    f" to go on behind it, seek to offset {record.offset + 1}"
                ) from error
            done.append(record)
        return done

    async def parallel(
        self, handler: Handler, settings: ParallelSettings | None = None, **options: Any
    ) -> None:
        """Call `handler` for every record, many at a time, until the consumer is closed or this is cancelled: see `parallel.ParallelSettings`."""
        from tidelog.client.producer.producer import Producer

        await self.start()
        chosen = settings or ParallelSettings(**options)
        if self.settings.group_id is None:
            raise SettingsError("parallel commits what is done: it needs a group.id")
        await Parallel(
            self,
            handler,
            chosen,
            lambda: Producer(self._bootstrap_servers, client_id=self.settings.client_id),
        ).run()

    def begin_parallel(self, run: Parallel) -> RebalanceListener | None:
        """From here on `run` says what is done, and hears of partitions. Returns the listener of before."""
        if self._parallel is not None:
            raise ValueError("this consumer runs in parallel already")
        group = self._in_group("parallel")
        self._parallel = run
        self._listener_before, group.listener = group.listener, run
        return self._listener_before

    def end_parallel(self) -> None:
        self._parallel, self._in_group("parallel").listener = None, self._listener_before

    async def commit_changed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """For a parallel run: what it has done, where that is not committed yet."""
        await self._in_group("commit").commits.commit_changed({tp: Spot(o) for tp, o in offsets.items()})

    # -- positions --------------------------------------------------------------------------------------------------

    def seek(self, tp: TopicPartition, offset: int, *, leader_epoch: int = -1) -> None:
        """The next record of this partition is the one at `offset`, or the first behind it."""
        if offset < 0:
            raise ValueError(f"offset {offset} of {tp}: offsets begin at 0; for the end use seek_to_end")
        self._move(tp, Spot(offset, leader_epoch))

    def seek_to_beginning(self, partitions: Partitions = ()) -> None:
        self._seek_by_time(dict.fromkeys(partitions or self._positions.states, EARLIEST))

    def seek_to_end(self, partitions: Partitions = ()) -> None:
        self._seek_by_time(dict.fromkeys(partitions or self._positions.states, LATEST))

    def seek_to_time(self, times_ms: Mapping[TopicPartition, int] | int) -> None:
        """The first record that is not older; the end, if all are."""
        if isinstance(times_ms, int):
            times_ms = dict.fromkeys(self._positions.states, times_ms)
        self._seek_by_time(times_ms)

    def _seek_by_time(self, times: Mapping[TopicPartition, int]) -> None:
        for tp, time_ms in times.items():
            self._state(tp).wants(Want.RESET, reset_to=time_ms)
            self._handed_out.drop([TopicPartition(*tp)])
        self._look_for_more()

    def _move(self, tp: TopicPartition, spot: Spot) -> None:
        self._state(tp).move_to(spot)
        self._handed_out.drop([TopicPartition(*tp)])
        self._look_for_more()

    def _look_for_more(self) -> None:
        if self._is_started and not self._is_closed:
            self._fetching.look_soon()

    def _state(self, tp: TopicPartition) -> Any:
        state = self._positions.states.get(TopicPartition(*tp))
        if state is None:
            raise ValueError(f"{TopicPartition(*tp)} is not assigned to this consumer")
        return state

    def pause(self, *partitions: TopicPartition) -> None:
        """No records of these until `resume`; the partitions stay this consumer's."""
        for tp in partitions:
            self._state(tp).is_paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        for tp in partitions:
            self._state(tp).is_paused = False
        self._look_for_more()

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(tp for tp, state in self._positions.states.items() if state.is_paused)

    async def position(self, tp: TopicPartition) -> int:
        """The offset of the next record that the application gets."""
        await self.start()
        tp = TopicPartition(*tp)
        deadline = Deadline(self._loop.time(), self.settings.default_api_timeout_ms)
        while (spot := self._handed_out.consumed().get(tp)) is None:
            self._state(tp)
            self._fetching.look_soon()
            if self._fetching.errors:
                raise self._fetching.errors.popleft()
            if deadline.passed(self._loop.time()):
                raise TimeoutError(
                    f"the position in {tp} is not known after default.api.timeout.ms={deadline.budget_ms}"
                )
            await asyncio.sleep(0.005)
        return spot.offset

    def positions(self) -> dict[TopicPartition, int]:
        """The same of every partition where it is known at this moment. Costs no request."""
        return {tp: spot.offset for tp, spot in self._handed_out.consumed().items()}

    def _safe(self) -> dict[TopicPartition, Spot]:
        """Positions behind what the application has dealt with, as far as we know."""
        if self._parallel is None:
            return self._handed_out.safe()
        done = self._parallel.safe_offsets()
        spots = self._handed_out.consumed()
        return {tp: Spot(done[tp]) if tp in done else spot for tp, spot in spots.items()}

    # -- commits ----------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, int | Committed] | None = None) -> None:
        """What was given out counts as dealt with, or up to these offsets (the next ones to read). CommitFailedError: others have the partitions."""
        await self.start()
        await self._in_group("commit").commits.commit(self._as_committed(offsets))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | Committed] | None = None,
        callback: CommitCallback | None = None,
    ) -> asyncio.Task[None]:
        """The same in the background. Not tried again: a later commit would be overtaken."""
        wanted = self._as_committed(offsets)
        task = self._in_background(self._in_group("commit").commits.commit(wanted))
        if callback is not None:
            task.add_done_callback(
                lambda done: callback(wanted, None if done.cancelled() else done.exception())
            )
        return task

    def _in_group(self, what: str) -> InGroup:
        if self._group is None:
            raise SettingsError(f"{what} needs a group.id")
        return self._group

    def _as_committed(
        self, offsets: Mapping[TopicPartition, int | Committed] | None
    ) -> dict[TopicPartition, Committed]:
        if offsets is None:
            spots = self._handed_out.consumed()
            return {tp: Committed(spot.offset, spot.leader_epoch) for tp, spot in spots.items()}
        return {
            TopicPartition(*tp): each if isinstance(each, Committed) else Committed(each)
            for tp, each in offsets.items()
        }

    # -- questions --------------------------------------------------------------------------------------------------

    async def committed(self, partitions: Partitions) -> dict[TopicPartition, Committed | None]:
        """What the group has committed; None where nothing is. Transactions that commit offsets too are waited for."""
        await self.start()
        wanted = [TopicPartition(*tp) for tp in partitions]
        return await self._in_group("committed").commits.committed(wanted)

    def lag(self, tp: TopicPartition) -> int | None:
        """Records between the position and the end of what can be read; None before the first answer. Costs no request."""
        state = self._state(tp)
        spot = self._handed_out.consumed().get(TopicPartition(*tp))
        end = state.last_stable_offset if self.settings.reads_committed else state.high_watermark
        return None if spot is None or end < 0 else max(0, end - spot.offset)

    async def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        return {
            tp: each.offset for tp, each in (await self._list(dict.fromkeys(partitions, EARLIEST))).items()
        }

    async def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The last stable offset for whoever reads committed data, else the high watermark."""
        return {tp: each.offset for tp, each in (await self._list(dict.fromkeys(partitions, LATEST))).items()}

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset | None]:
        """The first record that is not older; None where all are."""
        found = await self._list(times_ms)
        return {tp: each if each.offset >= 0 else None for tp, each in found.items()}

    async def _list(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, FoundOffset]:
        await self.start()
        return await list_offsets(
            self._cluster,
            {TopicPartition(*tp): when for tp, when in wanted.items()},
            isolation_level=self.settings.isolation,
            timeout_ms=self.settings.default_api_timeout_ms,
        )

    async def partitions_for(self, topic: str) -> list[int]:
        await self.start()
        return sorted((await self._cluster.topic(topic)).partitions)

    async def topics(self) -> frozenset[str]:
        await self.start()
        metadata = await self._cluster.refresh_metadata(None)
        return frozenset(name for name, info in metadata.topics.items() if not info.is_internal)
