"""The bug zoo (RELIABILITY §10): product code broken on purpose, one mistake at a time, to see whether the tests would notice.

A mutant replaces product functions from outside while it is `applied`; the product knows nothing of it. Each stands for a mistake that
somebody could make with good intentions. M-numbers are those of the zoo, S-numbers are more of the kind for storage.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tidelog.storage import (
    files,
    leftovers,
    log_append,
    manager_checkpoint,
    recovery,
    retention,
    segment_swap,
    truncation,
)
from tidelog.storage.batch_scan import Batch
from tidelog.storage.disk import Disk, DiskError, write_file_atomically
from tidelog.storage.files import SegmentFile
from tidelog.storage.lifecycle import Creation, Removal
from tidelog.storage.log import Log
from tidelog.storage.log_dirs import LogDir
from tidelog.storage.log_flush import FlushTicket, Unsynced
from tidelog.storage.log_manager import LogManager
from tidelog.storage.producer_snapshot import write_snapshot
from tidelog.storage.producer_state import ProducerState
from tidelog.storage.recovery_scan import Recovery
from tidelog.storage.retention import Retained
from tidelog.storage.segment import Segment
from tidelog.storage.segment_swap import SegmentSwap

Patch = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    mistake: str
    patches: tuple[Patch, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.mistake}"

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for patch in self.patches:
                stack.enter_context(patch())
            yield


def attribute(owner: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """Replace `owner.name`, of a class or a module, by what `make` makes of the original."""

    @contextmanager
    def patch() -> Iterator[None]:
        original = owner.__dict__[name]
        setattr(owner, name, make(original))
        try:
            yield
        finally:
            setattr(owner, name, original)

    return patch


def function(original: Callable[..., Any], make: Callable[[Any], Any]) -> Patch:
    """Replace a module's function wherever it was imported to."""

    @contextmanager
    def patch() -> Iterator[None]:
        broken = make(original)
        places = [
            (module, name)
            for module in list(sys.modules.values())
            if getattr(module, "__name__", "").startswith("tidelog.")
            for name, value in list(vars(module).items())
            if value is original
        ]
        for module, name in places:
            setattr(module, name, broken)
        try:
            yield
        finally:
            for module, name in places:
                setattr(module, name, original)

    return patch


def _nothing(original: Any) -> Any:
    return lambda *args, **options: None


def _always(value: object) -> Callable[[Any], Any]:
    return lambda original: lambda *args, **options: value


# ---- the zoo


def _lowest_first(original: Any) -> Any:
    def prepare(self: SegmentSwap) -> None:
        disk, directory = self._log.disk, self._log.directory
        ends = [segment.base_offset for segment in self._new[1:]] + [self._end_offset]
        for segment, end_offset in zip(self._new, ends, strict=True):
            self._fill(segment, end_offset)
            segment.seal()
            for file in segment.all_files():
                file.sync()
        disk.sync_dir(directory)
        for segment in self._new:
            segment.change_suffix(files.SWAP)
        disk.sync_dir(directory)

    return prepare


def _tries_again(original: Callable[[FlushTicket], None]) -> Callable[[FlushTicket], None]:
    def run(self: FlushTicket) -> None:
        try:
            original(self)
        except DiskError:
            original(self)

    return run


def _without_directory_sync(original: Callable[..., None]) -> Callable[..., None]:
    def write(disk: Disk, path: str, content: bytes) -> None:
        temporary = path + ".tmp"
        disk.remove(temporary)
        file = disk.open(temporary, create=True)
        file.write_at([content], 0)
        file.sync()
        file.close()
        disk.rename(temporary, path)

    return write


def _deletes_what_it_does_not_know(original: Any) -> Any:
    def set_aside(self: LogManager, topic: str, partition: int) -> str:
        path = self.logs[topic, partition].directory
        self.delete(topic, partition)
        return path

    return set_aside


# ---- more of the kind


def _vouches_before_the_sync(
    original: Callable[[Log], FlushTicket | None],
) -> Callable[[Log], FlushTicket | None]:
    def begin_flush(self: Log) -> FlushTicket | None:
        ticket = original(self)
        if ticket is not None:
            self.recovery_point = ticket.end_offset
        return ticket

    return begin_flush


def _says_done(original: Any) -> Any:
    def run(self: FlushTicket) -> None:
        self._done = True

    return run


def _marks_first(original: Any) -> Any:
    def close(self: LogManager, directory: LogDir, broker_epoch: int, run_all: Any) -> None:
        directory.write_clean_marker(broker_epoch)
        original(self, directory, broker_epoch, run_all)

    return close


def _leaves_the_marker(original: Any) -> Any:
    def take(self: LogDir) -> None:
        content = self._disk.exists(files.join(self.path, files.CLEAN_SHUTDOWN))
        original(self)
        if content:
            self.write_clean_marker(self.broker_epoch)

    return take


def _lets_files_go_at_once(original: Any) -> Any:
    def apply(log: Log, now_ms: int, **options: Any) -> Retained:
        result: Retained = original(log, now_ms, **options)
        log.log_start_is_durable(log.log_start_offset, now_ms)
        return result

    return apply


