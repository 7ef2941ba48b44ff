"""Where a reset takes each partition, before anything is changed."""

from __future__ import annotations

import pytest
import typer

from tidelog.cli.boundary import CommandError
from tidelog.cli.group_reset import Move, Target, Where, choose_target, parse_duration, parse_topics, plan
from tidelog.client.metadata import TopicPartition

NOW = 1_700_000_000_000
A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
FIRSTS = {A: 100, B: 0}
ENDS = {A: 200, B: 10}


def moved(
    target: Target, committed: dict[TopicPartition, int], found: dict[TopicPartition, int] | None = None
) -> list[Move]:
    return plan(target, [A, B], committed, FIRSTS, ENDS, found or {})


def test_the_first_and_the_last() -> None:
    assert moved(Target(Where.EARLIEST), {A: 150}) == [Move(A, 150, 100), Move(B, None, 0)]
    assert moved(Target(Where.LATEST), {A: 150}) == [Move(A, 150, 200), Move(B, None, 10)]


def test_offsets_outside_of_the_log_are_moved_into_it_with_a_note() -> None:
    assert moved(Target(Where.OFFSET, 50), {A: 150, B: 5}) == [
        Move(A, 150, 100, "50 is below the first offset"),
        Move(B, 5, 10, "50 is beyond the end"),
    ]
    assert moved(Target(Where.OFFSET, 10), {})[1] == Move(B, None, 10)


def test_shifting_stops_at_both_ends() -> None:
    assert moved(Target(Where.SHIFT, 7), {A: 150, B: 5}) == [
        Move(A, 150, 157),
        Move(B, 5, 10, "12 is beyond the end"),
    ]
    assert moved(Target(Where.SHIFT, -60), {A: 150, B: 5}) == [
        Move(A, 150, 100, "90 is below the first offset"),
        Move(B, 5, 0, "-55 is below the first offset"),
    ]


def test_shifting_from_nowhere_is_refused_before_anything_happens() -> None:
    with pytest.raises(CommandError, match="nothing is committed in orders-1"):
        moved(Target(Where.SHIFT, 1), {A: 150})


def test_a_time_after_the_last_record_is_the_end() -> None:
    assert moved(Target(Where.TIME, NOW), {A: 150, B: 1}, {A: 120, B: -1}) == [
        Move(A, 150, 120),
        Move(B, 1, 10, "no record is that late: the end"),
    ]


def test_current_stays_unless_that_is_gone() -> None:
    assert moved(Target(Where.CURRENT), {A: 90}) == [
        Move(A, 90, 100, "90 is below the first offset"),
        Move(B, None, 10, "nothing was committed: the end"),
    ]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1H", 3_600_000),
        ("PT1H30M", 5_400_000),
        ("P7D", 604_800_000),
        ("P1DT1S", 86_401_000),
        ("P2W", 1_209_600_000),
        ("PT0.5S", 500),
        ("30m", 1_800_000),
        ("250ms", 250),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration(text) == ms
    assert choose_target(NOW, by_duration=text) == Target(Where.TIME, NOW - ms)


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1H", "PT1D", "-PT1H", "an hour", "1700000000000"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no duration"):
        parse_duration(text)


def test_one_target_and_only_one() -> None:
    assert choose_target(NOW, to_offset=0) == Target(Where.OFFSET, 0)
    assert choose_target(NOW, shift_by=0) == Target(Where.SHIFT, 0)
    assert choose_target(NOW, to_datetime="1970-01-01T00:00:02Z") == Target(Where.TIME, 2000)
    for wrong in ({}, {"to_earliest": True, "to_latest": True}, {"to_offset": 1, "to_current": True}):
        with pytest.raises(typer.BadParameter, match="say where to"):
            choose_target(NOW, **wrong)  # type: ignore[arg-type]
    with pytest.raises(typer.BadParameter) as raised:
        choose_target(NOW, to_datetime="yesterday")
    assert raised.value.param_hint == "--to-datetime"


def test_topics_and_their_partitions() -> None:
    assert parse_topics(["orders", "payments:0,2"]) == {"orders": None, "payments": [0, 2]}
    for wrong in (["orders:"], ["orders:a"], [":1"], ["orders:1,,2"], ["orders:-1"], ["orders", "orders:1"]):
        with pytest.raises(typer.BadParameter):
            parse_topics(wrong)
