"""This broker's replicas, made what the metadata says: logs are opened, made and removed, partitions lead or follow, fetchers fetch.

One change after the other, in the order of the log: a change may have to wait for the disk, and what comes behind it waits, too. A topic is made known to clients (`Audience`)
when its replicas here are there. Callback style: see `steps`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from tidelog.cluster.fetchers import Fetchers
from tidelog.cluster.image_change import ImageChange
from tidelog.cluster.partitions import NewPartition, OfflinePartitionError, PartitionTable
from tidelog.cluster.steps import Steps, all_offloaded, called_back, next_turn, offloaded
from tidelog.controller.image import (
    LeaderRecoveryState,
    MetadataImage,
    PartitionImage,
    ResourceType,
    TopicImage,
)
from tidelog.replication.assignment import Assignment
from tidelog.storage.disk import DiskError
from tidelog.storage.lifecycle import Creation
from tidelog.storage.log import Log
from tidelog.storage.log_dirs import LogDirError
from tidelog.storage.log_manager import LogManager

logger = logging.getLogger("tidelog.broker")

CREATIONS_AT_ONCE: Final = 200
"""New logs between two turns of the loop."""
CREATIONS_PER_JOB: Final = 50
PARTITIONS_PER_SLICE: Final = 1000

_Wanted = Iterable[tuple[TopicImage, int, PartitionImage]]


class Audience(Protocol):
    def settings_changed(self, image: MetadataImage) -> None:
        """Settings of this broker, or of all brokers."""
        ...

    def replicas_changed(self, change: ImageChange, image: MetadataImage) -> None:
        """All that the change asks of this broker is done."""
        ...


class _Change(NamedTuple):
    change: ImageChange
    image: MetadataImage


class Replicas:
    def __init__(
        self,
        broker_id: int,
        table: PartitionTable,
        logs: LogManager,
        *,
        steps: Steps,
        fetchers: Fetchers,
        audience: Audience,
        checkpoint: Callable[[Callable[[], None]], None],
    ) -> None:
        """`checkpoint` writes all checkpoints, and calls back."""
        self._broker_id = broker_id
        self._table = table
        self._logs = logs
        self._steps = steps
        self._fetchers = fetchers
        self._audience = audience
        self._checkpoint = checkpoint
        self._queue: deque[_Change] = deque()
        self._at_work = False
        self._is_open = False
        self._waiting: list[tuple[Callable[[MetadataImage], bool], Callable[[], None]]] = []
        self.image: MetadataImage | None = None
        """The last one that this broker acts by, in every respect."""

    # ---- from the metadata

    def open_all(self, image: MetadataImage, done: Callable[[Exception | None], None]) -> None:
        """Start-up: every partition that the image places here; what is on disk beyond that is set aside. Changes wait until then."""
        self._at_work = True

        def opened(result: Exception | None) -> None:
            self._at_work = False
            done(result)
            self._next()

        self._steps.run(self._open_all(image), opened)

    def changed(self, change: ImageChange, image: MetadataImage) -> None:
        """Nothing is done before `open_all`, but for settings."""
        if not self._is_open and not self._at_work:
            if _concerns_brokers(change):
                self._audience.settings_changed(image)
            return
        self._queue.append(_Change(change, image))
        self._next()

    def _next(self) -> None:
        if self._queue and not self._at_work:
            self._at_work = True
            self._steps.run(self._follow(*self._queue.popleft()), self._followed)

    def _followed(self, result: Exception | None) -> None:
        self._at_work = False
        if result is not None:
            logger.error("bug: a change of the metadata was not followed", exc_info=result)
        self._next()

    def when(self, is_true: Callable[[MetadataImage], bool], done: Callable[[], None]) -> None:
        """Call `done` once this broker acts by metadata of which `is_true` says so, perhaps at once."""
        if self.image is not None and is_true(self.image):
            done()
        else:
            self._waiting.append((is_true, done))

    def when_at(self, offset: int, done: Callable[[], None]) -> None:
        self.when(lambda image: image.offset >= offset, done)

    def _acts_by(self, image: MetadataImage) -> None:
        self.image = image
        waiting, self._waiting = self._waiting, []
        for is_true, done in waiting:
            self.when(is_true, done)

    # ---- one change

    async def _open_all(self, image: MetadataImage) -> None:
        await self._open(image.partitions(), is_new=False)
        self._table.set_aside_strays()
        self._logs.forget_start()
        await self._clean_checkpoints()
        self._is_open = True
        self._acts_by(image)

    async def _follow(self, change: ImageChange, image: MetadataImage) -> None:
        if _concerns_brokers(change):
            self._audience.settings_changed(image)
        for gone in change.deleted:
            await self._remove(gone)
        if change.deleted:
            await self._clean_checkpoints()
        await self._open(
            (
                (image.topics_by_id[topic_id], index, partition)
                for topic_id, changed in change.partitions.items()
                for index, partition in changed.items()
            ),
            is_new=True,
        )
        self._table.reconfigure(
            None
            if _concerns_brokers(change)
            else (key.name for key in change.configs if key.type == ResourceType.TOPIC)
        )
        self._audience.replicas_changed(change, image)
        self._acts_by(image)

    async def _open(self, wanted: _Wanted, *, is_new: bool) -> None:
        """Serve what has a log here; make logs for the others in threads, for they wait for the disk."""
        missing: list[NewPartition] = []
        for number, (topic, index, partition) in enumerate(wanted, 1):
            if number % PARTITIONS_PER_SLICE == 0:
                await next_turn()
            if self._broker_id not in partition.replicas:
                continue
            assignment = assignment_of(partition)
            try:
                found = self._table.open(topic.name, index, topic.topic_id, assignment)
                if found is not None:
                    self._fetchers.place(found)
                    continue
                if not is_new:
                    self._table.check_may_be_missing(topic.name, index)
                missing.append(NewPartition(topic.name, index, topic.topic_id, assignment))
            except OfflinePartitionError as error:
                logger.error("%s", error)
            except DiskError as error:
                self._disk_failed(f"{topic.name}-{index}", error)
        for first in range(0, len(missing), CREATIONS_AT_ONCE):
            await self._create(missing[first : first + CREATIONS_AT_ONCE])

    async def _create(self, missing: Sequence[NewPartition]) -> None:
        try:
            creations = self._table.plan_creation(missing)
        except LogDirError as error:
            logger.error("%d partitions cannot be created: %s", len(missing), error)
            return
        jobs = [
            partial(_run_all, creations[first : first + CREATIONS_PER_JOB])
            for first in range(0, len(creations), CREATIONS_PER_JOB)
        ]
        outcomes: list[Log | DiskError] = []
        for made in await all_offloaded(jobs):
            if isinstance(made, Exception):
                raise made
            outcomes += made
        for new, outcome in zip(missing, outcomes, strict=True):
            try:
                if isinstance(outcome, DiskError):
                    raise outcome
                partition = self._table.serve(outcome, new)
                if partition is not None:
                    self._fetchers.place(partition)
            except DiskError as error:
                self._disk_failed(f"{new.topic}-{new.partition}", error)

    async def _remove(self, topic: TopicImage) -> None:
        for index in topic.partitions:
            partition = self._table.find(topic.name, index)
            if partition is not None:
                self._fetchers.forget(partition)
        try:
            await offloaded(self._table.remove_topic(topic.name, topic.topic_id).run)
        except DiskError as error:
            self._table.dir_failed(self._table.log_dir_containing(error.path), error)

    async def _clean_checkpoints(self) -> None:
        """Checkpoints must not speak of partitions that are gone: a new one of the same name that a crash takes would seem lost."""
        if self._logs.has_stale_checkpoints:
            await called_back(self._checkpoint)

    def _disk_failed(self, partition: str, error: DiskError) -> None:
        """On a full disk only the partition that does not fit is offline, not the directory."""
        if error.out_of_space:
            logger.error(
                "%s is offline until there is room and the broker is started again: %s", partition, error
            )
        else:
            self._table.dir_failed(self._table.log_dir_containing(error.path), error)


def assignment_of(partition: PartitionImage) -> Assignment:
    return Assignment(
        partition.leader,
        partition.leader_epoch,
        partition.partition_epoch,
        partition.replicas,
        partition.isr,
        partition.leader_recovery_state == LeaderRecoveryState.RECOVERING,
    )


def _concerns_brokers(change: ImageChange) -> bool:
    return any(key.type == ResourceType.BROKER for key in change.configs)


def _run_all(creations: Sequence[Creation]) -> list[Log | DiskError]:
    outcomes: list[Log | DiskError] = []
    for creation in creations:
        try:
            outcomes.append(creation.run())
        except DiskError as error:
            outcomes.append(error)
    return outcomes
