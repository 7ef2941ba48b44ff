"""`tidelog start --brokers N` as a person has it: says what is where, starts again what dies, stops in good order, or at once when asked twice."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Result
from tidelog.cli.local_cluster import free_ports
from tools.peers.tidelog import environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

READY = re.compile(r"3 brokers are ready on (\S+) \(\d+ ms\), processes (\d+), (\d+), (\d+)")
SECONDS_MAX = 90.0


class Supervised:
    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def text(self) -> str:
        return self._output.read_text()

    def until(self, pattern: re.Pattern[str] | str, seconds: float = SECONDS_MAX) -> re.Match[str]:
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.text)) is None:
            assert self.process.poll() is None and time.monotonic() < deadline, self.text
            time.sleep(0.05)
        return found


@contextlib.contextmanager
def started(root: Path, *more: str) -> Iterator[Supervised]:
    output = root.with_suffix(".out")
    with open(output, "wb") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tidelog", "start", "--brokers", "3", "--port", "0"),
                *("--data-dir", str(root), *more),
            ],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(),
        )
    try:
        yield Supervised(process, output)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until(is_true: Callable[[], bool], seconds: float = SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_dies_is_started_again_and_ctrl_c_stops_all_in_good_order(tmp_path: Path) -> None:
    root = tmp_path / "cluster"
    with started(root) as cluster:
        ready = cluster.until(READY)
        pids = [int(pid) for pid in ready.groups()[1:]]
        for number, server in enumerate(ready[1].split(",")):
            directory = root / f"node-{number}"
            told = f"node {number}: {server}, data in {directory / 'data'}, log in {directory / 'broker.log'}"
            assert told in cluster.text
            assert (directory / "data").is_dir() and (directory / "broker.log").stat().st_size > 0
        os.kill(pids[1], signal.SIGKILL)
        cluster.until("node 1 was killed by SIGKILL; it is started again in 0.5 s")
        again = int(cluster.until(r"node 1 is ready again, process (\d+)")[1])
        assert again != pids[1] and is_alive(again)
        asked_at = time.monotonic()
        cluster.process.send_signal(signal.SIGINT)
        assert cluster.process.wait(60) == 0
        took = time.monotonic() - asked_at
        assert re.search(r"stopped in \d+\.\d s", cluster.text) and "killed:" not in cluster.text
        assert took < 20, f"{took:.1f} s"
        assert not any(is_alive(pid) for pid in (*pids, again))
    for number in range(3):
        marks = (root / f"node-{number}" / "data").glob(".kafka_cleanshutdown")
        assert list(marks), f"node {number} was not stopped cleanly"


def test_asked_twice_it_ends_at_once(tmp_path: Path) -> None:
    with started(tmp_path / "cluster") as cluster:
        pids = [int(pid) for pid in cluster.until(READY).groups()[1:]]
        os.kill(pids[2], signal.SIGSTOP)  # cannot stop in good order
        cluster.process.send_signal(signal.SIGINT)
        cluster.until("Ctrl-C once more ends it at once")
        asked_at = time.monotonic()
        cluster.process.send_signal(signal.SIGINT)
        assert cluster.process.wait(30) == 0
        assert time.monotonic() - asked_at < 10
        wait_until(lambda: not any(is_alive(pid) for pid in pids))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")
def test_no_node_outlives_its_supervisor(tmp_path: Path) -> None:
    with started(tmp_path / "cluster") as cluster:
        pids = [int(pid) for pid in cluster.until(READY).groups()[1:]]
        cluster.process.kill()
        cluster.process.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_a_node_that_cannot_start_ends_it_with_the_reason(tmp_path: Path) -> None:
    root = tmp_path / "cluster"
    (root / "node-1").mkdir(parents=True)
    (root / "node-1" / "data").write_text("a file where a directory should be")
    with started(root) as cluster:
        assert cluster.process.wait(120) == 1
        assert "node 1 cannot start (exit code 1); the last lines of " in cluster.text
        assert str(root / "node-1" / "data") in cluster.text


def test_what_is_wrong_is_said_before_anything_is_started(
    tidelog: Callable[..., Result], tmp_path: Path
) -> None:
    root = tmp_path / "cluster"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = tidelog("start", "--brokers", 2, "--port", port, "--data-dir", root)
        assert refused.code == 1
        assert f"node 0 cannot listen on 127.0.0.1:{port}" in refused.err and "--port" in refused.err
    refused = tidelog("start", "--brokers", 2, "--port", 0, "--data-dir", root, "--set", "nosuch.setting=1")
    assert refused.code == 1 and "nosuch.setting" in refused.err
    refused = tidelog("start", "--brokers", 3, "--port", 0, "--data-dir", root)
    assert refused.code == 1 and "holds a cluster of 2 nodes" in refused.err
    assert not list(root.glob("node-*/broker.log"))


def roles(root: Path, ports: list[int], node: int, roles: str) -> subprocess.Popen[bytes]:
    """One node of a cluster with a properties file of its own: three voters, and whoever else comes."""
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports[:3]))
    names = {"controller": "CONTROLLER", "broker": "PLAINTEXT"}
    listeners = [
        f"{names[role]}://127.0.0.1:{ports[node] if role == 'controller' else ports[3 + node]}"
        for role in roles.split(",")
    ]
    file = root / f"{node}.properties"
    file.write_text(
        f"node.id={node}\nprocess.roles={roles}\ncontroller.quorum.voters={voters}\n"
        f"controller.listener.names=CONTROLLER\nlisteners={','.join(listeners)}\nlog.dirs={root}/data-{node}\n"
    )
    with open(root / f"{node}.out", "wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tidelog", "start", "--config", str(file)], stdout=output, stderr=output
        )


def test_a_node_that_waits_for_the_others_can_be_stopped(tmp_path: Path) -> None:
    """It waits for a majority of the controllers, for ever if nobody comes; not against the will of whoever started it."""
    waiting = roles(tmp_path, free_ports("127.0.0.1", 6), 0, "broker,controller")
    try:
        wait_until(lambda: "not to be reached" in (tmp_path / "0.out").read_text())
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(20) == 0
        assert "is ready" not in (tmp_path / "0.out").read_text()
    finally:
        waiting.kill()
        waiting.wait()


def test_controllers_and_brokers_may_be_apart(tmp_path: Path, tidelog: Callable[..., Result]) -> None:
    ports = free_ports("127.0.0.1", 7)
    nodes = [
        roles(tmp_path, ports, 0, "controller"),
        roles(tmp_path, ports, 1, "controller"),
        roles(tmp_path, ports, 2, "broker,controller"),
        roles(tmp_path, ports, 3, "broker"),
    ]
    try:
        for number in range(4):
            wait_until(lambda number=number: "is ready on" in (tmp_path / f"{number}.out").read_text())  # type: ignore[misc]
        server = f"127.0.0.1:{ports[6]}"
        created = tidelog("topic", "create", "orders", "-r", 2, "-b", server)
        assert created.code == 0, created.err
        status = json.loads(tidelog("cluster", "status", "--all", "--json", "-b", server).out)
        assert [(each["broker"], each["state"]) for each in status["brokers"]] == [
            (2, "active"),
            (3, "active"),
        ]
        assert set(status["partitions"][0]["isr"]) == {2, 3}
        quorum = json.loads(tidelog("quorum", "describe", "--json", "-b", server).out)
        assert [voter["node"] for voter in quorum["voters"]] == [0, 1, 2]
        assert [observer["node"] for observer in quorum["observers"]] == [3]
        for node in reversed(nodes):
            node.send_signal(signal.SIGTERM)
            assert node.wait(60) == 0
    finally:
        for node in nodes:
            node.kill()
            node.wait()
