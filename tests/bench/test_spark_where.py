"""`bench.spark_where`: what no stage accounts for is the handing over, and every program of a tree of processes is told apart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from bench.cpu_tree import cpu_seconds_by_program
from bench.spark_where import Read, where


def test_what_is_left_of_the_workers_is_the_handing_over() -> None:
    reads = [Read(2.0, 1.0, 3.0, 0.5), Read(9.0, 1.5, 4.0, 0.7), Read(2.5, 1.1, 3.5, 0.6)]
    stages = [{"fetch or file": 0.2, "CRC": 0.1, "decode": 0.3}]
    assert where(reads, stages) == pytest.approx(
        {"broker": 0.6, "fetch or file": 0.2, "CRC": 0.1, "decode": 0.3, "handing over": 0.5, "Java": 3.5}
    )


def test_a_source_without_stages_of_its_own_only_hands_over() -> None:
    assert where([Read(1.0, 0.4, 2.0, 0.0)], []) == {"handing over": 0.4, "Java": 2.0}


def test_processor_time_is_told_by_program() -> None:
    """A program that waits for another has spent little, and the other much."""
    burn = "import subprocess\nsubprocess.run(['sh', '-c', 'while :; do :; done'])"
    child = subprocess.Popen([sys.executable, "-S", "-c", burn], start_new_session=True)
    try:
        until = time.monotonic() + 60
        spent: dict[str, float] = {}
        while spent.get("sh", 0.0) < 1.0:
            assert time.monotonic() < until
            time.sleep(0.05)
            spent = cpu_seconds_by_program(child.pid)
        (waiting,) = (seconds for name, seconds in spent.items() if name != "sh")
        assert waiting < 0.9
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
