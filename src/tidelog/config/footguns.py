"""Settings that are allowed and seldom meant: each becomes a sentence that says what will happen and what to do.

Owns the warnings for topics. Pure: the CLI prints them before it asks, the broker logs them after a change. They never
refuse anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.config.definition import Value

# Retention removes whole closed segments, so a record can outlive retention.ms by up to segment.ms. At a quarter the
# surprise is several times what was asked for.
ROLL_TO_RETENTION_RATIO = 4
FILES_PER_SEGMENT = 3
MANY_FILES = 20_000
FEW_SEGMENTS = 10
SMALL_SEGMENT_BYTES = 16 * 2**20
MIN_INSYNC_REPLICAS = "min.insync.replicas"
UNCLEAN_LEADER_ELECTION = "unclean.leader.election.enable"
_UNCLEAN = (
    "unclean.leader.election.enable is true: when no in-sync replica is left, an older one becomes leader and acknowledged records "
    "are lost. Leave it off, and elect by hand (`tidelog partition elect --unclean`) when you know that nobody in sync comes back."
)
_HOUR_MS = 3_600_000
_MONTH_MS = 30 * 24 * _HOUR_MS
_UNITS = ((86_400_000, "d"), (_HOUR_MS, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def topic_warnings(
    values: Mapping[str, Value],
    *,
    replication_factor: int,
    partitions: int,
    brokers: int = 1,
    open_files: int = MANY_FILES,
) -> list[str]:
    """What a topic with these resolved settings will do that its owner may not expect, in a cluster of so many brokers."""
    return [
        *_retention_below_roll(values),
        *_many_segments(values, partitions, open_files),
        *replica_warnings(values, replication_factor=replication_factor, brokers=brokers),
    ]


def more_partitions_warnings(topic: str, *, before: int, after: int, compacted: bool) -> list[str]:
    """What happens to keys when a topic gets more partitions."""
    if after <= before:
        return []
    moved = (
        f"{topic} grows from {before} to {after} partitions: producers that choose the partition by key will send most "
        "keys to another partition than before, so the order of records with one key is lost across the change."
    )
    if not compacted:
        return [moved]
    stale = (
        f"{topic} is compacted: the last value of a moved key stays in its old partition for ever beside the new one. "
        "Copy the records into a new topic instead."
    )
    return [moved, stale]


def _retention_below_roll(values: Mapping[str, Value]) -> list[str]:
    if "delete" not in _list(values, "cleanup.policy"):
        return []
    warnings = []
    keep_ms, roll_ms = _int(values, "retention.ms"), _int(values, "segment.ms")
    if keep_ms >= 0 and keep_ms * ROLL_TO_RETENTION_RATIO <= roll_ms:
        warnings.append(
            f"retention.ms is {_time(keep_ms)} but a segment is closed only after {_time(roll_ms)} (segment.ms) or "
            f"{_size(segment_bytes(values))} (segment.bytes), and only closed segments are deleted: while records keep "
            f"arriving, old ones can stay for about {_time(keep_ms + roll_ms)}. Lower segment.ms if that is too long."
        )
    keep_bytes = _int(values, "retention.bytes")
    if 0 <= keep_bytes < segment_bytes(values):
        warnings.append(
            f"retention.bytes is {_size(keep_bytes)} but a segment holds up to {_size(segment_bytes(values))} "
            "(segment.bytes), and only closed segments are deleted: a partition can grow to the size of a segment. "
            "Lower segment.bytes."
        )
    return warnings


def _many_segments(values: Mapping[str, Value], partitions: int, open_files: int) -> list[str]:
    warnings = []
    for cause, count in (_segments_by_time(values), _segments_by_size(values)):
        files = count * partitions * FILES_PER_SEGMENT
        if count >= FEW_SEGMENTS and files >= open_files:
            warnings.append(
                f"{cause} about {count} segments per partition, {files} files for {partitions} partitions: the broker "
                f"may run out of file descriptors (limit about {open_files}) and will start slowly. Make segments larger "
                "or keep records for a shorter time."
            )
    if _int(values, "retention.bytes") < 0 and segment_bytes(values) < SMALL_SEGMENT_BYTES:
        files = 2**30 // max(1, segment_bytes(values)) * FILES_PER_SEGMENT
        warnings.append(
            f"segment.bytes is {_size(segment_bytes(values))}: every GiB of records takes {files} files, and nothing "
            "limits the size of a partition. Make segments larger, or set retention.bytes."
        )
    return warnings


def _segments_by_time(values: Mapping[str, Value]) -> tuple[str, int]:
    keep_ms, roll_ms = _int(values, "retention.ms"), max(1, _int(values, "segment.ms"))
    if "delete" not in _list(values, "cleanup.policy") or keep_ms < 0:
        # Kept for ever: what a month makes, if segments roll within the hour. Slower ones are nobody's surprise.
        keep_ms = _MONTH_MS if roll_ms < _HOUR_MS else 0
    return f"segment.ms of {_time(roll_ms)} makes", keep_ms // roll_ms


def _segments_by_size(values: Mapping[str, Value]) -> tuple[str, int]:
    size = max(1, segment_bytes(values))
    return f"segment.bytes of {_size(size)} makes", max(0, _int(values, "retention.bytes")) // size


def replica_warnings(values: Mapping[str, Value], *, replication_factor: int, brokers: int) -> list[str]:
    """How a topic with these settings may lose records, or stop taking them, in a cluster of so many brokers."""
    least = _int(values, MIN_INSYNC_REPLICAS)
    warnings = []
    if least > replication_factor:
        warnings.append(
            f"min.insync.replicas is {least} but of replicas there {'is' if replication_factor == 1 else 'are'} only {replication_factor}: no more than these can be asked "
            f"for, so it counts as {replication_factor}"
            + (
                ", and writes with acks=all stop as soon as one broker is down. Lower it below the number of replicas."
                if replication_factor > 1
                else ", and every record has one copy. Create the topic with more replicas."
            )
        )
    elif replication_factor > 1 and least == replication_factor:
        warnings.append(
            f"min.insync.replicas equals the replication factor ({least}): writes with acks=all stop as soon as one "
            f"broker is down, also for a restart. {least - 1} lets one be away"
            + (
                ", but one copy may then be all there is: more replicas would be better."
                if least == 2
                else "."
            )
        )
    elif replication_factor > 1 and least == 1:
        warnings.append(
            f"min.insync.replicas is 1 with {replication_factor} replicas: acks=all can be answered by the leader alone, "
            "and such a record is lost with that broker. 2 is the usual choice."
        )
    if replication_factor == 1 and brokers > 1:
        warnings.append(
            f"the replication factor is 1 in a cluster of {brokers} brokers: while the broker with the only copy is away nothing "
            f"can be written or read, and its disk takes the records with it. {min(3, brokers)} is the usual choice."
        )
    if values[UNCLEAN_LEADER_ELECTION] is True:
        warnings.append(_UNCLEAN)
    return warnings


def default_warnings(settings: Mapping[str, str], *, brokers: int) -> list[str]:
    """Of settings of one broker or of all: what they mean for topics that have none of their own. Texts, as they were given."""
    warnings = []
    if settings.get(MIN_INSYNC_REPLICAS) == "1" and brokers > 1:
        warnings.append(
            "min.insync.replicas is 1 for every topic without a setting of its own: where there are several replicas, acks=all can be "
            "answered by the leader alone, and such a record is lost with that broker. 2 is the usual choice."
        )
    if settings.get(UNCLEAN_LEADER_ELECTION, "").lower() == "true":
        warnings.append(f"for every topic without a setting of its own, {_UNCLEAN}")
    return warnings


def segment_bytes(values: Mapping[str, Value]) -> int:
    """The segment size that counts: the one for tests wins."""
    internal = values.get("internal.segment.bytes")
    return internal if isinstance(internal, int) else _int(values, "segment.bytes")


def _int(values: Mapping[str, Value], name: str) -> int:
    value = values[name]
    assert isinstance(value, int), f"{name} is a whole number by its table"
    return value


def _list(values: Mapping[str, Value], name: str) -> tuple[str, ...]:
    value = values[name]
    return value if isinstance(value, tuple) else ()


def _time(ms: int) -> str:
    return _in_units(ms, _UNITS)


def _size(size: int) -> str:
    return _in_units(size, _SIZES)


def _in_units(amount: int, units: tuple[tuple[int, str], ...]) -> str:
    for unit, name in units:
        if amount >= unit:
            return f"{round(amount / unit, 1):g} {name}"
    return f"0 {units[-1][1]}"
