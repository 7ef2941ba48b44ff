"""Groups on the command line against a broker: read together, look, move, delete, and ask why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """Ours waits for no further members, so that a test takes no three seconds for every first one."""
    named = os.environ.get("TIDELOG_TEST_BOOTSTRAP")
    if named:
        yield named
        return
    from tidelog.testing import Cluster

    with Cluster(config={"group.initial.rebalance.delay.ms": 0}) as cluster:
        yield cluster.bootstrap_servers


@pytest.fixture
def process(process: Any) -> Iterator[Any]:
    """Members that a failed test left behind would be in other tests' way."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
        started.append(process(*arguments, **options))
        return started[-1]

    yield start
    for one in started:
        if one.poll() is None:
            one.kill()
            one.wait()


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def fill(on: Any, tmp_path: Path) -> Callable[..., None]:
    """`fill("orders", 0, 5)`: records 0 to 4 to the topic; with a partition, all to that one."""

    def write(topic: str, first: int, end: int, *options: object) -> None:
        path = tmp_path / "lines"
        path.write_text("".join(f"{n}\n" for n in range(first, end)))
        assert on("produce", topic, "-f", path, *options).code == 0

    return write


def read(on: Any, topic: str, group: str, *options: object) -> list[str]:
    result = on("consume", topic, "--group", group, "--exit-at-end", *options)
    assert result.code == 0, result.err
    return str(result.out).split()


def describe(on: Any, group: str, *options: object) -> dict[str, Any]:
    result = on("group", "describe", group, "--json", *options)
    assert result.code == 0, result.err
    (report,) = json.loads(result.out)
    return dict(report)


def eventually(check: Callable[[], Any]) -> Any:
    """What others do takes a moment."""
    deadline = time.monotonic() + 20
    while not (found := check()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)
    return found


def stop(running: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=20)
    assert running.returncode == 130, err
    return out, err


# -- reading --------------------------------------------------------------------------------------------------------


def test_a_group_goes_on_where_it_was(on: Any, topic: str, group: str, fill: Any) -> None:
    fill(topic, 0, 5)
    assert read(on, topic, group, "--from-beginning") == ["0", "1", "2", "3", "4"]
    assert read(on, topic, group, "--from-beginning") == []
    fill(topic, 5, 8)
    assert read(on, topic, group) == ["5", "6", "7"]
    (partition,) = describe(on, group)["partitions"]
    assert (partition["committed"], partition["end"], partition["lag"]) == (8, 8, 0)


def test_a_new_group_begins_at_the_end_and_remembers_it(on: Any, topic: str, group: str, fill: Any) -> None:
    fill(topic, 0, 5)
    assert read(on, topic, group) == []
    fill(topic, 5, 7)
    assert read(on, topic, group) == ["5", "6"]


def test_only_what_was_printed_is_committed(on: Any, topic: str, group: str, fill: Any) -> None:
    fill(topic, 0, 10)
    first = on("consume", topic, "-g", group, "--from-beginning", "-n", 3)
    assert first.out.split() == ["0", "1", "2"]
    assert describe(on, group)["partitions"][0]["committed"] == 3
    assert read(on, topic, group, "-n", 4) == ["3", "4", "5", "6"]


