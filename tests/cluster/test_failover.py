"""Three broker processes: how long nobody can write when one of them goes. `bench.failover` measures it at length."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from bench.failover_watch import Writers
from tests.cluster.processes import Processes

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

TOPIC = "orders"
PARTITIONS = 3
KILLED_SECONDS_MAX = 3.0
STOPPED_SECONDS_MAX = 0.5
"""The aim is 0.2 s on a quiet machine."""


def test_there_is_a_writable_leader_again_soon(tmp_path: Path) -> None:
    with Processes(tmp_path) as brokers:
        brokers.create_topic(TOPIC, PARTITIONS)
        brokers.wait_until_in_sync(TOPIC)
        with Writers(brokers.bootstrap, TOPIC, PARTITIONS) as writers:
            for node in range(3):
                for number, seconds_max in (
                    (signal.SIGKILL, KILLED_SECONDS_MAX),
                    (signal.SIGTERM, STOPPED_SECONDS_MAX),
                ):
                    writers.wait_until_steady(time.perf_counter(), seconds=30)
                    began = time.perf_counter()
                    brokers.signal(node, number)
                    writers.wait_until_steady(began + 0.5, seconds=60)
                    assert writers.worst_gap(range(PARTITIONS), began) < seconds_max, (node, number)
                    brokers.kill(node)  # a process that has ended is waited for
                    brokers.start(node)
                    brokers.wait_until_in_sync(TOPIC)
        assert writers.failures == []
