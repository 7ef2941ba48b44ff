"""Groups through Kafka's own eyes: its tools for operators, its consumers, and its reading of our `__consumer_offsets`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer as RealConsumer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.conftest import Topic, Wire, code
from tests.broker.group_wire import (
    Consumer,
    Member,
    assignment,
    await_coordinators,
    commit,
    committed,
    eventually,
    stable,
)
from tests.clients.libraries.confluent import ConfluentLibrary
from tests.clients.rows import Row
from tests.interop.test_files import dump, move_partition
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest
from tidelog.wire.messages.list_groups import ListGroupsRequest
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tools.peers.kafka import OLD_TOOLS, TOOLS, KafkaPeer, run_tool
from tools.peers.process import Peer
from tools.peers.tidelog import TidelogPeer

PARTITIONS = 3
RECORDS = 100
READ_SECONDS_MAX = 60.0
AT_ONCE = {"group.initial.rebalance.delay.ms": "0"}
PROTOCOLS = ("classic", "consumer")

for known in (TOOLS, OLD_TOOLS):
    known.setdefault("kafka-consumer-groups", "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand")


# ---- a topic, a group, a tool


class Subject(NamedTuple):
    """A topic of three partitions with a hundred records in the first, a millisecond apart."""

    topic: str
    first_ms: int
    group: str


def write(bootstrap: str, topic: str, first_ms: int) -> None:
    rows = [Row(None, b"value %d" % number, (), first_ms + number) for number in range(RECORDS)]
    ConfluentLibrary().write(bootstrap, topic, rows, codec="none", acks="all")


@pytest.fixture
def subject(broker: Peer, new_topic_name: Callable[[str], str]) -> Subject:
    topic = new_topic_name("groups")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    first_ms = int(time.time() * 1000) - 10_000
    write(broker.bootstrap, topic, first_ms)
    return Subject(topic, first_ms, topic + "-group")


class Running:
    """A consumer that has read everything and has committed some of it; it stays a member until it is closed."""

    def __init__(self, bootstrap: str, subject: Subject, protocol: str, *, commits: int) -> None:
        self._consumer: Any = RealConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": subject.group,
                "group.protocol": protocol,
                "client.id": "running",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self._consumer.subscribe([subject.topic])
        read = 0
        deadline = time.monotonic() + READ_SECONDS_MAX
        while read < RECORDS:
            assert time.monotonic() < deadline, f"read {read} of {RECORDS} records"
            read += sum(not message.error() for message in self._consumer.consume(RECORDS, timeout=0.2))
        assert len(self._consumer.assignment()) == PARTITIONS
        self._consumer.commit(offsets=[TopicPartition(subject.topic, 0, commits)], asynchronous=False)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._consumer.close()


Tool = Callable[..., str]


@pytest.fixture
def tool(broker: Peer, client_version: str) -> Tool:
    """kafka-consumer-groups: what it printed. `refused=True`: it must say so, in a sentence."""

    def run(*arguments: str, refused: bool = False) -> str:
        name = "kafka-consumer-groups"
        done = run_tool(name, "--bootstrap-server", broker.bootstrap, *arguments, version=client_version)
        said = done.stdout + done.stderr
        complains = done.returncode != 0 or "Error" in said or "Exception" in said
        assert complains == refused, f"{name} {' '.join(arguments)}: {done.returncode}\n{said}"
        return said if refused else done.stdout

    return run


def rows(printed: str) -> list[dict[str, str]]:
    """The table in what the tool printed; its columns differ between releases, their names do not."""
    # Release 3.9 ends no line of the table of new offsets.
    printed = printed.replace("NEW-OFFSET ", "NEW-OFFSET\n")
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    (start,) = [number for number, words in enumerate(lines) if words[0] == "GROUP"]
    names = lines[start]
    found = lines[start + 1 :]
    if len(found) == 1 and names[-1] == "NEW-OFFSET":
        found = [found[0][first : first + len(names)] for first in range(0, len(found[0]), len(names))]
    return [dict(zip(names, words, strict=False)) for words in found]


def offset_of(broker: Peer, subject: Subject) -> int:
    with Wire(broker.port) as wire:
        found = committed(wire, subject.group, {Topic(subject.topic, b""): [0]}, 9)
    assert isinstance(found, dict)
    return found[subject.topic, 0].offset


# ---- the tool


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_listing_and_describing(broker: Peer, tool: Tool, subject: Subject, protocol: str) -> None:
    about = ("--describe", "--group", subject.group)
    with Running(broker.bootstrap, subject, protocol, commits=60):
        assert subject.group in tool("--list").split()
        assert re.search(rf"{subject.group}\s+Stable", tool("--list", "--state", "stable"))
        assert re.search(rf"{subject.group}\s+{protocol}", tool("--list", "--type", protocol), re.IGNORECASE)
        other = PROTOCOLS[1 - PROTOCOLS.index(protocol)]
        assert subject.group not in tool("--list", "--type", other)

        offsets = {int(row["PARTITION"]): row for row in rows(tool(*about))}
        assert sorted(offsets) == list(range(PARTITIONS))
        read = offsets[0]
        assert (read["CURRENT-OFFSET"], read["LOG-END-OFFSET"], read["LAG"]) == ("60", "100", "40")
        assert (read["HOST"], read["CLIENT-ID"]) == ("/127.0.0.1", "running")
        assert len({row["CONSUMER-ID"] for row in offsets.values()}) == 1

        (member,) = rows(tool(*about, "--members"))
        assert (member["CONSUMER-ID"], member["#PARTITIONS"]) == (read["CONSUMER-ID"], str(PARTITIONS))
        verbose = tool(*about, "--members", "--verbose")
        assert re.search(r"[:(]0,\s*1,\s*2", verbose), verbose
        assert re.search(r"Stable\s.*1\s*$", tool(*about, "--state"), re.MULTILINE)
        assert "60" in tool("--describe", "--all-groups")
    offsets_after = {row["PARTITION"]: row for row in rows(tool(*about))}
    assert offsets_after["0"]["CURRENT-OFFSET"] == "60"
    assert offsets_after["0"]["CONSUMER-ID"] == "-"
    assert re.search(r"Empty\s.*0\s*$", tool(*about, "--state"), re.MULTILINE)


def test_a_group_that_does_not_exist(tool: Tool) -> None:
    said = tool("--describe", "--group", "no-such-group", refused=True)
    assert "no-such-group" in said


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 100),
        (("--to-offset", "33"), 33),
        (("--shift-by", "-10"), 50),
        (("--shift-by", "1000"), 100),
        (("--to-datetime", "record 40"), 40),
        (("--by-duration", "PT0S"), 100),
        (("--to-current",), 60),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_resetting_offsets(
    broker: Peer, tool: Tool, subject: Subject, wish: tuple[str, ...], expected: int
) -> None:
    with Running(broker.bootstrap, subject, "classic", commits=60):
        pass
    moment = datetime.fromtimestamp((subject.first_ms + 40) / 1000, UTC).isoformat(timespec="milliseconds")
    wish = tuple(moment.removesuffix("+00:00") if part == "record 40" else part for part in wish)
    about = ("--reset-offsets", "--group", subject.group, "--topic", f"{subject.topic}:0", *wish)
    (planned,) = rows(tool(*about, "--dry-run"))
    assert planned["NEW-OFFSET"] == str(expected)
    assert offset_of(broker, subject) == 60, "a dry run changes nothing"
    (done,) = rows(tool(*about, "--execute"))
    assert done["NEW-OFFSET"] == str(expected)
    assert offset_of(broker, subject) == expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_only_groups_without_members_are_reset_and_deleted(
    broker: Peer, tool: Tool, subject: Subject, protocol: str
) -> None:
    reset = (
        "--reset-offsets",
        "--group",
        subject.group,
        "--topic",
        subject.topic,
        "--to-earliest",
        "--execute",
    )
    delete = ("--delete", "--group", subject.group)
    with Running(broker.bootstrap, subject, protocol, commits=60):
        assert "Stable" in tool(*reset, refused=True)
        assert "not empty" in tool(*delete, refused=True)
        assert offset_of(broker, subject) == 60
    assert {row["NEW-OFFSET"] for row in rows(tool(*reset))} == {"0"}
    assert "successful" in tool(*delete)
    assert subject.group not in tool("--list").split()
    tool(*delete, refused=True)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_deleting_offsets(broker: Peer, tool: Tool, subject: Subject, protocol: str) -> None:
    delete = ("--delete-offsets", "--group", subject.group, "--topic", subject.topic)
    with Running(broker.bootstrap, subject, protocol, commits=60):
        assert "subscribed" in tool(*delete, refused=True)
        assert offset_of(broker, subject) == 60
    assert re.search(rf"{subject.topic}\s+0\s+Successful", tool(*delete))
    with Wire(broker.port) as wire:
        assert committed(wire, subject.group, None) == {}


# ---- the console consumer


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_console_consumer_goes_on_where_its_group_was(
    broker: Peer, client_version: str, subject: Subject, protocol: str
) -> None:
    def consume() -> list[str]:
        done = run_tool(
            "kafka-console-consumer", "--bootstrap-server", broker.bootstrap, "--topic", subject.topic,
            "--group", subject.group, "--from-beginning", "--max-messages", str(RECORDS), "--timeout-ms", "40000",
            "--consumer-property", f"group.protocol={protocol}",
            version=client_version,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return [line for line in done.stdout.splitlines() if line.startswith("value")]

    assert consume() == [f"value {number}" for number in range(RECORDS)]
    assert offset_of(broker, subject) == RECORDS
    write(broker.bootstrap, subject.topic, subject.first_ms)
    assert consume() == [f"value {number}" for number in range(RECORDS)]
    assert offset_of(broker, subject) == 2 * RECORDS


# ---- the files


class Acts:
    """A bit of everything that groups leave in their log, through nothing but requests: the same for each broker."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._wires: list[Wire] = []
        await_coordinators(port)
        self.wire = self.connect()
        self.topic = self.wire.create("read", 2)
        self.simple()
        self.classic()
        self.consumers()
        self.mixed()

    def connect(self) -> Wire:
        self._wires.append(Wire(self._port))
        return self._wires[-1]

    def close(self) -> None:
        for wire in self._wires:
            wire.close()

    def simple(self) -> None:
        for offset in (5, 7):
            assert (
                commit(self.wire, "simple", self.topic, offset, metadata="so far", leader_epoch=0) == "NONE"
            )
        assert commit(self.wire, "simple", self.topic, 9, partition=1, version=2) == "NONE"
        gone = OffsetDeleteRequestTopic(
            name="read", partitions=[OffsetDeleteRequestPartition(partition_index=1)]
        )
        assert code(self.wire.ask(OffsetDeleteRequest(group_id="simple", topics=[gone]))) == "NONE"

    def classic(self) -> None:
        (alive,) = stable(self.connect, "classic")
        assert alive.commit(self.topic, 11) == "NONE"
        for group in ("left", "deleted"):
            (member,) = stable(self.connect, group)
            assert member.commit(self.topic, 12) == "NONE"
            assert member.leave() == "NONE"
        (result,) = self.wire.ask(DeleteGroupsRequest(groups_names=["deleted"])).results
        assert code(result) == "NONE"
        for _ in range(2):  # the second replaces the first
            static = Member(self.connect(), "static", instance_id="i")
            static.join()
            assert code(static.sync({static.id: b"yours"})) == "NONE"

    def consumers(self) -> None:
        for group, settings in (
            ("consumers", {}),
            ("pattern", {"regex": "re.d"}),
            ("consumers-left", {}),
            ("consumers-static", {"instance_id": "i", "assignor": "range"}),
        ):
            topics = () if "regex" in settings else ("read",)
            member = Consumer(self.connect(), group, *topics, **settings)
            eventually(lambda member=member: member.beat() and member.partitions(self.topic) == {0, 1})
            who = {"member_id": member.id, "epoch": member.epoch}
            assert commit(member.wire, group, self.topic, 13, **who) == "NONE"
            if group == "consumers-left":
                assert member.leave() == "NONE"

    def mixed(self) -> None:
        """A consumer joins a group whose member speaks the classic protocol, and goes on doing so."""
        classic = Member(self.connect(), "mixed", topics=("read",))
        classic.join()
        assert code(classic.sync({classic.id: assignment("read", 0, 1)})) == "NONE"
        assert classic.commit(self.topic, 14) == "NONE"
        Consumer(self.connect(), "mixed", "read").beat()


