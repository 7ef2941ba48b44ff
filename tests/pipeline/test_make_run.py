"""`make run` as a person has it: results come, Ctrl-C ends it, nothing stays behind, and the next run goes on."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.food_delivery.place import Place
from examples.food_delivery.run import BROKERS
from tools.peers.tidelog import environment

pytestmark = [pytest.mark.slow, pytest.mark.alone]

RESULT = re.compile(r"minute \d\d:\d\d: [1-9]\d* orders, revenue [\d,]+\.\d\d; most: ")


@contextlib.contextmanager
def running(directory: Path, port: int, *more: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    output = directory.with_suffix(".out")
    with open(output, "wb") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "examples.food_delivery.run", "--rate", "20"),
                *("--port", str(port), "--directory", str(directory), *more),
            ],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process, output
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def until(
    pattern: re.Pattern[str] | str, process: subprocess.Popen[bytes], output: Path, seconds: float
) -> str:
    deadline = time.monotonic() + seconds
    while not re.search(pattern, text := output.read_text()):
        assert process.poll() is None and time.monotonic() < deadline, text
        time.sleep(0.2)
    return text


def processes_in(directory: Path) -> list[str]:
    """Command lines of all processes that speak of the directory or work in it, Spark's among them."""
    found = []
    for each in Path("/proc").iterdir():
        if not each.name.isdecimal() or int(each.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            command = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            cwd = os.readlink(each / "cwd")
            if str(directory) in command or cwd.startswith(str(directory)):
                found.append(f"{each.name} {command[:200]}")
    return found


@pytest.mark.timeout(800)
def test_results_come_until_ctrl_c_and_then_nothing_is_left(tmp_path: Path) -> None:
    directory, port = tmp_path / "run", _free_port()
    with running(directory, port) as (process, output):
        until(RESULT, process, output, 240)
        assert len(processes_in(directory)) >= 3
        with running(directory, _free_port()) as (second, said):
            assert second.wait(120) == 1
            assert "another run of the example is in" in said.read_text()
        with running(tmp_path / "other", port) as (second, said):
            assert second.wait(120) == 1
            assert f"make run PORT={port + 100}" in said.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(180) == 0, output.read_text()
    text = output.read_text()
    assert "stopped in" in text and "killed" not in text
    assert str(Place(directory).tables) in text
    deadline = time.monotonic() + 60  # Java leaves when it finds its parent gone
    while processes_in(directory) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_in(directory) == []


def _free_port() -> int:
    """The first of three in a row."""
    while True:
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            port: int = probes.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for number in range(1, BROKERS):
                probes.enter_context(socket.create_server(("127.0.0.1", port + number)))
            return port
