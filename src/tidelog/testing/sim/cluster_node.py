"""One process of a simulated cluster: the product's `ClusterNode` on a simulated disk, network and clock. Its disk outlives it; the next life gets what was left.

Implements `cluster.node.Shell`: does what `broker.node` and `broker.node_shell` do around the node, in the same order, with the broker's own settings table and its own registration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.config_validator import TableConfigValidator
from tidelog.broker.registration import registration
from tidelog.broker.settings import controller_settings
from tidelog.cluster.image_change import ImageChange
from tidelog.cluster.local_first import refusal
from tidelog.cluster.node import ClusterNode, NodePorts
from tidelog.cluster.partitions import PartitionTable
from tidelog.cluster.topic_policy import TopicPolicy, topic_policy
from tidelog.config.resolve import BrokerConfig, TopicConfig
from tidelog.controller.image import MetadataImage, ResourceType
from tidelog.controller.result import ControllerSettings
from tidelog.errors import RequestError
from tidelog.internal_topics import is_internal_topic
from tidelog.quorum.driver import Quorum
from tidelog.quorum.effects import Effect
from tidelog.quorum.events import Event as QuorumEvent
from tidelog.replication.leader import ReplicaFetch
from tidelog.replication.partition import Partition
from tidelog.storage.disk import DiskError
from tidelog.storage.lifecycle import Disposal
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.log_dirs import LogDirError
from tidelog.storage.log_manager import LogManager
from tidelog.storage.manager_checkpoint import Checkpoint
from tidelog.testing.sim.cluster_groups import SimGroups
from tidelog.testing.sim.cluster_net import Connection, Knock, Lane
from tidelog.testing.sim.cluster_serving import Serving
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.events import Process, SimThreads
from tidelog.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from tidelog.wire.messages.broker_registration import BrokerRegistrationRequest
from tidelog.wire.messages.fetch import FetchRequest
from tidelog.wire.messages.fetch_snapshot import FetchSnapshotRequest

if TYPE_CHECKING:
    from tidelog.testing.sim.cluster_world import ClusterWorld

LOG_DIR: Final = "/data"
QUORUM, QUORUM_FETCH, BROKER, CLIENT = "quorum", "quorum fetch", "broker", "client"
CONTROLLER, HEARTBEAT = "controller", "heartbeat"
_FOR_CONTROLLERS: Final = frozenset((QUORUM, QUORUM_FETCH, CONTROLLER, HEARTBEAT))
STOP_S: Final = 2.0


class _SmallMetadata(LogManager):
    """Segments of the metadata log so small that snapshots let some of them go."""

    def open_metadata_log(self, config: LogConfig | None = None) -> Log:
        return super().open_metadata_log(
            LogConfig(
                segment_bytes=2000, index_interval_bytes=400, file_delete_delay_ms=1000, delete_policy=False
            )
        )


class SimNode:
    def __init__(self, world: ClusterWorld, node_id: int, disk: SimDisk, life: int) -> None:
        self.world = world
        self.id = node_id
        self.life = life
        self.disk = disk
        shape = world.shape
        self.rng = Random(f"{world.seed}/node/{node_id}/{life}")
        self.process = self.loop = Process(
            world.heap, rate=world.rates[node_id], wall_skew_ms=world.skews[node_id]
        )
        disk.clock = self.process
        self.config: BrokerConfig = world.configs[node_id]
        self.incarnation = self.rng.randbytes(16)
        self.is_listening = False
        self.is_started = False
        self.is_stopping = False
        self._is_checkpointing = False
        self._checkpointed: list[Callable[[], None]] = []
        self.counted: Callable[[Partition, ReplicaFetch], None] = lambda partition, fetch: None
        self.logs = _SmallMetadata(
            disk,
            self.process,
            self.rng,
            [LOG_DIR],
            node_id=node_id,
            cluster_id="sim",
            config_for=lambda topic: self._settings_of(topic).log,
        )
        self.logs.open_directories()
        self.logs.ledger.begin(world.boots[node_id])
        self.syncs = SimThreads(self.process, self.rng, takes_s=shape.sync_s, slow=shape.slow_disk)
        network, process = world.network, self.process
        """Whose deletion this life has seen."""
        quorum = _QuorumLanes(
            self,
            Lane(network, node_id, process, QUORUM_FETCH, self._voter_lost),
            Lane(network, node_id, process, QUORUM),
        )
        controllers = _ControllerLanes(
            Lane(network, node_id, process, HEARTBEAT, self._controller_lost),
            Lane(network, node_id, process, CONTROLLER),
        )
        self.serving = Serving(self, commit_timeout_ms=shape.commit_timeout_ms)
        self.groups = SimGroups(self, shape.group_settings)
        self.cluster = ClusterNode(
            world.node_settings(node_id),
            NodePorts(
                clock=process,
                rng=self.rng,
                scheduler=process,
                syncs=self.syncs,
                background=SimThreads(process, self.rng, takes_s=shape.sync_s, slow=shape.slow_disk),
                quorum=quorum,
                controllers=controllers,
                brokers=Lane(network, node_id, process, BROKER, self._broker_lost),
                listens=self._knock,
            ),
            self.logs,
            self,
        )
        self.quorum: Quorum = self.cluster.quorum
        self.partitions: PartitionTable = self.cluster.partitions
        self._dir_failed = self.partitions.dir_failed
        self.partitions.dir_failed = self._observed_failure  # type: ignore[method-assign]
        self._followed = self.cluster.replicas._followed
        self.cluster.replicas._followed = self._observed_following  # type: ignore[method-assign]
        core = self.cluster.quorum.core
        self._step = core.step
        core.step = self._observed_step  # type: ignore[method-assign]

    @property
    def image(self) -> MetadataImage:
        """As far as this broker acts by it."""
        acted_by = self.cluster.replicas.image
        return self.cluster.metadata.image if acted_by is None else acted_by

    def _observed_step(self, event: QuorumEvent, now: float) -> list[Effect]:
        effects = self._step(event, now)
        self.world.watch.quorum_stepped(self, effects)
        return effects

    def _observed_failure(self, path: str, error: Exception) -> None:
        """Its partitions stop in this very step, and syncs that succeeded beside the one that failed may have committed something."""
        self.world.watch.look_at(self)
        self._dir_failed(path, error)

    def _observed_following(self, result: Exception | None) -> None:
        """The product calls it a bug, says so in its log and goes on. Here the run ends with it, an invariant's word from `replicas_changed` among them."""
        if result is not None:
            raise result
        self._followed(result)

    def fetch_counted(self, partition: Partition, fetch: ReplicaFetch) -> None:
        self.counted(partition, fetch)

    # ---- a life

    def start(self) -> None:
        self.cluster.start(self._started)
        self.process.call_later(
            self.world.shape.checkpoint_s * (0.5 + self.rng.random()), self._checkpoint_again
        )

    def _started(self, result: Exception | None) -> None:
        if result is not None:
            self.failed(result)
        elif self.cluster.settings.is_broker and not self.is_stopping:
            self.cluster.group_commit.when_drained(self._listen)
        else:
            self.is_started = True

    def _listen(self) -> None:
        try:
            self._check_metadata_dir()
        except LogDirError as error:
            self.world.node_failed(self, error)
            return
        self.is_started = self.is_listening = True
        self.groups.metadata_changed(self.image)
        self.world.node_started(self)

    def _check_metadata_dir(self) -> None:
        """As `Broker.check_metadata_dir`: before it registers, and once more before it serves."""
        if not self.logs.dirs[0].online:
            raise LogDirError(f"{LOG_DIR} cannot be used: {self.logs.offline_dirs[LOG_DIR]}")

    def stop_cleanly(self, stopped: Callable[[], None]) -> None:
        """As `Broker.stop`."""
        self.is_stopping = True

        def handed_over() -> None:
            self.is_listening = False
            self.groups.stop()
            self.cluster.close()
            self.cluster.group_commit.when_drained(
                lambda: self.cluster.snapshots.when_finished(lambda: self.cluster.quorum.when_idle(close))
            )

        def close() -> None:
            if self._is_checkpointing:
                self.process.call_later(0.01, close)
                return
            self.logs.close(clean=True, broker_epoch=self.cluster.lifecycle.epoch)
            stopped()

        self.cluster.stop(handed_over, within_s=STOP_S)

    # ---- Host

    def listens(self, lane: str, /) -> bool:
        return lane in _FOR_CONTROLLERS or self.is_listening

    def handle(self, connection: Connection, request: Any, respond: Callable[[Any], None], /) -> None:
        lane = connection.lane
        if lane in (CONTROLLER, HEARTBEAT):
            self._to_controller(connection, request, respond)
        elif lane in _FOR_CONTROLLERS:
            self.world.watch.quorum_arrived(self, connection.source, request)
            self.quorum.handle(request, partial(self._quorum_answers, connection.source, respond))
        else:
            if lane == BROKER and connection.when_closed is None:
                # A broker that dies closes the connection that it fetches with, too.
                connection.when_closed = partial(self._broker_lost, connection.source)
            self.serving.handle(request, respond)

    def _quorum_answers(self, to: int, respond: Callable[[Any], None], response: Any) -> None:
        self.world.watch.quorum_said(self, to, response)
        respond(response)

    def _to_controller(self, connection: Connection, request: Any, respond: Callable[[Any], None]) -> None:
        controller = self.cluster.controller

        def answered(response: Any) -> None:
            respond(refusal(request, response) if isinstance(response, RequestError) else response)

        assert controller is not None, "only voters are asked as controllers"
        if isinstance(request, BrokerHeartbeatRequest):
            connection.when_closed = partial(controller.connection_lost, request.broker_id)
        controller.handle(request, answered)

    def _voter_lost(self, node_id: int) -> None:
        self.quorum.disconnected(node_id)
        self.cluster.missing.lost(node_id)

    def _broker_lost(self, node_id: int) -> None:
        self.cluster.missing.lost(node_id)

    def _knock(self, node_id: int, answered: Callable[[bool | None], None], /) -> None:
        """As `NodePeers.listens`: whether the broker's port takes connections, if the metadata know it."""

        def told(taken: bool | None) -> None:
            self.world.sometimes(
                {True: "port takes", False: "port refuses", None: "port says nothing"}[taken]
            )
            answered(taken)

        if node_id in self.cluster.metadata.image.brokers:
            Knock(self.world.network, self.process, self.id, node_id, BROKER, told)
        else:
            self.process.call_soon(partial(answered, None))

    def _controller_lost(self, node_id: int) -> None:
        self.cluster.lifecycle.connection_lost()

    # ---- cluster.node.Shell

    def controller_settings(self) -> ControllerSettings:
        return controller_settings(self.config)

    def validator(self) -> TableConfigValidator:
        return TableConfigValidator(lambda: self.config)

    def _settings_of(self, topic: str) -> TopicPolicy:
        image = self.cluster.metadata.image
        policy = self.world.policy_of(image.config(ResourceType.TOPIC, topic), self.config)
        return policy._replace(durable=True) if is_internal_topic(topic) else policy

    def policy_of(self, topic: str) -> TopicPolicy:
        """As `BrokerShell` has it: who is counted for what is not synced has written that down first."""
        policy = self._settings_of(topic)
        if policy.durable or self.logs.ledger.count_in_memory():
            return policy
        return policy._replace(durable=True)

    def registration(self, image: MetadataImage) -> BrokerRegistrationRequest:
        return registration(
            image,
            self.logs,
            self.config,
            incarnation_id=self.incarnation,
            endpoints=[self.config.listeners[0].with_address("sim", 9000 + self.id)],
        )

    def load_logs(self, image: MetadataImage) -> None:
        topics = image.topics_by_name
        self.logs.load(topic_id_of=lambda topic: topics[topic].topic_id if topic in topics else None)
        here = [
            (topic.name, index)
            for topic, index, partition in image.partitions()
            if self.id in partition.replicas
        ]
        self.logs.ledger.loaded(
            here,
            in_memory=not self.world.shape.durable,
            incarnation_id=self.incarnation,
        )
        self._check_metadata_dir()
        if self.logs.ledger.loss is not None:
            self.world.sometimes("started with a loss")
            self.world.trace(f"node {self.id} has lost something: {self.logs.ledger.loss}")
        self.world.watch.logs_loaded(self)

    def settings_changed(self, image: MetadataImage) -> None:
        pass

    def replicas_changed(self, change: ImageChange, image: MetadataImage) -> None:
        # One step may apply several changes: who leads by one of them commits, and follows by the next.
        self.world.watch.look_at(self)
        if self.is_listening:
            self.groups.metadata_changed(image, change.deleted)

    def checkpoint(self, done: Callable[[], None]) -> None:
        self._checkpointed.append(done)
        if not self._is_checkpointing:
            self._begin_checkpoint()

    def dir_is_offline(self, path: str) -> None:
        self.world.node_failed(self, self.logs.offline_dirs[path])

    def failed(self, error: Exception) -> None:
        if isinstance(error, DiskError) and not error.out_of_space:
            self.partitions.dir_failed(self.partitions.log_dir_containing(error.path), error)
        self.world.node_failed(self, error)

    # ---- checkpoints

    def _checkpoint_again(self) -> None:
        if not self._is_checkpointing and not self.is_stopping and self.is_started:
            self._begin_checkpoint()
        self.process.call_later(self.world.shape.checkpoint_s, self._checkpoint_again)

    def _begin_checkpoint(self) -> None:
        self._is_checkpointing = True
        checkpoint = self.logs.checkpoint()
        self.syncs.run(checkpoint.run, lambda _: self._finish(checkpoint))

    def _finish(self, checkpoint: Checkpoint) -> None:
        self._run_jobs(checkpoint.finishing(self.process.wall_ms()), checkpoint)

    def _run_jobs(self, jobs: Iterator[Callable[[], None] | None], checkpoint: Checkpoint) -> None:
        for job in jobs:
            if job is not None:
                self.syncs.run(job, lambda _: self._run_jobs(jobs, checkpoint))
                return
        for path, error in checkpoint.failed.items():
            self.partitions.dir_failed(path, error)
        self._is_checkpointing = False
        disposal = self.logs.disposal(self.process.wall_ms())
        if disposal is not None:
            self.syncs.run(disposal.run, partial(self._disposed, disposal))
        waiting, self._checkpointed = self._checkpointed, []
        for done in waiting:
            done()

    def _disposed(self, disposal: Disposal, _: Exception | None) -> None:
        for path, error in self.logs.disposed(disposal).items():
            self.partitions.dir_failed(path, error)