COMMITTED = {"simple": 7, "classic": 11, "left": 12} | dict.fromkeys(
    ("consumers", "pattern", "consumers-left", "consumers-static"), 13
)
COMMITTED["mixed"] = 14


def acted(peer: Peer) -> list[Path]:
    """Run the acts and stop the broker: the segments with something in them."""
    peer.start()
    acts = Acts(peer.port)
    acts.close()
    peer.terminate()
    return sorted(path for path in peer.log_dir.glob("__consumer_offsets-*/*.log") if path.stat().st_size)


@pytest.fixture(scope="module")
def logs(kafka_version: str) -> Iterator[dict[str, list[Path]]]:
    """Of both brokers, after the same acts."""
    peers: dict[str, Peer] = {
        "kafka": KafkaPeer(overrides=AT_ONCE),
        "tidelog": TidelogPeer(settings=AT_ONCE),
    }
    try:
        yield {name: acted(peer) for name, peer in peers.items()}
    finally:
        for peer in peers.values():
            peer.stop()


RECORD = re.compile(r"\| offset: .*? key: (\{.*?\}) payload: ?(.*)$", re.MULTILINE)
MOMENTS = (
    "commitTimestamp",
    "currentStateTimestamp",
    "assignmentTimestamp",
    "timestamp",
    "expireTimestamp",
    "lastUpdateTimestampMs",
)
NAMES = ("memberId", "leader", "topicId", "metadataHash", "version")


