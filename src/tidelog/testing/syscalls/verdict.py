"""Holds what a broker shows after a crash against what it had promised before it.

Owns the rules, and nothing else: `Shown` comes from `recovery`, the promises from `history`. Each violation is one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidelog.testing.syscalls.history import Change, History, PartitionHistory, TopicHistory
from tidelog.wire.types import ZERO_UUID

RETENTION_BYTES = "retention.bytes"


@dataclass(frozen=True, slots=True)
class ShownBatch:
    base_offset: int
    next_offset: int
    body: bytes


@dataclass(frozen=True, slots=True)
class ShownPartition:
    """`retries`: the place that a batch sent again was given, or the error's name, by producer id and sequence."""

    log_start_offset: int
    high_watermark: int
    batches: tuple[ShownBatch, ...]
    retries: dict[tuple[int, int], int | str]


@dataclass(frozen=True, slots=True)
class ShownTopic:
    topic_id: bytes
    settings: dict[str, str | None]
    partitions: dict[int, ShownPartition | str]
    """A string says why a partition cannot be read."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a client can learn of a broker. `failure`: it did not even start."""

    topics: dict[str, ShownTopic] = field(default_factory=dict)
    new_producer_id: int = -1
    failure: str | None = None


def violations(history: History, place: int, shown: Shown) -> list[str]:
    """Every promise made up to `place` in the recording that is broken."""
    if shown.failure is not None:
        return [f"the broker does not start: {shown.failure}"]
    found = [
        f"producer id {given.value} is given out a second time"
        for given in history.producer_ids
        if given.is_promised(place) and given.value == shown.new_producer_id
    ]
    for name, lives in history.topics.items():
        found += _topic_violations(name, lives, place, shown.topics.get(name))
    for name in shown.topics.keys() - history.topics.keys():
        found.append(f"topic {name} is there, and nobody created it")
    return found


def _topic_violations(
    name: str, lives: list[TopicHistory], place: int, shown: ShownTopic | None
) -> list[str]:
    begun = [life for life in lives if life.created.asked_at <= place]
    settled = [life for life in begun if life.created.is_promised(place)]
    possible = [life for life in begun if life.deleted is None or not life.deleted.is_promised(place)]
    required = [life for life in settled if life.deleted is None or life.deleted.asked_at > place]
    if shown is None:
        return [f"topic {name} is gone" for _ in required]
    if not possible:
        return [f"topic {name} is back"] if begun else [f"topic {name} is there before its creation"]
    if shown.topic_id in [life.topic_id for life in begun] and shown.topic_id != ZERO_UUID:
        same = [life for life in possible if life.topic_id == shown.topic_id]
        if not same:
            return [f"topic {name} is back"]
        possible = same
    elif required and required[-1].topic_id != ZERO_UUID:
        return [f"topic {name} has an id that nobody was told"]
    # Whose creation was never answered has no known id: any life that explains all is good enough.
    return min((_life_violations(life, place, shown) for life in possible), key=len)


def _life_violations(life: TopicHistory, place: int, shown: ShownTopic) -> list[str]:
    found = []
    counts = _allowed(life.partition_counts, place, 0)
    if len(shown.partitions) not in counts:
        found.append(f"topic {life.name} has {len(shown.partitions)} partitions, not {_either(counts)}")
    for setting, changes in life.settings.items():
        allowed = _allowed(changes, place, None)
        if shown.settings.get(setting) not in allowed:
            found.append(f"{setting} of {life.name} is {shown.settings.get(setting)}, not {_either(allowed)}")
    for index, partition in shown.partitions.items():
        where = f"{life.name}-{index}"
        if isinstance(partition, str):
            found.append(f"{where} cannot be read: {partition}")
        else:
            past = life.partitions.get(index) or PartitionHistory()
            kept_bytes = _retention_bytes(life)
            found += [
                f"{where}: {problem}" for problem in _partition_violations(past, place, partition, kept_bytes)
            ]
    return found


def _allowed(
    changes: list[Change[object]] | list[Change[int]] | list[Change[str | None]], place: int, before: object
) -> list[object]:
    """The last promised value, or one that was asked for since."""
    allowed = [before]
    for change in changes:
        if change.is_promised(place):
            allowed = [change.value]
        elif change.asked_at <= place:
            allowed.append(change.value)
    return allowed


