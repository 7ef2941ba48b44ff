"""How far a partition is committed: the offset that every replica which could be elected has reached (I21).

Pure arithmetic over what the leader knows. The high watermark is exclusive: the first offset that is *not* committed. It moves only while
the ISR has at least min(`min.insync.replicas`, replication factor) members (KIP-966): what fewer hold, fewer lossy restarts could take.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.replication.isr import Isr
from tidelog.replication.replica_state import UNKNOWN_OFFSET, RemoteReplica
from tidelog.storage.log import Log


def counted_end(log: Log, *, durable: bool) -> int:
    """Up to where a replica counts: what it has fdatasync'ed in `durability=fsync`, else what it has written (D10)."""
    return log.recovery_point if durable else log.log_end_offset


def committed_end(own_end: int, isr: Isr, remotes: Iterable[RemoteReplica]) -> int:
    """The smallest end of the maximal ISR, or UNKNOWN_OFFSET while it may not move.

    A follower that is about to join is waited for as if it were in: a busy partition would outrun it for ever otherwise.
    """
    if isr.below_min:
        return UNKNOWN_OFFSET
    maximal = isr.maximal
    end = own_end
    for replica in remotes:
        if replica.log_end_offset < end and (replica.broker_id in maximal or replica.is_joining):
            end = replica.log_end_offset  # UNKNOWN_OFFSET of one that has not fetched in this epoch
    return end
