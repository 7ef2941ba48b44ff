"""`tidelog consume --group` when something comes in between: retention, a reader that is slow, a coordinator that is not there."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tidelog.client.cluster import ClusterClient
from tidelog.client.groups import Groups
from tidelog.client.metadata import TopicPartition
from tidelog.client.offsets import delete_records
from tidelog.testing import Cluster


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """Ours waits for no further members, so that a test takes no three seconds for every first one."""
    named = os.environ.get("TIDELOG_TEST_BOOTSTRAP")
    if named:
        yield named
        return
    with Cluster(config={"group.initial.rebalance.delay.ms": 0}) as cluster:
        yield cluster.bootstrap_servers


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def fill(on: Any, tmp_path: Path) -> Callable[..., None]:
    def write(topic: str, first: int, end: int, *options: object) -> None:
        path = tmp_path / "lines"
        path.write_text("".join(f"{n}\n" for n in range(first, end)))
        assert on("produce", topic, "-f", path, *options).code == 0

    return write


def ask(bootstrap: str, question: Callable[[ClusterClient], Any]) -> Any:
    async def main() -> Any:
        async with ClusterClient(bootstrap) as cluster:
            return await question(cluster)

    return asyncio.run(main())


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    ask(bootstrap, lambda cluster: delete_records(cluster, {TopicPartition(topic, 0): offset}))


def committed(bootstrap: str, topic: str, group: str, partition: int = 0) -> int | None:
    tp = TopicPartition(topic, partition)
    found = ask(bootstrap, lambda cluster: Groups(cluster).offsets(group, [tp]))
    return found[tp].offset if tp in found else None


def test_where_the_group_was_is_gone(on: Any, bootstrap: str, topic: str, group: str, fill: Any) -> None:
    fill(topic, 0, 10)
    assert on("consume", topic, "-g", group, "--from-beginning", "-n", 2).out.split() == ["0", "1"]
    delete_before(bootstrap, topic, 5)
    result = on("consume", topic, "-g", group, "--exit-at-end")
    assert result.out.split() == ["5", "6", "7", "8", "9"]
    assert f"warning: {topic}-0: offset 2 is not there any more, going on at 5\n" in result.err
    assert committed(bootstrap, topic, group) == 10


def test_retention_overtakes_a_member_that_reads(
    on: Any, bootstrap: str, topic: str, group: str, fill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidelog.cli.group_positions import Begins, GroupPositions

    fill(topic, 0, 10)
    begin = GroupPositions.begin

    async def begin_and_lose(self: GroupPositions, partitions: Any) -> Begins:
        begins = await begin(self, partitions)
        await asyncio.to_thread(delete_before, bootstrap, topic, 4)  # after the look, before the first fetch
        return begins

    monkeypatch.setattr(GroupPositions, "begin", begin_and_lose)
    result = on("consume", topic, "-g", group, "--from-beginning", "--exit-at-end")
    assert result.code == 0, result.err
    assert result.out.split() == ["4", "5", "6", "7", "8", "9"]
    assert f"warning: {topic}-0: offset 0 is not there any more, going on at 4\n" in result.err


def test_a_topic_made_anew_ends_before_where_the_group_was(
    on: Any, topic: str, group: str, fill: Any
) -> None:
    on("topic", "create", topic)
    fill(topic, 0, 3)
    assert on("group", "reset", group, "--topic", topic, "--to-offset", 3, "--execute").code == 0
    on("topic", "delete", topic)
    on("topic", "create", topic)
    result = on("consume", topic, "-g", group, "--exit-at-end")
    assert (result.code, result.out) == (0, ""), result.err
    # Some brokers forget a group's offsets together with the topic; ours does, and the group is new to it.
    assert "going on at 0" in result.err or "not there any more" not in result.err


def test_what_stands_behind_the_last_record_shown_is_not_committed(
    on: Any, bootstrap: str, topic: str, group: str, fill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--exit-at-end stops where the log ended when the command began, however much is there by then."""
    from tidelog.cli.group_positions import Begins, GroupPositions

    fill(topic, 0, 5)
    begin = GroupPositions.begin

    async def begin_and_grow(self: GroupPositions, partitions: Any) -> Begins:
        begins = await begin(self, partitions)
        from tidelog.client import Producer

        async with Producer(bootstrap) as producer:
            for n in range(5, 9):
                await producer.send(topic, b"%d" % n)
        return begins

    monkeypatch.setattr(GroupPositions, "begin", begin_and_grow)
    result = on("consume", topic, "-g", group, "--from-beginning", "--exit-at-end")
    assert result.out.split() == ["0", "1", "2", "3", "4"]
    assert committed(bootstrap, topic, group) == 5


