"""All logs of one broker, over its log directories: opening, creating, deleting, checkpoints, retention, closing.

Owns which directory a partition lives in and what is written beside the partitions. Time comes from the caller (`tick(now_ms)`),
long work goes to a thread of the caller's choice (`Checkpoint.run`, `FlushTicket.run`); everything else happens on the loop's thread.

A directory that fails goes offline with its logs, the others go on (I7). Losing or damaging a file never deletes a partition (I6): a
partition that cannot be opened is in `failed_logs`, untouched. Partitions leave only by `delete`, or by `set_aside`, which keeps the data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from tidelog.internal_topics import CLUSTER_METADATA
from tidelog.ports import Clock, Rng
from tidelog.storage import checkpoints, files
from tidelog.storage.checkpoints import TopicPartition
from tidelog.storage.disk import Disk, DiskError, write_file_atomically
from tidelog.storage.disk_space import SpaceGuard
from tidelog.storage.lifecycle import Creation, Disposal, Removal
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.log_dirs import LogDir, LogDirError, agree_on_cluster_id, read_all
from tidelog.storage.log_flush import DirectoryNames
from tidelog.storage.log_loading import (
    FLUSHES_AT_ONCE,
    NO_TOPIC_ID,
    Loading,
    Progress,
    RunAll,
    TopicIdOf,
    drain,
    find_partitions,
    one_after_another,
)
from tidelog.storage.manager_checkpoint import Checkpoint
from tidelog.storage.recovery import open_log
from tidelog.storage.run_ledger import RunLedger

_LOGS_PER_SLICE: Final = 20  # retention looks at the logs in slices, so that no turn of the loop is long
_SEGMENTS_PER_SLICE: Final = 50
_SLICES_PER_TICK: Final = 10
_DEFAULT_CONFIG: Final = LogConfig()
_METADATA_CONFIG: Final = LogConfig(delete_policy=False)  # only a snapshot lets its records go


def _default_config(topic: str) -> LogConfig:
    return _DEFAULT_CONFIG


class Lost(NamedTuple):
    """A partition that a checkpoint knows up to an offset, and whose directory is gone."""

    log_dir: str
    offset: int


class LogManager:
    """Make it, `open` it, use `logs`. `config_for` gives a topic's settings while the metadata is not there yet."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        rng: Rng,
        dirs: Sequence[str],
        *,
        node_id: int,
        cluster_id: str | None = None,
        config_for: Callable[[str], LogConfig] = _default_config,
        retention_check_interval_ms: int = 300_000,
    ) -> None:
        if not dirs or len(set(dirs)) != len(dirs):
            raise LogDirError(f"log.dirs must name one or more different directories, not {list(dirs)}")
        self.disk = disk
        self._clock = clock
        self._rng = rng
        self._paths = tuple(path.rstrip("/") or "/" for path in dirs)
        self._config_for = config_for
        self._retention_check_interval_ms = retention_check_interval_ms
        self.node_id = node_id
        self.cluster_id = cluster_id or ""
        self.dirs: list[LogDir] = []
        self.logs: dict[TopicPartition, Log] = {}
        self.internal_logs: dict[
            TopicPartition, Log
        ] = {}  # the metadata log: not a user's partition, but checkpointed
        self.failed_logs: dict[TopicPartition, Exception] = {}
        self.warnings: list[str] = []
        self._retention_queue: deque[TopicPartition] = deque()
        self._retention_due_ms = 0
        self._with_deleted_files: dict[TopicPartition, None] = {}
        self._doomed_dirs: list[tuple[int, str]] = []
        self._checkpoint: Checkpoint | None = None
        self._names: dict[str, DirectoryNames] = {}
        self._sealed: dict[TopicPartition, None] = {}
        self.ledger = RunLedger(self)

    # ---- opening

    def open(self, progress: Progress | None = None) -> None:
        """Both steps at once, for directories whose metadata nobody asks about."""
        self.open_directories()
        self.load(progress)

    def open_directories(self) -> None:
        """Lock every directory. LogDirError if none can be used, or if they are not this broker's."""
        self.dirs = read_all(self.disk, self._paths)
        try:
            self.cluster_id = agree_on_cluster_id(self.dirs, self.cluster_id or None, self._rng)
            for directory in self.dirs:
                if directory.online:
                    try:
                        directory.settle_meta(self.cluster_id, self.node_id, self._rng)
                    except DiskError as error:
                        directory.error = error
            self._check_some_online()
        except Exception:
            self.release_locks()
            raise
        for directory in self.dirs:
            self.warnings.extend(directory.warnings)
        self._retention_due_ms = self._clock.wall_ms() + self._retention_check_interval_ms

    def load(
        self,
        progress: Progress | None = None,
        *,
        topic_id_of: TopicIdOf | None = None,
        run_all: RunAll = one_after_another,
        workers_per_dir: int = 1,
    ) -> None:
        """Open every partition's log. `topic_id_of` tells a topic's id: of two logs of one partition, the other is set aside.

        `run_all` may run them in several threads, `workers_per_dir` of which open logs of the same directory; `progress` is called in those.
        """
        configs: dict[str, LogConfig] = {}

        def open_one(directory: LogDir, key: TopicPartition) -> Log:
            config = configs.get(key[0])
            if config is None:
                config = configs[key[0]] = self._config_for(key[0])
            log = self._open_log(directory, key, config)
            topic_id = topic_id_of(key[0]) if topic_id_of is not None else None
            if topic_id is not None and log.topic_id == NO_TOPIC_ID:
                log.set_topic_id(topic_id, self._names_in(directory.path))
            return log

        try:
            found = find_partitions(self.disk, self.dirs, self._rng, topic_id_of)
            self.warnings.extend(found.warnings)
            self._doomed_dirs.extend((0, path) for path in found.doomed)
            for directory in self.dirs:
                self._names_in(directory.path)
            loading = Loading(found, open_one, progress, workers_per_dir=workers_per_dir)
            run_all(loading.opening)
            run_all(loading.flushing())
            for log in loading.opened.values():
                self.adopt(log)
            self.failed_logs.update(loading.corrupt)
            for key in loading.corrupt:
                for directory in self.dirs:
                    directory.keep(key)
            for path, failure in loading.failures.items():
                self.fail_dir(path, failure)
            self._check_some_online()
        except Exception:
            self.release_locks()
            raise

    def _open_log(self, directory: LogDir, key: TopicPartition, config: LogConfig) -> Log:
        offsets = directory.offsets
        return open_log(
            self.disk,
            files.partition_dir(directory.path, *key),
            *key,
            config=config,
            now_ms=self._clock.wall_ms(),
            rng=self._rng,
            clean=directory.clean,
            recovery_point=max(0, offsets[files.RECOVERY_POINT_CHECKPOINT].get(key, 0)),
            log_start_offset=max(0, offsets[files.LOG_START_OFFSET_CHECKPOINT].get(key, 0)),
            high_watermark=offsets[files.HIGH_WATERMARK_CHECKPOINT].get(key, 0),
            cleaned_to=max(0, offsets[files.CLEANER_OFFSET_CHECKPOINT].get(key, 0)),
            names_above=self._names_in(directory.path),
        )

    def _names_in(self, path: str) -> DirectoryNames:
        """Shared by all logs of a directory."""
        names = self._names.get(path)
        if names is None:
            names = self._names[path] = DirectoryNames(self.disk, path)
        return names

    def open_metadata_log(self, config: LogConfig = _METADATA_CONFIG) -> Log:
        """The controller's log, `__cluster_metadata-0`, in the first directory. It is checkpointed with the others, but is not in
        `logs`, and neither retention nor `delete` touches it.
        """
        key = (CLUSTER_METADATA, 0)
        if key not in self.internal_logs:
            if not self.dirs[0].online:
                raise LogDirError(
                    f"log directory {self.dirs[0].path}, which holds the metadata log, cannot be used: {self.dirs[0].error}"
                )
            log = self.internal_logs[key] = self._open_log(self.dirs[0], key, config)
            log.space = SpaceGuard(path=self.dirs[0].path)  # never refuses: the reserve is for its records
        return self.internal_logs[key]

    # ---- partitions come and go

    def plan_creation(self, wanted: Sequence[tuple[TopicPartition, bytes, LogConfig]]) -> list[Creation]:
        """Choose a directory for each new partition (key, topic id, settings): the one with the fewest that has room."""
        counts = {directory.path: 0 for directory in self.dirs if directory.online}
        if not counts:
            raise LogDirError("every log directory is offline")
        if len(counts) > 1:
            for log in self.logs.values():
                counts[files.parent(log.directory)] += 1
        full = {directory.path for directory in self.dirs if not directory.space.has_room}
        creations = []
        for key, topic_id, config in wanted:
            if key in self.logs or key in self.failed_logs:
                raise ValueError(
                    f"{key[0]}-{key[1]} is there already: {self.logs.get(key) or self.failed_logs[key]}"
                )
            path = min(counts, key=lambda path: (path in full, counts[path]))
            counts[path] += 1
            creations.append(
                Creation(
                    disk=self.disk,
                    log_dir=path,
                    key=key,
                    topic_id=topic_id,
                    config=config,
                    now_ms=self._clock.wall_ms(),
                    rng=self._rng,
                    name_reused=key in self.dir_of(path).in_checkpoints,
                    names_above=self._names_in(path),
                )
            )
        return creations

    def adopt(self, log: Log) -> None:
        """Take a log into the books."""
        log.space = self.dir_of(files.parent(log.directory)).space
        log.sealed = self._sealed
        self.logs[log.topic, log.partition] = log

    def claim(self, log: Log, topic_id: bytes) -> None:
        """A log without an id is of this topic. Durable when this returns: the log was flushed when it was found, and half an id would be damage from then on.

        DiskError when it cannot be written down.
        """
        path = files.join(log.directory, files.PARTITION_METADATA)
        write_file_atomically(self.disk, path, checkpoints.encode_partition_metadata(topic_id))
        log.topic_id = topic_id

    def create(self, topic: str, partition: int, topic_id: bytes, config: LogConfig) -> Log:
        """Plan, run and adopt one creation on this thread."""
        (creation,) = self.plan_creation([((topic, partition), topic_id, config)])
        log = creation.run()
        self.adopt(log)
        return log

    def remove(self, keys: Iterable[TopicPartition]) -> Removal:
        """The partitions are gone for everyone, and once the removal ran, also after a crash.

        Their files follow after `file.delete.delay.ms`.
        """
        parents = []
        for key in keys:
            log = self.logs.pop(key)
            parents.append(files.parent(log.directory))
            path = self._move_out(log, files.DELETE_DIR)
            self._doomed_dirs.append((self._clock.wall_ms() + log.config.file_delete_delay_ms, path))
        return Removal(self.disk, parents)

    def delete(self, topic: str, partition: int) -> None:
        """Remove one partition and make that durable on this thread."""
        self.remove([(topic, partition)]).run()

    def set_aside(self, topic: str, partition: int) -> str:
        """Take a partition out that nobody claims, and keep its data under a `-stray` name; returns the path."""
        log = self.logs.pop((topic, partition))
        path = self._move_out(log, files.STRAY_DIR)
        self.disk.sync_dir(files.parent(path))
        return path

    def _move_out(self, log: Log, suffix: str) -> str:
        parent = files.parent(log.directory)
        name = files.marked_dir_name(log.topic, log.partition, self._rng.randbytes(16), suffix)
        path = files.join(parent, name)
        log.abandon_flush()
        self.disk.rename(log.directory, path)
        log.directory_moved(path)
        log.close()
        return path

    # ---- checkpoints

    def checkpoint(self) -> Checkpoint:
        """Recovery points, log starts and high watermarks of this moment. `run` it in any thread, then `finish` it on the loop.

        One at a time. DeleteRecords is answered after it, and retention lets files go after it.
        """
        checkpoint = self.begin_checkpoint()
        checkpoint.take()
        return checkpoint

    def begin_checkpoint(self) -> Checkpoint:
        """The same for whoever does the loop's part of it in slices: `taking` comes first."""
        if self._checkpoint is not None:
            raise RuntimeError("a checkpoint is under way; finish it first")
        online = [directory for directory in self.dirs if directory.online]
        everything = [*self.logs.items(), *self.internal_logs.items()]
        self._checkpoint = Checkpoint(self, online, everything)
        return self._checkpoint

    def has(self, key: TopicPartition, log: Log) -> bool:
        """This very log is in the books."""
        return self.logs.get(key) is log or self.internal_logs.get(key) is log

    @property
    def has_stale_checkpoints(self) -> bool:
        """A checkpoint on disk may speak of a partition that is neither here nor lost."""
        return any(
            not directory.in_checkpoints
            <= self.logs.keys() | self.internal_logs.keys() | directory.kept.keys()
            for directory in self.dirs
            if directory.online
        )

    def lost(self, key: TopicPartition) -> Lost | None:
        """A partition without a directory: what the checkpoints knew of it when the broker started. What they know is kept (I6)."""
        for directory in self.dirs:
            if directory.online and (offset := directory.keep(key)) > 0:
                return Lost(directory.path, offset)
        return None

    def forget_start(self) -> None:
        """Every partition is opened or known to be lost: nobody asks any more what the checkpoints said when the broker started."""
        for directory in self.dirs:
            directory.offsets = {name: {} for name in directory.offsets}

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        """The topic is deleted: nothing needs to be known of its partitions that could not be opened."""
        for key in keys:
            self.failed_logs.pop(key, None)
            for directory in self.dirs:
                directory.kept.pop(key, None)

    def checkpoint_finished(self, checkpoint: Checkpoint) -> None:
        """For `Checkpoint.finish`."""
        if checkpoint is not self._checkpoint:
            raise RuntimeError("this checkpoint is not the one under way")
        self._checkpoint = None

    # ---- housekeeping

    def tick(self, now_ms: int) -> int:
        """Retention for some of the logs whose turn it is. Returns the segments let go; their files follow through `disposal`."""
        segments = 0
        for _ in range(_SLICES_PER_TICK):
            slice_segments = self.retain_some(now_ms)
            if slice_segments is None:
                break
            segments += slice_segments
        return segments

    def retain_some(self, now_ms: int) -> int | None:
        """A part of what `tick` does, so small that a turn of the loop stays short. None: there is nothing to do."""
        queue = self._retention_queue
        if now_ms >= self._retention_due_ms and not queue:
            queue.extend(self.logs)
            self._retention_due_ms = now_ms + self._retention_check_interval_ms
        if not queue:
            return None
        segments = 0
        for _ in range(min(_LOGS_PER_SLICE, len(queue))):
            key = queue.popleft()
            log = self.logs.get(key)
            if log is not None:
                segments += self._housekeep(key, log, now_ms, _SEGMENTS_PER_SLICE - segments)
            if segments >= _SEGMENTS_PER_SLICE:
                break
        return segments

    def take_sealed(self) -> list[TopicPartition]:
        """Logs that have sealed a segment since the last call: to be synced soon, whatever the durability."""
        sealed = list(self._sealed)
        self._sealed.clear()
        return sealed

    def space_news(self, now_ms: int) -> list[str]:
        """Lines for the broker's log about directories that have become full, or have room again."""
        return [
            line for directory in self.dirs if directory.online and (line := directory.space.news(now_ms))
        ]

    def _housekeep(self, key: TopicPartition, log: Log, now_ms: int, segments_max: int) -> int:
        try:
            log.expire_producers(now_ms)
            retained = log.apply_retention(now_ms, segments_max=segments_max)
            if retained.more:
                self._retention_queue.appendleft(key)
            return retained.segments
        except DiskError as error:
            self.fail_dir(files.parent(log.directory), error)
            return 0

    def files_were_marked(self, key: TopicPartition) -> None:
        """For `Checkpoint.finish`: this log has `.deleted` files that wait for their time."""
        self._with_deleted_files[key] = None

    def disposal(self, now_ms: int) -> Disposal | None:
        """Files and directories whose `file.delete.delay.ms` is over. They are out of the books whether `run` succeeds or not."""
        due_files: list[str] = []
        for key in list(self._with_deleted_files):
            log = self.logs.get(key) or self.internal_logs.get(key)
            if log is not None:
                due_files += log.take_due_files(now_ms)
            if log is None or not log.deferred_deletes:
                del self._with_deleted_files[key]
        due_dirs = [path for due_ms, path in self._doomed_dirs if due_ms <= now_ms]
        self._doomed_dirs = [(due_ms, path) for due_ms, path in self._doomed_dirs if due_ms > now_ms]
        if not due_files and not due_dirs:
            return None
        return Disposal(self.disk, due_files, due_dirs)

    def disposed(self, disposal: Disposal) -> dict[str, DiskError]:
        """Take note of what could not be removed; returns the directories that are offline now."""
        failed: dict[str, DiskError] = {}
        for error in disposal.errors:
            for directory in self.dirs:
                if error.path.startswith(directory.path + "/"):
                    failed[directory.path] = error
                    self.fail_dir(directory.path, error)
        return failed

    # ---- directories

    @property
    def offline_dirs(self) -> dict[str, Exception]:
        """Path and reason of every directory that has failed."""
        return {directory.path: directory.error for directory in self.dirs if directory.error is not None}

    @property
    def directory_ids(self) -> dict[str, bytes]:
        """The id of every directory that works (KIP-858)."""
        return {
            directory.path: directory.meta.directory_id
            for directory in self.dirs
            if directory.online and directory.meta is not None and directory.meta.directory_id is not None
        }

    @property
    def offline_directory_ids(self) -> list[bytes]:
        """The ids of those that have failed, as far as they could be read."""
        return [
            directory.meta.directory_id
            for directory in self.dirs
            if not directory.online and directory.meta is not None and directory.meta.directory_id is not None
        ]

    @property
    def stopped_cleanly(self) -> bool:
        """Every directory carried the marker of a clean stop when it was opened."""
        return all(directory.clean for directory in self.dirs)

    def keep_free(self, reserve_bytes: int) -> None:
        """How much of each directory's volume records may not use; the metadata log may (see `SpaceGuard`)."""
        for directory in self.dirs:
            directory.space.keep_free(reserve_bytes)

    def dir_of(self, path: str) -> LogDir:
        for directory in self.dirs:
            if directory.path == path:
                return directory
        raise ValueError(f"{path} is none of the log directories {list(self._paths)}")

    def fail_dir(self, path: str, error: Exception) -> list[TopicPartition]:
        """The directory has failed: its logs are gone from `logs`, nothing more is written to it. Returns which they were."""
        directory = self.dir_of(path)
        if directory.error is None:
            directory.error = error
        lost = [key for key, log in self.logs.items() if files.parent(log.directory) == path]
        for key in lost:
            self.logs.pop(key).close()
        # What waits for deletion there is left alone, too: the next start sees to it.
        self._doomed_dirs = [
            (due_ms, doomed) for due_ms, doomed in self._doomed_dirs if files.parent(doomed) != path
        ]
        return lost

    def _check_some_online(self) -> None:
        if not any(directory.online for directory in self.dirs):
            reasons = "; ".join(f"{path}: {error}" for path, error in self.offline_dirs.items())
            self.release_locks()
            raise LogDirError(f"no log directory can be used: {reasons}")

    # ---- closing

    def close(
        self, *, clean: bool = True, broker_epoch: int = -1, run_all: RunAll = one_after_another
    ) -> None:
        """With `clean`, everything is made durable and marked so. Without, files are let go as after a crash. Never raises
        for a directory that fails on the way: that one gets no marker. `run_all` may close the logs in several threads.
        """
        if clean:
            for directory in self.dirs:
                if directory.online:
                    self._close_cleanly(directory, broker_epoch, run_all)
        else:
            for log in (*self.logs.values(), *self.internal_logs.values()):
                log.close()
        self.release_locks()

    def _close_cleanly(self, directory: LogDir, broker_epoch: int, run_all: RunAll) -> None:
        held = [
            (key, log)
            for key, log in (*self.logs.items(), *self.internal_logs.items())
            if files.parent(log.directory) == directory.path
        ]
        try:
            for _, log in held:
                if log.flushing:
                    raise RuntimeError(f"a flush of {log.name} is under way: finish it before closing")
            queue = deque(log for _, log in held)
            run_all([partial(_close_all, queue)] * min(FLUSHES_AT_ONCE, len(queue)))
            checkpoint = Checkpoint(self, [directory], held)
            checkpoint.take()
            checkpoint.run()
            for failure in checkpoint.errors.values():
                raise failure
            for _, log in held:
                log.recovery_point_is_durable(log.truncation_count)
            if not self._has_failed_logs(directory):
                directory.write_clean_marker(broker_epoch)
        except DiskError as error:
            self.fail_dir(directory.path, error)

    def _has_failed_logs(self, directory: LogDir) -> bool:
        """A log that could not be opened was not closed cleanly either."""
        return any(self.disk.exists(files.partition_dir(directory.path, *key)) for key in self.failed_logs)

    def release_locks(self) -> None:
        for directory in self.dirs:
            directory.release()


def _close_all(queue: deque[Log]) -> None:
    for log in drain(queue):
        log.close_cleanly()