class Stored(NamedTuple):
    key: str
    value: Any
    """None for a tombstone."""


def decoded(paths: list[Path]) -> list[Stored]:
    """What Kafka's own reader makes of the records, without what differs from run to run."""
    text = dump(paths, "--offsets-decoder")
    found = [
        Stored(
            json.dumps(same_everywhere(json.loads(key)), sort_keys=True),
            None if "{" not in payload else same_everywhere(json.loads(payload)),
        )
        for key, payload in RECORD.findall(text)
    ]
    assert len(found) == text.count("| offset:"), text
    return found


def same_everywhere(content: Any, field: str = "") -> Any:
    if isinstance(content, dict):
        return {
            name: value if name in ("version", "type") and field == "" else same_everywhere(value, name)
            for name, value in content.items()
        }
    if isinstance(content, list):
        return [same_everywhere(each, field) for each in content]
    if field in MOMENTS:
        return content > 0
    if field in NAMES and content not in ("", None):
        return field
    return content


def test_kafka_reads_our_group_records(logs: dict[str, list[Path]]) -> None:
    groups = {json.loads(stored.key)["data"].get("group") for stored in decoded(logs["tidelog"])}
    groups |= {json.loads(stored.key)["data"].get("groupId") for stored in decoded(logs["tidelog"])}
    assert {*COMMITTED, "static", "deleted"} <= groups


