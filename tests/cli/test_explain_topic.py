"""`tidelog explain topic`: each segment with its size, age and newest record, why it is there and until when."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tidelog.broker.api import explain_topic as api
from tidelog.cli import explain_topic
from tidelog.client.segments import PartitionSegments, SegmentInfo

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def segment(number: int, fate: str = "kept until its age is reached", **fields: Any) -> SegmentInfo:
    ready = {
        "newest_timestamp": NOW_MS - 1000,
        "age_ms": 1000,
        "until_ms": NOW_MS + DAY_MS,
        "explanation": "because",
    }
    return SegmentInfo(10 * number, 10 * number + 10, 1000, fate=fate, **(ready | fields))


def partition(*segments: SegmentInfo, **fields: Any) -> PartitionSegments:
    ready = {"log_start_offset": 0, "last_stable_offset": 90, "high_watermark": 90, "log_end_offset": 90}
    return PartitionSegments(0, NOW_MS, "delete", segments=segments, **(ready | fields))


def test_a_row_says_what_when_and_for_how_long() -> None:
    found = partition(
        segment(0), segment(1, until_ms=None, newest_timestamp=None), segment(2, until_ms=NOW_MS)
    )
    first, second, third = explain_topic.rows(found, every=False)
    assert first == (
        "0-9",
        "1.0 kB",
        "2023-11-14 22:13:19Z",
        "1 s",
        "kept until its age is reached",
        "2023-11-15 22:13:20Z (in 24 h)",
    )
    assert second[2] is None and second[5] is None
    assert third[5] == "now"


def test_many_alike_are_shortened_unless_all_are_wanted() -> None:
    found = partition(*[segment(n) for n in range(100)], segment(100, "active"))
    rows = list(explain_topic.rows(found, every=False))
    assert [row[0] for row in rows] == ["0-9", "… 98 more", "990-999", "1000-1009"]
    assert rows[1][1] == "98.0 kB"
    assert len(list(explain_topic.rows(found, every=True))) == 101


def test_the_line_of_a_partition_names_what_holds_it_back() -> None:
    assert explain_topic.partition_line(partition()) == "partition 0: offsets 0 to 90; 0 B"
    held = partition(log_end_offset=95, last_stable_offset=80)
    assert (
        explain_topic.partition_line(held)
        == "partition 0: offsets 0 to 95, committed up to 90, stable up to 80; 0 B"
    )


def test_each_reason_is_given_once() -> None:
    found = [partition(segment(0), segment(1)), partition(segment(0, "active", explanation="it is open"))]
    assert explain_topic.reasons(found) == ["kept until its age is reached: because", "active: it is open"]


@pytest.mark.parametrize(
    ("ms", "text"),
    [(500, "500 ms"), (2 * DAY_MS, "48 h"), (7 * DAY_MS, "7 days"), (2**62, "more than 27 years")],
)
def test_ages(ms: int, text: str) -> None:
    assert explain_topic.long_span(ms) == text


def test_times_that_no_calendar_has() -> None:
    assert explain_topic.moment(2**62) == str(2**62)


@pytest.fixture
def segments(on: Any, topic: str, tmp_path: Path) -> str:
    """A topic of three segments."""
    assert on("topic", "create", topic, "-c", "segment.bytes=1048576", "-c", "retention.ms=3600000").code == 0
    lines = tmp_path / "lines"
    lines.write_text(("x" * 1000 + "\n") * 2500)
    assert on("produce", topic, "-f", lines).code == 0
    return topic


@pytest.mark.skipif("TIDELOG_TEST_BOOTSTRAP" in os.environ, reason="only Tidelog tells of its segments")
class TestCommand:
    def test_each_segment_and_why(self, on: Any, segments: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(api, "SEGMENTS_PER_TURN", 1)
        found = json.loads(on("explain", "topic", segments, "--json").out)
        (partition,) = found["partitions"]
        assert partition["cleanup_policy"] == "delete" and partition["log_end_offset"] == 2500
        first, *_, last = partition["segments"]
        assert len(partition["segments"]) >= 3
        assert first["fate"] == "kept until its age is reached" and "retention.ms" in first["explanation"]
        assert first["until_ms"] == first["newest_timestamp"] + 3_600_001
        assert first["base_offset"] == 0 and first["size"] <= 1048576
        assert last["fate"] == "active" and last["end_offset"] == 2500

    def test_for_people(self, on: Any, segments: str) -> None:
        result = on("explain", "topic", segments)
        lines = result.out.splitlines()
        assert lines[0].startswith(f"topic {segments}  cleanup.policy=delete  1 partition, ")
        assert lines[2].startswith("partition 0: offsets 0 to 2500; 2.5 MB")
        assert lines[3].split() == ["OFFSETS", "SIZE", "NEWEST", "RECORD", "AGE", "STATE", "UNTIL"]
        assert (
            lines[4].startswith("0-")
            and "kept until its age is reached" in lines[4]
            and "(in 1 h)" in lines[4]
        )
        assert any(line.startswith("active: records are appended to it") for line in lines)

    def test_one_partition(self, on: Any, topic: str) -> None:
        assert on("topic", "create", topic, "-p", "3").code == 0
        found = json.loads(on("explain", "topic", topic, "-p", "2", "--json").out)
        assert [each["partition"] for each in found["partitions"]] == [2]
        missing = on("explain", "topic", topic, "-p", "3")
        assert missing.code == 1 and "3" in missing.err

    def test_a_topic_that_is_not_there(self, on: Any) -> None:
        result = on("explain", "topic", "no-such-topic")
        assert result.code == 1 and "it does not exist" in result.err
