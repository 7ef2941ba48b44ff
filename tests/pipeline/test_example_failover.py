"""Brokers are killed while the pipeline of the food-delivery example runs, one after the other: its results are what plain Python calculates from the same records."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from examples.food_delivery.generate import send
from examples.food_delivery.place import Place
from examples.food_delivery.topics import TOPICS, create_topics
from tests.cli.test_supervisor import READY, Supervised, started
from tests.pipeline.test_example import judge, rounds, run_once
from tidelog.client import Admin

pytestmark = [pytest.mark.slow, pytest.mark.long]

BETWEEN_KILLS_SECONDS = 4.0
AGAIN = re.compile(r"node (\d) is ready again, process (\d+)")


class Killer(threading.Thread):
    """Kills -9 a broker every few seconds, each in its turn; the next when the last one is back."""

    def __init__(self, cluster: Supervised, pids: list[int]) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._pids = dict(enumerate(pids))
        self._done = threading.Event()
        self.kills = 0

    def run(self) -> None:
        while not self._done.wait(BETWEEN_KILLS_SECONDS):
            node = self.kills % 3
            os.kill(self._pids[node], signal.SIGKILL)
            self.kills += 1
            while not self._done.is_set() and len(found := AGAIN.findall(self._cluster.text)) < self.kills:
                time.sleep(0.1)
            self._pids |= {int(number): int(pid) for number, pid in found}

    def stop(self) -> None:
        self._done.set()
        self.join()


@pytest.mark.timeout(900)
async def test_killing_brokers_while_spark_runs_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    monkeypatch.chdir(tmp_path)  # where sqlite:///food_delivery.db is
    place = Place(tmp_path)
    place.write_specification()
    with started(tmp_path / "brokers") as cluster:
        ready = await asyncio.to_thread(cluster.until, READY)
        brokers, pids = ready[1], [int(pid) for pid in ready.groups()[1:]]
        await create_topics(brokers, count=3)
        async with Admin(brokers) as admin:
            for topic in await admin.describe_topics([name for name, _, _ in TOPICS]):
                assert all(len(partition.replicas) == 3 for partition in topic.partitions.values())
        first, second = rounds()
        counters: dict[str, Mapping[str, int]] = {}
        killer = Killer(cluster, pids)
        killer.start()
        for happened in (first, second):
            await send(brokers, happened)
            counters = await asyncio.to_thread(run_once, spark, place, brokers)
        killer.stop()
        assert killer.kills >= 3, "the run was over before it was disturbed"
        await judge(place, brokers, first, second, counters)
