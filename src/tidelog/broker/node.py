"""The node: every part of a broker put together, and the order in which they start and stop.

This is the composition root. It owns no rules: storage, metadata, partitions, listeners and background work are made
here and handed to each other. `tidelog start` runs one node per process; tests run them inside their own.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tidelog.broker.apis import APIS
from tidelog.broker.connection import SharedBuffer
from tidelog.broker.dispatch import ApiDispatcher
from tidelog.broker.group_commit import GroupCommit
from tidelog.broker.housekeeping import Housekeeping
from tidelog.broker.listener import ConnectionLimits, Listener
from tidelog.broker.config_validator import TableConfigValidator
from tidelog.broker.metadata_service import MetadataService, read_image
from tidelog.broker.partitions import OfflinePartitionError, PartitionTable
from tidelog.broker.producer_ids import ProducerIdSource
from tidelog.broker.topic_policy import TopicPolicy, topic_policy
from tidelog.config.listeners import Endpoint
from tidelog.config.resolve import BrokerConfig, TopicConfig
from tidelog.controller.controller import Controller
from tidelog.controller.delta import MetadataDelta
from tidelog.controller.features import SUPPORTED_FEATURES
from tidelog.controller.image import MetadataImage, PartitionImage, ResourceType, TopicImage
from tidelog.controller.result import ControllerSettings
from tidelog.errors import RequestError, TidelogError
from tidelog.ports import Clock, Rng, SystemClock, SystemRng
from tidelog.replication.fetch_session import FetchSessionCache
from tidelog.replication.partition import Partition
from tidelog.replication.purgatory import FetchPurgatory
from tidelog.storage.disk import Disk, DiskError
from tidelog.storage.files import parent
from tidelog.storage.log import Log
from tidelog.storage.log_dirs import LogDirError
from tidelog.storage.log_manager import LogManager
from tidelog.storage.posix_disk import PosixDisk
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages import broker_registration
from tidelog.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from tidelog.wire.messages.broker_registration import BrokerRegistrationRequest
from tidelog.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

PARTITIONS_PER_TURN = 20
"""Partitions opened before other work gets a turn of the loop."""

logger = logging.getLogger("tidelog.broker")


class StartError(TidelogError):
    """The broker cannot start, for a reason that its user can do something about."""


class Features(NamedTuple):
    supported: Mapping[str, tuple[int, int]]
    finalized: Mapping[str, int]
    epoch: int


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
    ) -> None:
        self.config = config
        self.node_id = config.node_id
        self.disk = disk if disk is not None else PosixDisk()
        self.clock = clock if clock is not None else SystemClock()
        self.rng = rng if rng is not None else SystemRng()
        self.apis = APIS
        self.listeners: list[Listener] = []
        self._advertised: list[Endpoint] = []
        self._started = False
        self._serves = False
        self._checkpointing = asyncio.Lock()
        self.broker_epoch = -1
        self.failed = asyncio.Event()
        """Set when the broker cannot go on and its process should end."""

    # ---- starting

    async def start(self) -> None:
        """Ready for clients when this returns. StartError says what to change."""
        self.scheduler = loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(4, thread_name_prefix="tidelog-io")
        self.group_commit = GroupCommit(loop, self._executor, self._disk_failed)
        self.fetch_purgatory = FetchPurgatory(loop)
        self.fetch_sessions = FetchSessionCache(
            self.rng,
            slots_max=self.config.int("max.incremental.fetch.session.cache.slots"),
            eviction_ms=120_000,
        )
        self.fetch_bytes_max = self.config.int("fetch.max.bytes")
        try:
            self._open_storage()
            self._bind()
            await self._open_metadata()
        except BaseException:
            self._abandon()
            raise
        self.housekeeping = Housekeeping(self)
        self.housekeeping.start()
        for listener in self.listeners:
            listener.start()
        self._started = True

    def _open_storage(self) -> None:
        self.logs = LogManager(
            self.disk,
            self.clock,
            self.rng,
            self.config.log_dirs,
            node_id=self.node_id,
            retention_check_interval_ms=self.config.int("log.retention.check.interval.ms"),
        )
        try:
            self.logs.open(progress=_report_recovery)
        except (LogDirError, OSError) as error:
            raise StartError(str(error)) from error
        except DiskError as error:
            raise StartError(f"{error}; check that the directory exists, is writable and has space") from error
        for warning in self.logs.warnings:
            logger.warning("%s", warning)
        for (topic, index), failure in self.logs.failed_logs.items():
            logger.error("%s-%d cannot be opened and is not served: %s", topic, index, failure)
        self.partitions = PartitionTable(self.logs, self.group_commit, self._policy_of)

    def _bind(self) -> None:
        """Take the ports before anything is promised, so that a port in use costs nothing but a message."""
        self.dispatcher = ApiDispatcher(self, self.apis)
        shared = SharedBuffer()
        limits = self._connection_limits()
        advertised = {endpoint.name: endpoint for endpoint in self.config.advertised}
        for endpoint in self.config.listeners:
            if endpoint.for_controllers:
                continue
            host = endpoint.host or "0.0.0.0"
            try:
                listener = Listener(endpoint.name, host, endpoint.port, self.dispatcher, limits, shared)
            except OSError as error:
                raise StartError(
                    f"cannot listen on {host}:{endpoint.port}: {error.strerror or error}; "
                    "stop what uses the port, or choose another (--port, or listeners in the configuration)"
                ) from error
            self.listeners.append(listener)
            told = advertised.get(endpoint.name, endpoint)
            self._advertised.append(
                told.with_address(told.host or socket.gethostname(), told.port or listener.port)
            )

    def _connection_limits(self) -> ConnectionLimits:
        config = self.config
        overrides = {}
        for entry in filter(None, config.str("max.connections.per.ip.overrides").split(",")):
            host, _, count = entry.rpartition(":")
            overrides[host.strip()] = int(count)
        return ConnectionLimits(
            max_frame_bytes=config.int("socket.request.max.bytes"),
            max_connections=config.int("max.connections"),
            max_connections_per_ip=config.int("max.connections.per.ip"),
            per_ip_overrides=overrides,
            max_idle_ms=config.int("connections.max.idle.ms"),
            send_buffer_bytes=config.int("socket.send.buffer.bytes"),
            receive_buffer_bytes=config.int("socket.receive.buffer.bytes"),
            backlog=config.int("socket.listen.backlog.size"),
        )

    # ---- metadata

    async def _open_metadata(self) -> None:
        log = self.logs.open_metadata_log()
        image, torn_transaction = read_image(log)
        controller = Controller(
            cluster_id=self.logs.cluster_id,
            settings=self._controller_settings(),
            validator=TableConfigValidator(lambda: self.config),
            rng=self.rng,
            image=image,
        )
        self.metadata = MetadataService(
            log,
            controller,
            self._executor,
            publisher=self,
            now_ms=self.clock.wall_ms,
            on_failure=self._metadata_failed,
        )
        self._apply_broker_config(image)
        await self.metadata.begin(
            torn_transaction=torn_transaction, min_insync_replicas=self.config.int("min.insync.replicas")
        )
        await self._register()
        self.producer_ids = ProducerIdSource(self._allocate_producer_ids)
        self._serves = True
        for topic, index, partition in list(self.image.partitions()):
            self._open_partition(topic, index, partition, is_new=False)
        self.partitions.set_aside_strays()

    async def _register(self) -> None:
        """Tell the controller that this node is here. Until then its partitions have no leader."""
        known = self.image.brokers.get(self.node_id)
        request = BrokerRegistrationRequest(
            broker_id=self.node_id,
            cluster_id=self.logs.cluster_id,
            incarnation_id=self.rng.randbytes(16),
            listeners=[
                broker_registration.Listener(name=endpoint.name, host=endpoint.host, port=endpoint.port)
                for endpoint in self._advertised
            ],
            features=[
                broker_registration.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in SUPPORTED_FEATURES.items()
            ],
            rack=self.config.optional_str("broker.rack"),
            log_dirs=list(self.logs.directory_ids.values()),
            # Every replica in a cluster of one is here: whatever this log holds is all there is.
            previous_broker_epoch=known.epoch if known is not None else -1,
        )
        response = await self.metadata.submit(
            lambda controller: controller.register_broker(request, next_offset=self.metadata.next_offset)
        )
        self.broker_epoch = response.broker_epoch
        await self.metadata.submit(lambda controller: controller.unfence_broker(self.node_id, self.broker_epoch))

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Metadata changed: partitions and settings follow."""
        if any(key.type == ResourceType.BROKER for key in delta.changed_configs):
            self._apply_broker_config(image)
        if not self._serves:
            return
        for gone in delta.topics.deleted:
            self.partitions.remove_topic(gone.name)
        for topic_id, partitions in delta.topics.changed_partitions().items():
            topic = image.topics_by_id[topic_id]
            for count, (index, partition) in enumerate(partitions.items(), 1):
                self._open_partition(topic, index, partition, is_new=True)
                if count % PARTITIONS_PER_TURN == 0:
                    await asyncio.sleep(0)
        if any(key.type == ResourceType.BROKER for key in delta.changed_configs):
            self.partitions.reconfigure()
        else:
            self.partitions.reconfigure(
                key.name for key in delta.changed_configs if key.type == ResourceType.TOPIC
            )

    def _open_partition(self, topic: TopicImage, index: int, partition: PartitionImage, *, is_new: bool) -> None:
        if self.node_id not in partition.replicas:
            return
        try:
            self.partitions.open(topic.name, index, topic.topic_id, partition.leader_epoch, is_new=is_new)
        except DiskError as error:
            self._dir_failed(parent(error.path), error)
        except OfflinePartitionError as error:
            logger.error("%s", error)

    def _apply_broker_config(self, image: MetadataImage) -> None:
        self.config = self.config.with_dynamic(
            node=image.config(ResourceType.BROKER, str(self.node_id)), default=image.broker_defaults
        )
        for problem in self.config.ignored:
            logger.warning("%s", problem)
        limits = self._connection_limits()
        for listener in self.listeners:
            listener.limits = limits

    def _controller_settings(self) -> ControllerSettings:
        return ControllerSettings(
            num_partitions=self.config.int("num.partitions"),
            default_replication_factor=self.config.int("default.replication.factor"),
            min_insync_replicas=self.config.int("min.insync.replicas"),
            unclean_leader_election_enable=self.config.bool("unclean.leader.election.enable"),
            delete_topic_enable=self.config.bool("delete.topic.enable"),
        )

    async def _allocate_producer_ids(self) -> range:
        request = AllocateProducerIdsRequest(broker_id=self.node_id, broker_epoch=self.broker_epoch)
        response = await self.metadata.submit(lambda controller: controller.allocate_producer_ids(request))
        if response.error_code:
            raise RequestError(ErrorCode(response.error_code), "no producer ids could be allocated")
        return range(response.producer_id_start, response.producer_id_start + response.producer_id_len)

    def _policy_of(self, topic: str) -> TopicPolicy:
        overrides = self.image.config(ResourceType.TOPIC, topic)
        return topic_policy(
            TopicConfig.resolve(overrides, self.config),
            producer_id_expiration_ms=self.config.int("producer.id.expiration.ms"),
        )

    # ---- what the APIs ask

    @property
    def image(self) -> MetadataImage:
        return self.metadata.image

    @property
    def cluster_id(self) -> str:
        return self.logs.cluster_id

    def features(self) -> Features:
        return Features(SUPPORTED_FEATURES, self.image.features, self.image.offset)

    def endpoints(self, listener_name: str) -> Iterator[tuple[int, str, int, str | None]]:
        """(node id, host, port, rack) of every broker that clients of this listener can reach."""
        for broker in self.image.brokers.values():
            if not broker.fenced:
                for endpoint in broker.endpoints:
                    if endpoint.name == listener_name:
                        yield broker.broker_id, endpoint.host, endpoint.port, broker.rack

    def live_leader(self, topic: TopicImage, index: int, partition: PartitionImage) -> int:
        """The leader, or -1 while there is none that works."""
        if partition.leader == self.node_id and not self.partitions.is_online(topic.name, index):
            return -1
        return partition.leader

    def offline_replicas(self, topic: TopicImage, index: int, partition: PartitionImage) -> list[int]:
        brokers = self.image.brokers
        offline = [replica for replica in partition.replicas if replica not in brokers or brokers[replica].fenced]
        if self.node_id in partition.replicas and not self.partitions.is_online(topic.name, index):
            offline.append(self.node_id)
        return offline

    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str], *, exist_ok: bool = False
    ) -> None:
        """Create one topic; RequestError when it cannot be."""
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=-1,
                    configs=[CreatableTopicConfig(name=key, value=value) for key, value in config.items()],
                )
            ]
        )
        response = await self.metadata.submit(lambda controller: controller.create_topics(request))
        result = response.topics[0]
        if result.error_code and not (exist_ok and result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS):
            raise RequestError(ErrorCode(result.error_code), result.error_message or "")

    async def auto_create_topic(self, name: str) -> None:
        await self.create_topic(name, -1, {}, exist_ok=True)

    async def delete_topic(self, name: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])
        response = await self.metadata.submit(lambda controller: controller.delete_topics(request))
        result = response.responses[0]
        if result.error_code:
            raise RequestError(ErrorCode(result.error_code), result.error_message or "")

    async def checkpoint(self) -> None:
        """Write recovery points, log starts and high watermarks; durable when this returns."""
        async with self._checkpointing:
            checkpoint = self.logs.checkpoint()
            await asyncio.get_running_loop().run_in_executor(self._executor, checkpoint.run)
            for path, error in checkpoint.finish(self.clock.wall_ms()).items():
                self._dir_failed(path, error)

    # ---- failing disks

    def _disk_failed(self, partition: Partition, error: DiskError) -> None:
        self.partitions.disk_failed(partition, error)

    def _dir_failed(self, path: str, error: DiskError) -> None:
        self.partitions.dir_failed(path, error)

    def _metadata_failed(self, error: DiskError) -> None:
        logger.critical("the metadata log cannot be written, the broker stops: %s", error)
        self.failed.set()

    # ---- stopping

    async def stop(self) -> None:
        """Finish what is under way, make everything durable and mark it so."""
        if not self._started:
            return
        self._started = False
        for listener in self.listeners:
            listener.stop_accepting()
        await self.housekeeping.stop()
        await self.dispatcher.drain()
        await self.group_commit.drain()
        for listener in self.listeners:
            listener.close()
        await self.group_commit.drain()
        await asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: self.logs.close(clean=True, broker_epoch=self.broker_epoch)
        )
        self._executor.shutdown()

    def _abandon(self) -> None:
        """The start failed: let go of ports, locks and threads."""
        for listener in self.listeners:
            listener.close()
        if hasattr(self, "logs"):
            self.logs.close(clean=False)
        self._executor.shutdown()


def _report_recovery(done: int, total: int, log: Log) -> None:
    report = log.recovery
    if not report.clean and log.log_end_offset > log.log_start_offset:
        logger.info("recovered %s (%d of %d): %s", log.name, done, total, report)
