"""Partitions and files on their way in and out: the part that waits for the disk, apart from the part that changes the books.

Making a partition durable takes several syncs, and removing a large file takes its time. Such work runs in any thread, many
pieces at once; the manager decides before and takes note after, both on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tidelog.ports import Rng
from tidelog.storage import files
from tidelog.storage.checkpoints import TopicPartition
from tidelog.storage.disk import Disk, DiskError
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.recovery import open_log


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A new, empty log in a directory chosen for it. `run` in any thread, then `LogManager.adopt` the log on the loop."""

    disk: Disk
    log_dir: str
    key: TopicPartition
    topic_id: bytes
    config: LogConfig
    now_ms: int
    rng: Rng
    name_reused: bool

    def run(self) -> Log:
        """Its directory and id are durable when this returns. DiskError: the log directory must go offline."""
        return open_log(
            self.disk,
            files.partition_dir(self.log_dir, *self.key),
            *self.key,
            config=self.config,
            now_ms=self.now_ms,
            rng=self.rng,
            topic_id=self.topic_id,
            name_reused=self.name_reused,
        )


class Removal:
    """Directories that were renamed on the loop. After `run`, in any thread, the new names survive a crash."""

    __slots__ = ("_disk", "_parents")

    def __init__(self, disk: Disk, parents: Iterable[str]) -> None:
        self._disk = disk
        self._parents = tuple(dict.fromkeys(parents))

    def run(self) -> None:
        for parent in self._parents:
            self._disk.sync_dir(parent)


class Disposal:
    """Files and directories whose time has come. `run` in any thread, then `LogManager.disposed` on the loop."""

    __slots__ = ("_directories", "_disk", "_files", "errors")

    def __init__(self, disk: Disk, files: list[str], directories: list[str]) -> None:
        self._disk = disk
        self._files = files
        self._directories = directories
        self.errors: list[DiskError] = []

    def run(self) -> None:
        """Failures are kept for `disposed`."""
        for path in self._files:
            self._attempt(self._disk.remove, path)
        for path in self._directories:
            self._attempt(self._disk.remove_tree, path)

    def _attempt(self, remove: Callable[[str], None], path: str) -> None:
        try:
            remove(path)
        except DiskError as error:
            self.errors.append(error)
