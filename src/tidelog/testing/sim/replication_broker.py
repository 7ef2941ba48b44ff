"""One broker of the replication simulation: the product's partition, fetcher and ISR proposals on a simulated disk and network.

A shell like the real one, without sockets: it registers, sends heartbeats, takes images, and answers replicas and clients. Whatever decides
is the product's. Its disk outlives it; `SimBroker` is one run of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from tidelog.errors import RequestError
from tidelog.records.validation import BatchRules
from tidelog.replication.assignment import NO_LEADER
from tidelog.replication.fetch_session import (
    FetchSessionCache,
    FetchTarget,
    PartitionKey,
    SessionError,
)
from tidelog.replication.fetcher import Fetcher, FetcherSettings
from tidelog.replication.isr_changes import IsrChanges
from tidelog.replication.leader import ReplicaFetch, ReplicationSettings
from tidelog.replication.partition import Partition
from tidelog.replication.purgatory import CommitWait, FetchPurgatory
from tidelog.storage.disk import DiskError
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.log_manager import LogManager
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.events import EventHeap, Process
from tidelog.testing.sim.replication_controller import (
    CONTROLLER_ID,
    Heartbeat,
    HeartbeatAnswer,
    Image,
    Publish,
    Register,
    Registered,
)
from tidelog.testing.sim.replication_messages import (
    Latest,
    LatestAnswer,
    Leads,
    Produce,
    Produced,
    Read,
    ReadAnswer,
    WhoLeads,
)
from tidelog.testing.sim.replication_network import Network, NetworkPeers
from tidelog.testing.sim.replication_serving import ServedFetch, SimFlushQueue
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch import (
    FetchRequest,
    FetchResponse,
)

TOPIC: Final = "orders"
TOPIC_ID: Final = bytes(range(16))
HEARTBEAT_S: Final = 0.3
CHECKPOINT_S: Final = 2.0
COMMIT_TIMEOUT_MS: Final = 1500
SMALL_LOG: Final = LogConfig(segment_bytes=1500, index_interval_bytes=200, retention_ms=-1)


class BrokerOptions(NamedTuple):
    """What a seed chose for every broker."""

    durable: bool
    min_isr: int
    lag_s: float
    fetch_bytes_max: int
    sync_s: float


class SimBroker:
    def __init__(
        self,
        broker_id: int,
        disk: SimDisk,
        network: Network,
        heap: EventHeap,
        rng: Random,
        options: BrokerOptions,
        *,
        incarnation: int,
        lossless: bool,
        process: Process,
    ) -> None:
        self.broker_id = broker_id
        self.disk = disk
        self.process = process
        self.incarnation = incarnation
        self.lossless = lossless
        self.options = options
        self.broker_epoch = -1
        self.image: Image | None = None
        self.wants_shutdown = False
        self._beats = False
        self.on_counted: Callable[[ReplicaFetch], None] = lambda fetch: None
        self.may_stop = False
        self._rng = rng
        self._peers = NetworkPeers(network, broker_id, process)
        self._fetchers: dict[int, Fetcher] = {}
        self._sessions = FetchSessionCache(rng, slots_max=10, eviction_ms=1000)
        self._purgatory = FetchPurgatory(process)
        self.manager = LogManager(
            disk,
            process,
            rng,
            ["/data"],
            node_id=broker_id,
            cluster_id="sim",
            config_for=lambda topic: SMALL_LOG,
        )
        self._flush_queue = SimFlushQueue(process, rng, options.sync_s)
        self.partition = self._open_partition()
        network.nodes[broker_id] = self
        self._register()
        self._check_isr()
        process.call_later(CHECKPOINT_S * rng.random(), self._checkpoint)

    @property
    def log(self) -> Log:
        return self.partition.log

    def _open_partition(self) -> Partition:
        self.manager.open_directories()
        self.manager.load(topic_id_of=lambda topic: TOPIC_ID)
        log = self.manager.logs.get((TOPIC, 0)) or self.manager.create(TOPIC, 0, TOPIC_ID, SMALL_LOG)
        changes = IsrChanges(
            broker_id=self.broker_id,
            broker_epoch=lambda: self.broker_epoch,
            controller_id=lambda: CONTROLLER_ID,
            peers=self._peers,
            scheduler=self.process,
            clock=self.process,
        )
        return Partition(
            TOPIC,
            0,
            TOPIC_ID,
            log,
            broker_id=self.broker_id,
            rules=BatchRules(),
            durable=self.options.durable,
            flush_queue=self._flush_queue,
            min_isr=self.options.min_isr,
            settings=ReplicationSettings(
                broker_epoch=lambda: self.broker_epoch,
                lag_seconds_max=self.options.lag_s,
                proposals=changes,
                brokers=self,
            ),
        )

    def may_join(self, broker_id: int, broker_epoch: int, /) -> bool:
        """Implements `KnownBrokers` with the image that this broker has."""
        known = self.image.brokers.get(broker_id) if self.image is not None else None
        return known is not None and known.is_active and known.broker_epoch == broker_epoch

    # ---- the controller

    def _register(self) -> None:
        self._peers.ask(
            CONTROLLER_ID,
            Register(self.broker_id, self.incarnation, self.lossless),
            self._registered,
            timeout_s=0.5,
        )

    def _registered(self, answer: Registered | None) -> None:
        if answer is None or answer.broker_epoch < 0:
            self.process.call_later(0.1, self._register)
        else:
            self.broker_epoch = answer.broker_epoch
            if not self._beats:
                self._beats = True
                self._heartbeat()

    def _heartbeat(self) -> None:
        version = self.image.version if self.image is not None else 0
        beat = Heartbeat(self.broker_id, self.broker_epoch, version, self.wants_shutdown)

        def answered(answer: HeartbeatAnswer | None) -> None:
            if answer is not None and answer.must_register:
                if beat.broker_epoch == self.broker_epoch:
                    self.broker_epoch = -1
                    self.lossless = True  # what was lost before this run, it has told
                    self._register()
            elif answer is not None:
                self.may_stop = answer.may_stop
                if answer.image is not None:
                    self._take(answer.image)

        if self.broker_epoch >= 0:
            self._peers.ask(CONTROLLER_ID, beat, answered, timeout_s=1.0)
        self.process.call_later(HEARTBEAT_S, self._heartbeat)

    def _take(self, image: Image) -> None:
        if self.broker_epoch < 0 or (self.image is not None and image.version <= self.image.version):
            return
        known = image.brokers.get(self.broker_id)
        if known is None or known.broker_epoch != self.broker_epoch:
            return  # of before this run was registered: it may say that an earlier one leads
        self.image = image
        partition = self.partition
        before, fetched_from = partition.follower, partition.fetches_from
        partition.assign(image.assignment, now=self.process.monotonic())
        if partition.follower is not before:
            self._follow(fetched_from)

    def _follow(self, before: int) -> None:
        """One fetcher per leader broker, which stays: an answer of the last leader may be on its way while the next is asked."""
        leader_id = self.partition.fetches_from
        if before in self._fetchers and before != leader_id:
            self._fetchers[before].remove(self.partition)
        if leader_id == NO_LEADER:
            return
        if leader_id not in self._fetchers:
            self._fetchers[leader_id] = Fetcher(
                leader_id,
                broker_id=self.broker_id,
                broker_epoch=lambda: self.broker_epoch,
                peers=self._peers,
                scheduler=self.process,
                clock=self.process,
                settings=self._fetcher_settings(),
                on_disk_error=self._disk_error,
            )
        self._fetchers[leader_id].add(self.partition)

    def _fetcher_settings(self) -> FetcherSettings:
        return FetcherSettings(
            wait_max_ms=300,
            partition_bytes_max=self.options.fetch_bytes_max,
            backoff_ms=150,
            timeout_ms=1000,
        )

    def retune(self, options: BrokerOptions) -> None:
        """Disks and fetches are as fast as these say from now on."""
        self.options = options
        self._flush_queue.sync_s = options.sync_s
        for fetcher in self._fetchers.values():
            fetcher.settings = self._fetcher_settings()

    def _disk_error(self, partition: Partition, error: DiskError) -> None:
        raise AssertionError(f"no disk fails in this simulation: {error}")

    def stop_cleanly(self) -> None:
        """The last thing that this run does: everything is made durable and marked so."""
        self.partition.stop(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        ticket = self.log.flush_ticket
        if ticket is not None:
            ticket.run()
            self.log.finish_flush(ticket)
        self.manager.close(clean=True)
        self.process.kill()

    # ---- what goes on beside it

    def _check_isr(self) -> None:
        self.partition.check_isr(now=self.process.monotonic())
        self.process.call_later(self.options.lag_s / 2, self._check_isr)

    def _checkpoint(self) -> None:
        checkpoint = self.manager.checkpoint()
        checkpoint.run()
        checkpoint.finish(self.process.wall_ms())
        self.process.call_later(CHECKPOINT_S, self._checkpoint)

    # ---- requests

    def handle(self, source: int, request: Any, respond: Callable[[Any], None], /) -> None:
        if isinstance(request, FetchRequest):
            self._replica_fetch(request, respond)
        elif isinstance(request, Publish):
            self._take(request.image)
            respond(None)
        elif isinstance(request, Produce):
            self._produce(request, respond)
        elif isinstance(request, Read):
            respond(self._read(request))
        elif isinstance(request, Latest):
            respond(self._latest())
        else:
            assert isinstance(request, WhoLeads)
            respond(Leads(self.image.assignment.leader if self.image is not None else NO_LEADER))

    def _produce(self, request: Produce, respond: Callable[[Any], None]) -> None:
        partition = self.partition
        epoch = partition.leader_epoch
        try:
            result = partition.append(
                request.records,
                now_ms=self.process.wall_ms(),
                produce_version=13,
                acks_all=request.acks_all,
            )
        except RequestError as error:
            respond(Produced(error.code, leader_epoch=epoch))
            return
        if not request.acks_all:
            respond(Produced(ErrorCode.NONE, result.base_offset, epoch))
            return
        codes: list[ErrorCode] = []
        wait = CommitWait(
            lambda: respond(
                Produced(codes[0], result.base_offset if not codes[0] else -1, partition.leader_epoch)
            )
        )
        wait.add(partition, result.last_offset, codes.append)
        wait.arm(self.process, timeout_ms=COMMIT_TIMEOUT_MS)

    def _read(self, request: Read) -> ReadAnswer:
        """As a consumer does: from the leader, or from a follower that it was sent to."""
        partition = self.partition
        if partition.leader is None and partition.follower is None:
            return ReadAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        try:
            partition.check_readable(request.offset)
            found = self.log.read(
                request.offset, 8000, end_offset=partition.visible_end(committed_only=False)
            )
        except RequestError as error:
            return ReadAnswer(error.code)
        records = b""
        if found.range is not None:
            records = found.range.read()
            found.range.release()
        return ReadAnswer(ErrorCode.NONE, records, self.log.high_watermark, partition.leader_epoch)

    def _latest(self) -> LatestAnswer:
        partition = self.partition
        if partition.leader is None:
            return LatestAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        try:
            partition.check_latest()
        except RequestError as error:
            return LatestAnswer(error.code)
        return LatestAnswer(
            ErrorCode.NONE, partition.visible_end(committed_only=False), partition.leader_epoch
        )

    # ---- followers

    def _replica_fetch(self, request: FetchRequest, respond: Callable[[Any], None]) -> None:
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
                    )
                    for topic in request.topics
                    for wanted in topic.partitions
                ],
                forgotten=[
                    PartitionKey("", topic.topic_id, partition)
                    for topic in request.forgotten_topics_data
                    for partition in topic.partitions
                ],
                now=self.process.monotonic(),
            )
        except SessionError as error:
            respond(FetchResponse(error_code=error.code))
            return
        ServedFetch(self, request, context, respond).serve(self._purgatory)
