"""Where a follower's log parts from its leader's, and cutting it there. The only reason to cut a log (H1, I25).

A leader that finds a follower's last epoch ending earlier in its own log than the follower thinks answers with the largest epoch that it
knows up to that one, and where it ends (KIP-279, KIP-595). The follower cuts what it has beyond, and asks again: if it does not know the
leader's epoch at all, the next question is about an older one, until the two agree.

Never by the high watermark: a follower's is behind, and cutting there has lost committed records (KIP-101).
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.errors import RequestError
from tidelog.storage.log import Log
from tidelog.wire.error_codes import ErrorCode


class EpochEnd(NamedTuple):
    epoch: int
    end_offset: int


def divergence(log: Log, *, last_fetched_epoch: int, fetch_offset: int) -> EpochEnd | None:
    """The leader's side: None if a reader that ends at `fetch_offset` with a record of `last_fetched_epoch` has nothing but what is here."""
    if last_fetched_epoch < 0:
        return None  # it has nothing yet
    epoch, end_offset = log.end_offset_for_epoch(last_fetched_epoch)
    if epoch < 0:
        raise RequestError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"{log.name} has no leader epoch up to {last_fetched_epoch}"
        )
    if epoch < last_fetched_epoch or end_offset < fetch_offset:
        return EpochEnd(epoch, end_offset)
    return None


def truncation_offset(log: Log, leader: EpochEnd) -> int:
    """The follower's side: its log and the leader's may agree below this offset, and do not at or above it."""
    epoch, end_offset = log.end_offset_for_epoch(leader.epoch)
    if epoch < 0:
        return min(leader.end_offset, log.log_end_offset)  # no epoch is known here: nor is there a record
    if epoch == leader.epoch:
        return min(end_offset, leader.end_offset)
    return min(end_offset, log.log_end_offset)


def truncate(log: Log, leader: EpochEnd) -> int:
    """Cut what the leader does not have; returns where the log ends now."""
    log.truncate_to(truncation_offset(log, leader))
    return log.log_end_offset