@pytest.fixture
def member(bootstrap: str, topic: str, group: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """A member that may be silent, and go without asking for records, for a short time only."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: object, **more: Any) -> subprocess.Popen[bytes]:
        arguments = ["tidelog", "consume", topic, "-g", group, "--from-beginning", *map(str, options)]
        code = (
            "import sys\n"
            "from tidelog.cli import consume_group, reading\n"
            "consume_group.SIGN_OF_LIFE_SECONDS = 0.3\n"
            "options = reading.reader_options()\n"
            "options |= dict(max_poll_interval_ms=1500, session_timeout_ms=6000, heartbeat_interval_ms=300)\n"
            "consume_group.reader_options = lambda: options\n"
            "from tidelog.cli.main import main\n"
            f"sys.argv = {arguments!r}\n"
            "main()\n"
        )
        environment = {**os.environ, "TIDELOG_BOOTSTRAP_SERVERS": bootstrap}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        started.append(subprocess.Popen([sys.executable, "-c", code], env=environment, **streams))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


def test_a_reader_that_takes_its_time_costs_no_membership(
    bootstrap: str, topic: str, group: str, fill: Any, member: Any
) -> None:
    """The pipe is full for longer than a member may go without asking for records."""
    fill(topic, 0, 50_000)
    reader = member("-n", 50_000)
    assert reader.stdout.readline() == b"0\n"
    time.sleep(4)
    assert reader.stdout.read().split() == [b"%d" % n for n in range(1, 50_000)], "each once"
    err = reader.stderr.read()
    assert reader.wait(timeout=10) == 0, err
    assert b"joining again" not in err and b"warning" not in err
    assert committed(bootstrap, topic, group) == 50_000


def test_who_joins_waits_for_what_is_being_written(
    bootstrap: str, topic: str, group: str, fill: Any, member: Any, on: Any, tmp_path: Path
) -> None:
    """A rebalance while the pipe is full: what is in it is committed before the partitions go, and nobody prints it again."""
    on("topic", "create", topic, "-p", 2)
    for partition in (0, 1):
        fill(topic, 20_000 * partition, 20_000 * (partition + 1), "-p", partition)
    slow = member()
    lines = [slow.stdout.readline()]
    with (tmp_path / "other").open("wb") as output:
        quick = member(stdout=output)
        time.sleep(1)
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(slow.stdout.readlines)
            deadline = time.monotonic() + 30
            while sum(committed(bootstrap, topic, group, p) or 0 for p in (0, 1)) < 40_000:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            for one in (slow, quick):
                one.send_signal(signal.SIGINT)
                assert one.wait(timeout=20) == 130
            lines += rest.result()
    lines += (tmp_path / "other").read_bytes().splitlines()
    assert sorted(int(line) for line in lines) == list(range(40_000))
    assert b"the group rebalances; joining again" in slow.stderr.read()


def test_a_group_without_coordinator_is_an_error_in_the_end(
    on: Any, topic: str, group: str, fill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidelog.cli import consume_group
    from tidelog.client.errors import BrokerError
    from tidelog.wire.error_codes import ErrorCode

    async def nobody(self: Groups, group_id: str) -> int:
        raise BrokerError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"looking for the coordinator of group {group_id}"
        )

    fill(topic, 0, 1)
    monkeypatch.setattr(Groups, "coordinator", nobody)
    monkeypatch.setattr(consume_group, "PATIENCE_MS", 300)
    result = on("consume", topic, "-g", group)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(
        f"error: looking for the coordinator of group {group}: COORDINATOR_NOT_AVAILABLE"
    )
