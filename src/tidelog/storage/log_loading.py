"""Opens the logs of all directories when a broker starts, many at a time.

Owns which directory on disk is whose log, and the division of the work among threads of the caller's choice. What a single log goes
through is `recovery`'s business; which logs the broker then has is the manager's. Nothing is deleted here (I6): a directory of
an earlier topic is kept under a `-stray` name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from tidelog.errors import CorruptDataError
from tidelog.internal_topics import CLUSTER_METADATA
from tidelog.ports import Rng
from tidelog.storage import checkpoints, files
from tidelog.storage.checkpoints import TopicPartition
from tidelog.storage.disk import Disk, DiskError
from tidelog.storage.log import Log
from tidelog.storage.log_dirs import LogDir, LogDirError

FLUSHES_AT_ONCE: Final = 16
NO_TOPIC_ID: Final = bytes(16)

Progress = Callable[[int, int, Log], None]
TopicIdOf = Callable[[str], bytes | None]
RunAll = Callable[[Sequence[Callable[[], None]]], None]
T = TypeVar("T")
OpenLog = Callable[[LogDir, TopicPartition], Log]


def one_after_another(jobs: Sequence[Callable[[], None]]) -> None:
    for job in jobs:
        job()


@dataclass(slots=True)
class FoundDirs:
    """What stands in the log directories."""

    partitions: list[tuple[LogDir, list[TopicPartition]]] = field(default_factory=list)
    doomed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def find_partitions(
    disk: Disk, directories: Sequence[LogDir], rng: Rng, topic_id_of: TopicIdOf | None
) -> FoundDirs:
    """Partitions to load. What waits for deletion is listed, what was set aside stays. A directory that fails is marked so."""
    found = FoundDirs()
    places: dict[TopicPartition, list[LogDir]] = {}
    for directory in directories:
        if directory.online:
            try:
                for key in _list_partitions(disk, directory, found):
                    places.setdefault(key, []).append(directory)
            except DiskError as error:
                directory.error = error
    chosen: dict[str, list[TopicPartition]] = {directory.path: [] for directory in directories}
    for key, holders in places.items():
        holder = holders[0] if len(holders) == 1 else _choose(disk, key, holders, rng, topic_id_of, found)
        chosen[holder.path].append(key)
    found.partitions = [(directory, chosen[directory.path]) for directory in directories if directory.online]
    return found


def _list_partitions(disk: Disk, directory: LogDir, found: FoundDirs) -> list[TopicPartition]:
    keys = []
    for name in disk.list_dir(directory.path):
        parsed = files.parse_partition_dir(name)
        if parsed is None:
            continue
        path = files.join(directory.path, name)
        if not disk.is_dir(path):
            continue
        if parsed.suffix == files.DELETE_DIR:
            found.doomed.append(path)
        elif parsed.suffix:
            found.warnings.append(f"{path} is set aside ({parsed.suffix}); it is neither loaded nor deleted")
        elif parsed.topic != CLUSTER_METADATA:
            keys.append((parsed.topic, parsed.partition))
    return keys


def _choose(
    disk: Disk,
    key: TopicPartition,
    directories: list[LogDir],
    rng: Rng,
    topic_id_of: TopicIdOf | None,
    found: FoundDirs,
) -> LogDir:
    """The directory whose log belongs to the topic; the others hold an earlier topic of its name."""
    wanted = topic_id_of(key[0]) if topic_id_of is not None else None
    ids = [_topic_id_in(disk, directory, key) for directory in directories]
    if wanted is None or ids.count(wanted) != 1:
        raise LogDirError(
            f"{key[0]}-{key[1]} is in more than one log directory: "
            + ", ".join(directory.path for directory in directories)
            + ". Only you can know which one is right: move the others away"
        )
    for directory, topic_id in zip(directories, ids, strict=True):
        if topic_id != wanted:
            name = files.marked_dir_name(*key, rng.randbytes(16), files.STRAY_DIR)
            disk.rename(files.partition_dir(directory.path, *key), files.join(directory.path, name))
            disk.sync_dir(directory.path)
            found.warnings.append(
                f"{key[0]}-{key[1]} in {directory.path} is of an earlier topic of that name; it is kept as {name}"
            )
    return directories[ids.index(wanted)]


def _topic_id_in(disk: Disk, directory: LogDir, key: TopicPartition) -> bytes | None:
    path = files.join(files.partition_dir(directory.path, *key), files.PARTITION_METADATA)
    return checkpoints.read_partition_metadata(disk, path, may_be_unfinished=True)


class Loading:
    """`opening` may run in any threads; then `opened`, `corrupt` and `failures` tell what came of it. `flushing` comes after it."""

    def __init__(
        self, found: FoundDirs, open_one: OpenLog, progress: Progress | None, *, workers_per_dir: int
    ) -> None:
        self._open_one = open_one
        self._progress = progress
        self._total = sum(len(keys) for _, keys in found.partitions)
        self._done = 0
        self.opened: dict[TopicPartition, Log] = {}
        self.corrupt: dict[TopicPartition, Exception] = {}
        self.failures: dict[str, DiskError] = {}
        """By directory: it goes offline, and its logs with it."""
        self.opening: list[Callable[[], None]] = []
        for directory, keys in found.partitions:
            queue = deque(keys)
            self.opening += [partial(self._open, directory, queue)] * min(workers_per_dir, len(keys))

    def _open(self, directory: LogDir, queue: deque[TopicPartition]) -> None:
        for key in drain(queue):
            if directory.path in self.failures:
                return
            try:
                log = self._open_one(directory, key)
            except CorruptDataError as error:
                self.corrupt[key] = error
                self._done += 1
                continue
            except DiskError as error:
                self.failures.setdefault(directory.path, error)
                return
            self.opened[key] = log
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._total, log)

    def flushing(self) -> list[Callable[[], None]]:
        """What recovery found is as good as new once it is durable. Many at a time: syncs that wait together are served together."""
        queue = deque(log for log in self.opened.values() if not log.recovery.clean and log.dirty)
        return [partial(self._flush, queue)] * min(FLUSHES_AT_ONCE, len(queue))

    def _flush(self, queue: deque[Log]) -> None:
        for log in drain(queue):
            path = files.parent(log.directory)
            if path not in self.failures:
                try:
                    log.flush()
                except DiskError as error:
                    self.failures.setdefault(path, error)


def drain(queue: deque[T]) -> Iterator[T]:
    """Items that no other worker has taken."""
    while queue:
        try:
            yield queue.popleft()
        except IndexError:
            return
