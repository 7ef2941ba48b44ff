"""One log directory: its lock, whose it is, how the last broker stopped, and the offset checkpoints of its partitions.

Owns the files beside the partition directories. The marker of a clean stop is believed once: it is removed, durably, before
anything is written. A directory that fails is offline for the life of the process and never tried again (I7); nothing is ever deleted
because a checkpoint or marker is damaged (I6).
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Final

from tidelog.errors import CorruptDataError, TidelogError
from tidelog.ports import Rng
from tidelog.storage import checkpoints, files
from tidelog.storage.checkpoints import MetaProperties, TopicPartition
from tidelog.storage.disk import DirLock, Disk, DiskError, write_file_atomically
from tidelog.storage.disk_space import SpaceGuard

CHECKPOINTS: Final = (
    files.RECOVERY_POINT_CHECKPOINT,
    files.LOG_START_OFFSET_CHECKPOINT,
    files.HIGH_WATERMARK_CHECKPOINT,
    files.CLEANER_OFFSET_CHECKPOINT,
)
# What syncing a directory says that belongs to somebody else, or whose file system keeps nothing.
_NOT_OURS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL})


class LogDirError(TidelogError):
    """The log directories cannot be used as they are: in use, of another broker or cluster, or none of them works."""


class LogDir:
    __slots__ = (
        "_disk", "_lock", "_written", "broker_epoch", "clean", "error", "in_checkpoints", "is_new", "kept", "meta", "offsets", "path",
        "space", "warnings",
    )  # fmt: skip

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._lock: DirLock | None = None
        self._written: dict[str, bytes] = {}
        self.path = path
        self.space = SpaceGuard(disk, path)
        self.meta: MetaProperties | None = None
        self.is_new = False  # nobody's before
        self.clean = False
        self.broker_epoch = -1  # of the broker that stopped cleanly here
        self.offsets: dict[str, dict[TopicPartition, int]] = {name: {} for name in CHECKPOINTS}
        # Every partition that a checkpoint on disk may speak of.
        self.in_checkpoints: set[TopicPartition] = set()
        # What the checkpoints said of partitions that are lost or cannot be opened, by file: the next ones say it again.
        self.kept: dict[TopicPartition, dict[str, int]] = {}
        self.error: Exception | None = None
        self.warnings: list[str] = []

    @property
    def online(self) -> bool:
        return self.error is None

    def acquire(self) -> None:
        """Create the directory if need be, and lock it."""
        self._disk.make_dirs(self.path)
        self._make_name_durable()
        self._lock = self._disk.lock(self._path(files.LOCK))
        if self._lock is None:
            raise LogDirError(
                f"{self.path} is in use by another broker. Stop that one, or give this one another directory"
            )

    def _make_name_durable(self) -> None:
        """Whoever made the directory, a broker that was killed or a person a moment ago, may not have: all that is stored needs its name."""
        above = self.path.rpartition("/")[0] or ("/" if self.path.startswith("/") else ".")
        try:
            self._disk.sync_dir(above)
        except DiskError as error:
            if error.errno not in _NOT_OURS:
                raise

    def read_meta(self) -> None:
        try:
            self.meta = checkpoints.read_meta_properties(self._disk, self._path(files.META_PROPERTIES))
        except CorruptDataError as error:
            raise LogDirError(f"{error}. Repair the file: it says whose data this is") from error

    def settle_meta(self, cluster_id: str, node_id: int, rng: Rng) -> None:
        """Check that the directory is ours, or make it so."""
        meta = self.meta
        if meta is not None:
            if meta.node_id != node_id:
                raise LogDirError(f"{self.path} belongs to node {meta.node_id}, this is node {node_id}")
            if meta.directory_id is not None:
                return
        self.is_new = meta is None
        self.meta = MetaProperties(cluster_id, node_id, _directory_id(rng))
        checkpoints.write_meta_properties(self._disk, self._path(files.META_PROPERTIES), self.meta)

    def take_clean_marker(self) -> None:
        """Was the last stop clean? The answer is given once: the marker is gone, durably, when this returns."""
        path = self._path(files.CLEAN_SHUTDOWN)
        try:
            epoch = checkpoints.read_clean_shutdown(self._disk, path)
        except CorruptDataError as error:
            self.warnings.append(f"{error}; the stop counts as unclean")
            epoch = None
            self._disk.remove(path)
            self._disk.sync_dir(self.path)
        if epoch is not None:
            self.clean = True
            self.broker_epoch = epoch
            self._disk.remove(path)
            self._disk.sync_dir(self.path)

    def read_checkpoints(self) -> None:
        # A killed process may have put them there a moment ago. What is believed now must be what the next start finds, too.
        self._disk.sync_dir(self.path)
        for name in CHECKPOINTS:
            try:
                offsets = checkpoints.read_offsets(self._disk, self._path(name))
            except CorruptDataError as error:
                # Without recovery points everything is checked from its beginning: slow, but right.
                self.warnings.append(f"{error}; the file is ignored")
                offsets = None
            else:
                if offsets is None and name == files.CLEANER_OFFSET_CHECKPOINT:
                    self._written[name] = checkpoints.encode_offsets({})  # most brokers never need the file
            self.offsets[name] = offsets or {}
            self.in_checkpoints.update(self.offsets[name])

    def keep(self, key: TopicPartition) -> int:
        """Do not forget what the checkpoints say of a partition; returns the largest offset in it."""
        lines = {name: offsets[key] for name, offsets in self.offsets.items() if key in offsets}
        if lines:
            self.kept[key] = lines
        return max(lines.values(), default=0)

    def knows(self, key: TopicPartition) -> bool:
        """A checkpoint spoke of records of the partition when the broker started."""
        return any(offsets.get(key, 0) > 0 for offsets in self.offsets.values())

    def write_checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Durable when it returns; in any thread, but one at a time. Nothing is written if nothing changed."""
        content = checkpoints.encode_offsets(offsets)
        if self._written.get(name) != content:
            write_file_atomically(self._disk, self._path(name), content)
            self._written[name] = content

    def write_clean_marker(self, broker_epoch: int) -> None:
        checkpoints.write_clean_shutdown(self._disk, self._path(files.CLEAN_SHUTDOWN), broker_epoch)

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _path(self, name: str) -> str:
        return files.join(self.path, name)