def _forgets_sealed_segments(original: Any) -> Any:
    def take(self: Unsynced, *args: Any, **options: Any) -> FlushTicket:
        self.segments = []
        ticket: FlushTicket = original(self, *args, **options)
        return ticket

    return take


def _writes_it_only(original: Any) -> Any:
    def write(disk: Disk, directory: str, offset: int, producers: ProducerState) -> None:
        write_snapshot(disk, files.snapshot_path(directory, offset), producers).close()

    return write


def _keeps_log_starts_to_itself(original: Any) -> Any:
    def write(self: LogDir, name: str, offsets: Any) -> None:
        if name != files.LOG_START_OFFSET_CHECKPOINT:
            original(self, name, offsets)

    return write


def _believes_old_checkpoints(original: Any) -> Any:
    return lambda self: original(replace(self, name_reused=False))


def _without_file_sync(original: Callable[..., None]) -> Callable[..., None]:
    def write(disk: Disk, path: str, content: bytes) -> None:
        disk.remove(path + ".tmp")
        file = disk.open(path + ".tmp", create=True)
        file.write_at([content], 0)
        file.close()
        disk.rename(path + ".tmp", path)
        disk.sync_dir(path.rpartition("/")[0] or ".")

    return write


def _releases_what_is_doomed_by_now(original: Any) -> Any:
    return lambda taken, now_ms: retention.release(taken.log, taken.log_start_offset, now_ms)


def _completes_everything(original: Any) -> Any:
    def settle(disk: Disk, directory: str, found: Sequence[SegmentFile]) -> bool:
        changed: bool = original(disk, directory, [file for file in found if file.suffix != files.CLEANED])
        return changed

    return settle


MUTANTS: tuple[Mutant, ...] = (
    Mutant("M24", "the lowest of several new segments is renamed first", (
        attribute(SegmentSwap, "_prepare", _lowest_first),)),
    Mutant("M25", "a sync that failed is tried again", (attribute(FlushTicket, "run", _tries_again),)),
    Mutant("M26", "a rename without a sync of its directory", (
        function(write_file_atomically, _without_directory_sync),)),
    Mutant("M27", "a follower does not check CRCs", (attribute(log_append, "crc_matches", _always(True)),)),
    Mutant("M28", "partitions that the metadata does not know are deleted", (
        attribute(LogManager, "set_aside", _deletes_what_it_does_not_know),)),
    Mutant("S1", "the recovery point moves before the sync is done", (
        attribute(Log, "begin_flush", _vouches_before_the_sync),)),
    Mutant("S2", "an index is believed without a look at the log", (
        attribute(Segment, "is_batch_at", _always(True)),)),
    Mutant("S3", "indexes of sealed segments are not synced", (
        attribute(Segment, "all_files", lambda original: lambda self: [self.file]),)),
    Mutant("S4", "the marker of a clean stop is written before everything is durable", (
        attribute(LogManager, "_close_cleanly", _marks_first),)),
    Mutant("S5", "a truncation leaves no note", (function(truncation.write_intent, _nothing),)),
    Mutant("S6", "files leave before their log start is durable", (function(retention.apply, _lets_files_go_at_once),)),
    Mutant("S7", "sealed segments are not synced", (attribute(Unsynced, "take", _forgets_sealed_segments),)),
    Mutant("S8", "recovery does not check CRCs", (attribute(Batch, "crc_matches", _always(True)),)),
    Mutant("S9", "recovery lets batches go before what it knows of their producers is durable", (
        function(recovery._write_durable_snapshot, _writes_it_only),)),
    Mutant("S10", "log starts are not checkpointed", (attribute(LogDir, "write_checkpoint", _keeps_log_starts_to_itself),)),
    Mutant("S11", "the marker of a clean stop is believed twice", (attribute(LogDir, "take_clean_marker", _leaves_the_marker),)),
    Mutant("S12", "a deleted partition's new name is not synced", (attribute(Removal, "run", _nothing),)),
    Mutant("S13", "checkpoints of a deleted topic are believed of its successor", (
        attribute(Creation, "run", _believes_old_checkpoints),)),
    Mutant("S14", "a gap between segments is not looked for", (attribute(Recovery, "_discontinuity", _nothing),)),
    Mutant("S15", "a small file is renamed before it is synced", (function(write_file_atomically, _without_file_sync),)),
    Mutant("S16", "a swap does not wait for its names", (attribute(SegmentSwap, "_sync_names", _nothing),)),
    Mutant("S17", "a swap does not wait for its files", (attribute(segment_swap, "sync_all", _nothing),)),
    Mutant("S18", "a start completes swaps that are not finished", (function(leftovers._settle_swaps, _completes_everything),)),
    Mutant("S19", "producers are not made durable before their batches go", (function(retention.keep_producers, _nothing),)),
    Mutant("S20", "a flush says that it is done before it is", (attribute(FlushTicket, "run", _says_done),)),
    Mutant("S21", "files leave with a checkpoint that was taken before they were let go", (
        function(manager_checkpoint._next_release, _releases_what_is_doomed_by_now),)),
)  # fmt: skip


def mutant(name: str) -> Mutant:
    return next(known for known in MUTANTS if known.name == name)
