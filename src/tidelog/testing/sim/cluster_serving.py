"""Requests at a simulated broker: fetches of followers and of consumers, produce, the end of a log, and what is sent on to the controller.

The part of the real shell that stands between sockets and partitions (`broker.api`), for messages instead of frames. Whatever decides is the product's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tidelog.cluster.missing_nodes import HOLD_S
from tidelog.controller.image import MetadataImage
from tidelog.controller.metadata_records import NO_LEADER
from tidelog.errors import CorruptDataError, RequestError
from tidelog.replication.fetch_session import (
    FetchContext,
    FetchSessionCache,
    FetchTarget,
    PartitionKey,
    SessionError,
)
from tidelog.replication.leader import ReplicaFetch
from tidelog.replication.partition import Partition
from tidelog.replication.purgatory import CommitWait, FetchPurgatory
from tidelog.storage.disk import DiskError
from tidelog.testing.sim.cluster_groups import GROUP_REQUESTS
from tidelog.testing.sim.cluster_messages import (
    Admin,
    AskMetadata,
    InitProducer,
    Latest,
    LatestAnswer,
    Metadata,
    Produce,
    Produced,
    ProducerIds,
    Read,
    ReadAnswer,
)
from tidelog.testing.sim.storage_checks import Violation
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from tidelog.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

if TYPE_CHECKING:
    from tidelog.testing.sim.cluster_node import SimNode

_READ_BYTES: Final = 20_000
_PRODUCE_VERSION: Final = 13
_FORWARD_S: Final = 3.0
LOOK_AROUND_S: Final = 0.01

Respond = Callable[[Any], None]


class Serving:
    def __init__(self, node: SimNode, *, commit_timeout_ms: int) -> None:
        self.node = node
        self.purgatory = FetchPurgatory(node.process)
        self._sessions = FetchSessionCache(node.rng, slots_max=10, eviction_ms=1000)
        self._commit_timeout_ms = commit_timeout_ms

    def handle(self, request: Any, respond: Respond) -> None:
        if isinstance(request, FetchRequest):
            self._replica_fetch(request, respond)
        elif isinstance(request, Produce):
            self._produce(request, respond)
        elif isinstance(request, Read):
            _Reading(self, request, respond).serve()
        elif isinstance(request, Latest):
            respond(self._latest(request))
        elif isinstance(request, GROUP_REQUESTS):
            self.node.groups.handle(request, respond)
        elif isinstance(request, AskMetadata):
            self._metadata(respond)
        elif isinstance(request, InitProducer):
            self._init_producer(respond)
        else:
            assert isinstance(request, Admin)
            self._forward(request.request, respond)

    # ---- the controller's business

    def _forward(self, request: Any, respond: Respond) -> None:
        cluster = self.node.cluster
        leader_id = cluster.metadata.leader_id
        if leader_id is None:
            respond(None)
        else:
            cluster.to_controller.ask(leader_id, request, respond, timeout_s=_FORWARD_S)

    def _init_producer(self, respond: Respond) -> None:
        def answered(response: AllocateProducerIdsResponse | None) -> None:
            if response is None or response.error_code:
                respond(ProducerIds(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            else:
                respond(ProducerIds(ErrorCode.NONE, response.producer_id_start, response.producer_id_len))

        epoch = self.node.cluster.lifecycle.epoch
        self._forward(AllocateProducerIdsRequest(broker_id=self.node.id, broker_epoch=epoch), answered)

    # ---- clients

    def _produce(self, request: Produce, respond: Respond) -> None:
        table = self.node.partitions
        epoch = -1
        try:
            partition = table.leader_of(request.topic, request.partition)
            epoch = partition.leader_epoch
            result = partition.append(
                request.records,
                now_ms=self.node.process.wall_ms(),
                produce_version=_PRODUCE_VERSION,
                acks_all=request.acks_all,
            )
        except RequestError as error:
            self.node.world.sometimes(f"produce {error.code.name}")
            respond(Produced(error.code, leader_epoch=epoch))
            return
        except DiskError as error:
            table.disk_failed(partition, error)
            respond(Produced(ErrorCode.KAFKA_STORAGE_ERROR, leader_epoch=epoch))
            return
        if result.duplicate:
            self.node.world.sometimes("produce duplicate")
        if not request.acks_all:
            respond(Produced(ErrorCode.NONE, result.base_offset, epoch))
            return
        codes: list[ErrorCode] = []

        def settled() -> None:
            code = codes[0]
            if code:
                self.node.world.sometimes(f"produce {code.name}")
            respond(Produced(code, -1 if code else result.base_offset, partition.leader_epoch))

        wait = CommitWait(settled)
        wait.add(partition, result.last_offset, codes.append)
        wait.arm(self.node.process, timeout_ms=self._commit_timeout_ms)

    def _metadata(self, respond: Respond) -> None:
        """As `broker.api.metadata`: not yet of a leader that has just gone, because whoever asks now would believe it for long."""
        node = self.node
        leaders = _leaders(node.image)
        if len(node.image.brokers) == 1 or leaders <= {node.id, NO_LEADER}:
            respond(Metadata(node.image))
        else:
            asked_at = node.process.monotonic()
            node.process.call_later(LOOK_AROUND_S, lambda: self._look(respond, since=asked_at))

    def _look(self, respond: Respond, *, since: float) -> None:
        others = _leaders(self.node.image) - {self.node.id, NO_LEADER}
        self.node.cluster.missing.look(others, lambda: self._when_leaders_are_there(respond), since=since)

    def _when_leaders_are_there(self, respond: Respond) -> None:
        node = self.node

        def are_there(image: MetadataImage) -> bool:
            return not any(map(node.cluster.missing.is_missing, _leaders(image)))

        def done() -> None:
            timer.cancel()
            respond(Metadata(node.image))

        timer = node.process.call_later(HOLD_S, done)
        if not node.cluster.missing.any_missing() or are_there(node.image):
            done()
        else:
            node.world.sometimes("metadata held back")
            node.cluster.replicas.when(are_there, done)

    def _latest(self, request: Latest) -> LatestAnswer:
        try:
            partition = self.node.partitions.leader_of(request.topic, request.partition)
            partition.check_latest()
        except RequestError as error:
            self.node.world.sometimes(f"latest {error.code.name}")
            return LatestAnswer(error.code)
        end = partition.visible_end(committed_only=False)
        return LatestAnswer(ErrorCode.NONE, end, partition.leader_epoch)

    # ---- followers

    def _replica_fetch(self, request: FetchRequest, respond: Respond) -> None:
        name_of = self.node.partitions.topic_name
        try:
            context = self._sessions.resolve(
                session_id=request.session_id,
                epoch=request.session_epoch,
                by_id=True,
                targets=[
                    FetchTarget(
                        PartitionKey("", topic.topic_id, wanted.partition),
                        wanted.fetch_offset,
                        wanted.partition_max_bytes,
                        wanted.current_leader_epoch,
                        wanted.last_fetched_epoch,
                        wanted.log_start_offset,
                        name_of(topic.topic_id) or "",
                    )
                    for topic in request.topics
                    for wanted in topic.partitions
                ],
                forgotten=[
                    PartitionKey("", topic.topic_id, partition)
                    for topic in request.forgotten_topics_data
                    for partition in topic.partitions
                ],
                now=self.node.process.monotonic(),
            )
        except SessionError as error:
            respond(FetchResponse(error_code=error.code))
            return
        _ReplicaFetching(self, request, context, respond).serve()


class _ReplicaFetching:
    """A follower's fetch on its way: looked at once, and perhaps parked until there is more."""

    __slots__ = ("_context", "_is_noted", "_node", "_purgatory", "_request", "_respond")

    def __init__(
        self, serving: Serving, request: FetchRequest, context: FetchContext, respond: Respond
    ) -> None:
        self._node = serving.node
        self._purgatory = serving.purgatory
        self._request = request
        self._context = context
        self._respond = respond
        self._is_noted = False

    def serve(self) -> None:
        found, partitions = self._read_all()
        if self._request.max_wait_ms > 0 and found and not _is_enough(found):
            self._purgatory.park(
                [partition for partition in partitions if partition is not None],
                max_wait_ms=self._request.max_wait_ms,
                look=self._look,
                complete=lambda: self._answer(self._read_all()[0]),
                whole_log=True,
            )
        else:
            self._answer(found)

    def _look(self) -> Callable[[], None] | None:
        found, _ = self._read_all()
        return (lambda: self._answer(found)) if _is_enough(found) else None

    def _read_all(self) -> tuple[list[PartitionData], list[Partition | None]]:
        reads = [self._read(target) for target in self._context.targets]
        self._is_noted = True
        return [data for data, _ in reads], [partition for _, partition in reads]

    def _read(self, target: FetchTarget) -> tuple[PartitionData, Partition | None]:
        node = self._node
        data = PartitionData(partition_index=target.key.partition, high_watermark=-1)
        partition: Partition | None = None
        try:
            if not target.name:
                target.name = node.partitions.topic_name(target.key.topic_id) or ""
                if not target.name:
                    raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID)
            partition = node.partitions.leader_of(target.name, target.key.partition)
            if partition.topic_id != target.key.topic_id:
                raise RequestError(ErrorCode.INCONSISTENT_TOPIC_ID)
            self._fill(data, target, partition)
        except RequestError as error:
            node.world.sometimes(f"fetch {error.code.name}")
            data.error_code = error.code
        except DiskError as error:
            assert partition is not None
            node.partitions.disk_failed(partition, error)
            data.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        except CorruptDataError as error:
            raise Violation("LogsAreSound", f"broker {node.id}: {error}") from error
        return data, partition

    def _fill(self, data: PartitionData, target: FetchTarget, partition: Partition) -> None:
        state, log = self._request.replica_state, partition.log
        fetch = ReplicaFetch(
            state.replica_id,
            state.replica_epoch,
            target.current_leader_epoch,
            target.fetch_offset,
            target.last_fetched_epoch,
            target.log_start_offset,
        )
        diverging = partition.check_replica_fetch(fetch)
        if diverging is not None:
            self._node.world.sometimes("fetch diverging")
            data.diverging_epoch = EpochEndOffset(*diverging)
        elif not self._is_noted:
            self._node.fetch_counted(partition, fetch)
            partition.replica_fetched(fetch, now=self._node.process.monotonic())
        data.high_watermark = log.high_watermark
        partition.has_told(state.replica_id, log.high_watermark)
        data.last_stable_offset = log.last_stable_offset
        data.log_start_offset = log.log_start_offset
        if diverging is None and target.fetch_offset < log.log_end_offset:
            found = log.read(target.fetch_offset, target.max_bytes, end_offset=log.log_end_offset)
            if found.range is not None:
                data.records = found.range.read()
                found.range.release()

    def _answer(self, found: list[PartitionData]) -> None:
        session = self._context.session
        topics: dict[bytes, FetchableTopicResponse] = {}
        for target, data in zip(self._context.targets, found, strict=True):
            must_answer = session is None or session.must_answer(
                target.key,
                has_records=bool(data.records),
                error=data.error_code,
                diverging=data.diverging_epoch.epoch >= 0,
                high_watermark=data.high_watermark,
                log_start_offset=data.log_start_offset,
            )
            if must_answer or not self._context.incremental:
                topic_id = target.key.topic_id
                topic = topics.setdefault(topic_id, FetchableTopicResponse(topic_id=topic_id))
                topic.partitions.append(data)
        self._respond(FetchResponse(session_id=self._context.session_id, responses=list(topics.values())))


