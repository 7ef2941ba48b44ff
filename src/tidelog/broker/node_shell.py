"""What a cluster node asks of the broker around it: settings, registration, logs to be loaded. Implements `tidelog.cluster.node.Shell`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.broker.config_validator import TableConfigValidator
from tidelog.broker.load_progress import LoadProgress
from tidelog.broker.registration import registration
from tidelog.broker.settings import connection_limits, controller_settings
from tidelog.cluster.image_change import ImageChange
from tidelog.cluster.topic_policy import TopicPolicy, topic_policy
from tidelog.config.listeners import Endpoint
from tidelog.config.resolve import TopicConfig
from tidelog.controller.features import SUPPORTED_FEATURES, unsupported_features
from tidelog.controller.image import MetadataImage, ResourceType
from tidelog.controller.result import ControllerSettings
from tidelog.errors import TidelogError
from tidelog.internal_topics import is_internal_topic
from tidelog.storage.disk import DiskError
from tidelog.storage.log_config import LogConfig
from tidelog.wire.messages.broker_registration import BrokerRegistrationRequest

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

logger = logging.getLogger("tidelog.broker")

MANY_SYNCS_THREADS: Final = 16
"""For a start after a crash and for a clean stop, with thousands of files to sync: those that wait together share the disk's work."""


DURABILITY: Final = "durability"


class StartError(TidelogError):
    """The broker cannot start, for a reason that its user can do something about."""


class BrokerShell:
    def __init__(self, broker: Broker, endpoints: Sequence[Endpoint]) -> None:
        self._broker = broker
        self._endpoints = endpoints
        self._incarnation_id = broker.rng.randbytes(16)
        self._checkpoints: set[asyncio.Task[frozenset[str]]] = set()
        self.failure: Exception | None = None
        """Why the node cannot go on."""

    # ---- settings

    def controller_settings(self) -> ControllerSettings:
        return controller_settings(self._broker.config)

    def validator(self) -> TableConfigValidator:
        return TableConfigValidator(lambda: self._broker.config)

    def log_config_of(self, topic: str) -> LogConfig:
        return self._settings_of(topic).log

    def _settings_of(self, topic: str) -> TopicPolicy:
        config = self._broker.config
        policy = topic_policy(
            TopicConfig.resolve(self._broker.node.metadata.image.config(ResourceType.TOPIC, topic), config),
            producer_id_expiration_ms=config.int("producer.id.expiration.ms"),
        )
        # What coordinators promise is kept whatever the durability of records is (D10).
        return policy._replace(durable=True) if is_internal_topic(topic) else policy

    def policy_of(self, topic: str) -> TopicPolicy:
        """A topic that is counted for what is not synced yet is so only once that is written down: after a crash of the machine this broker must know it."""
        policy = self._settings_of(topic)
        if policy.durable or self._broker.logs.ledger.count_in_memory():
            return policy
        logger.warning(
            "%s is served with durability=fsync: a log directory is too full to note that it wants less",
            topic,
        )
        return policy._replace(durable=True)

    def settings_changed(self, image: MetadataImage) -> None:
        broker = self._broker
        broker.config = broker.config.with_dynamic(
            node=image.config(ResourceType.BROKER, str(broker.node_id)), default=image.broker_defaults
        )
        for problem in broker.config.ignored:
            logger.warning("%s", problem)
        broker.logs.keep_free(broker.config.int("log.dir.reserve.bytes"))
        limits = connection_limits(broker.config)
        for listener in broker.listeners:
            listener.limits = limits

    # ---- starting

    def registration(self, image: MetadataImage) -> BrokerRegistrationRequest:
        broker = self._broker
        return registration(
            image,
            broker.logs,
            broker.config,
            incarnation_id=self._incarnation_id,
            endpoints=self._endpoints,
        )

    def load_logs(self, image: MetadataImage) -> None:
        """In a thread. The metadata says which topics logs belong to that do not say so themselves."""
        broker = self._broker
        logs = broker.logs
        problems = unsupported_features(image, SUPPORTED_FEATURES)
        if problems:
            raise StartError(
                f"this release cannot serve the cluster in these directories: {'; '.join(problems)}"
            )
        topics = image.topics_by_name
        progress = LoadProgress(broker.clock.monotonic)
        workers = broker.config.int("num.recovery.threads.per.data.dir")
        threads = max(MANY_SYNCS_THREADS, workers * len(logs.dirs))
        with ThreadPoolExecutor(threads, thread_name_prefix="tidelog-load") as executor:
            logs.load(
                progress,
                topic_id_of=lambda topic: topics[topic].topic_id if topic in topics else None,
                run_all=partial(run_in, executor),
                workers_per_dir=workers,
            )
        progress.sum_up(len(logs.logs))
        for warning in logs.warnings:
            logger.warning("%s", warning)
        for (topic, index), failure in logs.failed_logs.items():
            logger.error("%s-%d cannot be opened and is not served: %s", topic, index, failure)
        self._judge_losses(image)
        broker.check_metadata_dir()  # last: all of this reads and writes there, and no broker registers without it

    def _judge_losses(self, image: MetadataImage) -> None:
        """Whether all that this broker was counted for is still here: the registration says so, or does not (D10)."""
        broker = self._broker
        ledger = broker.logs.ledger
        here = [
            (topic.name, index)
            for topic, index, partition in image.partitions()
            if broker.node_id in partition.replicas
        ]
        own_durability = {topic for topic, _ in here if DURABILITY in image.config(ResourceType.TOPIC, topic)}
        ledger.loaded(
            here,
            in_memory=broker.config.str(DURABILITY) != "fsync"
            or any(not self._settings_of(topic).durable for topic in own_durability),
            incarnation_id=self._incarnation_id,
        )
        if ledger.loss is not None and image.brokers.keys() - {broker.node_id}:
            logger.warning(
                "this broker may have lost records, and gives up its places among the replicas in sync: %s",
                ledger.loss,
            )

    # ---- what happens

    def replicas_changed(self, change: ImageChange, image: MetadataImage) -> None:
        self._broker.groups.metadata_changed(image, change.deleted)
        node_id = self._broker.node_id
        if any(
            partition.leader == node_id and len(partition.replicas) > 1
            for changed in change.partitions.values()
            for partition in changed.values()
        ):
            self._broker.fetch_purgatory.hurry_followers()

    def checkpoint(self, done: Callable[[], None]) -> None:
        task = asyncio.get_running_loop().create_task(self._broker.checkpoint())
        self._checkpoints.add(task)
        task.add_done_callback(self._checkpoints.discard)
        task.add_done_callback(lambda _task: done())

    def dir_is_offline(self, path: str) -> None:
        self._broker.dir_is_offline(path)

    def failed(self, error: Exception) -> None:
        self.failure = error
        broker = self._broker
        if isinstance(error, DiskError) and not error.out_of_space:  # a full disk is no broken one
            broker.partitions.dir_failed(broker.partitions.log_dir_containing(error.path), error)
        else:
            logger.critical("the broker stops: %s", error)
        broker.failed.set()


def run_in(executor: ThreadPoolExecutor, jobs: Sequence[Callable[[], None]]) -> None:
    for _ in executor.map(lambda job: job(), jobs):
        pass  # each raises here what it raised there
