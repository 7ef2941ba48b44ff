"""A laptop's and a CI job's view of a broker: how soon it is ready, and what it costs while idle.

Promises of the README. The best of a few tries counts, because a test machine may be busy with something else, in seconds of the
reference machine (`bench/timing.py`), because it may run at half its speed for minutes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.timing import scale, yardstick_seconds

pytestmark = [pytest.mark.slow, pytest.mark.alone]

TRIES = 5
READY_SECONDS_MAX = 0.5
IDLE_RSS_BYTES_MAX = 70_000_000
IN_PROCESS_SECONDS_MAX = 0.1


def start_and_measure(data_dir: Path) -> tuple[float, int]:
    """Seconds from the command to the ready line, and resident bytes then."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog", "start", "--port", "0", "--data-dir", str(data_dir)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        seconds = time.perf_counter() - began
        status = Path(f"/proc/{process.pid}/status").read_text()
        (rss,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return seconds, int(rss.split()[1]) * 1024
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
def test_a_broker_is_ready_soon_and_small(tmp_path: Path) -> None:
    measured, speeds = [], []
    for number in range(TRIES):
        measured.append(start_and_measure(tmp_path / str(number)))
        speeds.append(scale(min(yardstick_seconds() for _ in range(5))))
    speed = min(1.0, max(speeds))
    seconds = min(seconds for seconds, _ in measured) * speed
    rss = max(rss for _, rss in measured)
    print(
        f"\nready after {seconds * 1000:.0f} ms (machine at {speed:.2f} of its speed), idle RSS {rss / 1e6:.0f} MB"
    )
    assert seconds <= READY_SECONDS_MAX
    assert rss <= IDLE_RSS_BYTES_MAX


IN_PROCESS = """
import time
from tidelog.testing import Cluster
import tidelog.broker.node  # what "after import" means
seconds = []
for _ in range(5):
    began = time.perf_counter()
    cluster = Cluster().start()
    seconds.append(time.perf_counter() - began)
    cluster.close()
print(min(seconds))
"""


def test_a_cluster_in_the_test_process_is_ready_at_once() -> None:
    seconds = float(subprocess.check_output([sys.executable, "-c", IN_PROCESS], text=True))
    print(f"\nin-process cluster ready after {seconds * 1000:.0f} ms")
    assert seconds <= IN_PROCESS_SECONDS_MAX
