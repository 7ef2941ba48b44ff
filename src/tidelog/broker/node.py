"""The node: every part of a broker put together, and the order in which they start and stop.

This is the composition root. It owns no rules: storage, metadata, partitions, listeners and background work are made
here and handed to each other. `tidelog start` runs one node per process; tests run them inside their own.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from tidelog.broker.apis import APIS
from tidelog.broker.cleaner import Cleaner
from tidelog.broker.cluster_view import ClusterView
from tidelog.broker.config_validator import TableConfigValidator
from tidelog.broker.descriptors import descriptors_left
from tidelog.broker.dispatch import ApiDispatcher
from tidelog.broker.group_commit import GroupCommit
from tidelog.broker.group_coordinator import GroupCoordinator
from tidelog.broker.housekeeping import Housekeeping
from tidelog.broker.listener import ConnectionCounts, Listener
from tidelog.broker.load_progress import LoadProgress
from tidelog.broker.metadata_service import MetadataService, read_metadata
from tidelog.broker.metadata_snapshots import SnapshotLimits
from tidelog.broker.partitions import PartitionTable
from tidelog.broker.producer_ids import ProducerIdSource
from tidelog.broker.publisher import MetadataPublisher
from tidelog.broker.receive_buffers import ReceiveBuffers
from tidelog.broker.registration import register
from tidelog.broker.scrubber import Scrubber
from tidelog.broker.settings import connection_limits, controller_settings
from tidelog.broker.topic_admin import TopicAdmin
from tidelog.broker.topic_policy import TopicPolicy, topic_policy
from tidelog.config.listeners import Endpoint
from tidelog.config.resolve import BrokerConfig, TopicConfig
from tidelog.controller.controller import Controller
from tidelog.controller.features import SUPPORTED_FEATURES, unsupported_features
from tidelog.controller.image import MetadataImage, ResourceType
from tidelog.errors import CorruptDataError, RequestError, TidelogError
from tidelog.internal_topics import is_internal_topic
from tidelog.ports import Clock, Rng, SystemClock, SystemRng
from tidelog.replication.fetch_session import FetchSessionCache
from tidelog.replication.purgatory import FetchPurgatory
from tidelog.storage.disk import Disk, DiskError
from tidelog.storage.log_dirs import LogDirError
from tidelog.storage.log_manager import LogManager
from tidelog.storage.posix_disk import PosixDisk
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest

logger = logging.getLogger("tidelog.broker")

R = TypeVar("R")

SYNC_THREADS = 8
"""For the group commit and the metadata log: what clients wait for."""
BACKGROUND_THREADS = 4
"""For everything else that waits for the disk: new partitions, checkpoints, deletions, recovery."""
READ_THREADS = 4
"""For fetches of data that is not in memory any more."""
MANY_SYNCS_THREADS = 16
"""For a start after a crash and for a clean stop, with thousands of files to sync: those that wait together share the disk's work."""
SESSION_EVICTION_MS = 120_000


