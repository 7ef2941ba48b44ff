"""An append that does not fit: the log is put back as it was, the batch is refused, and the directory stays online.

Nothing of the batch has been promised to anyone, and a write that fails for want of space has not touched what was there before. So
unlike a failed sync it need not cost the directory (I7): what was half written is cut off, and the log goes on when there is room.
Anything else that fails, here too, is an error of the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.errors import RequestError
from tidelog.records.batch import BatchHeader
from tidelog.storage.disk import DiskError
from tidelog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from tidelog.storage.log import Log


def claim(log: Log, header: BatchHeader, size: int, now_ms: int) -> None:
    """Ask for room before anything is written. RequestError when there is none."""
    try:
        log.space.claim(size, now_ms)
    except RequestError:
        log.producers.refused(header)
        raise


def refuse(log: Log, header: BatchHeader, error: DiskError, now_ms: int) -> None:
    """The append of a batch failed. On a full disk undo it and raise RequestError; return if the error must be raised as it is."""
    if not error.out_of_space:
        return
    _undo(log, error, now_ms)
    log.producers.refused(header)
    raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name}: {log.space.reason}") from error


def refuse_follower(log: Log, error: DiskError, now_ms: int) -> None:
    """The same for batches of the leader: whole ones that were written stay, and the rest is fetched again."""
    if error.out_of_space:
        _undo(log, error, now_ms)
        log.epochs.truncate_from_end(log.log_end_offset)  # one that was to begin with what was not written
        raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name}: {log.space.reason}") from error


def _undo(log: Log, error: DiskError, now_ms: int) -> None:
    """A leader's epoch stays: it begins at the log's end, whether a record is there or not (KIP-279)."""
    log.active.drop_unfinished(log.log_end_offset)
    log.space.ran_out(error, now_ms)
