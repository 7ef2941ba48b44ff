"""Keeps records at hand: one fetch outstanding per broker, as far ahead as `positions` allows.

Works by callbacks, as the producer does: `look` asks every broker that leads something to fetch and has no question open. Positions that nobody knows yet
are looked up first (committed, reset, validated; one task each). Errors that the application must hear of wait in `errors` until it asks for records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from tidelog.client.cluster import ClusterClient, PartitionMissingError, TopicMissingError
from tidelog.client.connection import Connection
from tidelog.client.consumer.fetch_session import Asked, FetchSession, SessionRequest, is_about_session
from tidelog.client.consumer.positions import (
    EARLIEST,
    NO_EPOCH,
    NOWHERE,
    PartitionState,
    Positions,
    Spot,
    Want,
)
from tidelog.client.consumer.records import Aborted, Chunk
from tidelog.client.consumer.resets import Reset
from tidelog.client.consumer.troubles import Troubles
from tidelog.client.errors import (
    BrokerError,
    ClientError,
    LogTruncatedError,
    MalformedResponseError,
    NoOffsetError,
    RecordError,
    UnsupportedRequestError,
)
from tidelog.client.links import Links
from tidelog.client.metadata import ZERO_ID, ClusterMetadata, TopicPartition
from tidelog.client.offsets import end_of_epochs, list_offsets
from tidelog.client.settings import ConsumerSettings
from tidelog.records.record import INT64_MAX
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

logger = logging.getLogger(__name__)

LAST_VERSION_WITH_NAMES: Final = 12
READ_COMMITTED: Final = 1
_ABOUT_LEADERS: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)

FindCommitted = Callable[[Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, Spot]]]


class _Outstanding(NamedTuple):
    versions: Mapping[TopicPartition, int]
    offsets: Mapping[TopicPartition, int]
    names: Mapping[bytes, str]
    at: float


class Fetching:
    def __init__(
        self,
        cluster: ClusterClient,
        settings: ConsumerSettings,
        positions: Positions,
        *,
        find_committed: FindCommitted | None,
        arrived: Callable[[], None],
        cut_held: Callable[[TopicPartition, int], int | None] = lambda tp, offset: None,
    ) -> None:
        """`find_committed` looks up a group's offsets, None without a group; `arrived` is called when there is something for the application.

        `cut_held` is told where a log was cut, and says which offset the application would have got next, if that is before `positions`.
        """
        self._cluster = cluster
        self._settings = settings
        self._positions = positions
        self._find_committed = find_committed
        self._arrived = arrived
        self._cut_held = cut_held
        self._reset = Reset.parse(settings.auto_offset_reset)
        self._metadata = ClusterMetadata()  # whose leaders were noticed
        self._loop = asyncio.get_running_loop()
        self._links = Links(cluster, lane="fetch", changed=self.look_soon)
        self._sessions: dict[int, FetchSession] = {}
        self._asked: dict[int, _Outstanding] = {}
        self._resting: dict[TopicPartition, float] = {}  # until when, after an error
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._look_handle: asyncio.Handle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.errors = Troubles(positions)

    async def close(self) -> None:
        self._is_closed = True
        for handle in (self._look_handle, self._alarm):
            if handle is not None:
                handle.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._links.close()

    # -- what to do -------------------------------------------------------------------------------------------------

    def look_soon(self) -> None:
        if self._look_handle is None and not self._is_closed:
            self._look_handle = self._loop.call_soon(self._look)

    def _look_at(self, moment: float) -> None:
        if self._alarm is not None and self._alarm.when() <= moment and not self._alarm.cancelled():
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(moment, self._rang)

    def _rang(self) -> None:
        self._alarm = None
        self.look_soon()

    def _look(self) -> None:
        self._look_handle = None
        if self._is_closed:
            return
        now = self._loop.time()
        unknown = self._notice_leaders()
        self._look_up_positions(now)
        by_node: dict[int, dict[TopicPartition, PartitionState]] = {}
        for state in self._positions.fetchable():
            if self._resting.get(state.tp, 0.0) > now:
                self._look_at(self._resting[state.tp])
                continue
            node = self._node_for(state, now)
            if node is None:
                unknown.add(state.tp.topic)
            elif state.want is None:
                by_node.setdefault(node, {})[state.tp] = state
        for node, states in by_node.items():
            if node not in self._asked and not self._links.is_paused(node):
                self._ask(node, states)
        if unknown:
            self._refresh(unknown)
        moment = self._positions.next_ask_at(now)
        if moment is not None:
            self._look_at(moment)

    def _notice_leaders(self) -> set[str]:
        """A new leader may not have what was fetched ahead either, so this concerns every partition. Returns topics without whose leaders nothing can be validated."""
        metadata = self._cluster.metadata
        if metadata is not self._metadata:
            self._metadata = metadata
            for tp, state in self._positions.states.items():
                leader = metadata.leader_of(tp)
                if leader is not None:
                    if state.topic_id not in (ZERO_ID, metadata.topics[tp.topic].topic_id):
                        self._made_anew(state)
                    self._positions.new_leader(tp, leader.leader_epoch)
        return {
            tp.topic
            for tp, state in self._positions.states.items()
            if state.want is Want.VALIDATE and metadata.leader_of(tp) is None
        }

    def _node_for(self, state: PartitionState, now: float) -> int | None:
        leader = self._cluster.metadata.leader_of(state.tp)
        if leader is None:
            return None
        self._positions.new_leader(state.tp, leader.leader_epoch)
        if state.want is not None:
            self.look_soon()  # a new leader: validated first
        if state.preferred_node >= 0:
            if now < state.preferred_until and state.preferred_node in self._cluster.metadata.brokers:
                return state.preferred_node
            state.preferred_node = -1
        return leader.leader

    def _refresh(self, topics: set[str]) -> None:
        if "metadata" not in self._tasks:
            self._begin("metadata", partial(self._get_metadata, topics))

    async def _get_metadata(self, topics: set[str]) -> None:
        try:
            await self._cluster.refresh_metadata(topics)
        except ClientError as error:
            logger.debug("no fresh metadata: %s", error)
        if any(self._cluster.metadata.leader_of(tp) is None for tp in self._positions.states):
            await asyncio.sleep(self._cluster.backoff().next_seconds())

    def _begin(self, key: object, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await work()
            except ClientError as error:
                self._tell(error)
            finally:
                del self._tasks[key]
                self.look_soon()

        self._tasks[key] = asyncio.create_task(run())

    def _tell(self, error: ClientError) -> None:
        self.errors.append(error)
        self._arrived()

    # -- fetches ----------------------------------------------------------------------------------------------------

    def _ask(self, node: int, states: Mapping[TopicPartition, PartitionState]) -> None:
        settings = self._settings
        connection = self._links.connection(node)
        wanted: dict[TopicPartition, Asked] = {}
        names: dict[bytes, str] = {}
        for tp, state in states.items():
            info = self._cluster.metadata.topics[tp.topic]
            names[info.topic_id] = tp.topic
            state.topic_id = info.topic_id
            epoch = info.partitions[tp.partition].leader_epoch
            wanted[tp] = Asked(info.topic_id, state.fetch_offset, epoch, settings.max_partition_fetch_bytes)
        session = self._sessions.setdefault(node, FetchSession())
        asked = session.request(wanted)
        request = self._request(asked)
        try:
            answer = connection.send(
                ApiKey.FETCH,
                request,
                at_most=LAST_VERSION_WITH_NAMES if ZERO_ID in names else None,
                timeout_ms=settings.fetch_max_wait_ms + settings.request_timeout_ms,
            )
        except ClientError as error:
            self._lost(node, error, states)
            return
        self._asked[node] = _Outstanding(
            {tp: state.version for tp, state in states.items()},
            {tp: state.fetch_offset for tp, state in states.items()},
            names,
            self._loop.time(),
        )
        answer.add_done_callback(partial(self._answered, node, connection))

    def _request(self, asked: SessionRequest) -> FetchRequest:
        settings = self._settings
        topics: dict[str, FetchTopic] = {}
        for tp, each in asked.partitions.items():
            topic = topics.get(tp.topic)
            if topic is None:
                topic = topics[tp.topic] = FetchTopic(topic=tp.topic, topic_id=each.topic_id, partitions=[])
            topic.partitions.append(
                FetchPartition(
                    partition=tp.partition,
                    current_leader_epoch=each.leader_epoch,
                    fetch_offset=each.offset,
                    last_fetched_epoch=NO_EPOCH,
                    log_start_offset=-1,
                    partition_max_bytes=each.max_bytes,
                )
            )
        forgotten: dict[tuple[str, bytes], ForgottenTopic] = {}
        for tp, topic_id in asked.forgotten.items():
            key = (tp.topic, topic_id)
            entry = forgotten.setdefault(
                key, ForgottenTopic(topic=tp.topic, topic_id=topic_id, partitions=[])
            )
            entry.partitions.append(tp.partition)
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=READ_COMMITTED if settings.isolation_level == "read_committed" else 0,
            session_id=asked.session_id,
            session_epoch=asked.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
            rack_id=settings.client_rack,
        )

    def _answered(self, node: int, connection: Connection, answer: asyncio.Future[FetchResponse]) -> None:
        outstanding = self._asked.pop(node)
        if answer.cancelled() or self._is_closed:
            return
        error = answer.exception()
        session = self._sessions[node]
        if isinstance(error, ClientError):
            session.unanswered()
            self._lost(node, error, outstanding.versions)
            return
        response = answer.result()
        session.answered(response.error_code, response.session_id)
        if response.error_code != ErrorCode.NONE:
            failure = BrokerError(response.error_code, f"fetching from broker {node}")
            if is_about_session(response.error_code) or failure.retriable:
                self.look_soon()
            else:
                self._tell(failure)
            return
        got_some = False
        for topic in response.responses:
            name = topic.topic or outstanding.names.get(topic.topic_id, "")
            for data in topic.partitions:
                got_some = (
                    self._take(node, TopicPartition(name, data.partition_index), data, outstanding)
                    or got_some
                )
        if got_some:
            self._arrived()
        self.look_soon()

    def _lost(self, node: int, error: ClientError, partitions: Iterable[TopicPartition]) -> None:
        if not error.retriable:
            self._tell(error)
        logger.info("fetching from broker %d: %s", node, error)
        topics = {tp.topic for tp in partitions}
        for tp in partitions:
            state = self._positions.states.get(tp)
            if state is not None:
                state.preferred_node = -1
                self._rest(tp)
        self._cluster.forget_leaders(topics)
        self.look_soon()

    def _rest(self, tp: TopicPartition) -> None:
        self._resting[tp] = self._loop.time() + self._cluster.backoff().next_seconds()

    def _take(self, node: int, tp: TopicPartition, data: PartitionData, outstanding: _Outstanding) -> bool:
        """True if there are records in it."""
        version = outstanding.versions.get(tp)
        state = self._positions.states.get(tp)
        if version is None:
            if state is None or tp not in self._sessions[node].remembered():
                self._tell(
                    MalformedResponseError(f"broker {node} sent records of {tp}, which nobody asked for")
                )
            return False
        if state is None or state.version != version:
            return False  # it is not read any more, or from elsewhere
        if data.error_code != ErrorCode.NONE:
            self._refused(node, state, data.error_code, outstanding.offsets[tp])
            return False
        self._resting.pop(tp, None)
        state.high_watermark, state.last_stable_offset = data.high_watermark, data.last_stable_offset
        state.log_start_offset = data.log_start_offset
        if data.preferred_read_replica >= 0:
            state.preferred_node = data.preferred_read_replica
            state.preferred_until = self._loop.time() + self._settings.metadata_max_age_ms / 1000
            return False
        if not data.records:
            return False
        try:
            chunk = self._chunk(state, data, latency_seconds=self._loop.time() - outstanding.at)
        except RecordError as error:
            self._rest(tp)
            self._tell(error)
            return False
        if not chunk.size:
            self._rest(tp)  # not one whole batch: whoever sends that is not asked again at once
            return False
        return self._positions.take(tp, version, chunk)

    def _chunk(self, state: PartitionState, data: PartitionData, *, latency_seconds: float) -> Chunk:
        aborted: list[Aborted] | None = None
        if self._settings.isolation_level == "read_committed":
            aborted = [
                Aborted(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()
            ]
        assert isinstance(data.records, memoryview), "what was decoded is a view into its frame"
        return Chunk(
            state.tp,
            data.records,
            state.fetch_offset,
            aborted=aborted,
            check_crcs=self._settings.check_crcs,
            latency_seconds=latency_seconds,
        )

    def _refused(self, node: int, state: PartitionState, code: int, offset: int) -> None:
        tp = state.tp
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if state.preferred_node == node:
                state.preferred_node = -1  # a follower that is behind; its leader knows better
            elif state.has_records:
                self._rest(tp)  # what is here already comes first, though the log has lost it by now
            elif state.fetch_offset == offset:
                self._out_of_range(state, offset)
            return
        error = BrokerError(code, f"fetching from {tp}")
        self._rest(tp)
        if code in _ABOUT_LEADERS:
            state.preferred_node = -1
            self._cluster.forget_leaders([tp.topic])
        elif not error.retriable:
            self._tell(error)
        else:
            logger.debug("%s", error)

    def _out_of_range(self, state: PartitionState, offset: int) -> None:
        if self._reset is None:
            self._rest(state.tp)
            self._tell(
                NoOffsetError(
                    f"{state.tp}: offset {offset} is not in the log (any more), and auto.offset.reset=none; seek to where reading should go on",
                    state.tp,
                    offset,
                )
            )
            return
        logger.warning(
            "%s: offset %d is not in the log; going on by auto.offset.reset=%s", state.tp, offset, self._reset
        )
        state.wants(Want.RESET)

    # -- positions that nobody knows yet ----------------------------------------------------------------------------

    def _look_up_positions(self, now: float) -> None:
        for want, work in (
            (Want.COMMITTED, self._find),
            (Want.RESET, self._reset_positions),
            (Want.VALIDATE, self._validate),
        ):
            states = self._positions.wanting(want, now)
            if states and want not in self._tasks:
                self._begin(want, partial(work, states))

    def _again_later(self, states: Iterable[PartitionState]) -> None:
        moment = self._loop.time() + self._cluster.backoff().next_seconds()
        for state in states:
            state.ask_at = moment

    async def _find(self, states: list[PartitionState]) -> None:
        """Where the group was; a partition that it was never in begins by `auto.offset.reset`."""
        versions = {state.tp: state.version for state in states}
        try:
            found = await self._find_committed(list(versions)) if self._find_committed is not None else {}
        except ClientError as error:
            self._again_later(states)
            if not error.retriable:
                raise
            logger.debug("no committed offsets: %s", error)
            return
        for state in states:
            if state.version != versions[state.tp] or state.want is not Want.COMMITTED:
                continue
            spot = found.get(state.tp)
            if spot is not None:
                state.move_to(spot)
            elif self._reset is not None:
                state.wants(Want.RESET)
            else:
                self._wait_for_a_decision(state)
                self._tell(
                    NoOffsetError(
                        f"{state.tp}: nothing is committed, and auto.offset.reset=none; seek to where reading should begin",
                        state.tp,
                        None,
                    )
                )

    async def _reset_positions(self, states: list[PartitionState]) -> None:
        versions = {state.tp: state.version for state in states}
        wanted = {state.tp: self._reset_target(state) for state in states}
        ask = partial(
            list_offsets,
            self._cluster,
            isolation_level=READ_COMMITTED if self._settings.isolation_level == "read_committed" else 0,
            timeout_ms=self._settings.default_api_timeout_ms,
        )
        try:
            found = await ask(wanted)
            # No record is as late as that: the end is where the next one will be.
            late = {tp: -1 for tp, each in found.items() if each.offset < 0}
            ends = await ask(late) if late else {}
        except (TopicMissingError, PartitionMissingError):
            # Others do not wait for what is not there: they are asked about again at once.
            leader_of = self._cluster.metadata.leader_of
            self._again_later([state for state in states if leader_of(state.tp) is None] or states)
            raise
        except ClientError as error:
            self._again_later(states)
            if not error.retriable:
                raise
            logger.debug("no offsets: %s", error)
            return
        for state in states:
            if state.version == versions[state.tp] and state.want is Want.RESET:
                each = ends.get(state.tp) or found[state.tp]
                state.move_to(Spot(each.offset, NO_EPOCH))

    def _reset_target(self, state: PartitionState) -> int:
        if state.reset_to is not None:
            return state.reset_to
        assert self._reset is not None
        return self._reset.timestamp()

    async def _validate(self, states: list[PartitionState]) -> None:
        versions = {state.tp: state.version for state in states}
        epochs = {}
        for state in states:
            leader = self._cluster.metadata.leader_of(state.tp)
            if leader is not None:
                epochs[state.tp] = (leader.leader_epoch, state.epoch)
        try:
            ends = await end_of_epochs(self._cluster, epochs)
        except UnsupportedRequestError:  # brokers before Kafka 2.0: nothing can be compared
            ends = {tp: (INT64_MAX, ours) for tp, (_, ours) in epochs.items()}
        except ClientError as error:
            self._again_later(states)
            self._cluster.forget_leaders({state.tp.topic for state in states})  # another may lead by now
            if not error.retriable and not isinstance(error, (TopicMissingError, PartitionMissingError)):
                raise
            logger.debug("no epochs: %s", error)
            return
        for state in states:
            end = ends.get(state.tp)
            if end is None:
                state.ask_at = self._loop.time() + self._cluster.backoff().next_seconds()
                continue
            cut = self._positions.validated(state.tp, versions[state.tp], epochs[state.tp][0], Spot(*end))
            if cut is not None:
                self._truncated(state, cut)

    def _truncated(self, state: PartitionState, cut: Spot) -> None:
        """Records that were read are gone. Going on where the logs part is what `auto.offset.reset` allows; without it the application decides."""
        held_from = self._cut_held(state.tp, cut.offset)
        if held_from is not None:
            if held_from <= cut.offset:
                state.move_to(cut)  # nobody has seen what is gone
                return
            state.position = state.fetch_offset = held_from
        gone = f"records before offset {state.position} were read already: a leader was elected without them"
        text = f"{state.tp}: the log was cut at offset {cut.offset}, and {gone}"
        if cut is NOWHERE:
            text = f"{state.tp}: the log was cut somewhere, and {gone}"
        if self._reset is None:
            self._wait_for_a_decision(state)
            self._tell(LogTruncatedError(text + "; seek to where reading should go on", state.tp, cut.offset))
        elif cut is NOWHERE:
            logger.warning("%s; going on by auto.offset.reset=%s", text, self._reset)
            state.wants(Want.RESET)
        else:
            logger.warning("%s; going on at offset %d", text, cut.offset)
            state.move_to(cut)

    def _made_anew(self, state: PartitionState) -> None:
        """Another topic has the name of the one that was read. All its records are new, whatever offsets they have."""
        self._cut_held(state.tp, 0)
        state.topic_id = ZERO_ID
        text = f"{state.tp}: the topic was deleted and made anew"
        if self._reset is None:
            offset = state.position
            state.wants(Want.COMMITTED)
            self._wait_for_a_decision(state)
            self._tell(
                NoOffsetError(
                    f"{text}, and auto.offset.reset=none; seek to where reading should begin",
                    state.tp,
                    offset,
                )
            )
            return
        logger.warning("%s; going on at its beginning", text)
        state.wants(Want.RESET, reset_to=EARLIEST)

    def _wait_for_a_decision(self, state: PartitionState) -> None:
        """The application is told. If it does nothing about it, it will be told again."""
        state.ask_at = self._loop.time() + self._settings.request_timeout_ms / 1000
