"""Where a replay reads: brokers, or the segment files of a data directory. Both tell where their logs begin and end, and both read a step as a bounded DataFrame."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.client.metadata import TopicPartition
from tidelog.client.offsets import FoundOffset
from tidelog.pipeline.replay_plan import ReplayError
from tidelog.spark.bounds import beyond
from tidelog.spark.loss import LogView
from tidelog.spark.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySource:
    topics: tuple[str, ...]
    path: str | None
    """None: brokers."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of `format("tidelog")`: the brokers' address and settings of the client, or the path."""

    def look(self, times_ms: Sequence[int]) -> tuple[LogView, dict[int, dict[TopicPartition, FoundOffset]]]:
        """The logs as they are now, and for each time the first offsets that are as late."""
        given = {**self.options, "subscribe": ",".join(self.topics)}
        if self.path is None:
            from tidelog.spark.logs import Logs
            from tidelog.spark.options import SourceOptions

            logs = Logs(SourceOptions.parse(given, is_stream=False))
            view = logs.look()
            return view, {time: logs.offsets_for_times(dict.fromkeys(view.latest, time)) for time in times_ms}
        from tidelog.spark.segments.bounds import StoredLogs, chosen
        from tidelog.spark.segments.layout import partition_directories
        from tidelog.spark.segments.options import SegmentOptions

        options = SegmentOptions.parse(given)
        stored = StoredLogs(
            chosen(partition_directories(options.paths), options.source.subscription), options
        )
        try:
            times = {
                time: stored.offsets_for_times(dict.fromkeys(stored.view.latest, time)) for time in times_ms
            }
            return stored.view, times
        finally:
            stored.close()

    def read(self, spark: SparkSession, step: Sequence[OffsetRange]) -> DataFrame:
        """A task for each range: records of a partition come in their order."""
        partitions: dict[str, list[int]] = {}
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for each in step:
            topic, number = each.tp.topic, each.tp.partition
            partitions.setdefault(topic, []).append(number)
            starts.setdefault(topic, {})[str(number)] = each.start
            ends.setdefault(topic, {})[str(number)] = each.end
        chosen = {
            **self.options,
            "assign": json.dumps(partitions),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
            "maxRecordsPerPartition": str(max(each.size for each in step)),
            "includeHeaders": "true",
        }
        return spark.read.format("tidelog").options(**chosen).load()


def settled(
    view: LogView,
    times: Mapping[int, Mapping[TopicPartition, FoundOffset]],
    *,
    from_offsets: Offsets | None = None,
    to_offsets: Offsets | None = None,
    from_time_ms: int | None = None,
    to_time_ms: int | None = None,
    topics: Sequence[str] = (),
) -> tuple[OffsetRange, ...]:
    """The range of each partition. Where offsets to begin at are given, only their partitions count. ReplayError: it is not there. Pure."""
    there = {tp.topic for tp in view.latest}
    if missing := [topic for topic in topics if topic not in there]:
        raise ReplayError(
            f"there is no topic {', '.join(missing)}; there are {', '.join(sorted(there)) or 'none'}"
        )
    wanted = sorted(view.latest if from_offsets is None else from_offsets)
    strange = [str(tp) for tp in sorted({*wanted, *(to_offsets or {})}) if tp not in view.latest]
    if strange:
        raise ReplayError(f"there is no partition {', '.join(strange)}")
    ranges = []
    for tp in wanted:
        start = (
            _time(times, from_time_ms, tp, view.latest[tp]) if from_time_ms is not None else view.earliest[tp]
        )
        end = _time(times, to_time_ms, tp, view.latest[tp]) if to_time_ms is not None else view.latest[tp]
        start = (from_offsets or {}).get(tp, start)
        end = (to_offsets or {}).get(tp, end)
        if start > end and (tp in (from_offsets or {}) or tp in (to_offsets or {})):
            raise ReplayError(f"{tp} begins at offset {start} and ends at {end}: the start is behind the end")
        ranges.append(OffsetRange(tp, start, max(start, end)))
    return tuple(ranges)


def check_there(ranges: Sequence[OffsetRange], view: LogView) -> None:
    """ReplayError says what is gone, and why."""
    if gone := [f"{each.tp} does not exist any more" for each in ranges if each.tp not in view.latest]:
        raise ReplayError("; ".join(gone))
    if losses := beyond(ranges, view):
        raise ReplayError(
            "; ".join(loss.explanation for loss in losses)
            + ". Set fail_on_data_loss = false to copy what is there"
        )


def check_time(
    ranges: Sequence[OffsetRange],
    view: LogView,
    first_times_ms: Mapping[TopicPartition, int],
    from_time_ms: int,
) -> None:
    """A log whose beginning was removed may have had records of the time that is asked for."""
    doubtful = [
        f"{each.tp} begins at offset {each.start}, at {first_times_ms[each.tp]} ms"
        for each in ranges
        if each.start == view.earliest[each.tp] > 0 and first_times_ms.get(each.tp, 0) > from_time_ms
    ]
    if doubtful:
        raise ReplayError(
            f"records from {from_time_ms} ms on may be gone, by retention or because they were deleted: {'; '.join(doubtful)}. "
            "Set fail_on_data_loss = false to copy what is there"
        )


def clamped(ranges: Sequence[OffsetRange], view: LogView) -> tuple[OffsetRange, ...]:
    """The part of each range that is there."""
    found = []
    for each in ranges:
        if each.tp in view.latest:
            start = min(max(each.start, view.earliest[each.tp]), view.latest[each.tp])
            found.append(OffsetRange(each.tp, start, max(start, min(each.end, view.latest[each.tp]))))
    return tuple(found)


def _time(
    times: Mapping[int, Mapping[TopicPartition, FoundOffset]], time: int, tp: TopicPartition, latest: int
) -> int:
    found = times[time][tp].offset
    return latest if found < 0 else found
