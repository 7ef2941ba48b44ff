"""`tidelog group reset`: where each partition's committed offset goes, worked out before anything is changed.

`plan` is pure: what is committed, where partitions begin and end and what was asked for go in, one `Move` per partition comes out.
`prepare` gathers the facts and refuses while the group has members: they would commit over it a moment later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

import typer

from tidelog.cli.boundary import CommandError
from tidelog.cli.options import parse_timestamp
from tidelog.cli.output import print_table, warn
from tidelog.cli.start_offsets import end_offsets, partitions_of
from tidelog.client.group_description import GroupDescription
from tidelog.client.groups import GroupMissingError, Groups
from tidelog.client.metadata import TopicPartition
from tidelog.client.offsets import EARLIEST, list_offsets

MEMBERS_NAMED_MAX = 5

_AGE = re.compile(r"\d+(ms|s|m|h|d|w)")
_ISO_DURATION = re.compile(
    r"P(?=.)(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_SECONDS = {"weeks": 604_800, "days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}


class Where(Enum):
    EARLIEST = auto()
    LATEST = auto()
    OFFSET = auto()
    TIME = auto()
    SHIFT = auto()
    CURRENT = auto()


class Target(NamedTuple):
    where: Where
    value: int = 0
    """An offset, a time in milliseconds since 1970, or how many records to move by."""


class Move(NamedTuple):
    tp: TopicPartition
    before: int | None
    after: int
    note: str = ""


# -- what was asked for ---------------------------------------------------------------------------------------------


def choose_target(
    now_ms: int,
    *,
    to_earliest: bool = False,
    to_latest: bool = False,
    to_offset: int | None = None,
    to_datetime: str | None = None,
    by_duration: str | None = None,
    shift_by: int | None = None,
    to_current: bool = False,
) -> Target:
    chosen: list[Target] = []
    if to_earliest:
        chosen.append(Target(Where.EARLIEST))
    if to_latest:
        chosen.append(Target(Where.LATEST))
    if to_offset is not None:
        chosen.append(Target(Where.OFFSET, to_offset))
    if to_datetime is not None:
        chosen.append(Target(Where.TIME, _parse_datetime(to_datetime, now_ms)))
    if by_duration is not None:
        chosen.append(Target(Where.TIME, max(0, now_ms - parse_duration(by_duration))))
    if shift_by is not None:
        chosen.append(Target(Where.SHIFT, shift_by))
    if to_current:
        chosen.append(Target(Where.CURRENT))
    if len(chosen) != 1:
        raise typer.BadParameter(
            "say where to: one of --to-earliest, --to-latest, --to-offset, --to-datetime, --by-duration, --shift-by, --to-current"
        )
    return chosen[0]


def _parse_datetime(text: str, now_ms: int) -> int:
    try:
        return parse_timestamp(text, now_ms)
    except typer.BadParameter as error:
        error.param_hint = "--to-datetime"
        raise


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO 8601 duration (PT1H30M, P7D), or of an age as elsewhere (90s, 30m, 2h, 7d)."""
    if _AGE.fullmatch(text):
        return -parse_timestamp(text, 0)
    match = _ISO_DURATION.fullmatch(text)
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no duration: write it as PT1H30M or P7D, or as 90s, 30m, 2h, 7d",
            param_hint="--by-duration",
        )
    return int(sum(float(match[unit] or 0) * seconds for unit, seconds in _SECONDS.items()) * 1000)


