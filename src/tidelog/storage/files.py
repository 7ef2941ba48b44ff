"""Every file and directory name in a log directory is built and parsed here, and nowhere else.

Names are Kafka's. A path is only ever derived from a topic name that `validate_topic_name` has accepted (I57): a name like
`../etc` never reaches the disk. This module never touches the disk itself.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode

# Files of a segment, each named after the segment's base offset.
LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"

# Added behind a name while a file is on its way out, being written by the cleaner, or about to replace others.
DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"

# Files of a partition directory.
LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
TRUNCATION_INTENT: Final = "truncation-intent"
METADATA_SNAPSHOT: Final = ".checkpoint"  # of the controller's log only
PART: Final = ".part"  # of a metadata snapshot that is being fetched
QUORUM_STATE: Final = "quorum-state"  # of the controller's log only

# Files of a log directory.
META_PROPERTIES: Final = "meta.properties"
LOCK: Final = ".lock"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT: Final = "cleaner-offset-checkpoint"
CLEANER_HORIZON_CHECKPOINT: Final = "cleaner-horizon-checkpoint"
SCRUB_CHECKPOINT: Final = "scrub-checkpoint"
SYNC_FAILED: Final = "sync-failed"
BROKER_RUN: Final = "broker-run"

DELETE_DIR: Final = "-delete"
FUTURE_DIR: Final = "-future"
STRAY_DIR: Final = "-stray"

_NAME_LIMIT: Final = 255
_OFFSET_LIMIT: Final = 1 << 63
_LEGAL_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PARTITION_DIR: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")
_MARKED_DIR: Final = re.compile(
    r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})\.([0-9a-f]{32})(-delete|-future|-stray)"
)
_SEGMENT_FILE: Final = re.compile(
    r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.deleted|\.cleaned|\.swap)?"
)


_METADATA_SNAPSHOT_FILE: Final = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


class SegmentFile(NamedTuple):
    """What the name of a segment's file says: `kind` is one of LOG, INDEX, …; `suffix` is "" or one of DELETED, CLEANED, SWAP."""

    base_offset: int
    kind: str
    suffix: str


class PartitionDir(NamedTuple):
    """What the name of a partition's directory says: `suffix` is "" or one of DELETE_DIR, FUTURE_DIR, STRAY_DIR."""

    topic: str
    partition: int
    suffix: str


def topic_name_problem(name: str) -> str | None:
    """Why this cannot be a topic's name, in words for the user; None if it can."""
    if not name:
        return "the empty string is not a topic name"
    if name in (".", ".."):
        return f"a topic cannot be named {name!r}"
    if len(name) > 249:
        return f"the topic name is {len(name)} characters long, 249 are allowed"
    if _LEGAL_TOPIC.fullmatch(name) is None:
        return f"topic name {name!r} holds a character other than ASCII letters, digits, '.', '_' and '-'"
    return None


def is_topic_name(name: str) -> bool:
    return _LEGAL_TOPIC.fullmatch(name) is not None and name not in (".", "..")


def validate_topic_name(name: str) -> str:
    """The name itself, or RequestError(INVALID_TOPIC_EXCEPTION)."""
    if not is_topic_name(name):
        raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, topic_name_problem(name) or "")
    return name


def join(directory: str, name: str) -> str:
    return f"{directory}/{name}"


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "."


def base_name(path: str) -> str:
    return path.rpartition("/")[2]


# -- segments ---------------------------------------------------------------------------------------------------------


def segment_name(base_offset: int, kind: str) -> str:
    """`segment_name(42, LOG)` is `00000000000000000042.log`."""
    if not 0 <= base_offset < _OFFSET_LIMIT:
        raise ValueError(f"a segment cannot start at offset {base_offset}")
    return f"{base_offset:020d}{kind}"


def segment_path(directory: str, base_offset: int, kind: str) -> str:
    return f"{directory}/{segment_name(base_offset, kind)}"


def snapshot_path(directory: str, offset: int) -> str:
    """The producer state as it was just before `offset`."""
    return segment_path(directory, offset, SNAPSHOT)


@lru_cache(maxsize=4096)
def parse_segment_name(name: str) -> SegmentFile | None:
    """None for a name that is not a segment's file. Remembered: a start asks three times for each name, and logs have many names in common."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None or int(match[1]) >= _OFFSET_LIMIT:
        return None
    return SegmentFile(int(match[1]), match[2], match[3] or "")


def metadata_snapshot_name(end_offset: int, epoch: int) -> str:
    """`00000000000000000042-0000000003.checkpoint` covers what is below offset 42, the last of it written in epoch 3."""
    if not 0 <= end_offset < _OFFSET_LIMIT or not 0 <= epoch < 1 << 31:
        raise ValueError(f"no metadata snapshot can end at offset {end_offset} in epoch {epoch}")
    return f"{end_offset:020d}-{epoch:010d}{METADATA_SNAPSHOT}"


def parse_metadata_snapshot(name: str) -> tuple[int, int] | None:
    """(end offset, epoch); None for any other name."""
    match = _METADATA_SNAPSHOT_FILE.fullmatch(name)
    return (int(match[1]), int(match[2])) if match is not None else None


# -- partition directories --------------------------------------------------------------------------------------------


def partition_dir_name(topic: str, partition: int) -> str:
    if not 0 <= partition < 1 << 31:
        raise ValueError(f"{partition} is not a partition number")
    return f"{validate_topic_name(topic)}-{partition}"


def partition_dir(log_dir: str, topic: str, partition: int) -> str:
    return f"{log_dir}/{partition_dir_name(topic, partition)}"


def marked_dir_name(topic: str, partition: int, unique: bytes, suffix: str = DELETE_DIR) -> str:
    """The name a partition's directory gets while it waits for deletion; `unique` is 16 random bytes.

    As in Kafka, the topic is cut where the whole would exceed what file systems allow for one name.
    """
    if len(unique) != 16:
        raise ValueError(f"16 unique bytes are needed, not {len(unique)}")
    tail = f"-{partition}.{unique.hex()}{suffix}"
    return partition_dir_name(topic, partition)[: len(topic)][: _NAME_LIMIT - len(tail)] + tail


def parse_partition_dir(name: str) -> PartitionDir | None:
    """None for a directory that is not a partition's. The topic of a marked directory may be cut (see `marked_dir_name`)."""
    match = _MARKED_DIR.fullmatch(name)
    suffix = match[4] if match else ""
    if match is None:
        match = _PARTITION_DIR.fullmatch(name)
    if match is None or int(match[2]) >= 1 << 31 or match[1] in (".", ".."):
        return None
    return PartitionDir(match[1], int(match[2]), suffix)
