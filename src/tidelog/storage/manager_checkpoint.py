"""Recovery points, log starts and high watermarks of all logs at one moment, on their way to disk.

Taken on the loop, written in any thread, finished on the loop. Only then do logs learn that their log start is durable, so that
files below it may go (see `retention`). A directory whose checkpoint cannot be written goes offline; the others go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.storage import files
from tidelog.storage.checkpoints import TopicPartition
from tidelog.storage.disk import DiskError
from tidelog.storage.log import Log
from tidelog.storage.log_dirs import LogDir

if TYPE_CHECKING:
    from tidelog.storage.log_manager import LogManager


class _Taken(NamedTuple):
    log: Log
    log_start_offset: int
    truncation_count: int


class Checkpoint:
    __slots__ = ("_contents", "_manager", "_taken", "errors")

    def __init__(
        self, manager: LogManager, directories: Sequence[LogDir], logs: Iterable[tuple[TopicPartition, Log]]
    ) -> None:
        self._manager = manager
        self.errors: dict[str, DiskError] = {}
        self._taken: dict[str, dict[TopicPartition, _Taken]] = {
            directory.path: {} for directory in directories
        }
        recovery_points: dict[str, dict[TopicPartition, int]] = {
            directory.path: {} for directory in directories
        }
        log_starts: dict[str, dict[TopicPartition, int]] = {directory.path: {} for directory in directories}
        high_watermarks: dict[str, dict[TopicPartition, int]] = {
            directory.path: {} for directory in directories
        }
        for key, log in logs:
            path = files.parent(log.directory)
            if path not in self._taken:
                continue
            self._taken[path][key] = _Taken(log, log.log_start_offset, log.truncation_count)
            recovery_points[path][key] = log.recovery_point
            high_watermarks[path][key] = log.high_watermark
            if log.log_start_offset > 0:
                log_starts[path][key] = log.log_start_offset
        self._contents = [
            (
                directory,
                (
                    # Log starts first: a recovery point may lie below a log start, the other way round would say nothing.
                    (files.LOG_START_OFFSET_CHECKPOINT, log_starts[directory.path]),
                    (files.RECOVERY_POINT_CHECKPOINT, recovery_points[directory.path]),
                    (files.HIGH_WATERMARK_CHECKPOINT, high_watermarks[directory.path]),
                ),
            )
            for directory in directories
        ]
        for directory in directories:
            directory.in_checkpoints.update(self._taken[directory.path])

    def run(self) -> None:
        """Write the files. Failures are kept for `finish`."""
        for directory, contents in self._contents:
            try:
                for name, offsets in contents:
                    directory.write_checkpoint(name, offsets)
            except DiskError as error:
                self.errors[directory.path] = error

    def finish(self, now_ms: int) -> dict[str, DiskError]:
        """Tell the logs; returns the directories that have failed, which are offline now."""
        self._manager.checkpoint_finished(self)
        for directory, _ in self._contents:
            if directory.path not in self.errors and directory.online:
                directory.in_checkpoints = set(self._taken[directory.path])
                try:
                    self._tell(directory, now_ms)
                except DiskError as error:
                    self.errors[directory.path] = error
        for path, failure in self.errors.items():
            self._manager.fail_dir(path, failure)
        return self.errors

    def _tell(self, directory: LogDir, now_ms: int) -> None:
        for key, taken in self._taken[directory.path].items():
            if self._manager.logs.get(key) is taken.log or self._manager.internal_logs.get(key) is taken.log:
                taken.log.recovery_point_is_durable(taken.truncation_count)
                taken.log.log_start_is_durable(taken.log_start_offset, now_ms)
                if taken.log.deferred_deletes:
                    self._manager.files_were_marked(key)
