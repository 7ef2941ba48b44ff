"""The invariants of storage (RELIABILITY §8), each as one function that looks at logs opened after a crash.

A check gets what was found (`FoundLog`, or all of it as `Found`) and the version of the partition's content that it is measured against;
it returns nothing, or raises `Violation` with the invariant's number. `check_all` runs all that one look can show; those that need another start
are in `storage_restarts`. Nothing here knows which history led to the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tidelog.errors import CorruptDataError
from tidelog.records.batch import crc_matches, iter_headers, read_header
from tidelog.storage import files
from tidelog.storage.batch_scan import scan_headers
from tidelog.storage.log import Log
from tidelog.storage.log_manager import LogManager
from tidelog.storage.producer_state import ProducerState
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.storage_ledger import Incarnation, Ledger, Stored, Version, stored

_READ_BYTES: Final = 300
NO_TOPIC_ID: Final = bytes(16)


class Violation(AssertionError):
    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class Found(NamedTuple):
    """Storage as the start after a crash found it. `killed`: only the process died, so nothing may be missing."""

    manager: LogManager
    disk: SimDisk
    ledger: Ledger
    operations: int
    killed: bool


class FoundLog(NamedTuple):
    """One log, with every batch that a consumer would read."""

    log: Log
    incarnation: Incarnation
    batches: list[Stored]
    operations: int
    killed: bool

    def floor(self, version: Version) -> int:
        """Everything below must be there."""
        cached = self.incarnation.keeps_cache(self.operations, killed=self.killed)
        return version.floor(self.operations, with_cache=cached)


def read_log(log: Log) -> list[Stored]:
    """As a consumer does: from the log start to the end, each time from where the last answer ended."""
    offset = log.log_start_offset
    batches: list[Stored] = []
    while offset < log.log_end_offset:
        try:
            read = log.read(offset, _READ_BYTES, end_offset=log.log_end_offset)
        except CorruptDataError as error:
            raise Violation("I3", f"{log.name} cannot be read at offset {offset}: {error}") from error
        if read.range is None:
            break
        data = read.range.read()
        read.range.release()
        if len(data) != read.range.count:
            raise Violation(
                "I3",
                f"{log.name} promised {read.range.count} bytes at offset {offset}, {len(data)} are there",
            )
        answer = [(at, header) for at, header in iter_headers(data) if header.last_offset >= offset]
        if not answer:
            raise Violation("I3", f"{log.name} answers offset {offset} with no whole batch")
        for position, header in answer:
            if not crc_matches(data, position, header):
                raise Violation(
                    "I2", f"{log.name} serves a batch at offset {header.base_offset} that fails its CRC"
                )
        batches.extend(stored(data, position, header) for position, header in answer)
        offset = answer[-1][1].next_offset
    return batches


def producers_of(state: ProducerState) -> dict[int, tuple[int, int, tuple[tuple[int, ...], ...]]]:
    return {
        entry.producer_id: (
            entry.producer_epoch,
            entry.next_sequence,
            tuple(tuple(batch) for batch in entry.batches),
        )
        for entry in state
    }


# ---- one log against one version of what it may hold


def i1_offsets_rise_and_mean_one_batch(found: FoundLog, version: Version) -> None:
    known = {batch.stored.base_offset: batch.stored for batch in version.batches}
    end = -1
    for batch in found.batches:
        if batch.base_offset <= end:
            raise Violation("I1", f"{found.log.name} serves offset {batch.base_offset} after {end}")
        end = batch.last_offset
        if known.get(batch.base_offset) != batch:
            raise Violation(
                "I1", f"{found.log.name} serves another batch at offset {batch.base_offset} than was sent"
            )


def i3_a_prefix_with_everything_synced(found: FoundLog, version: Version) -> None:
    log = found.log
    if found.log.recovery.damages:
        raise Violation("I3", f"a crash is taken for a damaged disk: {'; '.join(log.recovery.lines())}")
    if found.batches != version.visible(log.log_start_offset, log.log_end_offset):
        raise Violation(
            "I3",
            f"{log!r} holds {_offsets(found.batches)}, no prefix of {_offsets([b.stored for b in version.batches])}",
        )
    if any(
        batch.begun > found.operations
        for batch in version.batches
        if batch.stored.last_offset < log.log_end_offset
    ):
        raise Violation("I3", f"{log!r} holds a batch that nobody had sent yet")
    floor = found.floor(version)
    if log.log_end_offset < floor:
        raise Violation(
            "I3",
            f"{log!r} ends before {floor}: something is gone that was {'written' if found.killed else 'synced'}",
        )


def i4_derived_state_agrees_with_the_batches(found: FoundLog, version: Version) -> None:
    log = found.log
    for batch in found.batches:
        epoch = log.epochs.epoch_for_offset(max(batch.base_offset, log.log_start_offset))
        if epoch != batch.leader_epoch:
            raise Violation(
                "I4",
                f"{log.name} thinks offset {batch.base_offset} is of epoch {epoch}, not {batch.leader_epoch}",
            )
        time = read_header(bytes(16) + batch.payload).max_timestamp
        expected = version.first_at(time, log.log_start_offset, log.log_end_offset)
        answer = log.offset_for_timestamp(time)
        if (answer and answer[:2]) != expected:
            raise Violation("I4", f"{log.name} finds time {time} at {answer}, it is at {expected}")
    ends = [*(segment.base_offset for segment in log.segments[1:]), log.log_end_offset]
    for segment, end in zip(log.segments, ends, strict=True):
        times = [
            batch.header.max_timestamp
            for batch in version.batches
            if max(segment.base_offset, log.log_start_offset) <= batch.stored.last_offset < end
        ]
        if segment.max_timestamp < max(times, default=-1):
            raise Violation(
                "I4", f"{segment} forgot its largest timestamp: retention would take it too early"
            )


def i5_order_and_a_log_start_that_stays(found: FoundLog, version: Version) -> None:
    log = found.log
    if not log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset:
        raise Violation(
            "I5", f"{log!r}: stable {log.last_stable_offset}, high watermark {log.high_watermark}"
        )
    bases = [segment.base_offset for segment in log.segments]
    if bases != sorted(set(bases)) or log.active is not log.segments[-1]:
        raise Violation("I5", f"{log!r} has segments at {bases}")
    if bases[0] > log.log_start_offset or log.recovery_point > log.log_end_offset:
        raise Violation(
            "I5", f"{log!r} begins with segment {bases[0]}, its recovery point is {log.recovery_point}"
        )
    durable = version.durable_start(found.operations)
    if log.log_start_offset < durable:
        raise Violation("I5", f"{log!r}: records below {durable} were deleted for good and are back")


def i8_nothing_is_deleted_that_policy_keeps(found: FoundLog, version: Version) -> None:
    allowed = version.allowed_start(found.operations)
    if found.log.log_start_offset > allowed:
        raise Violation("I8", f"{found.log!r} begins above {allowed}: records are gone that nobody let go")


def i39_producers_are_known(found: FoundLog, version: Version) -> None:
    log = found.log
    floor = found.floor(version)
    if log.log_start_offset > floor:
        return  # what was deleted before it was ever synced is promised to nobody, and its producers neither
    expected = producers_of(version.producers(log.log_end_offset))
    known = producers_of(log.producers)
    if known != expected:
        raise Violation("I39", f"{log!r} remembers producers {known}, the batches say {expected}")


PER_LOG: Final[tuple[Callable[[FoundLog, Version], None], ...]] = (
    i3_a_prefix_with_everything_synced,
    i1_offsets_rise_and_mean_one_batch,
    i4_derived_state_agrees_with_the_batches,
    i5_order_and_a_log_start_that_stays,
    i8_nothing_is_deleted_that_policy_keeps,
    i39_producers_are_known,
)


# ---- all of storage


def i6_no_partition_appears_or_vanishes(found: Found) -> None:
    manager, operations = found.manager, found.operations
    if manager.failed_logs:
        raise Violation("I6", f"a crash made logs unreadable: {manager.failed_logs}")
    if manager.offline_dirs:
        raise Violation("I6", f"a crash made directories unusable: {manager.offline_dirs}")
    for key, lives in found.ledger.partitions.items():
        log = manager.logs.get(key)
        if log is None:
            if any(life.must_be_there(operations, killed=found.killed) for life in lives):
                raise Violation("I6", f"{key} is gone, and nobody deleted it")
        elif incarnation_of(log, found) is None:
            raise Violation("I6", f"{log!r} of topic id {log.topic_id.hex()} is back from the dead")
    for key in manager.logs.keys() - found.ledger.partitions.keys():
        raise Violation("I6", f"{key} was never made")


def incarnation_of(log: Log, found: Found) -> Incarnation | None:
    """Which of a partition's lives this is. One that was not complete yet may be found without its id."""
    for life in reversed(found.ledger.partitions[log.topic, log.partition]):
        if life.may_be_there(found.operations):
            complete = life.is_complete(found.operations, killed=found.killed)
            if log.topic_id == life.topic_id or (log.topic_id == NO_TOPIC_ID and not complete):
                return life
    return None


