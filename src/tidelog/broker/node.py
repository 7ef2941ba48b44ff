"""The node: every part of a broker put together, and the order in which they start and stop.

This is the composition root. It owns no rules: storage, metadata, partitions, listeners and background work are made
here and handed to each other. `tidelog start` runs one node per process; tests run them inside their own.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.broker.apis import APIS, CONTROLLER_APIS
from tidelog.broker.cleaner import Cleaner
from tidelog.broker.cluster_view import ClusterView
from tidelog.broker.descriptors import descriptors_left
from tidelog.broker.dispatch import Api, ApiDispatcher
from tidelog.broker.group_coordinator import GroupCoordinator
from tidelog.broker.housekeeping import Housekeeping
from tidelog.broker.listener import ConnectionCounts, Listener
from tidelog.broker.metadata_service import MetadataService
from tidelog.broker.nobody import Nobody
from tidelog.broker.node_shell import MANY_SYNCS_THREADS, BrokerShell, StartError, run_in
from tidelog.broker.producer_ids import ProducerIdSource
from tidelog.broker.receive_buffers import ReceiveBuffers
from tidelog.broker.scrubber import Scrubber
from tidelog.broker.settings import cluster_id, connection_limits, is_alone, node_settings
from tidelog.broker.threads import Threads, called_back, drained
from tidelog.broker.topic_admin import TopicAdmin
from tidelog.cluster.node import ClusterNode, NodePorts
from tidelog.cluster.partitions import PartitionTable
from tidelog.config.listeners import Endpoint
from tidelog.config.resolve import BrokerConfig
from tidelog.controller.image import MetadataImage
from tidelog.errors import CorruptDataError, RequestError
from tidelog.ports import Clock, Machine, Rng, SystemClock, SystemMachine, SystemRng
from tidelog.replication.fetch_session import FetchSessionCache
from tidelog.replication.group_commit import GroupCommit
from tidelog.replication.purgatory import FetchPurgatory
from tidelog.replication.read_replica import selector_named
from tidelog.storage.disk import Disk, DiskError
from tidelog.storage.log_dirs import LogDirError
from tidelog.storage.log_manager import LogManager
from tidelog.storage.posix_disk import PosixDisk
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest

if TYPE_CHECKING:
    from tidelog.broker.node_peers import NodePeers

logger = logging.getLogger("tidelog.broker")

R = TypeVar("R")

SYNC_THREADS = 8
"""For the group commit and the metadata log: what clients wait for."""
BACKGROUND_THREADS = 4
"""For everything else that waits for the disk: new partitions, checkpoints, deletions, recovery."""
READ_THREADS = 4
"""For fetches of data that is not in memory any more."""
SESSION_EVICTION_MS = 120_000
STOP_SECONDS = 5.0
"""For the other controllers to hear that this one stops."""


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.config = config
        self.node_id = config.node_id
        self.disk = disk if disk is not None else PosixDisk()
        self.clock = clock if clock is not None else SystemClock()
        self.rng = rng if rng is not None else SystemRng()
        self.machine = machine if machine is not None else SystemMachine()
        self.apis = APIS
        self.api_versions_answers: dict[tuple[int, int], tuple[int, bytes]] = {}
        """Of each version, as of which metadata offset: the first question of every connection, and thousands may come at once."""
        self.listeners: list[Listener] = []
        self._advertised: list[Endpoint] = []
        self._running = False
        self._checkpointing = asyncio.Lock()
        self.failed = asyncio.Event()
        """Set when the broker cannot go on and its process should end."""

    @property
    def image(self) -> MetadataImage:
        """The cluster's metadata, as far as this broker acts by it."""
        return self.metadata.image

    def rack_of(self, broker_id: int) -> str | None:
        broker = self.image.brokers.get(broker_id)
        return None if broker is None else broker.rack

    @property
    def cluster_id(self) -> str:
        return self.logs.cluster_id

    def apis_at(self, listener_name: str) -> Mapping[int, Api]:
        """What is served at a listener."""
        is_for_controllers = any(
            listener.name == listener_name and listener.for_controllers for listener in self.listeners
        )
        return CONTROLLER_APIS if is_for_controllers else self.apis

    @property
    def broker_epoch(self) -> int:
        return self.node.lifecycle.epoch

    @property
    def partitions(self) -> PartitionTable:
        return self.node.partitions

    @property
    def group_commit(self) -> GroupCommit:
        return self.node.group_commit

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
        self.replica_selector = selector_named(self.config.optional_str("replica.selector.class"))
        try:
            self._open_directories()
            self._bind()
            self._make_node()
            for listener in self.listeners:
                if listener.for_controllers:
                    listener.start()  # other nodes are waiting for this one
            await self._start_node()
            # What recovery found is made durable before the first question, so that no client ever sees a high
            # watermark below one that was told before the crash (I49).
            await drained(self.group_commit)
            self.check_metadata_dir()
        except RequestError as error:
            await self._abandon()
            raise StartError(f"the cluster's metadata cannot be written: {error}") from error
        except BaseException:
            await self._abandon()
            raise
        self.groups.metadata_changed(self.image)
        self.housekeeping = Housekeeping(self)
        self.housekeeping.start()
        self.scrubber = Scrubber(self)
        await self.scrubber.start()
        self.cleaner = Cleaner(self)
        await self.cleaner.start()
        for listener in self.listeners:
            if not listener.for_controllers:
                listener.start()
        self._running = True

    def _open_directories(self) -> None:
        self.logs = LogManager(
            self.disk,
            self.clock,
            self.rng,
            self.config.log_dirs,
            node_id=self.node_id,
            cluster_id=cluster_id(self.config),
            config_for=lambda topic: self.shell.log_config_of(topic),
            retention_check_interval_ms=self.config.int("log.retention.check.interval.ms"),
        )
        try:
            self.logs.open_directories()
            self.logs.ledger.begin(self.machine.boot_id())
        except LogDirError as error:
            raise StartError(str(error)) from error
        except (DiskError, OSError) as error:
            raise StartError(
                f"{error}; check that the directory exists, is writable and has space"
            ) from error

    def _bind(self) -> None:
        """Take the ports before anything is promised, so that a port in use costs nothing but a message."""
        self.dispatcher = ApiDispatcher(self, self.apis, forwards=True)
        self.controller_dispatcher = ApiDispatcher(self, CONTROLLER_APIS, forwards=False)
        buffers, counts = ReceiveBuffers(), ConnectionCounts(descriptors_left(self.disk))
        limits = connection_limits(self.config)
        advertised = {endpoint.name: endpoint for endpoint in self.config.advertised}
        for endpoint in self.config.listeners:
            if endpoint.for_controllers and is_alone(self.config):
                continue  # a cluster of one has nobody to talk to there
            host = endpoint.host or "0.0.0.0"
            dispatcher = self.controller_dispatcher if endpoint.for_controllers else self.dispatcher
            try:
                listener = Listener(endpoint.name, host, endpoint.port, dispatcher, limits, buffers, counts)
            except OSError as error:
                raise StartError(
                    f"cannot listen on {host}:{endpoint.port}: {error.strerror or error}; "
                    "stop what uses the port, or choose another (--port, or listeners in the configuration)"
                ) from error
            listener.for_controllers = endpoint.for_controllers
            self.listeners.append(listener)
            if not endpoint.for_controllers:
                told = advertised.get(endpoint.name, endpoint)
                self._advertised.append(
                    told.with_address(told.host or socket.gethostname(), told.port or listener.port)
                )

    def _make_node(self) -> None:
        loop = asyncio.get_running_loop()
        self.shell = BrokerShell(self, self._advertised)
        self.peers = self._make_peers()
        ports = NodePorts(
            clock=self.clock,
            rng=self.rng,
            scheduler=loop,
            syncs=Threads(loop, self._executor),
            background=Threads(loop, self._background),
            quorum=self.peers.quorum,
            controllers=self.peers.controllers,
            brokers=self.peers.brokers,
            listens=self.peers.listens,
        )
        try:
            self.node = ClusterNode(node_settings(self.config, self.logs), ports, self.logs, self.shell)
        except (CorruptDataError, LogDirError, DiskError) as error:
            raise StartError(f"the cluster's metadata cannot be read: {error}") from error
        self.metadata = MetadataService(self.node, self._executor)
        self.view = ClusterView(
            self.node_id, lambda: self.image, self.partitions, self.node.departures.is_told
        )
        self.topics = TopicAdmin(self)
        self.producer_ids = ProducerIdSource(self._allocate_producer_ids)
        self.groups = GroupCoordinator(self)
        self.shell.settings_changed(self.node.metadata.image)

    def _make_peers(self) -> NodePeers | Nobody:
        if is_alone(self.config):
            return Nobody()
        from tidelog.broker.node_peers import NodePeers  # takes its time, which a broker alone need not

        return NodePeers(self)

    async def _start_node(self) -> None:
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(result: Exception | None) -> None:
            if not started.done():
                started.set_exception(result) if result is not None else started.set_result(None)

        self.node.start(done)
        failing = asyncio.ensure_future(self.failed.wait())
        waiting: list[asyncio.Future[Any]] = [started, failing]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            failing.cancel()
        if not started.done():
            failure = self.shell.failure
            if isinstance(failure, DiskError):
                raise StartError(f"the cluster's metadata cannot be written: {failure}") from failure
            raise StartError(f"the node cannot start: {failure or 'its log says why'}")
        try:
            started.result()
        except (LogDirError, CorruptDataError, DiskError) as error:
            raise StartError(str(error)) from error

    # ---- what the parts ask of each other

    async def _allocate_producer_ids(self) -> range:
        request = AllocateProducerIdsRequest(broker_id=self.node_id, broker_epoch=self.broker_epoch)
        response = await self.metadata.ask_controller(request)
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

    def check_metadata_dir(self) -> None:
        """While starting: the directory of the metadata log may have failed over one of its partitions."""
        directory = self.logs.dirs[0]
        if not directory.online:
            raise StartError(
                f"log directory {directory.path}, which holds the metadata log, cannot be used: {directory.error}"
            )

    def dir_is_offline(self, path: str) -> None:
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
        if clean:
            # Before anything else: whoever else can lead what is led here takes over, and clients are sent there.
            await called_back(partial(self.node.stop, within_s=STOP_SECONDS))
        for listener in self.listeners:
            listener.stop_accepting()
        await self.housekeeping.stop()
        await self.scrubber.stop()
        await self.cleaner.stop()
        self.groups.stop()
        self.node.close()
        self.peers.close()
        await self.dispatcher.drain()
        await drained(self.group_commit)
        for listener in self.listeners:
            listener.close()
        await drained(self.group_commit)
        await called_back(self.node.snapshots.when_finished)
        await called_back(self.node.quorum.when_idle)
        async with self._checkpointing:
            await self.in_background(partial(self._close_logs, clean=clean))
        for path, error in self.logs.offline_dirs.items() if clean else ():
            logger.warning(
                "log directory %s was not closed cleanly, the next start checks it: %s", path, error
            )
        self._shut_down_threads()

    def _close_logs(self, *, clean: bool) -> None:
        with ThreadPoolExecutor(MANY_SYNCS_THREADS, thread_name_prefix="tidelog-close") as executor:
            self.logs.close(clean=clean, broker_epoch=self.broker_epoch, run_all=partial(run_in, executor))

    async def _abandon(self) -> None:
        """The start failed, or is not wanted any more: let go of ports, locks and threads."""
        self._background.shutdown()  # logs that are being opened are closed when they are open
        if hasattr(self, "node"):
            self.node.close()
            self.peers.close()
            await called_back(self.node.quorum.when_idle)
        for listener in self.listeners:
            listener.close()
        if hasattr(self, "logs"):
            self.logs.close(clean=False)
        self._shut_down_threads()

    def _shut_down_threads(self) -> None:
        self._executor.shutdown()
        self._background.shutdown()
        self._readers.shutdown()
