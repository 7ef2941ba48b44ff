"""`tidelog start` as a process: the ready line, a second start, a port in use, a clean end, a second life."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


class Started:
    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidelog", "start", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)

    def failure(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


@pytest.fixture
def data_dir(tmp_path: Path) -> str:
    return str(tmp_path / "data")


@pytest.fixture
def running(data_dir: str) -> Iterator[Started]:
    started = Started("--port", "0", "--data-dir", data_dir)
    yield started
    if started.process.poll() is None:
        started.process.kill()
        started.process.wait()


def test_one_line_says_that_it_is_ready(running: Started, data_dir: str) -> None:
    line = running.ready_line()
    assert re.fullmatch(
        rf"tidelog: node 0 is ready on 127\.0\.0\.1:\d+ \(data in {re.escape(data_dir)}, durability=fsync, \d+ ms\)\n",
        line,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(running: Started, data_dir: str, number: int) -> None:
    running.ready_line()
    assert running.stop(number) == 0
    assert (Path(data_dir) / ".kafka_cleanshutdown").exists()


def test_a_second_start_on_the_same_directory_is_refused(running: Started, data_dir: str) -> None:
    running.ready_line()
    code, errors = Started("--port", "0", "--data-dir", data_dir).failure()
    assert code == 1
    assert "in use by another broker" in errors
    assert "Traceback" not in errors
    assert running.process.poll() is None


def test_a_killed_broker_leaves_no_lock_behind(running: Started, data_dir: str) -> None:
    running.ready_line()
    running.process.kill()
    running.process.wait()
    again = Started("--port", "0", "--data-dir", data_dir)
    assert "ready" in again.ready_line()
    assert again.stop() == 0


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, errors = Started("--port", port, "--data-dir", str(tmp_path / "data")).failure()
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in errors
    assert "Traceback" not in errors


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    code, errors = Started("--port", "0", "--data-dir", str(tmp_path / "file" / "data")).failure()
    assert code == 1
    assert str(tmp_path / "file") in errors
    assert "Traceback" not in errors
