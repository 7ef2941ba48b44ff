"""Checks of storage that need another start: derived files deleted, appends going on, a power cut and a clean stop after that.

Dearer than a look at what was found (`storage_checks`), so they are made on a sample of the crash states.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from tidelog.records.batch import read_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.storage import files
from tidelog.storage.checkpoints import TopicPartition
from tidelog.storage.log import Log
from tidelog.storage.log_manager import LogManager
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.storage_checks import Violation, producers_of, read_log

DERIVED: Final = (
    files.INDEX,
    files.TIME_INDEX,
    files.TXN_INDEX,
    files.SNAPSHOT,
    files.LEADER_EPOCH_CHECKPOINT,
)
Answers = dict[TopicPartition, dict[str, object]]
Reopen = Callable[[SimDisk], LogManager]
_NOW_MS: Final = 1_700_000_000_000


def answers(log: Log) -> dict[str, object]:
    """Everything that a log can be asked."""
    batches = read_log(log)
    times = sorted({read_header(bytes(16) + batch.payload).max_timestamp for batch in batches})
    return {
        "batches": batches,
        "ends": (log.log_start_offset, log.log_end_offset),
        # From the end, so that no position is remembered from the read before.
        "places": [
            _batch_at(log, offset) for offset in range(log.log_end_offset - 1, log.log_start_offset - 1, -1)
        ],
        "times": [log.offset_for_timestamp(time) for time in times],
        "latest": log.max_timestamp_offset(),
        "epochs": _epochs(log, [batch.base_offset for batch in batches]),
        "producers": producers_of(log.producers),
    }


def _epochs(log: Log, bases: list[int]) -> list[tuple[int, int]]:
    """Each epoch and its first batch. One without a batch is forgotten by a start, as in Kafka: whoever leads begins it again; and where
    the first ones were cleaned away, an epoch that is found from its batches begins later.
    """
    first_batches: dict[int, int] = {}  # base offset -> the newest epoch that begins there
    for epoch, start in log.epochs.checkpoint_entries():
        number = bisect_left(bases, start)
        if number < len(bases):
            first_batches[bases[number]] = epoch
    return [(epoch, base) for base, epoch in first_batches.items()]


def _batch_at(log: Log, offset: int) -> int | None:
    """The base offset of the first batch in the answer to a read."""
    read = log.read(offset, 1, end_offset=log.log_end_offset)
    if read.range is None:
        return None
    header = read_header(read.range.read())
    read.range.release()
    return header.base_offset


def all_answers(manager: LogManager) -> Answers:
    return {key: answers(log) for key, log in manager.logs.items()}


def same_answers(invariant: str, what: str, before: Answers, manager: LogManager) -> None:
    for key, expected in before.items():
        log = manager.logs.get(key)
        if log is None:
            raise Violation(invariant, f"{what} took {key}")
        found = answers(log)
        for question, answer in expected.items():
            if found[question] != answer:
                raise Violation(
                    invariant, f"{what} changed {log!r}: {question} {found[question]}, was {answer}"
                )


def i4_derived_files_may_go(disk: SimDisk, reopen: Reopen) -> None:
    """Open, ask everything; delete every derived file, open again, ask again."""
    first = reopen(disk)
    before = all_answers(first)
    first.close(clean=False)
    for log in first.logs.values():
        for name in disk.list_dir(log.directory):
            # Producers whose batches retention has taken are known from snapshots alone.
            needed = name.endswith(files.SNAPSHOT) and log.segments[0].base_offset > 0
            if name.endswith(DERIVED) and not needed:
                disk.remove(files.join(log.directory, name))
    second = reopen(disk)
    same_answers("I4", "losing derived files", before, second)
    second.close(clean=False)


def goes_on(disk: SimDisk, reopen: Reopen) -> None:
    """The logs are alive: the next batch gets the next offset, a retry does not, a power cut takes nothing synced, and a clean
    restart agrees with what was there before it (I1, I3, I39).
    """
    manager = reopen(disk)
    for log in manager.logs.values():
        _append_and_flush(log)
    before = all_answers(manager)
    again = reopen(disk.crash("lose_unsynced"))
    same_answers("I3", "a power cut after a flush", before, again)
    again.close(clean=False)
    manager.close(clean=True)
    restarted = reopen(disk.crash("lose_unsynced"))
    if not restarted.stopped_cleanly:
        raise Violation("I3", "a clean stop left no marker")
    same_answers("I3", "a clean restart", before, restarted)


def _append_and_flush(log: Log) -> None:
    entry = log.producers.get(5)
    batch = build_batch(
        [Record(0, _NOW_MS, b"k", b"goes on")],
        producer_id=5,
        producer_epoch=0,
        base_sequence=entry.next_sequence if entry else 0,
    )
    end, epoch = log.log_end_offset, max(9, log.latest_epoch or 0)
    for duplicate in (False, True):
        result = log.append_as_leader(batch, read_header(batch), leader_epoch=epoch, now_ms=_NOW_MS)
        if (result.base_offset, result.duplicate) != (end, duplicate):
            raise Violation("I39" if duplicate else "I1", f"{log!r} appends at {end} as {result}")
    log.flush()