def _leaders(image: MetadataImage) -> set[int]:
    return {partition.leader for _, _, partition in image.partitions()}


def _is_enough(found: list[PartitionData]) -> bool:
    return any(data.error_code or data.records or data.diverging_epoch.epoch >= 0 for data in found)


class _Reading:
    """A consumer's fetch of one partition, from its leader or from a follower."""

    __slots__ = ("_request", "_respond", "_serving")

    def __init__(self, serving: Serving, request: Read, respond: Respond) -> None:
        self._serving = serving
        self._request = request
        self._respond = respond

    def serve(self) -> None:
        try:
            partition = self._find()
        except RequestError as error:
            self._respond(ReadAnswer(error.code))
            return
        answer = self._read(partition)
        if answer.error or answer.records:
            self._respond(answer)
            return
        self._serving.purgatory.park(
            [partition],
            max_wait_ms=self._request.wait_ms,
            look=lambda: self._look(partition),
            complete=lambda: self._respond(self._read(partition)),
        )

    def _find(self) -> Partition:
        table, request = self._serving.node.partitions, self._request
        if request.from_follower:
            partition = table.find(request.topic, request.partition)
            if partition is not None and partition.follower is not None:
                return partition
        return table.leader_of(request.topic, request.partition)

    def _look(self, partition: Partition) -> Callable[[], None] | None:
        answer = self._read(partition)
        return (lambda: self._respond(answer)) if answer.error or answer.records else None

    def _read(self, partition: Partition) -> ReadAnswer:
        node, log = self._serving.node, partition.log
        try:
            if partition.leader is None and (partition.follower is None or not self._request.from_follower):
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            partition.check_leader_epoch(-1)
            partition.check_readable(self._request.offset)
            end = partition.visible_end(committed_only=False)
            if partition.leader is None and self._request.offset >= end:
                return ReadAnswer(ErrorCode.NONE, b"", log.high_watermark, partition.leader_epoch)
            found = log.read(self._request.offset, _READ_BYTES, end_offset=end)
        except RequestError as error:
            node.world.sometimes(f"read {error.code.name}")
            return ReadAnswer(error.code)
        except DiskError as error:
            node.partitions.disk_failed(partition, error)
            return ReadAnswer(ErrorCode.KAFKA_STORAGE_ERROR)
        except CorruptDataError as error:
            raise Violation("LogsAreSound", f"broker {node.id}: {error}") from error
        records = b""
        if found.range is not None:
            records = found.range.read()
            found.range.release()
        return ReadAnswer(ErrorCode.NONE, records, log.high_watermark, partition.leader_epoch)
