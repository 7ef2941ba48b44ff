"""Partitions and files on their way in and out: the part that waits for the disk, apart from the part that changes the books.

Making a partition takes several files, and removing a large one takes its time. Such work runs in any thread, many
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
from tidelog.storage.log_flush import DirectoryNames
from tidelog.storage.new_log import make_log
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
    names_above: DirectoryNames

    def run(self) -> Log:
        """Nothing of it is durable before its first flush. DiskError: the log directory must go offline."""
        directory = files.partition_dir(self.log_dir, *self.key)
        log = None
        if not self.name_reused:
            log = make_log(
                self.disk,
                directory,
                *self.key,
                topic_id=self.topic_id,
                config=self.config,
                now_ms=self.now_ms,
                rng=self.rng,
                names_above=self.names_above,
            )
        return log or open_log(
            self.disk,
            directory,
            *self.key,
            config=self.config,
            now_ms=self.now_ms,
            rng=self.rng,
            topic_id=self.topic_id,
            name_reused=self.name_reused,
            names_above=self.names_above,
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
