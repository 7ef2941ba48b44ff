"""Keeps records at hand: one fetch outstanding per broker, as far ahead as `positions` allows.

Works by callbacks, as the producer does: `look` asks every broker that leads something to fetch and has no question open. Positions that nobody knows yet
are found first (`finding`). Errors that the application must hear of wait in `errors` until it asks for records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from tidelog.client.cluster import ClusterClient
from tidelog.client.connection import Connection
from tidelog.client.consumer.errands import Errands
from tidelog.client.consumer.fetch_session import Asked, FetchSession, SessionRequest, is_about_session
from tidelog.client.consumer.finding import FindCommitted, Finding
from tidelog.client.consumer.positions import (
    NO_EPOCH,
    PartitionState,
    Positions,
)
from tidelog.client.consumer.records import Aborted, Chunk
from tidelog.client.consumer.troubles import Troubles
from tidelog.client.errors import (
    BrokerError,
    ClientError,
    MalformedResponseError,
    RecordError,
    RequestTimedOutError,
)
from tidelog.client.links import Links
from tidelog.client.metadata import ZERO_ID, TopicPartition
from tidelog.client.settings import ConsumerSettings
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
UNKNOWN_REPLICA_SECONDS: Final = 1.0
"""So long the leader is read from, when it names a near replica that the metadata do not know (yet)."""
_ABOUT_LEADERS: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)


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
        """`arrived` is called when there is something for the application; the others are for `finding`."""
        self._cluster = cluster
        self._settings = settings
        self._positions = positions
        self._arrived = arrived
        self._loop = asyncio.get_running_loop()
        self._links = Links(
            cluster, lane="fetch", changed=self.look_soon, unreachable=self._do_without_replica
        )
        self._sessions: dict[int, FetchSession] = {}
        self._asked: dict[int, _Outstanding] = {}
        self._resting: dict[TopicPartition, float] = {}  # until when, after an error
        self._look_handle: asyncio.Handle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.errors = Troubles(positions)
        self._errands = Errands(tell=self._tell, done=self.look_soon)
        self._finding = Finding(
            cluster,
            settings,
            positions,
            self._errands,
            find_committed=find_committed,
            tell=self._tell,
            cut_held=cut_held,
        )

    async def close(self) -> None:
        self._is_closed = True
        for handle in (self._look_handle, self._alarm):
            if handle is not None:
                handle.cancel()
        await self._errands.close()
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
        unknown = self._finding.notice_leaders()
        self._finding.look(now)
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

    def _node_for(self, state: PartitionState, now: float) -> int | None:
        leader = self._cluster.metadata.leader_of(state.tp)
        if leader is None:
            return None
        self._positions.new_leader(state.tp, leader.leader_epoch)
        if state.want is not None:
            self.look_soon()  # a new leader: validated first
        if state.preferred_node >= 0:
            if now < state.preferred_until:
                if state.preferred_node in self._cluster.metadata.brokers:
                    return state.preferred_node
                # It was away when we last asked who is there. Until we know more the leader is to send its own records, or it would name the same replica again and again.
                state.at_leader_until = now + UNKNOWN_REPLICA_SECONDS
                self._refresh({state.tp.topic})
            state.preferred_node = -1
        return leader.leader

    def _refresh(self, topics: set[str]) -> None:
        if "metadata" not in self._errands:
            self._errands.begin("metadata", partial(self._get_metadata, topics))

    async def _get_metadata(self, topics: set[str]) -> None:
        try:
            await self._cluster.refresh_metadata(topics)
        except ClientError as error:
            logger.debug("no fresh metadata: %s", error)
        if any(self._cluster.metadata.leader_of(tp) is None for tp in self._positions.states):
            await asyncio.sleep(self._cluster.backoff().next_seconds())

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
        now = self._loop.time()
        # Whoever does not say where it is gets its records from the leader itself.
        rack = "" if any(state.at_leader_until > now for state in states.values()) else settings.client_rack
        request = self._request(asked, rack)
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
            now,
        )
        answer.add_done_callback(partial(self._answered, node, connection))

    def _request(self, asked: SessionRequest, rack: str) -> FetchRequest:
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
            isolation_level=settings.isolation,
            session_id=asked.session_id,
            session_epoch=asked.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
            rack_id=rack,
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
        if isinstance(error, RequestTimedOutError):
            self._do_without_replica(node)
        topics = {tp.topic for tp in partitions}
        for tp in partitions:
            state = self._positions.states.get(tp)
            if state is not None:
                state.preferred_node = -1
                self._rest(tp)
        self._cluster.forget_leaders(topics)
        self.look_soon()

    def _do_without_replica(self, node: int) -> None:
        """A leader may go on naming a replica that nobody reaches (KIP-392). Its own records are asked for, until it may be worth another try."""
        until = self._loop.time() + self._settings.metadata_max_age_ms / 1000
        for state in self._positions.states.values():
            if state.preferred_node == node:
                state.preferred_node, state.at_leader_until = -1, until
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
        if self._settings.reads_committed:
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
            elif state.fetch_offset == offset and not self._finding.out_of_range(state, offset):
                self._rest(tp)
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