class StartError(TidelogError):
    """The broker cannot start, for a reason that its user can do something about."""


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
        self.api_versions_answers: dict[int, tuple[int, bytes]] = {}
        """Of each version, as of which metadata offset: the first question of every connection, and thousands may come at once."""
        self.listeners: list[Listener] = []
        self._advertised: list[Endpoint] = []
        self._running = False
        self._checkpointing = asyncio.Lock()
        self.broker_epoch = -1
        self.failed = asyncio.Event()
        """Set when the broker cannot go on and its process should end."""

    @property
    def image(self) -> MetadataImage:
        """The cluster's metadata, as far as it is durable."""
        return self.metadata.image

    @property
    def cluster_id(self) -> str:
        return self.logs.cluster_id

    # ---- starting

    async def start(self) -> None:
        """Ready for clients when this returns. StartError says what to change."""
        self.scheduler = loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="tidelog-sync")
        self._background = ThreadPoolExecutor(BACKGROUND_THREADS, thread_name_prefix="tidelog-background")
        self._readers = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="tidelog-read")
        self.fetch_purgatory = FetchPurgatory(loop)
        self.fetch_sessions = FetchSessionCache(
            self.rng,
            slots_max=self.config.int("max.incremental.fetch.session.cache.slots"),
            eviction_ms=SESSION_EVICTION_MS,
        )
        self.fetch_bytes_max = self.config.int("fetch.max.bytes")
        try:
            self._open_directories()
            self._bind()
            publisher = self._open_metadata()
            await self._load_logs()
            await self._join_cluster(publisher)
            # What recovery found is made durable before the first question, so that no client ever sees a high
            # watermark below one that was told before the crash (I49).
            await self.group_commit.drain()
            self._check_metadata_dir()
        except RequestError as error:
            self._abandon()
            raise StartError(f"the cluster's metadata cannot be written: {error}") from error
        except BaseException:
            self._abandon()
            raise
        self.housekeeping = Housekeeping(self)
        self.housekeeping.start()
        self.scrubber = Scrubber(self)
        await self.scrubber.start()
        self.cleaner = Cleaner(self)
        await self.cleaner.start()
        for listener in self.listeners:
            listener.start()
        self._running = True

    def _open_directories(self) -> None:
        self.logs = LogManager(
            self.disk,
            self.clock,
            self.rng,
            self.config.log_dirs,
            node_id=self.node_id,
            config_for=lambda topic: self._policy_of(topic).log,
            retention_check_interval_ms=self.config.int("log.retention.check.interval.ms"),
        )
        try:
            self.logs.open_directories()
        except LogDirError as error:
            raise StartError(str(error)) from error
        except (DiskError, OSError) as error:
            raise StartError(
                f"{error}; check that the directory exists, is writable and has space"
            ) from error
        self.group_commit = GroupCommit(
            asyncio.get_running_loop(),
            self._executor,
            lambda partition, error: self.partitions.disk_failed(partition, error),
        )
        self.partitions = PartitionTable(
            self.logs,
            self.group_commit,
            self._policy_of,
            broker_id=self.node_id,
            on_dir_offline=self._dir_is_offline,
        )

    def _bind(self) -> None:
        """Take the ports before anything is promised, so that a port in use costs nothing but a message."""
        self.dispatcher = ApiDispatcher(self, self.apis)
        buffers, counts = ReceiveBuffers(), ConnectionCounts(descriptors_left(self.disk))
        limits = connection_limits(self.config)
        advertised = {endpoint.name: endpoint for endpoint in self.config.advertised}
        for endpoint in self.config.listeners:
            if endpoint.for_controllers:
                continue  # a cluster of one has nobody to talk to there
            host = endpoint.host or "0.0.0.0"
            try:
                listener = Listener(
                    endpoint.name, host, endpoint.port, self.dispatcher, limits, buffers, counts
                )
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

    def _open_metadata(self) -> MetadataPublisher:
        try:
            log = self.logs.open_metadata_log()
            loaded = read_metadata(log)
        except (CorruptDataError, LogDirError, DiskError) as error:
            raise StartError(f"the cluster's metadata cannot be read: {error}") from error
        image, self._torn_transaction = loaded.image, loaded.torn_transaction
        for warning in loaded.warnings:
            logger.warning("%s; the metadata is read from what is older", warning)
        problems = unsupported_features(image, SUPPORTED_FEATURES) if image.features else []
        if problems:
            raise StartError(
                f"this release cannot serve the cluster in these directories: {'; '.join(problems)}"
            )
        publisher = MetadataPublisher(self)
        self.metadata = MetadataService(
            log,
            Controller(
                cluster_id=self.cluster_id,
                settings=controller_settings(self.config),
                validator=TableConfigValidator(lambda: self.config),
                rng=self.rng,
                image=image,
            ),
            self._executor,
            publisher=publisher,
            now_ms=self.clock.wall_ms,
            on_failure=self._metadata_failed,
            snapshots=loaded.snapshots,
            snapshot_limits=SnapshotLimits(
                self.config.int("metadata.log.max.record.bytes.between.snapshots"),
                self.config.int("metadata.log.max.snapshot.interval.ms"),
            ),
        )
        self.view = ClusterView(self.node_id, lambda: self.image, self.partitions)
        self.topics = TopicAdmin(self.metadata)
        self.producer_ids = ProducerIdSource(self._allocate_producer_ids)
        self.groups = GroupCoordinator(self)
        publisher.apply_broker_settings(image)
        return publisher

    async def _load_logs(self) -> None:
        """Open, and after a crash recover, every partition's log. The metadata says which topics they belong to."""
        topics = self.image.topics_by_name

        def topic_id_of(topic: str) -> bytes | None:
            return topics[topic].topic_id if topic in topics else None

        progress = LoadProgress(self.clock.monotonic)
        workers = self.config.int("num.recovery.threads.per.data.dir")

        def load() -> None:
            threads = max(MANY_SYNCS_THREADS, workers * len(self.logs.dirs))
            with ThreadPoolExecutor(threads, thread_name_prefix="tidelog-load") as executor:
                self.logs.load(
                    progress,
                    topic_id_of=topic_id_of,
                    run_all=partial(_run_in, executor),
                    workers_per_dir=workers,
                )

        try:
            await self.in_background(load)
        except (LogDirError, CorruptDataError, DiskError) as error:
            raise StartError(str(error)) from error
        progress.sum_up(len(self.logs.logs))
        self._check_metadata_dir()
        for warning in self.logs.warnings:
            logger.warning("%s", warning)
        for (topic, index), failure in self.logs.failed_logs.items():
            logger.error("%s-%d cannot be opened and is not served: %s", topic, index, failure)

    async def _join_cluster(self, publisher: MetadataPublisher) -> None:
        await self.metadata.begin(
            torn_transaction=self._torn_transaction,
            min_insync_replicas=self.config.int("min.insync.replicas"),
        )
        self.broker_epoch = await register(
            self.metadata,
            node_id=self.node_id,
            cluster_id=self.cluster_id,
            incarnation_id=self.rng.randbytes(16),
            endpoints=self._advertised,
            rack=self.config.optional_str("broker.rack"),
            log_dirs=self.logs.directory_ids.values(),
            stopped_cleanly=self.logs.stopped_cleanly,
        )
        await publisher.open_all(self.image)

    # ---- what the parts ask of each other

    def _policy_of(self, topic: str) -> TopicPolicy:
        overrides = self.image.config(ResourceType.TOPIC, topic)
        policy = topic_policy(
            TopicConfig.resolve(overrides, self.config),
            producer_id_expiration_ms=self.config.int("producer.id.expiration.ms"),
        )
        # What coordinators promise is kept whatever the durability of records is (D10).
        return policy._replace(durable=True) if is_internal_topic(topic) else policy

    async def _allocate_producer_ids(self) -> range:
        request = AllocateProducerIdsRequest(broker_id=self.node_id, broker_epoch=self.broker_epoch)
        response = await self.metadata.submit(lambda controller: controller.allocate_producer_ids(request))
        if response.error_code:
            raise RequestError(ErrorCode(response.error_code), "no producer ids could be allocated")
        return range(response.producer_id_start, response.producer_id_start + response.producer_id_len)

    def read_in_thread(self, work: Callable[[], R]) -> asyncio.Future[R]:
        """Wait for the disk on behalf of a reader of cold data, while everyone else is served."""
        return asyncio.get_running_loop().run_in_executor(self._readers, work)

    def in_background(self, work: Callable[[], R]) -> asyncio.Future[R]:
        """Run something that waits for the disk in a thread."""
        return asyncio.get_running_loop().run_in_executor(self._background, work)

    async def dispose(self) -> None:
        """Remove files and directories whose time has come."""
        disposal = self.logs.disposal(self.clock.wall_ms())
        if disposal is not None:
            await self.in_background(disposal.run)
            for path, error in self.logs.disposed(disposal).items():
                self.partitions.dir_failed(path, error)

    async def checkpoint(self) -> frozenset[str]:
        """Write recovery points, log starts and high watermarks; durable when this returns, except in the directories
        it names, which are full or have failed.
        """
        async with self._checkpointing:
            checkpoint = self.logs.begin_checkpoint()
            for _ in checkpoint.taking():
                await asyncio.sleep(0)
            await self.in_background(checkpoint.run)
            for job in checkpoint.finishing(self.clock.wall_ms()):
                if job is not None:
                    await self.in_background(job)
                else:
                    await asyncio.sleep(0)
            for path, error in checkpoint.failed.items():
                self.partitions.dir_failed(path, error)
            for path, error in checkpoint.postponed.items():
                logger.warning("the checkpoint of log directory %s is put off: %s", path, error)
        return frozenset(checkpoint.errors)

    def _metadata_failed(self, error: DiskError) -> None:
        self.partitions.dir_failed(self.partitions.log_dir_containing(error.path), error)

    def _check_metadata_dir(self) -> None:
        """While starting: the directory of the metadata log may have failed over one of its partitions."""
        directory = self.logs.dirs[0]
        if not directory.online:
            raise StartError(
                f"log directory {directory.path}, which holds the metadata log, cannot be used: {directory.error}"
            )

    def _dir_is_offline(self, path: str) -> None:
        """A broker without its metadata log cannot go on; one without all its partitions in the other directories can."""
        if path == self.logs.dirs[0].path:
            logger.critical(
                "log directory %s holds the metadata log; the broker stops. Repair the disk and start it again",
                path,
            )
            self.failed.set()

    # ---- stopping

    async def stop(self, *, clean: bool = True) -> None:
        """Finish what is under way, make everything durable and mark it so.

        Not `clean`: only let go of everything, as a killed process would. For data that nobody will open again.
        """
        if not self._running:
            return
        self._running = False
        for listener in self.listeners:
            listener.stop_accepting()
        await self.housekeeping.stop()
        await self.scrubber.stop()
        await self.cleaner.stop()
        self.groups.stop()
        await self.dispatcher.drain()
        await self.group_commit.drain()
        for listener in self.listeners:
            listener.close()
        await self.group_commit.drain()
        await self.metadata.finish_snapshot()
        async with self._checkpointing:
            await self.in_background(partial(self._close_logs, clean=clean))
        for path, error in self.logs.offline_dirs.items() if clean else ():
            logger.warning(
                "log directory %s was not closed cleanly, the next start checks it: %s", path, error
            )
        self._shut_down_threads()

    def _close_logs(self, *, clean: bool) -> None:
        with ThreadPoolExecutor(MANY_SYNCS_THREADS, thread_name_prefix="tidelog-close") as executor:
            self.logs.close(clean=clean, broker_epoch=self.broker_epoch, run_all=partial(_run_in, executor))

    def _abandon(self) -> None:
        """The start failed: let go of ports, locks and threads."""
        for listener in self.listeners:
            listener.close()
        if hasattr(self, "logs"):
            self.logs.close(clean=False)
        self._shut_down_threads()

    def _shut_down_threads(self) -> None:
        self._executor.shutdown()
        self._background.shutdown()
        self._readers.shutdown()


def _run_in(executor: ThreadPoolExecutor, jobs: Sequence[Callable[[], None]]) -> None:
    for _ in executor.map(lambda job: job(), jobs):
        pass  # each raises here what it raised there
