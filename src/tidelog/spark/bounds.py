"""Where reading begins and ends in each partition: options made into offsets.

Asks for offsets by time and decides the rest from a look at the logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tidelog.client.metadata import TopicPartition
from tidelog.client.offsets import FoundOffset
from tidelog.spark.loss import Cause, LogView, Loss
from tidelog.spark.offsets import names
from tidelog.spark.options import (
    EARLIEST,
    LATEST,
    Assigned,
    At,
    AtTime,
    Edge,
    Names,
    OptionError,
    Subscription,
)
from tidelog.spark.ranges import OffsetRange

ForTimes = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, FoundOffset]]


def check_all_there(subscription: Subscription, view: LogView) -> None:
    """What is named exists. A pattern may match nothing yet."""
    there = {tp.topic for tp in view.latest}
    match subscription:
        case Names(topics):
            missing = sorted(topics - there)
            what = "subscribe"
        case Assigned(partitions):
            missing = [str(tp) for tp in sorted(partitions - view.latest.keys())]
            what = "assign"
        case _:
            return
    if missing:
        raise OptionError(f"{what} names {', '.join(missing)}, which does not exist")


def offsets_of(edge: Edge, view: LogView, for_times: ForTimes, *, option: str) -> dict[TopicPartition, int]:
    """An offset for every partition of the view; those that were given are taken as they are."""
    if isinstance(edge, At):
        return _at(edge, view, option)
    return _at_time(edge, view, for_times, option)


def _at(edge: At, view: LogView, option: str) -> dict[TopicPartition, int]:
    ends = {EARLIEST: view.earliest, LATEST: view.latest}
    if edge.each is None:
        return dict(ends[edge.everywhere])
    _check_names(
        edge.each, view.latest, f"{option}Offsets", "use -2 for the earliest offset, -1 for the latest"
    )
    return {tp: ends[offset][tp] if offset in ends else offset for tp, offset in edge.each.items()}


def _at_time(edge: AtTime, view: LogView, for_times: ForTimes, option: str) -> dict[TopicPartition, int]:
    if edge.each is None:
        times = dict.fromkeys(view.latest, edge.everywhere)
    else:
        _check_names(edge.each, view.latest, f"{option}OffsetsByTimestamp", "give each a time in ms")
        times = dict(edge.each)
    found = for_times(times)
    late = [tp for tp, each in found.items() if each.offset < 0]
    if late and edge.is_error_if_none:
        raise OptionError(
            f"no record of {names(late)} is as late as {times[min(late)]} ms; to begin at the end there, set startingOffsetsByTimestampStrategy to latest"
        )
    return {tp: view.latest[tp] if each.offset < 0 else each.offset for tp, each in found.items()}


def _check_names(
    given: Iterable[TopicPartition], there: Iterable[TopicPartition], option: str, hint: str
) -> None:
    named, existing = set(given), set(there)
    if named != existing:
        raise OptionError(
            f"{option} must name exactly the partitions that are read; {hint}. Missing: {names(existing - named)}; not read: {names(named - existing)}"
        )


def batch_ranges(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    for tp, start in starts.items():
        if start > ends[tp]:
            raise OptionError(
                f"{tp} begins at offset {start} and ends at {ends[tp]}: the start is behind the end"
            )
    return [OffsetRange(tp, starts[tp], ends[tp]) for tp in sorted(starts)]


def beyond(ranges: Iterable[OffsetRange], view: LogView) -> list[Loss]:
    """What a range asks for and the log does not have."""
    found: list[Loss] = []
    for each in ranges:
        earliest, latest = view.earliest[each.tp], view.latest[each.tp]
        if each.start < earliest and each.size:
            why = f"{each.tp}: offsets {each.start} to {min(each.end, earliest)} are gone, by retention or because they were deleted; it has {earliest} to {latest}"
            found.append(Loss(each.tp, Cause.AGED_OUT, each.start, earliest, why))
        if each.end > latest:
            why = (
                f"{each.tp} has offsets {earliest} to {latest}, and {each.start} to {each.end} are asked for"
            )
            found.append(Loss(each.tp, Cause.CUT, each.start, latest, why))
    return found


def within(ranges: Iterable[OffsetRange], view: LogView) -> list[OffsetRange]:
    """The part of each range that is there."""
    found = []
    for each in ranges:
        end = min(each.end, view.latest[each.tp])
        found.append(OffsetRange(each.tp, min(max(each.start, view.earliest[each.tp]), end), end))
    return found
