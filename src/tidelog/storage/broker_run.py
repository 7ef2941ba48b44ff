"""What a broker writes down about its own run, beside its logs: the grounds on which its next run says that nothing was lost (D10, I23).

One small file, `broker-run`, in each log directory, written whole and durably before anything rests on it:

    bootId           the kernel's id of the machine's present life: while it is the same, a killed process has lost nothing that it had written
    countsInMemory   some replica here may have been counted for records that were not synced (`durability=replicated`)
    brokerEpoch      of the last registration that this directory knows of
    incarnationIds   of the runs that may have registered since, this one last
    loss             what was lost, until the controller has been told

Owns the format and the judgement of one directory. A damaged file is never half believed: it counts as a loss. Kafka ignores files that it does not know.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from tidelog.errors import CorruptDataError
from tidelog.storage.checkpoints import decode_uuid, encode_uuid
from tidelog.storage.disk import Disk, read_file, write_file_atomically
from tidelog.storage.recovery_report import RecoveryReport

UNKNOWN_EPOCH: Final = -1
INCARNATIONS_MAX: Final = 16
"""Starts without a registration that are remembered. Whoever fails more often than that in a row may have to say that it lost something."""
_VERSION: Final = 0


class BrokerRun(NamedTuple):
    boot_id: str | None = None
    """None: the machine has none that could be known, and every start may be its first."""
    in_memory: bool = False
    epoch: int = UNKNOWN_EPOCH
    incarnations: tuple[bytes, ...] = ()
    loss: str | None = None


def encode(run: BrokerRun) -> bytes:
    content = {
        "version": _VERSION,
        "bootId": run.boot_id,
        "countsInMemory": run.in_memory,
        "brokerEpoch": run.epoch,
        "incarnationIds": [encode_uuid(incarnation) for incarnation in run.incarnations],
        "loss": run.loss,
    }
    return json.dumps(content, separators=(",", ":")).encode()


def decode(data: bytes, path: str) -> BrokerRun:
    try:
        content = json.loads(data)
        run = BrokerRun(
            _typed(content["bootId"], str, type(None)),
            _typed(content["countsInMemory"], bool),
            _typed(content["brokerEpoch"], int),
            tuple(decode_uuid(_typed(each, str)) for each in content["incarnationIds"]),
            _typed(content["loss"], str, type(None)),
        )
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}")
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptDataError(f"{path} holds {data[:120]!r}, which says nothing of a run: {error}") from None
    return run


def _typed(value: Any, *types: type) -> Any:
    if type(value) not in types:
        raise ValueError(f"{value!r} is not expected there")
    return value


def read(disk: Disk, path: str) -> BrokerRun | None:
    """None: no run of ours was here, or one of a release that wrote nothing down."""
    try:
        return decode(read_file(disk, path), path)
    except FileNotFoundError:
        return None


def write(disk: Disk, path: str, run: BrokerRun) -> None:
    write_file_atomically(disk, path, encode(run))


# -- judgement --------------------------------------------------------------------------------------------------------


def same_machine_life(before: BrokerRun | None, boot_id: str | None) -> bool:
    """The page cache is what it was: nobody but the process has died."""
    return before is not None and boot_id is not None and before.boot_id == boot_id


def lost_by_restart(before: BrokerRun | None, *, clean: bool, boot_id: str | None) -> str | None:
    """What the last stop may have taken from a directory that is not new, whatever recovery finds in it."""
    if before is not None and before.loss is not None:
        return before.loss  # nobody has been told yet
    if clean:
        return None
    if before is None:
        return "it did not stop cleanly, and what it was counted for is not written down"
    if before.in_memory and not same_machine_life(before, boot_id):
        return "its machine has restarted, and records were counted before they were synced (durability=replicated)"
    return None


def lost_by_failed_sync(before: BrokerRun | None, partition: str) -> str | None:
    """What a failed sync left in the page cache is not believed (`failed_sync`); what was counted because it stood there is gone with it."""
    if before is not None and not before.in_memory:
        return None  # nothing was counted before its sync had succeeded
    return f"a sync of {partition} failed, and records were counted before they were synced (durability=replicated)"


def lost_in_log(report: RecoveryReport, *, same_life: bool) -> str | None:
    """What recovery did not find although it had been there: synced records, or, while the page cache is what it was, committed ones."""
    if report.damages:
        return str(report.damages[0])
    if same_life and report.missing_committed and not report.cache_forgotten:
        return (
            f"{report.directory} ends {report.missing_committed} records before the high watermark that it had"
            " when it was last checkpointed"
        )
    return None
