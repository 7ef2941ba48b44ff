"""`tidelog start --brokers N` as a person has it: says what is where, starts again what dies, stops in good order, or at once when asked twice."""

from __future__ import annotations

import contextlib
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