def test_ctrl_c_commits_and_leaves(on: Any, process: Any, topic: str, group: str, fill: Any) -> None:
    fill(topic, 0, 3)
    reader = process("consume", topic, "--group", group, "--from-beginning")
    assert [reader.stdout.readline() for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
    assert len(describe(on, group, "--members")["members"]) == 1
    stop(reader)
    after = describe(on, group)
    assert (after["state"], after["members"]) == ("Empty", [])
    assert after["partitions"][0]["committed"] == 3


def test_a_closed_pipe_loses_nothing(on: Any, process: Any, topic: str, group: str, fill: Any) -> None:
    fill(topic, 0, 50_000)
    reader = process("consume", topic, "--group", group, "--from-beginning")
    assert reader.stdout.readline() == b"0\n"
    reader.stdout.close()
    assert reader.wait(timeout=20) == 141
    after = describe(on, group)
    assert after["members"] == []
    seen = after["partitions"][0]["committed"] if after["partitions"] else 0
    rest = read(on, topic, group, "--from-beginning")
    assert rest == [str(n) for n in range(seen or 0, 50_000)]


def test_members_share_the_partitions(on: Any, process: Any, topic: str, group: str, fill: Any) -> None:
    on("topic", "create", topic, "-p", 4)
    first = process("consume", topic, "--group", group, "--from-beginning")
    eventually(lambda: on("group", "describe", group).code == 0 and describe(on, group)["state"] == "Stable")
    second = process("consume", topic, "--group", group, "--from-beginning")

    def both() -> bool:
        members = describe(on, group, "--members")["members"]
        return [m["partitions"].get(topic) for m in members] == [[0, 1], [2, 3]]

    eventually(both)
    for partition in range(4):
        fill(topic, 10 * partition, 10 * partition + 3, "-p", partition)
    eventually(lambda: all(p["lag"] == 0 for p in describe(on, group)["partitions"]))
    one, told = stop(second)
    assert b"generation" in told
    eventually(
        lambda: (
            [m["partitions"].get(topic) for m in describe(on, group, "--members")["members"]]
            == [[0, 1, 2, 3]]
        )
    )
    fill(topic, 100, 104)
    eventually(lambda: all(p["lag"] == 0 for p in describe(on, group)["partitions"]))
    other, told = stop(first)
    assert told.count(b"joining again") == 2
    expected = [10 * p + n for p in range(4) for n in range(3)] + [100, 101, 102, 103]
    assert sorted(int(n) for n in (one + other).split()) == expected


def test_a_member_without_partitions_says_so_and_waits(
    on: Any, process: Any, topic: str, group: str, fill: Any
) -> None:
    on("topic", "create", topic)
    readers = [process("consume", topic, "--group", group) for _ in range(2)]
    eventually(
        lambda: (
            on("group", "describe", group).code == 0
            and len(describe(on, group, "--members")["members"]) == 2
            and describe(on, group)["state"] == "Stable"
        )
    )
    assert "without partitions: tidelog-cli" in on("group", "describe", group).out
    told = [stop(reader)[1] for reader in readers]
    assert sum(b"more members than partitions" in err for err in told) == 1


def test_a_topic_that_is_not_there(on: Any, topic: str, group: str) -> None:
    result = on("consume", topic, "--group", group)
    assert (result.code, result.out) == (1, "")
    assert "tidelog topic create" in result.err


@pytest.mark.parametrize("options", [("--offset", 3), ("--timestamp", "1h"), ("--partition", 0)])
def test_a_group_decides_what_is_read(tidelog: Any, options: tuple[object, ...]) -> None:
    result = tidelog("consume", "t", "--group", "g", *options)
    assert (result.code, result.out) == (2, "")
    assert "leave out" in result.err


# -- looking --------------------------------------------------------------------------------------------------------


def test_groups_are_listed(on: Any, process: Any, topic: str, group: str, fill: Any) -> None:
    fill(topic, 0, 1)
    read(on, topic, group)
    assert group in on("group", "list").out

    def listed(*options: object) -> list[Any]:
        found = json.loads(on("group", "list", "--json", *options).out)
        return [one for one in found if one["group"] == group]

    assert listed() == [{"group": group, "type": "classic", "state": "Empty", "protocol_type": "consumer"}]
    assert listed("--state", "empty", "--type", "Classic") == listed()
    assert listed("--state", "Stable") == []
    assert listed("--type", "consumer") == []
    wrong = on("group", "list", "--state", "Asleep")
    assert wrong.code == 2
    assert "PreparingRebalance" in wrong.err


def test_a_group_in_use_is_described(on: Any, process: Any, topic: str, group: str, fill: Any) -> None:
    on("topic", "create", topic, "-p", 2)
    fill(topic, 0, 3, "-p", 1)
    reader = process("consume", topic, "--group", group, "--from-beginning", "-n", 100)
    assert [reader.stdout.readline() for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
    eventually(lambda: describe(on, group)["partitions"][1]["lag"] == 0)
    report = describe(on, group)
    (member,) = report["members"]
    assert (report["type"], report["state"], report["protocol"]) == ("classic", "Stable", "range")
    assert (member["client_id"], member["host"], member["partitions"]) == (
        "tidelog-cli",
        "127.0.0.1",
        {topic: [0, 1]},
    )
    first, second = report["partitions"]
    assert first["member_id"] == second["member_id"] == member["member_id"]
    assert (first["committed"], first["end"], first["lag"]) == (None, 0, None)
    assert (second["committed"], second["end"], second["lag"]) == (3, 3, 0)
    table = on("group", "describe", group).out.splitlines()
    assert table[0].startswith(f"group {group}  classic  Stable  protocol range  1 member")
    assert table[1].split() == ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER", "HOST", "CLIENT"]
    assert table[2].split()[:5] == [topic, "0", "-", "0", "-"]
    assert f"{topic}:0,1" in on("group", "describe", group, "--members").out
    assert on("group", "describe", group, "--state").out.splitlines()[1].split()[:4] == [
        group,
        "classic",
        "Stable",
        "range",
    ]
    stop(reader)
    assert "no members" in on("group", "describe", group).out
    assert group in {one["group"] for one in json.loads(on("group", "describe", "--all", "--json").out)}


def test_a_group_of_the_newer_protocol(on: Any, topic: str, group: str, fill: Any, bootstrap: str) -> None:
    from confluent_kafka import Consumer

    on("topic", "create", topic, "-p", 2)
    fill(topic, 0, 3, "-p", 0)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "client.id": "newer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    try:
        last = eventually(lambda: [m for m in consumer.consume(3, 1.0) if m.value() == b"2"])
        consumer.commit(message=last[0], asynchronous=False)
        report = describe(on, group)
        assert (report["type"], report["state"]) == ("consumer", "Stable")
        (member,) = report["members"]
        assert (member["client_id"], member["partitions"]) == ("newer", {topic: [0, 1]})
        assert [(p["committed"], p["lag"]) for p in report["partitions"]] == [(3, 0), (None, None)]
        moved = on("group", "reset", group, "--all-topics", "--to-earliest", "--execute")
        assert (moved.code, "in use by newer" in moved.err) == (1, True)
    finally:
        consumer.close()
    assert on("group", "reset", group, "--all-topics", "--to-earliest", "--execute").code == 0
    assert describe(on, group)["partitions"][0]["committed"] == 0
    explained = on("explain", "group", group)
    assert explained.code == 0, explained.err
    assert "TIDELOG_TEST_BOOTSTRAP" in os.environ or "newer (127.0.0.1) left" in explained.out
    assert on("group", "delete", group, "--yes").code == 0


def test_a_group_that_is_not_there(on: Any, group: str) -> None:
    for command in (
        ("group", "describe", group),
        ("group", "delete", group, "--yes"),
        ("group", "delete-offsets", group, "--topic", "t"),
        ("group", "reset", group, "--all-topics", "--to-latest"),
        ("explain", "group", group),
    ):
        result = on(*command)
        assert (result.code, result.out) == (1, ""), command
        assert group in result.err
        assert "tidelog group list" in result.err


def test_which_groups_must_be_said(tidelog: Any) -> None:
    assert tidelog("group", "describe").code == 2
    assert tidelog("group", "describe", "g", "--all").code == 2
    assert tidelog("group", "describe", "g", "--members", "--state").code == 2


# -- moving ---------------------------------------------------------------------------------------------------------


def test_a_reset_is_shown_first_and_done_when_told(on: Any, topic: str, group: str, fill: Any) -> None:
    fill(topic, 0, 10)
    read(on, topic, group, "--from-beginning")
    shown = on("group", "reset", group, "--topic", topic, "--shift-by", -3)
    assert shown.out.splitlines()[1].split() == [topic, "0", "10", "7"]
    assert "add --execute" in shown.out
    assert read(on, topic, group) == []
    done = json.loads(
        on("group", "reset", group, "--topic", topic, "--shift-by", -3, "--execute", "--json").out
    )
    assert done == {
        "group": group,
        "executed": True,
        "partitions": [{"topic": topic, "partition": 0, "before": 10, "after": 7, "note": None}],
    }
    assert read(on, topic, group) == ["7", "8", "9"]


@pytest.mark.parametrize(
    ("where", "offset", "note"),
    [
        (("--to-earliest",), 0, None),
        (("--to-latest",), 10, None),
        (("--to-offset", 4), 4, None),
        (("--to-offset", 99), 10, "99 is beyond the end"),
        (("--to-datetime", "2001-01-01"), 0, None),
        (("--to-datetime", "2100-01-01T00:00:00Z"), 10, "no record is that late: the end"),
        (("--by-duration", "PT1H"), 0, None),
        (("--to-current",), 6, None),
    ],
)
def test_ways_to_say_where(
    on: Any, topic: str, group: str, fill: Any, where: tuple[object, ...], offset: int, note: str | None
) -> None:
    fill(topic, 0, 10)
    read(on, topic, group, "--from-beginning", "-n", 6)
    result = on("group", "reset", group, "--all-topics", *where, "--execute", "--json")
    assert result.code == 0, result.err
    (partition,) = json.loads(result.out)["partitions"]
    assert (partition["before"], partition["after"], partition["note"]) == (6, offset, note)
    assert describe(on, group)["partitions"][0]["committed"] == offset


def test_a_reset_can_make_a_group(on: Any, topic: str, group: str, fill: Any) -> None:
    fill(topic, 0, 10)
    result = on("group", "reset", group, "--topic", f"{topic}:0", "--to-offset", 8, "--execute")
    assert result.code == 0
    assert f"there is no group {group} yet" in result.err
    assert read(on, topic, group) == ["8", "9"]


def test_a_group_in_use_is_not_moved(on: Any, process: Any, topic: str, group: str, fill: Any) -> None:
    fill(topic, 0, 2)
    reader = process("consume", topic, "--group", group, "--from-beginning")
    assert reader.stdout.readline() == b"0\n"
    moved = on("group", "reset", group, "--topic", topic, "--to-earliest")
    assert (moved.code, moved.out) == (1, "")
    assert f"group {group} is in use by tidelog-cli (127.0.0.1)" in moved.err
    assert "stop them" in moved.err
    deleted = on("group", "delete", group, "--yes")
    assert (deleted.code, deleted.out) == (1, "")
    assert "NON_EMPTY_GROUP" in deleted.err
    assert "stop its members first" in deleted.err
    offsets = on("group", "delete-offsets", group, "--topic", topic)
    assert offsets.code == 1
    stop(reader)


def test_a_reset_says_what_is_missing(tidelog: Any) -> None:
    assert tidelog("group", "reset", "g", "--to-latest").code == 2
    assert tidelog("group", "reset", "g", "--topic", "t").code == 2
    assert tidelog("group", "reset", "g", "--topic", "t", "--all-topics", "--to-latest").code == 2
    assert tidelog("group", "reset", "g", "--topic", "t", "--to-latest", "--to-earliest").code == 2


# -- deleting -------------------------------------------------------------------------------------------------------


def test_offsets_and_groups_are_deleted(on: Any, topic: str, group: str, fill: Any) -> None:
    fill(topic, 0, 4)
    read(on, topic, group, "--from-beginning")
    assert on("group", "delete-offsets", group, "--topic", topic).out == (
        f"deleted the offset of group {group} in {topic}-0 (it was 4)\n"
    )
    again = on("group", "delete-offsets", group, "--topic", topic)
    assert again.code == 1
    read(on, topic, group, "--from-beginning")
    unasked = on("group", "delete", group)
    assert (unasked.code, unasked.out) == (1, "")
    assert "--yes" in unasked.err
    assert on("group", "delete", group, "--yes").out == f"deleted group {group}\n"
    assert on("group", "describe", group).code == 1


# -- asking why -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif("TIDELOG_TEST_BOOTSTRAP" in os.environ, reason="only Tidelog keeps a history")
def test_a_group_that_flaps_is_explained(on: Any, topic: str, group: str, fill: Any) -> None:
    fill(topic, 0, 4)
    read(on, topic, group, "--from-beginning")
    healthy = on("explain", "group", group)
    assert healthy.code == 0, healthy.err
    assert "tidelog-cli (127.0.0.1) joined" in healthy.out
    assert "nothing here looks like a problem" in healthy.out
    for _ in range(3):
        read(on, topic, group)
    flapping = on("explain", "group", group).out
    assert "flapping: tidelog-cli (127.0.0.1) joined 4 times" in flapping
    document = json.loads(on("explain", "group", group, "--json").out)
    assert document["history"] is True
    assert len(document["rebalances"]) >= 4
    assert document["findings"][0]["kind"] == "flapping"
    assert {entry["event"] for entry in document["entries"]} >= {"joined", "left", "rebalance began"}
