"""Dead letters on the command line: found, looked at, mended and sent back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tidelog.client import Consumer, Producer, TopicPartition
from tidelog.client.dead_letters import Origin, dead_letter_headers


@pytest.fixture
def dead_letters(bootstrap: str, topic: str) -> str:
    """Two dead letters of a topic, one of them with a key; the topic's own records are not needed."""

    async def write() -> None:
        async with Producer(bootstrap) as producer:
            await producer.send_and_wait(topic, b"ordinary")
            for n, key in ((3, b"table 7"), (4, None)):
                origin = Origin(topic, 0, n, 1_700_000_000_000 + n, f"ValueError: no oven {n}", 3, "kitchen")
                headers = dead_letter_headers((("trace", b"42"),), origin)
                await producer.send_and_wait(topic + ".dlq", b"pizza %d" % n, key=key, headers=headers)

    asyncio.run(write())
    return topic + ".dlq"


def records(bootstrap: str, topic: str, count: int) -> list[Any]:
    async def read() -> list[Any]:
        async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            found: list[Any] = []
            async with asyncio.timeout(20):
                while len(found) < count:
                    found += await consumer.poll()
            return found

    return asyncio.run(read())


def test_they_are_listed_with_where_they_were_and_why(on: Any, dead_letters: str, topic: str) -> None:
    result = on("dlq", "list", dead_letters)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].split() == ["PLACE", "FROM", "ATTEMPTS", "REASON", "KEY", "VALUE", "STATE"]
    assert f"{topic}-0 at 3" in lines[1] and "ValueError: no oven 3" in lines[1] and "table 7" in lines[1]
    listed = [json.loads(line) for line in on("dlq", "list", dead_letters, "--json").out.splitlines()]
    assert [(each["place"], each["offset"], each["attempts"], each["redriven"]) for each in listed] == [
        ("0:0", 3, 3, False),
        ("0:1", 4, 3, False),
    ]


def test_one_is_shown_in_full(on: Any, dead_letters: str, topic: str) -> None:
    shown = on("dlq", "show", dead_letters, "0:0").out
    for text in (
        f"{topic}-0 at offset 3",
        "ValueError: no oven 3",
        "3, by group kitchen",
        "trace = 42",
        "table 7",
        "pizza 3",
    ):
        assert text in shown
    missing = on("dlq", "show", dead_letters, "0:9")
    assert missing.code == 1 and "no dead letter at 0:9" in missing.err


def test_they_are_sent_back_as_they_were_or_mended_and_only_once(
    on: Any, dead_letters: str, topic: str, bootstrap: str, tmp_path: Path
) -> None:
    assert on("dlq", "redrive", dead_letters, "--all", "--dry-run").out.splitlines() == [
        f"0:0 -> {topic}",
        f"0:1 -> {topic}",
    ]
    mended = on("dlq", "redrive", dead_letters, "0:0", "--value", "salad")
    assert mended.code == 0 and mended.out == f"0:0 -> {topic}-0 at offset 1\n"
    rest = on("dlq", "redrive", dead_letters, "--all", "--json")
    assert json.loads(rest.out) == {"place": "0:1", "topic": topic, "partition": 0, "offset": 2}
    assert on("dlq", "redrive", dead_letters, "--all").out == "", "nothing waits any more"
    _, salad, pizza = records(bootstrap, topic, 3)
    assert (salad.key, salad.value, salad.headers) == (b"table 7", b"salad", (("trace", b"42"),))
    assert (pizza.key, pizza.value, pizza.timestamp_ms) == (None, b"pizza 4", 1_700_000_000_004)
    states = [line.split()[-1] for line in on("dlq", "list", dead_letters, "--all").out.splitlines()[1:]]
    assert states == ["redriven", "redriven"]
    again = on("dlq", "redrive", dead_letters, "0:0", "--to", topic)
    assert again.code == 0 and "once more" in again.err


def test_what_makes_no_sense_is_refused(on: Any, dead_letters: str, topic: str) -> None:
    assert on("dlq", "redrive", dead_letters).code == 2
    assert on("dlq", "redrive", dead_letters, "0:0", "0:1", "--value", "x").code == 2
    warned = on("dlq", "list", topic)
    assert warned.code == 0 and "1 records" in warned.err and "no dead letters" in warned.err
    assert on("dlq", "list", topic + "-nothing").code == 1
