"""Recovery points, log starts, high watermarks and cleaners' offsets of all logs, on their way to disk.

Taken on the loop, written in any thread, finished on the loop. Only then do logs learn that their log start is durable, so that
files below it may go (see `retention`). A directory whose checkpoint cannot be written goes offline; the others go on. On a full
disk the old checkpoint stays, which is true as far as it goes: the next one is tried when its time has come.

A broker has thousands of logs: `taking` and `finishing` do the loop's part in slices. Each log's numbers are of one moment; those of two logs
need not be.

A checkpoint never speaks of a log that a power cut could take altogether (see `log_flush`): one that was never flushed has no line, and if its
log start has moved, it is made durable first. So a partition with a line and without a directory has been lost, and is not taken for
one that was just made (I6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.storage import files, retention
from tidelog.storage.checkpoints import TopicPartition
from tidelog.storage.disk import DiskError
from tidelog.storage.log import Log
from tidelog.storage.log_dirs import LogDir

if TYPE_CHECKING:
    from tidelog.storage.log_manager import LogManager

LOGS_PER_SLICE: Final = 500
SEGMENTS_PER_SLICE: Final = 200

Job = Callable[[], None]


class _Taken(NamedTuple):
    key: TopicPartition
    log: Log
    log_start_offset: int
    truncation_count: int
    producers: (
        int | None
    )  # offset of the snapshot that is made durable: what it lets go may leave, and nothing else


class _Contents:
    """What goes to one directory."""

    __slots__ = (
        "cleaned", "directory", "high_watermarks", "log_starts", "producers", "recovery_points", "taken", "unsettled",
    )  # fmt: skip

    def __init__(self, directory: LogDir) -> None:
        self.directory = directory
        self.recovery_points = _kept(directory, files.RECOVERY_POINT_CHECKPOINT)
        self.log_starts = _kept(directory, files.LOG_START_OFFSET_CHECKPOINT)
        self.high_watermarks = _kept(directory, files.HIGH_WATERMARK_CHECKPOINT)
        self.cleaned = _kept(directory, files.CLEANER_OFFSET_CHECKPOINT)
        self.taken: list[_Taken] = []
        self.unsettled: list[Log] = []
        self.producers: list[tuple[Log, int]] = []

    def take(self, key: TopicPartition, log: Log) -> None:
        log_start_offset, recovery_point = log.log_start_offset, log.recovery_point
        snapshot = retention.kept_producers(log, log_start_offset)
        self.taken.append(_Taken(key, log, log_start_offset, log.truncation_count, snapshot))
        if recovery_point == 0 and log.unsynced.names_uncertain:
            if log_start_offset == 0:
                return
            self.unsettled.append(log)
        self.recovery_points[key] = recovery_point
        self.high_watermarks[key] = log.high_watermark
        self.directory.in_checkpoints.add(key)
        if log_start_offset > 0:
            self.log_starts[key] = log_start_offset
        if log.cleaned_to > 0:
            self.cleaned[key] = log.cleaned_to
        if snapshot is not None:
            self.producers.append((log, snapshot))

    def write(self) -> None:
        for log in self.unsettled:
            with suppress(FileNotFoundError):  # the topic was deleted meanwhile
                log.unsynced.make_names_durable(log.disk, log.directory)
        for log, snapshot in self.producers:
            with suppress(FileNotFoundError):
                retention.keep_producers(log, snapshot)
        # Log starts first: a recovery point may lie below a log start, the other way round would say nothing.
        self.directory.write_checkpoint(files.LOG_START_OFFSET_CHECKPOINT, self.log_starts)
        self.directory.write_checkpoint(files.RECOVERY_POINT_CHECKPOINT, self.recovery_points)
        self.directory.write_checkpoint(files.HIGH_WATERMARK_CHECKPOINT, self.high_watermarks)
        self.directory.write_checkpoint(files.CLEANER_OFFSET_CHECKPOINT, self.cleaned)

    def keys(self) -> set[TopicPartition]:
        return (
            self.recovery_points.keys()
            | self.log_starts.keys()
            | self.high_watermarks.keys()
            | self.cleaned.keys()
        )


def _kept(directory: LogDir, name: str) -> dict[TopicPartition, int]:
    return {key: lines[name] for key, lines in directory.kept.items() if name in lines}


class Checkpoint:
    __slots__ = ("_contents", "_logs", "_manager", "errors", "postponed")

    def __init__(
        self, manager: LogManager, directories: Sequence[LogDir], logs: Sequence[tuple[TopicPartition, Log]]
    ) -> None:
        self._manager = manager
        self._contents = {directory.path: _Contents(directory) for directory in directories}
        self._logs = logs
        self.errors: dict[str, DiskError] = {}
        self.postponed: dict[str, DiskError] = {}

    def take(self) -> None:
        """Note where every log stands."""
        for _ in self.taking():
            pass

    def taking(self) -> Iterator[None]:
        """The same in slices; whoever goes through them lets others have their turn in between."""
        logs = iter(self._logs)
        while batch := list(islice(logs, LOGS_PER_SLICE)):
            for key, log in batch:
                contents = self._contents.get(files.parent(log.directory))
                if contents is not None and self._manager.has(key, log):
                    contents.take(key, log)
            yield

    def run(self) -> None:
        """Write the files. Failures are kept for `finish`."""
        for path, contents in self._contents.items():
            try:
                contents.write()
            except DiskError as error:
                self.errors[path] = error

    def finish(self, now_ms: int) -> dict[str, DiskError]:
        """Tell the logs; returns the directories that have failed, which are offline now. Full ones are in `postponed`."""
        for job in self.finishing(now_ms):
            if job is not None:
                job()
        return self.failed

    def finishing(self, now_ms: int) -> Iterator[Job | None]:
        """The same in slices; `failed` is right after the last. A job, where one comes, is run in any thread before the next slice."""
        self._manager.checkpoint_finished(self)
        for path, contents in self._contents.items():
            if path not in self.errors and contents.directory.online:
                contents.directory.in_checkpoints = contents.keys()
                try:
                    yield from self._tell(contents, now_ms)
                except DiskError as error:
                    self.errors[path] = error
        for path, failure in self.errors.items():
            if failure.out_of_space:
                self.postponed[path] = failure
            else:
                self._manager.fail_dir(path, failure)

    @property
    def failed(self) -> dict[str, DiskError]:
        return {path: failure for path, failure in self.errors.items() if not failure.out_of_space}

    def _tell(self, contents: _Contents, now_ms: int) -> Iterator[Job | None]:
        for number, taken in enumerate(contents.taken):
            key, log = taken.key, taken.log
            if number % LOGS_PER_SLICE == 0:
                yield None
            if not self._manager.has(key, log):
                continue
            if log.truncation_limited:
                log.recovery_point_is_durable(taken.truncation_count)
            if taken.log_start_offset == 0 and not log.doomed:
                continue  # nothing has moved, so nothing may go
            while (release := _next_release(taken, now_ms)) is not None:
                yield release.run
                release.finish()
                if not self._manager.has(key, log):
                    break
            if log.deferred_deletes:
                self._manager.files_were_marked(key)


def _next_release(taken: _Taken, now_ms: int) -> retention.Release | None:
    """Retention may have let more segments go meanwhile. What is known of their producers is not durable yet: the next checkpoint's."""
    log, log_start_offset = taken.log, taken.log_start_offset
    if retention.kept_producers(log, log_start_offset) not in (None, taken.producers):
        return None
    return retention.release(log, log_start_offset, now_ms, segments_max=SEGMENTS_PER_SLICE)
