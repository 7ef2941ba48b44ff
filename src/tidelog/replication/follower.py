"""The role of a partition's follower: where its next fetch stands, and what an answer of its leader does to its log.

A follower lives for one leader epoch and believes only answers of that epoch's leader to questions that it asked in it (I25): whoever brings
an answer checks that first. Everything that enters the log is checked there (I2). It never decides what is committed: it takes the
leader's word, as far as its own log goes.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.replication.truncation import EpochEnd, truncate
from tidelog.storage.log import Log
from tidelog.wire.messages.fetch import PartitionData


class Position(NamedTuple):
    """What the next fetch says of this replica's log."""

    offset: int
    last_fetched_epoch: int
    log_start_offset: int


class Follower:
    __slots__ = ("_log", "epoch", "leader_id")

    def __init__(self, log: Log, leader_id: int, epoch: int) -> None:
        self._log = log
        self.leader_id = leader_id
        self.epoch = epoch

    def position(self) -> Position:
        log = self._log
        latest = log.latest_epoch
        return Position(log.log_end_offset, -1 if latest is None else latest, log.log_start_offset)

    def apply(self, data: PartitionData, *, now_ms: int) -> bool:
        """An answer without an error. True if the high watermark has moved.

        CorruptDataError when its records do not check out, RequestError when the disk is full: nothing has changed then but for whole
        batches. DiskError when the directory must go offline.
        """
        diverging = data.diverging_epoch
        if diverging.epoch >= 0:
            truncate(self._log, EpochEnd(diverging.epoch, diverging.end_offset))
            return False  # and nothing else is believed: what the leader has committed may not be what stands here
        log = self._log
        if data.records:
            log.append_as_follower(_bytes(data.records), now_ms=now_ms, leader_epoch=self.epoch)
        before = log.high_watermark
        log.set_high_watermark(data.high_watermark)
        if data.log_start_offset > log.log_start_offset:
            log.advance_log_start_offset(min(data.log_start_offset, log.high_watermark))
        return log.high_watermark > before

    def start_over(self, leader_log_start: int, *, now_ms: int) -> bool:
        """The leader does not have what comes next. If it has deleted it, or nothing is here, begin where the leader's log begins.

        False: it has not, and the next fetch will be answered otherwise.
        """
        log = self._log
        is_empty = log.log_start_offset == log.log_end_offset
        if leader_log_start < 0 or not (leader_log_start > log.log_end_offset or is_empty):
            return False
        if leader_log_start == log.log_end_offset:
            return False
        log.truncate_fully_and_start_at(leader_log_start, now_ms=now_ms)
        return True


def _bytes(records: object) -> bytes | memoryview:
    assert isinstance(records, (bytes, bytearray, memoryview)), type(records)
    return memoryview(records)