def i9_every_byte_belongs_to_its_topic(found: Found) -> None:
    """Also in files that no reader sees any more, as far as they hold batches."""
    for log in found.manager.logs.values():
        life = incarnation_of(log, found)
        addressed = found.ledger.sent_to[life.topic_id] if life is not None else set()
        for name in found.disk.list_dir(log.directory):
            parsed = files.parse_segment_name(name)
            if parsed is None or parsed.kind != files.LOG:
                continue
            path = files.join(log.directory, name)
            for payload in payloads(found.disk, path):
                if payload not in addressed:
                    raise Violation("I9", f"{path} holds bytes that were not sent to topic {log.topic}")


def payloads(disk: SimDisk, path: str) -> list[bytes]:
    """What every whole batch of a segment file says, up to the first that is none."""
    file = disk.open(path)
    payloads = []
    try:
        for position, header in scan_headers(file, 0, file.size()):
            payloads.append(file.read_at(header.size - 16, position + 16))
    except CorruptDataError:
        pass  # what is torn is for recovery to cut, and for I3 to judge
    finally:
        file.close()
    return payloads


def i7_a_failed_sync_is_never_tried_again(disk: SimDisk) -> None:
    """On the disk of the process that met the failure: after a file's sync has failed, nobody asks for it again."""
    failed: set[str] = set()
    for attempt in disk.attempts:
        if attempt.operation in ("sync", "sync directory"):
            if attempt.path in failed:
                raise Violation("I7", f"{attempt.path} was synced again after its sync had failed")
            if attempt.failed:
                failed.add(attempt.path)


def check_all(found: Found) -> None:
    """Every invariant that one look at the opened logs can show."""
    i6_no_partition_appears_or_vanishes(found)
    for log in found.manager.logs.values():
        life = incarnation_of(log, found)
        assert life is not None
        check_log(FoundLog(log, life, read_log(log), found.operations, found.killed))
    i9_every_byte_belongs_to_its_topic(found)


def check_log(found: FoundLog) -> None:
    """Against each version that a crash may have left: one of them must fit in every respect."""
    violations: list[Violation] = []
    for version in found.incarnation.candidates(found.operations):
        try:
            for check in PER_LOG:
                check(found, version)
            return
        except Violation as violation:
            violations.append(violation)
            if version.replaces is not None:
                violations[0] = Violation(
                    "I32", f"neither the old segments nor the new ones: {violations[0]}"
                )
    raise violations[0]


def _offsets(batches: list[Stored]) -> str:
    return "[" + ", ".join(f"{batch.base_offset}@{batch.leader_epoch}" for batch in batches) + "]"