def _either(values: list[object]) -> str:
    return " or ".join(map(str, values))


def _retention_bytes(life: TopicHistory) -> int | None:
    """The least that retention may leave behind, if it deletes by size at all."""
    values = [
        int(change.value) for change in life.settings.get(RETENTION_BYTES, ()) if change.value is not None
    ]
    limits = [value for value in values if value >= 0]
    return min(limits) if limits else None


def _partition_violations(
    past: PartitionHistory, place: int, shown: ShownPartition, retention_bytes: int | None
) -> Iterator[str]:
    yield from _start_violations(past, place, shown, retention_bytes)
    yield from _order_violations(past, place, shown)
    stored = {batch.base_offset: batch.body for batch in shown.batches}
    for batch in past.batches:
        if not batch.is_promised(place):
            continue
        offset, end = batch.base_offset, batch.base_offset + batch.records
        if end > shown.log_start_offset and stored.get(offset) != batch.body:
            what = "other records stand there" if offset in stored else "they are not there"
            yield f"records {offset} to {end - 1} were acknowledged, and {what}"
    told = max((told.value for told in past.high_watermarks if told.is_promised(place)), default=0)
    if shown.high_watermark < told:
        yield f"the high watermark is {shown.high_watermark}, and clients were told {told}"
    yield from _retry_violations(past, place, shown)


def _start_violations(
    past: PartitionHistory, place: int, shown: ShownPartition, retention_bytes: int | None
) -> Iterator[str]:
    start = shown.log_start_offset
    promised = max((new.value for new in past.new_starts if new.is_promised(place)), default=0)
    if start < promised:
        yield f"the log starts at {start}: records below {promised} were deleted and are back"
    asked = [deletion.value for deletion in past.deletions if deletion.asked_at <= place]
    latest_start = max([0, *asked])
    if -1 in asked:  # up to the high watermark of that moment, which is at most where the log ends
        latest_start = max(latest_start, shown.high_watermark)
    if retention_bytes is not None:
        latest_start = max(latest_start, _start_by_size(past, place, retention_bytes))
    if start > latest_start:
        yield f"the log starts at {start}, and nobody deleted records beyond {latest_start}"


def _start_by_size(past: PartitionHistory, place: int, retention_bytes: int) -> int:
    """The highest offset that retention by size may have made the log start."""
    behind = 0
    for batch in reversed(past.batches):
        if batch.asked_at > place:
            continue
        if behind >= retention_bytes and batch.base_offset >= 0:
            return batch.base_offset + batch.records
        behind += len(batch.data)
    return 0


def _order_violations(past: PartitionHistory, place: int, shown: ShownPartition) -> Iterator[str]:
    """What is stored follows on itself without gap, was sent by someone, and stands there once."""
    sent = {batch.body for batch in past.batches if batch.asked_at <= place}
    seen: dict[bytes, int] = {}
    expected: int | None = None
    for batch in shown.batches:
        if expected is not None and batch.base_offset != expected:
            yield f"offset {batch.base_offset} follows on {expected - 1}"
        expected = batch.next_offset
        if batch.body not in sent:
            yield f"nobody sent the records at offset {batch.base_offset}"
        if batch.body in seen:
            yield f"the records at offset {batch.base_offset} stand at {seen[batch.body]} already"
        seen[batch.body] = batch.base_offset
    if expected is not None and expected < shown.high_watermark:
        yield f"records can be read up to {expected}, and the high watermark is {shown.high_watermark}"


def _retry_violations(past: PartitionHistory, place: int, shown: ShownPartition) -> Iterator[str]:
    """A producer that sends its last acknowledged batch again, because the answer got lost, is told where it stands (I39)."""
    last = {
        batch.producer_id: batch
        for batch in past.batches
        if batch.is_promised(place) and batch.producer_id >= 0
    }
    for producer_id, batch in last.items():
        outcome = shown.retries.get((producer_id, batch.base_sequence))
        if outcome is not None and outcome != batch.base_offset:
            yield f"batch {batch.base_sequence} of producer {producer_id} at offset {batch.base_offset}, sent again, gives {outcome}"
