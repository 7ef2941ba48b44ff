"""One committed offset: as a request brings it, as the log keeps it, as memory holds it, as an answer tells it.

Owns the ways between these forms. Knows no groups: `offsets` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.coordinator.group.records import OffsetCommitKey, OffsetCommitValue
from tidelog.coordinator.outcome import CoordinatorRecord
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.offset_commit import OffsetCommitRequestPartition
from tidelog.wire.messages.offset_fetch import OffsetFetchResponsePartitions
from tidelog.wire.types import ZERO_UUID

NO_EXPIRY: Final = -1
_NO_OFFSET: Final = -1
_RETENTION_OF_THE_CLUSTER: Final = -1
_INT64_MAX: Final = (1 << 63) - 1
_STORED_STRING_BYTES_MAX: Final = 32767  # older formats of the record have no room for more


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Where a group stands in a partition. Slots, because there are as many of these as groups have partitions."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int  # NO_EXPIRY: none was asked for, the retention of the cluster counts
    topic_id: bytes  # zeros: unknown, as in old records


def committed_offset(value: OffsetCommitValue, topic_id: bytes) -> CommittedOffset:
    """`topic_id` is the value's, perhaps in an object that others share."""
    return CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        topic_id,
    )


def stored_value(
    topic_id: bytes, partition: OffsetCommitRequestPartition, now_wall_ms: int, expire_timestamp: int
) -> OffsetCommitValue:
    """What the log keeps of a commit. The one format with an expire timestamp has neither leader epochs nor topic ids, so that memory
    must not have them either (I36); clients old enough to ask for it send none.
    """
    metadata = partition.committed_metadata or ""
    if expire_timestamp != NO_EXPIRY:
        return OffsetCommitValue(partition.committed_offset, -1, metadata, now_wall_ms, expire_timestamp)
    return OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=metadata,
        commit_timestamp=now_wall_ms,
        topic_id=topic_id,
    )


def tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(OffsetCommitKey(group_id, topic, partition), None)


def no_offset(partition: int, code: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponsePartitions:
    """Nothing is committed there, which is no error; or it cannot be told."""
    return OffsetFetchResponsePartitions(partition, _NO_OFFSET, -1, "", code)


def told(partition: int, committed: CommittedOffset | None) -> OffsetFetchResponsePartitions:
    if committed is None:
        return no_offset(partition)
    return OffsetFetchResponsePartitions(
        partition, committed.offset, committed.leader_epoch, committed.metadata, ErrorCode.NONE
    )


def of_topic(committed: CommittedOffset | None, topic_id: bytes) -> CommittedOffset | None:
    """The offset, unless it was committed to another topic of the same name. Zeros on either side: nobody knows, so it counts."""
    if committed is None or ZERO_UUID in (topic_id, committed.topic_id) or topic_id == committed.topic_id:
        return committed
    return None


def expire_timestamp(now_wall_ms: int, retention_time_ms: int) -> int:
    """When a commit expires whose client said how long it is to be kept, as only old ones do."""
    if retention_time_ms == _RETENTION_OF_THE_CLUSTER:
        return NO_EXPIRY
    return min(now_wall_ms + retention_time_ms, _INT64_MAX)


def is_too_long(metadata: str | None, characters_max: int) -> bool:
    """Counted as Kafka does, which is in UTF-16 whatever the setting is called; and never more than a record has room for."""
    if not metadata:
        return False
    if len(metadata) > characters_max:
        return True
    if metadata.isascii():
        return len(metadata) > _STORED_STRING_BYTES_MAX
    return (
        len(metadata.encode("utf-16-le")) // 2 > characters_max
        or len(metadata.encode()) > _STORED_STRING_BYTES_MAX
    )
