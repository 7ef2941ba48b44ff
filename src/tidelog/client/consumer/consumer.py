"""The consumer: records of topics in order, alone or shared with a group, for asyncio.

    async with Consumer("localhost:9092", group_id="kitchen", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            cook(record.value)

A record counts as dealt with when the next one is asked for: then its offset may be committed, by itself (`enable.auto.commit`) or by `commit()`. Partitions
change hands only while the application asks for records. What is fetched is `fetching`'s business, where the consumer stands `positions`', the group
`membership`'s; this file is what an application calls.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from tidelog.client.backoff import Deadline
from tidelog.client.cluster import ClusterClient
from tidelog.client.consumer.classic_member import ClassicMember
from tidelog.client.consumer.consumer_member import ConsumerMember
from tidelog.client.consumer.fetching import READ_COMMITTED, Fetching
from tidelog.client.consumer.listener import RebalanceListener, call
from tidelog.client.consumer.member import Change, MemberSettings
from tidelog.client.consumer.membership import GroupMembership
from tidelog.client.consumer.parallel import Handler, Parallel, ParallelSettings
from tidelog.client.consumer.positions import (
    EARLIEST,
    LATEST,
    PartitionState,
    Positions,
    Spot,
    Want,
    first_of,
)
from tidelog.client.consumer.records import Chunk, ConsumerRecord
from tidelog.client.errors import ClientError, ClosedError, CommitFailedError, RecordError, SettingsError
from tidelog.client.groups import Committed, Groups
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
        self._groups = Groups(self._cluster)
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._positions = Positions(bytes_ahead=self.settings.fetch_max_bytes)
        self._membership: GroupMembership | None = None
        self._listener: RebalanceListener | None = None
        self._topics: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._server_pattern: str | None = None
        self._is_assigned_by_hand = False
        self._held: list[ConsumerRecord] = []  # for `async for`, the next one last
        self._last: ConsumerRecord | None = None  # what `async for` gave out last
        self._in_hand: Mapping[TopicPartition, int] = {}  # the first offsets of what `poll` gave out last
        self._committed_last: dict[TopicPartition, Spot] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._parallel: Parallel | None = None
        self._listener_before: RebalanceListener | None = None
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
            find_committed=self._find_committed if settings.group_id is not None else None,
            arrived=self._news.set,
        )
        try:
            await self._cluster.retrying(
                lambda: self._cluster.refresh_metadata([]), timeout_ms=settings.default_api_timeout_ms
            )
        except BaseException:
            await self._end()
            raise
        self._tasks.append(asyncio.create_task(self._watch_metadata()))
        if settings.group_id is not None and settings.enable_auto_commit:
            self._tasks.append(asyncio.create_task(self._commit_by_itself()))
        if self._is_subscribed:
            self._join()

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
        self._finished_with_last()
        by_itself = self.settings.enable_auto_commit or self._parallel is not None
        if by_itself if commit is None else commit:
            await self._commit_quietly(self._safe())
        try:
            if self._membership is not None and self._membership.member.is_member and self._positions.states:
                await call(self._listener, "on_partitions_revoked", self.assignment())
        finally:
            await self._end()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def _end(self) -> None:
        self._is_closed = True
        self._news.set()  # whoever waits for records waits in vain
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._membership is not None:
            await self._membership.leave()
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
        if self.settings.group_id is None:
            raise SettingsError("subscribe needs a group.id: give the consumer one, or use assign")
        if isinstance(topics, str):
            topics = [topics]
        wanted = frozenset(topics)
        if bool(wanted) == (pattern is not None):
            raise ValueError("subscribe takes either topics or a pattern")
        if self._is_assigned_by_hand:
            raise ValueError("partitions were assigned by hand: unsubscribe first")
        self._listener = listener
        self._server_pattern, self._pattern = None, None
        if isinstance(pattern, str) and self.settings.group_protocol == "consumer":
            self._server_pattern = pattern
        elif pattern is not None:
            self._pattern = re.compile(pattern)
            wanted = self._matching()
        self._topics = wanted
        if self._is_started:
            self._metadata_wanted.set()
            self._join()

    def unsubscribe(self) -> None:
        """Read nothing; the group is left."""
        self._topics, self._pattern, self._server_pattern = frozenset(), None, None
        self._is_assigned_by_hand = False
        self._held.clear()
        self._positions.assign(())
        if self._membership is not None:
            membership, self._membership = self._membership, None
            self._tasks.append(asyncio.create_task(membership.leave()))

    def assign(self, partitions: Partitions) -> None:
        """Read these, whatever others do. Positions begin at what the group has committed, if there is a group, else by `auto.offset.reset`."""
        if self._is_subscribed:
            raise ValueError("the consumer is subscribed to topics: unsubscribe first")
        self._is_assigned_by_hand = True
        wanted = [TopicPartition(*tp) for tp in partitions]
        self._positions.assign(wanted)
        self._held = [
            record
            for record in self._held
            if TopicPartition(record.topic, record.partition) in self._positions
        ]
        if self._is_started:
            self._fetching.look_soon()

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions.states)

    def subscription(self) -> frozenset[str]:
        return self._topics

    @property
    def _is_subscribed(self) -> bool:
        return bool(self._topics or self._pattern or self._server_pattern)

    def _matching(self) -> frozenset[str]:
        assert self._pattern is not None
        return frozenset(
            name
            for name, info in self._cluster.metadata.topics.items()
            if not info.error_code
            and self._pattern.fullmatch(name)
            and not (info.is_internal and self.settings.exclude_internal_topics)
        )

    def _join(self) -> None:
        if self._membership is None:
            self._membership = GroupMembership(
                self._cluster,
                self._groups,
                self.settings,
                self._new_member(),
                changed=self._news.set,
                activity=lambda: self._last,
            )
        self._membership.subscribe(self._topics, pattern=self._server_pattern)

    def _new_member(self) -> ClassicMember | ConsumerMember:
        settings = self.settings
        assert settings.group_id is not None
        of_member = MemberSettings(
            group_id=settings.group_id,
            instance_id=settings.group_instance_id,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            max_poll_interval_ms=settings.max_poll_interval_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            rack=settings.client_rack or None,
        )
        if settings.group_protocol == "consumer":
            return ConsumerMember(of_member, str(uuid4()), assignor=settings.group_remote_assignor)
        return ClassicMember(of_member, settings.partition_assignment_strategy)

    async def _watch_metadata(self) -> None:
        """New topics that match a pattern, new partitions of those that are read, new leaders."""
        while True:
            self._metadata_wanted.clear()
            try:
                everything = self._pattern is not None
                known = {tp.topic for tp in self._positions.states} | self._topics
                if everything or known:
                    await self._cluster.refresh_metadata(
                        None if everything else known, create=self.settings.allow_auto_create_topics
                    )
                if everything and (matching := self._matching()) != self._topics:
                    self._topics = matching
                    self._join()
                if self._membership is not None:
                    self._membership.metadata_changed()
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
        if self._held:
            return self._poll_held(max_records)
        self._finished_with_last()
        records = await self._wait_for_records(timeout_ms, max_records or self.settings.max_poll_records)
        self._in_hand = first_of(records)
        return records

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """One record after the other, for ever: waits when there is none. Each counts as dealt with when the next one is asked for."""
        held = self._held
        while not held:
            self._finished_with_last()
            try:
                held = self._held = (
                    await self._wait_for_records(ITERATION_POLL_MS, self.settings.max_poll_records)
                )[::-1]
            except ClosedError:
                raise StopAsyncIteration from None
        self._last = record = held.pop()
        return record

    def take_held(self) -> ConsumerRecord | None:
        """The next record of an iteration, if it is at hand; for the blocking twin, from its own thread."""
        try:
            self._last = record = self._held.pop()
        except IndexError:
            return None
        return record

    def _poll_held(self, max_records: int | None) -> list[ConsumerRecord]:
        """Somebody iterated, and polls now: what the iteration had not given out comes first."""
        self._finished_with_last()
        count = max_records or self.settings.max_poll_records
        records = self._held[-count:][::-1]
        del self._held[-count:]
        self._in_hand = first_of(records)
        return records

    def _finished_with_last(self) -> None:
        self._last, self._in_hand = None, {}

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
        if not self._positions.states and not self._is_subscribed:
            raise ValueError("nothing to read: subscribe to topics or assign partitions first")
        deadline = Deadline(self._loop.time(), timeout_ms)
        membership = self._membership
        try:
            await asyncio.sleep(0)  # heartbeats and fetches go on, however fast records are asked for
            while True:
                if membership is not None:
                    membership.polling(True)
                    await self._do_what_is_pending(membership)
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
        if self._held or any(state.ready for state in self._positions.states.values()):
            raise ValueError(
                "records of an iteration or a poll are not all given out: read them to their end, or seek, before reading columns"
            )
        self._finished_with_last()
        found: tuple[PartitionState, Chunk] | None = await self._wait_for(
            self._positions.next_chunk, timeout_ms
        )
        if found is not None:
            self._in_hand = {found[1].tp: found[1].start_offset}
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

    async def _do_what_is_pending(self, membership: GroupMembership) -> None:
        """Partitions change hands, in the application's time: it waits for this."""
        while (callback := membership.member.pending) is not None:
            change, partitions = callback
            if change is Change.TAKE:
                self._positions.add(partitions)
                await call(self._listener, "on_partitions_assigned", partitions)
            else:
                if change is Change.REVOKE:
                    if self.settings.enable_auto_commit:
                        await self._commit_quietly(
                            {tp: s for tp, s in self._safe().items() if tp in partitions}
                        )
                    await call(self._listener, "on_partitions_revoked", partitions)
                else:
                    await call(self._listener, "on_partitions_lost", partitions)
                self._held = [r for r in self._held if TopicPartition(r.topic, r.partition) not in partitions]
                self._positions.remove(partitions)
            membership.done()
            self._fetching.look_soon()
        if membership.member.failure is not None:
            raise membership.member.failure

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
        self._parallel, listener = run, self._listener
        self._listener = run
        self._listener_before = listener
        return listener

    def end_parallel(self) -> None:
        self._parallel, self._listener = None, self._listener_before

    async def commit_changed(self, offsets: Mapping[TopicPartition, int]) -> None:
        changed = {
            tp: Committed(offset)
            for tp, offset in offsets.items()
            if self._committed_last.get(tp, Spot(-1)).offset != offset
        }
        if changed:
            await self._commit(changed)

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
            self._drop_held(tp)
        self._look_for_more()

    def _move(self, tp: TopicPartition, spot: Spot) -> None:
        self._state(tp).move_to(spot)
        self._drop_held(tp)
        self._look_for_more()

    def _drop_held(self, tp: TopicPartition) -> None:
        self._held = [record for record in self._held if (record.topic, record.partition) != tp]

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
        while (spot := self._consumed().get(tp)) is None:
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

    def _consumed(self) -> dict[TopicPartition, Spot]:
        """Positions behind what was given out."""
        spots = self._positions.offsets()
        for tp, offset in first_of(reversed(self._held)).items():
            spots[tp] = Spot(offset, spots[tp].leader_epoch)
        return spots

    def _safe(self) -> dict[TopicPartition, Spot]:
        """Positions behind what the application has dealt with, as far as we know."""
        spots = self._consumed()
        if self._parallel is not None:
            done = self._parallel.safe_offsets()
            return {tp: Spot(done[tp]) if tp in done else spot for tp, spot in spots.items()}
        for tp, offset in self._in_hand.items():
            if tp in spots:
                spots[tp] = Spot(offset, spots[tp].leader_epoch)
        last = self._last
        if last is not None and (tp := TopicPartition(last.topic, last.partition)) in spots:
            spots[tp] = Spot(last.offset, spots[tp].leader_epoch)
        return spots

    # -- commits ----------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, int | Committed] | None = None) -> None:
        """What was given out counts as dealt with, or up to these offsets (the next ones to read). CommitFailedError: others have the partitions."""
        await self.start()
        if self.settings.group_id is None:
            raise SettingsError("commit needs a group.id")
        await self._commit(self._as_committed(offsets))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | Committed] | None = None,
        callback: Callable[[Mapping[TopicPartition, Committed], BaseException | None], None] | None = None,
    ) -> asyncio.Task[None]:
        """The same in the background. Not tried again: a later commit would be overtaken."""
        wanted = self._as_committed(offsets)
        task = asyncio.create_task(self._commit(wanted))
        if callback is not None:
            task.add_done_callback(
                lambda done: callback(wanted, None if done.cancelled() else done.exception())
            )
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)
        return task

    def _as_committed(
        self, offsets: Mapping[TopicPartition, int | Committed] | None
    ) -> dict[TopicPartition, Committed]:
        if offsets is None:
            return {tp: Committed(spot.offset, spot.leader_epoch) for tp, spot in self._consumed().items()}
        return {
            TopicPartition(*tp): each if isinstance(each, Committed) else Committed(each)
            for tp, each in offsets.items()
        }

    async def _commit(self, offsets: dict[TopicPartition, Committed]) -> None:
        timeout_ms = self.settings.default_api_timeout_ms
        if self._membership is not None:
            await self._membership.commit(offsets, timeout_ms=timeout_ms)
        elif offsets:
            assert self.settings.group_id is not None
            await self._groups.commit(self.settings.group_id, offsets, timeout_ms=timeout_ms)
        self._committed_last.update({tp: Spot(c.offset, c.leader_epoch) for tp, c in offsets.items()})

    async def _commit_quietly(self, spots: Mapping[TopicPartition, Spot]) -> None:
        """By itself: what fails is tried again with the next one, or read again by whoever comes after."""
        changed = {
            tp: Committed(spot.offset, spot.leader_epoch)
            for tp, spot in spots.items()
            if self._committed_last.get(tp) != spot
        }
        if not changed or self.settings.group_id is None:
            return
        try:
            await self._commit(changed)
        except CommitFailedError as error:
            logger.warning("auto-commit: %s", error)
        except ClientError as error:
            logger.warning("auto-commit of %d partitions failed: %s", len(changed), error)

    async def _commit_by_itself(self) -> None:
        while True:
            await asyncio.sleep(self.settings.auto_commit_interval_ms / 1000)
            await self._commit_quietly(self._safe())

    async def _find_committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Spot]:
        assert self.settings.group_id is not None
        found = await self._groups.offsets(self.settings.group_id, partitions, require_stable=True)
        return {tp: Spot(each.offset, each.leader_epoch) for tp, each in found.items()}

    # -- questions --------------------------------------------------------------------------------------------------

    async def committed(self, partitions: Partitions) -> dict[TopicPartition, Committed | None]:
        """What the group has committed; None where nothing is."""
        await self.start()
        if self.settings.group_id is None:
            raise SettingsError("committed needs a group.id")
        wanted = [TopicPartition(*tp) for tp in partitions]
        found = await self._groups.offsets(self.settings.group_id, wanted)
        return {tp: found.get(tp) for tp in wanted}

    def lag(self, tp: TopicPartition) -> int | None:
        """Records between the position and the end of what can be read; None before the first answer. Costs no request."""
        state = self._state(tp)
        spot = self._consumed().get(TopicPartition(*tp))
        end = (
            state.last_stable_offset
            if self.settings.isolation_level == "read_committed"
            else state.high_watermark
        )
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
            isolation_level=READ_COMMITTED if self.settings.isolation_level == "read_committed" else 0,
            timeout_ms=self.settings.default_api_timeout_ms,
        )

    async def partitions_for(self, topic: str) -> list[int]:
        await self.start()
        return sorted((await self._cluster.topic(topic)).partitions)

    async def topics(self) -> frozenset[str]:
        await self.start()
        metadata = await self._cluster.refresh_metadata(None)
        return frozenset(name for name, info in metadata.topics.items() if not info.is_internal)