def _directory_id(rng: Rng) -> bytes:
    """Kafka reserves ids whose first eight bytes are zero and the second small (unassigned, lost, migrating)."""
    while True:
        candidate = rng.randbytes(16)
        if candidate[:8] != bytes(8) and not checkpoints.encode_uuid(candidate).startswith("-"):
            return candidate


def read_all(disk: Disk, paths: tuple[str, ...]) -> list[LogDir]:
    """Lock the directories and read who they belong to. One that fails is offline; all of them is LogDirError."""
    directories = [LogDir(disk, path) for path in paths]
    for directory in directories:
        try:
            directory.acquire()
            directory.read_meta()
            directory.take_clean_marker()
            directory.read_checkpoints()
        except DiskError as error:
            directory.error = error
    if not any(directory.online for directory in directories):
        reasons = "; ".join(str(directory.error) for directory in directories)
        raise LogDirError(f"no log directory can be used: {reasons}")
    return directories


def agree_on_cluster_id(directories: list[LogDir], cluster_id: str | None, rng: Rng) -> str:
    """The one on disk, else the one given, else a new one.

    What is on disk was true when the cluster was made, whatever addresses its nodes have now. Whom a node of another cluster talks to refuses it (INCONSISTENT_CLUSTER_ID).
    """
    found = {
        directory.meta.cluster_id: directory.path for directory in directories if directory.meta is not None
    }
    if len(found) > 1:
        listed = ", ".join(f"{path}: {cluster}" for cluster, path in sorted(found.items()))
        raise LogDirError(f"the log directories belong to different clusters ({listed})")
    if found:
        return next(iter(found))
    return cluster_id if cluster_id is not None else checkpoints.encode_uuid(_directory_id(rng))