def test_our_group_records_end_up_as_kafkas_do(logs: dict[str, list[Path]]) -> None:
    """The last record of each key, field by field."""
    ours, theirs = (
        {stored.key: stored.value for stored in decoded(logs[name])} for name in ("tidelog", "kafka")
    )
    for group in (ours, theirs):
        # Of two members, whose names were made the same: which of them comes last is chance.
        for key in [key for key in group if '"mixed"' in key and "memberId" in key]:
            del group[key]
        # Ours says that whoever comes to an empty group need not wait for an assignment.
        del group[json.dumps({"data": {"groupId": "consumers-left"}, "type": "6"}, sort_keys=True)]
    assert ours == theirs


def test_we_write_the_kinds_of_records_that_kafka_writes(logs: dict[str, list[Path]]) -> None:
    def kinds(name: str) -> set[tuple[str, str]]:
        return {
            (json.loads(stored.key)["type"], "tombstone" if stored.value is None else stored.value["version"])
            for stored in decoded(logs[name])
        }

    assert kinds("tidelog") == kinds("kafka")


@pytest.mark.parametrize("direction", ["Kafka to Tidelog", "Tidelog to Kafka"])
def test_the_groups_of_one_live_on_in_the_other(kafka_version: str, direction: str) -> None:
    ours, theirs = TidelogPeer(settings=AT_ONCE), KafkaPeer(overrides=AT_ONCE)
    source, target = (theirs, ours) if direction == "Kafka to Tidelog" else (ours, theirs)
    try:
        segments = acted(source)
        target.start()
        await_coordinators(target.port)
        target.kill()
        for place in {path.parent for path in segments}:
            move_partition(place, target.log_dir / place.name)
        target.start()
        await_coordinators(target.port)
        with Wire(target.port) as wire:
            listed = {each.group_id: each.group_type for each in wire.ask(ListGroupsRequest()).groups}
            assert {*COMMITTED, "static"} <= listed.keys()
            assert "deleted" not in listed
            assert listed["classic"] == "classic" and listed["consumers"] == "consumer"
            for group, offset in COMMITTED.items():
                found = committed(wire, group, {Topic("read", b""): [0]}, 9)
                assert isinstance(found, dict)
                assert [each.offset for each in found.values()] == [offset], group
    finally:
        source.stop()
        target.stop()