class _QuorumLanes:
    """As `broker.node_peers`: fetches wait at the other side, so they have connections of their own."""

    def __init__(self, node: SimNode, fetches: Lane, others: Lane) -> None:
        self._node = node
        self._fetches = fetches
        self._others = others

    def ask(
        self, node_id: int, request: Any, answered: Callable[[Any | None], None], /, *, timeout_s: float
    ) -> None:
        self._node.world.watch.quorum_said(self._node, node_id, request)
        waits = isinstance(request, FetchRequest | FetchSnapshotRequest)
        (self._fetches if waits else self._others).ask(node_id, request, answered, timeout_s=timeout_s)


class _ControllerLanes:
    """As `broker.node_peers`: heartbeats do not wait behind an answer that takes the controller long."""

    def __init__(self, heartbeats: Lane, others: Lane) -> None:
        self._heartbeats = heartbeats
        self._others = others

    def ask(
        self, node_id: int, request: Any, answered: Callable[[Any | None], None], /, *, timeout_s: float
    ) -> None:
        beats = isinstance(request, BrokerHeartbeatRequest)
        (self._heartbeats if beats else self._others).ask(node_id, request, answered, timeout_s=timeout_s)


def policy(settings: dict[str, str], config: BrokerConfig) -> TopicPolicy:
    return topic_policy(
        TopicConfig.resolve(settings, config),
        producer_id_expiration_ms=config.int("producer.id.expiration.ms"),
    )
