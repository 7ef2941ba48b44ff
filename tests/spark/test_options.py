"""Options are those of Spark's Kafka source, and what makes no sense is refused by name."""

from __future__ import annotations

import pytest

from tidelog.client.metadata import TopicPartition
from tidelog.spark.options import (
    EARLIEST,
    LATEST,
    Assigned,
    At,
    AtTime,
    Names,
    OptionError,
    Pattern,
    SourceOptions,
)

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "a, b"}


def parse(is_stream: bool = False, **options: str) -> SourceOptions:
    return SourceOptions.parse(
        {**BASE, **{name.replace("__", "."): value for name, value in options.items()}}, is_stream=is_stream
    )


def test_defaults_are_those_of_sparks_own_source() -> None:
    batch, stream = parse(), parse(is_stream=True)
    assert batch.start == At(EARLIEST) and batch.end == At(LATEST)
    assert stream.start == At(LATEST)
    assert batch.subscription == Names(frozenset({"a", "b"}))
    assert batch.fail_on_data_loss and not batch.reads_committed
    assert batch.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert stream.delay_ms_max == 900_000


def test_names_count_whatever_their_case() -> None:
    found = parse(
        FAILONDATALOSS="FALSE",
        includeheaders="true",
        Kafka__Isolation__Level="read_committed",
        maxTriggerDelay="4s",
    )
    assert not found.fail_on_data_loss and found.reads_committed
    assert found.columns[-1] == "headers" and found.delay_ms_max == 4_000


def test_ways_to_say_what_to_read() -> None:
    servers = {"kafka.bootstrap.servers": "x:1"}
    by_pattern = SourceOptions.parse({**servers, "subscribePattern": "a.*"}, is_stream=True)
    assert by_pattern.subscription == Pattern("a.*")
    assigned = SourceOptions.parse({**servers, "assign": '{"a": [0, 2]}'}, is_stream=True)
    assert assigned.subscription == Assigned(frozenset({TopicPartition("a", 0), TopicPartition("a", 2)}))


def test_a_time_for_all_wins_over_times_for_each_and_those_over_offsets() -> None:
    tp = TopicPartition("a", 0)
    offsets, times = '{"a": {"0": 5}}', '{"a": {"0": 1000}}'
    assert parse(startingOffsets=offsets).start == At(LATEST, {tp: 5})
    assert parse(startingOffsets=offsets, startingOffsetsByTimestamp=times).start == AtTime(0, {tp: 1000})
    found = parse(startingOffsets=offsets, startingOffsetsByTimestamp=times, startingTimestamp="7")
    assert found.start == AtTime(7)
    assert parse(startingTimestamp="7", startingOffsetsByTimestampStrategy="latest").start == AtTime(
        7, None, False
    )
    assert parse(endingTimestamp="7").end == AtTime(7, None, False)


def test_columns_can_be_left_out() -> None:
    assert parse(columns="value, Offset").columns == ("value", "offset")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribePattern": "a"}, "subscribe and subscribePattern are given"),
        ({"startingOffsets": "latest"}, "batch that begins at the latest"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, "batch that begins at the latest"),
        ({"endingOffsets": "earliest"}, "ends at the earliest"),
        ({"startingOffsets": "{"}, "startingOffsets: .* is no JSON"),
        ({"startingTimestamp": "x"}, "startingTimestamp is a whole number"),
        ({"startingOffsetsByTimestampStrategy": "foo"}, "error or latest"),
        ({"minPartitions": "0"}, "minPartitions is a whole number from 1"),
        ({"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"}, "is more than maxOffsetsPerTrigger=5"),
        ({"maxTriggerDelay": "soon"}, "a duration such as"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"kafka__enable__auto__commit": "true"}, "set by the source itself"),
        ({"maxOffsetPerTrigger": "5"}, "no option maxoffsetpertrigger; do you mean maxOffsetsPerTrigger"),
        ({"columns": "valeu"}, "columns names some of"),
        ({"subscribe": " , "}, "names no topic"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse(**options)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(OptionError, match="a stream has no end: leave out endingTimestamp"):
        parse(is_stream=True, endingTimestamp="5")


def test_what_is_needed_is_asked_for() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers is missing"):
        SourceOptions.parse({"subscribe": "a"}, is_stream=True)
    with pytest.raises(OptionError, match="none of them is given"):
        SourceOptions.parse({"kafka.bootstrap.servers": "x:1"}, is_stream=True)
