"""One node of a cluster, put together: quorum, metadata, controller, registration, replicas. Everything but sockets, threads and the requests of clients.

The broker (`tidelog.broker.node`) runs it on asyncio, the simulation on a heap of events: the same composition, so that what is shown about one holds for the other. Owns the order of
a start:

    quorum ─> a leader, and metadata of a cluster ─> logs opened and recovered ─> registered ─> metadata caught up with that ─> replicas opened ─> let in

Logs come before the registration, because that says whether anything was lost (D10); replicas come after it, because only metadata as new as that may say which of the directories on
disk belong to nobody (I6). A controller alone stops after the first step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from tidelog.cluster.absences import Absences
from tidelog.cluster.controller_node import ControllerNode, QuorumWriter
from tidelog.cluster.departures import Departures
from tidelog.cluster.fetchers import Fetchers
from tidelog.cluster.image_change import ImageChange
from tidelog.cluster.leaderless import LeaderlessReplicas
from tidelog.cluster.lifecycle import BrokerLifecycle, LifecycleTimings, Phase
from tidelog.cluster.local_first import LocalFirst
from tidelog.cluster.metadata import NodeMetadata
from tidelog.cluster.missing_nodes import Listens, MissingNodes, cannot_tell
from tidelog.cluster.partitions import PartitionTable
from tidelog.cluster.replicas import Replicas
from tidelog.cluster.snapshots import MetadataSnapshots, SnapshotLimits
from tidelog.cluster.steps import Steps, called_back, offloaded
from tidelog.cluster.topic_policy import TopicPolicy
from tidelog.controller.controller import Controller
from tidelog.controller.image import EMPTY_IMAGE, MetadataImage
from tidelog.controller.result import ConfigValidator, ControllerResult, ControllerSettings
from tidelog.controller.service import ControllerService
from tidelog.controller.service_ports import ControllerTimings
from tidelog.controller.snapshot import read_snapshot
from tidelog.errors import CorruptDataError, RequestError, TidelogError
from tidelog.ports import Clock, Offload, Peers, Rng, Scheduler
from tidelog.quorum.driver import Quorum
from tidelog.quorum.values import QuorumSettings, SnapshotId
from tidelog.replication.fetcher import Fetcher, FetcherSettings
from tidelog.replication.group_commit import GroupCommit
from tidelog.replication.isr_changes import IsrChanges
from tidelog.replication.leader import ReplicationSettings
from tidelog.replication.partition import Partition
from tidelog.storage.disk import DiskError, read_file
from tidelog.storage.log_manager import LogManager
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from tidelog.wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse

logger = logging.getLogger("tidelog.broker")


class NodePorts(NamedTuple):
    """The world of a node. Requests that other nodes answer late (fetches) must not hold up others to the same node."""

    clock: Clock
    rng: Rng
    scheduler: Scheduler
    syncs: Offload
    """What clients and other nodes wait for."""
    background: Offload
    quorum: Peers
    """Voters, as voters."""
    controllers: Peers
    brokers: Peers
    listens: Listens = cannot_tell


class NodeSettings(NamedTuple):
    quorum: QuorumSettings
    cluster_id: str
    is_broker: bool = True
    controller: ControllerTimings = ControllerTimings()
    lifecycle: LifecycleTimings = LifecycleTimings()
    fetcher: FetcherSettings = FetcherSettings()
    snapshots: SnapshotLimits = SnapshotLimits()
    lag_seconds_max: float = 30.0
    min_insync_replicas: int = 1


class Shell(Protocol):
    """What only the broker around this node knows, and what it is told."""

    def controller_settings(self) -> ControllerSettings: ...

    def validator(self) -> ConfigValidator: ...

    def policy_of(self, topic: str) -> TopicPolicy: ...

    def registration(self, image: MetadataImage) -> BrokerRegistrationRequest: ...

    def load_logs(self, image: MetadataImage) -> None:
        """Open, and after a crash recover, every log on disk. In a thread."""
        ...

    def settings_changed(self, image: MetadataImage) -> None: ...

    def replicas_changed(self, change: ImageChange, image: MetadataImage) -> None: ...

    def checkpoint(self, done: Callable[[], None]) -> None: ...

    def dir_is_offline(self, path: str) -> None: ...

    def failed(self, error: Exception) -> None:
        """The node must stop."""
        ...


class ClusterNode:
    def __init__(self, settings: NodeSettings, ports: NodePorts, logs: LogManager, shell: Shell) -> None:
        """CorruptDataError if the metadata on disk cannot be read."""
        self.id = settings.quorum.node_id
        self.settings = settings
        self.ports = ports
        self.logs = logs
        self._shell = shell
        self._waiting: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        self._is_ready = False
        self._was_resumed = False
        self._registered_epoch: int | None = None
        self._opened: Exception | None = None
        self._stopping = False
        self.missing = MissingNodes(
            ports.listens, clock=ports.clock, scheduler=ports.scheduler, gone=self._node_gone
        )
        self._open_quorum()
        self._make_broker()

    def _open_quorum(self) -> None:
        ports, settings = self.ports, self.settings
        log = self.logs.open_metadata_log()
        self.metadata = NodeMetadata(self.id, audience=self, read_snapshot=self._read_snapshot)
        self.quorum = Quorum(
            settings.quorum,
            log,
            clock=ports.clock,
            rng=ports.rng,
            scheduler=ports.scheduler,
            offload=ports.syncs,
            peers=ports.quorum,
            listener=self.metadata,
        )
        self.controller: ControllerNode | None = None
        if settings.quorum.is_voter:
            service = ControllerService(
                QuorumWriter(self.quorum),
                self._make_controller,
                timings=settings.controller,
                wall_ms=ports.clock.wall_ms,
                min_insync_replicas=settings.min_insync_replicas,
                on_committed=self.metadata.changed_by_controller,
            )
            self.controller = ControllerNode(
                service, clock=ports.clock, scheduler=ports.scheduler, missing=self.missing
            )
        self.metadata.attach(self.quorum, self.controller)
        self.metadata.begin_with(self._newest_sound_snapshot())
        self.absences = Absences()
        self.absences.begin_with(self.metadata.image, now_ms=ports.clock.wall_ms())
        self.departures = Departures(self.missing, clock=ports.clock)
        self.departures.changed(self.metadata.image.brokers.keys(), self.metadata.image, is_news=False)
        self.snapshots = MetadataSnapshots(
            self.quorum,
            limits=settings.snapshots,
            clock=ports.clock,
            offload=ports.background,
            failed=self._shell.failed,
        )

    def _make_broker(self) -> None:
        ports, settings = self.ports, self.settings
        self.to_controller = LocalFirst(self.id, self.controller, ports.controllers, ports.scheduler)
        self.lifecycle = BrokerLifecycle(
            self.id,
            self,
            controller_id=self._controller_to_tell,
            peers=self.to_controller,
            scheduler=ports.scheduler,
            timings=settings.lifecycle,
        )
        self.group_commit = GroupCommit(ports.scheduler, ports.syncs, self._disk_failed)
        self.isr_changes = IsrChanges(
            broker_id=self.id,
            broker_epoch=lambda: self.lifecycle.epoch,
            controller_id=lambda: self.metadata.leader_id,
            peers=self.to_controller,
            scheduler=ports.scheduler,
            clock=ports.clock,
        )
        self.partitions = PartitionTable(
            self.logs,
            self.group_commit,
            self._shell.policy_of,
            broker_id=self.id,
            now=ports.clock.monotonic,
            on_dir_offline=self._shell.dir_is_offline,
            replication=ReplicationSettings(
                lambda: self.lifecycle.epoch, settings.lag_seconds_max, self.isr_changes, self
            ),
            image=lambda: self.metadata.image,
        )
        self.leaderless = LeaderlessReplicas(self.id, self.partitions)
        self.fetchers = Fetchers(self._make_fetcher)
        self.steps = Steps(ports.background, ports.scheduler)
        self.replicas = Replicas(
            self.id,
            self.partitions,
            self.logs,
            steps=self.steps,
            fetchers=self.fetchers,
            audience=self._shell,
            checkpoint=self._shell.checkpoint,
        )

    # ---- starting and stopping

    def start(self, done: Callable[[Exception | None], None]) -> None:
        """`done` when this node serves; a controller alone, when it knows its cluster."""
        # What is known to be committed from the time before: the quorum tells only of more than that.
        self.metadata.committed(self.quorum.high_watermark)
        self.quorum.start()
        self.steps.run(self._start(), done)

    async def _start(self) -> None:
        await called_back(partial(self.when, self._knows_its_cluster))
        if not self.settings.is_broker:
            return
        await offloaded(partial(self._shell.load_logs, self.metadata.image))
        if self._is_only_broker:
            await called_back(self._resume)
        else:
            self.lifecycle.start()
        await called_back(partial(self.when, self._has_caught_up))
        if not self._was_resumed or self.logs.ledger.loss is not None:
            # What was lost has been told. From here on, this run's epoch is what the next one may claim.
            await offloaded(partial(self.logs.ledger.registered, self.lifecycle.epoch))
        await called_back(self._open_replicas)
        if self._opened is not None:
            raise self._opened
        self._is_ready = True
        self._watch_isr()
        if not self._is_only_broker:
            await called_back(partial(self.when, lambda: self.lifecycle.is_active))

    def _knows_its_cluster(self) -> bool:
        """There is metadata, and somebody leads; a node alone has only itself to ask."""
        found = bool(self.metadata.image.features) and self.metadata.leader_id is not None
        return found and (self.is_active_controller or not self.settings.quorum.is_alone)

    @property
    def _is_only_broker(self) -> bool:
        return self.settings.quorum.is_alone and self.metadata.image.brokers.keys() <= {self.id}

    def _has_caught_up(self) -> bool:
        return self._registered_epoch is not None and self.metadata.offset >= self._registered_epoch

    def _resume(self, done: Callable[[], None]) -> None:
        """The only broker of a cluster whose only controller is in the same process: nobody could have led meanwhile."""
        assert self.controller is not None
        request = self._shell.registration(self.metadata.image)

        def decide(controller: Controller) -> ControllerResult[BrokerRegistrationResponse]:
            next_offset = self.quorum.end_offset
            resumed = controller.resume_broker(
                request, next_offset=next_offset, stopped_cleanly=self.logs.stopped_cleanly
            )
            return resumed or controller.register_broker(request, next_offset=next_offset)

        def refused(error: RequestError) -> None:
            if error.code is ErrorCode.NOT_CONTROLLER:  # the only voter has resigned, and will lead again
                self.when(lambda: self.is_active_controller, partial(self._resume, done))
            else:
                self._shell.failed(error)

        def registered(response: BrokerRegistrationResponse | RequestError) -> None:
            if isinstance(response, RequestError):
                refused(response)
                return
            epoch = response.broker_epoch
            self._was_resumed = True
            self.lifecycle.resume(epoch)
            self.registered(epoch)
            controller.submit(
                partial(Controller.unfence_broker, broker_id=self.id, broker_epoch=epoch), unfenced
            )

        def unfenced(response: RequestError | None) -> None:
            if response is not None:
                refused(response)
            else:
                done()

        controller = self.controller
        controller.submit(decide, registered)

    def _open_replicas(self, done: Callable[[], None]) -> None:
        def opened(result: Exception | None) -> None:
            self._opened = result
            done()

        self.leaderless.begin(self.metadata.image)
        self.replicas.open_all(self.metadata.image, opened)

    def stop(self, done: Callable[[], None], *, within_s: float) -> None:
        """Hand over what is led here, partitions and quorum, and be silent."""
        self._stopping = True
        stopped = partial(self.quorum.stop, done, within_s=within_s)
        if self._is_only_broker or not self.settings.is_broker:
            self.lifecycle.close()
            stopped()
        else:
            self.lifecycle.stop(stopped)

    def close(self) -> None:
        """Be silent at once, as a process that is killed."""
        self._stopping = True
        self.lifecycle.close()
        self.fetchers.close()
        self.quorum.close()
        if self.controller is not None:
            self.controller.close()

    @property
    def is_active_controller(self) -> bool:
        return self.controller is not None and self.controller.is_active

    def when(self, is_true: Callable[[], bool], done: Callable[[], None]) -> None:
        """Call `done` once `is_true`, which is asked whenever metadata or registration have changed."""
        if is_true():
            done()
        else:
            self._waiting.append((is_true, done))

    def _look(self) -> None:
        waiting, self._waiting = self._waiting, []
        for is_true, done in waiting:
            self.when(is_true, done)

    # ---- cluster.metadata.Audience

    def changed(self, change: ImageChange, image: MetadataImage) -> None:
        self.absences.changed(change, image, now_ms=self.ports.clock.wall_ms(), is_news=self._is_ready)
        self.departures.changed(change.brokers, image, is_news=self._is_ready and not self._stopping)
        self.replicas.changed(change, image)
        self.snapshots.consider(image)
        if self.leaderless.changed(change) or self.id in change.brokers:
            self.lifecycle.soon()
        self._look()

    def leader_is(self, leader_id: int | None, epoch: int) -> None:
        if leader_id is not None and not self._stopping:
            self.lifecycle.soon()
        self._look()

    def leading(self) -> None:
        self._look()

    def failed(self, error: Exception) -> None:
        self._shell.failed(error)

    # ---- cluster.lifecycle.BrokerSelf

    def registration(self) -> BrokerRegistrationRequest:
        return self._shell.registration(self.metadata.image)

    def describe(self, heartbeat: BrokerHeartbeatRequest) -> None:
        acted_by = self.replicas.image
        heartbeat.current_metadata_offset = self.metadata.offset if acted_by is None else acted_by.offset
        heartbeat.want_fence = not (self._is_ready or self._was_resumed)
        heartbeat.offline_log_dirs = self.logs.offline_directory_ids
        if self._is_ready:
            heartbeat.leaderless_log_ends = self.leaderless.log_ends()

    def _controller_to_tell(self) -> int | None:
        """Who is told of this broker. A registration names the one before, and metadata of a while ago knows only the one before that: the controller would
        take it for a broker that has lost everything since (D10).
        """
        if self.lifecycle.phase is Phase.REGISTERING and not self.quorum.is_up_to_date:
            return None
        return self.metadata.leader_id

    def registered(self, epoch: int) -> None:
        self._registered_epoch = epoch
        if self._is_ready:
            self.logs.ledger.registered(epoch)  # again: somebody had unregistered it
        self._look()

    def let_in(self) -> None:
        self._look()

    def refused(self, code: ErrorCode) -> None:
        self._shell.failed(
            TidelogError(f"the cluster does not take this broker: {code.name}; the controller's log says why")
        )

    # ---- replication.isr.KnownBrokers

    def may_join(self, broker_id: int, broker_epoch: int, /) -> bool:
        broker = self.metadata.image.brokers.get(broker_id)
        return broker is not None and broker.epoch == broker_epoch and broker.active

    # ---- inside

    def _node_gone(self, node_id: int) -> None:
        if self.controller is not None and not self._stopping:
            self.controller.broker_gone(node_id)

    def _make_controller(self, image: MetadataImage) -> Controller:
        return Controller(
            cluster_id=self.settings.cluster_id,
            settings=self._shell.controller_settings(),
            validator=self._shell.validator(),
            rng=self.ports.rng,
            image=image,
        )

    def _make_fetcher(self, leader_id: int) -> Fetcher:
        return Fetcher(
            leader_id,
            broker_id=self.id,
            broker_epoch=lambda: self.lifecycle.epoch,
            peers=self.ports.brokers,
            scheduler=self.ports.scheduler,
            clock=self.ports.clock,
            settings=self.settings.fetcher,
            on_disk_error=self._disk_failed,
        )

    def _watch_isr(self) -> None:
        """Whoever lags is found within half of the time that it may."""
        if self._stopping:
            return
        now = self.ports.clock.monotonic()
        for partition in self._led_with_others():
            partition.check_isr(now=now)
        self.ports.scheduler.call_later(self.settings.lag_seconds_max / 2, self._watch_isr)

    def _led_with_others(self) -> Sequence[Partition]:
        return [
            partition
            for partition in self.partitions.all()
            if partition.leader is not None and partition.leader.remotes
        ]

    def _disk_failed(self, partition: Partition, error: DiskError) -> None:
        self.partitions.disk_failed(partition, error)

    def _newest_sound_snapshot(self) -> MetadataImage:
        """Two are kept, so that damage of one does not cost the cluster its metadata. If the log reaches none, nothing is guessed (I6, M28)."""
        history = self.quorum.log
        problems: list[str] = []
        for snapshot in reversed(history.snapshots.known):
            if snapshot.end_offset < history.start_offset:
                break
            try:
                image = self._read_snapshot(snapshot)
            except (CorruptDataError, FileNotFoundError) as error:
                logger.warning("%s; the metadata is read from what is older", error)
                problems.append(str(error))
            else:
                return image
        if history.start_offset > 0:
            raise CorruptDataError(
                f"the metadata log in {history.log.directory} begins at offset {history.start_offset}, and no sound snapshot covers what was"
                f" before: {'; '.join(problems) or 'there is none'}. Bring one back from a copy of the directory"
            )
        return EMPTY_IMAGE

    def _read_snapshot(self, snapshot: SnapshotId) -> MetadataImage:
        path = self.quorum.path_of(snapshot)
        return read_snapshot(
            read_file(self.logs.disk, path),
            end_offset=snapshot.end_offset,
            epoch=snapshot.epoch,
            path=path,
        )