def parse_topics(texts: Iterable[str]) -> dict[str, list[int] | None]:
    """`orders` is all partitions of a topic, `orders:0,2` two of them."""
    found: dict[str, list[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        parts = numbers.split(",")
        if not topic or (colon and not all(part.isascii() and part.isdigit() for part in parts)):
            raise typer.BadParameter(
                f"{text!r} is not of the form TOPIC or TOPIC:0,1,2", param_hint="--topic"
            )
        if topic in found:
            raise typer.BadParameter(
                f"{topic!r} is given twice; write its partitions as {topic}:0,1,2", param_hint="--topic"
            )
        found[topic] = [int(part) for part in parts] if colon else None
    return found


# -- what follows from it -------------------------------------------------------------------------------------------


def plan(
    target: Target,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, int],
    firsts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    found: Mapping[TopicPartition, int],
) -> list[Move]:
    """`found` are the offsets of a time, -1 where no record is as late; only looked at when a time is the target."""
    if target.where is Where.SHIFT and (missing := [tp for tp in partitions if tp not in committed]):
        raise CommandError(
            f"nothing is committed in {', '.join(map(str, missing))}, so there is nothing to shift from; "
            "leave them out with --topic TOPIC:0,1,…, or use another way to reset"
        )
    moves: list[Move] = []
    for tp in partitions:
        before, first, end = committed.get(tp), firsts[tp], ends[tp]
        wanted, note = _wanted(target, before, first, end, found.get(tp, -1))
        after = min(max(wanted, first), end)
        if after > wanted:
            note = f"{wanted} is below the first offset"
        elif after < wanted:
            note = f"{wanted} is beyond the end"
        moves.append(Move(tp, before, after, note))
    return moves


def _wanted(target: Target, before: int | None, first: int, end: int, found: int) -> tuple[int, str]:
    if target.where is Where.EARLIEST:
        return first, ""
    if target.where is Where.LATEST:
        return end, ""
    if target.where is Where.OFFSET:
        return target.value, ""
    if target.where is Where.TIME:
        return (found, "") if found >= 0 else (end, "no record is that late: the end")
    if before is None:
        return end, "nothing was committed: the end"
    return before + (target.value if target.where is Where.SHIFT else 0), ""


async def prepare(
    groups: Groups, name: str, topics: Mapping[str, list[int] | None], target: Target
) -> list[Move]:
    """Without `topics`: every partition where the group has committed."""
    cluster = groups.cluster
    try:
        description = await groups.describe(name)
    except GroupMissingError:
        if not topics:
            raise
        warn([f"there is no group {name} yet; with --execute there will be one"])
    else:
        _refuse_members(description)
    committed = {tp: found.offset for tp, found in (await groups.offsets(name)).items()}
    partitions: list[TopicPartition] = []
    for topic, chosen in topics.items():
        partitions += await partitions_of(cluster, topic, chosen)
    if not topics:
        partitions = await _still_there(groups, sorted(committed))
    if not partitions:
        raise CommandError(
            f"group {name} has committed nothing that could be moved; name a topic with --topic"
        )
    firsts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    ends = await end_offsets(cluster, partitions)
    found: dict[TopicPartition, int] = {}
    if target.where is Where.TIME:
        by_time = await list_offsets(cluster, dict.fromkeys(partitions, target.value))
        found = {tp: by_time[tp].offset for tp in partitions}
    return plan(target, partitions, committed, {tp: firsts[tp].offset for tp in partitions}, ends, found)


def _refuse_members(group: GroupDescription) -> None:
    if not group.members:
        return
    names = [f"{m.client_id} ({m.host})" for m in group.members]
    more = f" and {len(names) - MEMBERS_NAMED_MAX} more" if len(names) > MEMBERS_NAMED_MAX else ""
    raise CommandError(
        f"group {group.group_id} is in use by {', '.join(names[:MEMBERS_NAMED_MAX])}{more}: "
        "its members would commit over any change; stop them, then try again"
    )


async def _still_there(groups: Groups, partitions: list[TopicPartition]) -> list[TopicPartition]:
    """Offsets may outlive their topic."""
    topics = (await groups.cluster.refresh_metadata({tp.topic for tp in partitions})).topics
    there = [tp for tp in partitions if tp.topic in topics and tp.partition in topics[tp.topic].partitions]
    if gone := sorted({str(tp) for tp in partitions} - {str(tp) for tp in there}):
        warn([f"left out, because they do not exist any more: {', '.join(gone)}"])
    return there


# -- what is shown --------------------------------------------------------------------------------------------------


def report(name: str, moves: Sequence[Move], *, executed: bool) -> dict[str, Any]:
    return {
        "group": name,
        "executed": executed,
        "partitions": [
            {
                "topic": m.tp.topic,
                "partition": m.tp.partition,
                "before": m.before,
                "after": m.after,
                "note": m.note or None,
            }
            for m in moves
        ],
    }


def print_moves(moves: Sequence[Move]) -> None:
    rows = [(m.tp.topic, m.tp.partition, m.before, m.after, m.note) for m in moves]
    print_table(
        ("topic", "partition", "before", "after", "note"), rows, right=("partition", "before", "after")
    )
