"""Drivers, executors and brokers die by kill -9 while a topic goes into a Delta table: in the end it holds every acknowledged record once."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.pipeline.kills import KILLS, SEED, Pipeline, executors, running, steadily, strike
from tidelog.client.admin_values import NewTopic
from tidelog.client.blocking import Admin, Consumer, Producer
from tidelog.client.dead_letter_topic import read_dead_letters
from tidelog.client.metadata import TopicPartition
from tools.peers.tidelog import TidelogPeer

PARTITIONS = 2
POISON_EVERY = 97


class World:
    def __init__(self, tmp_path: Path, master: str = "local[2]") -> None:
        self.broker = TidelogPeer(data_dir=tmp_path / "broker", durability="replicated")
        self.broker.start()
        self.table, self.state = tmp_path / "table", tmp_path / "state"
        with Admin(self.broker.bootstrap) as admin:
            admin.create_topics([NewTopic("kills", PARTITIONS)])
        arguments = [self.broker.bootstrap, "kills", str(self.state), str(self.table), master]
        self.pipeline = Pipeline(
            [sys.executable, "-m", "tests.pipeline.kills_delta", *arguments],
            tmp_path / "pipeline.log",
            {"PYTHONPATH": os.getcwd()},
        )
        self._ids = itertools.count()

    def send(self, count: int) -> None:
        with Producer(self.broker.bootstrap, delivery_timeout_ms=120_000) as producer:
            for number in itertools.islice(self._ids, count):
                row = {"id": number, "text": f"{number:050d}"}
                value = b"poison" if number % POISON_EVERY == 5 else json.dumps(row).encode()
                producer.send("kills", value, partition=number % PARTITIONS)
            producer.flush()

    def kill_broker(self) -> None:
        self.broker.kill()
        self.broker.start()

    def expected(self) -> tuple[dict[tuple[int, int], bytes], dict[tuple[int, int], bytes]]:
        """All that the topic holds, good and bad, as another client reads it."""
        good: dict[tuple[int, int], bytes] = {}
        bad: dict[tuple[int, int], bytes] = {}
        with Consumer(
            self.broker.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            tps = [TopicPartition("kills", number) for number in range(PARTITIONS)]
            ends = consumer.end_offsets(tps)
            consumer.assign(tps)
            while any(consumer.position(tp) < ends[tp] for tp in tps):
                for record in consumer.poll():
                    value = record.value or b""
                    (bad if value == b"poison" else good)[record.partition, record.offset] = value
        return good, bad

    def check(self) -> int:
        good, bad = self.expected()
        assert len(good) + len(bad) == next(self._ids), "the broker lost or doubled records itself"
        rows = DeltaTable(str(self.table)).to_pyarrow_table().to_pylist()
        found = {(row["_partition"], row["_offset"]): row for row in rows}
        assert len(rows) == len(found), "rows are there twice"
        missing, strange = good.keys() - found.keys(), found.keys() - good.keys()
        assert not missing and not strange, f"missing {sorted(missing)[:5]}, strange {sorted(strange)[:5]}"
        for place, row in found.items():
            assert json.loads(good[place]) == {"id": row["id"], "text": row["text"]}
        letters = asyncio.run(read_dead_letters(self.broker.bootstrap, "kills.dlq")).letters
        sent = Counter((each.origin.partition, each.origin.offset) for each in letters)
        assert sent.keys() == bad.keys()
        return sum(sent.values()) - len(sent)


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(master: str = "local[2]") -> World:
        print(f"TIDELOG_KILLS_SEED={SEED}")
        made.append(World(tmp_path, master))
        return made[-1]

    yield make
    for world in made:
        world.pipeline.kill()
        world.broker.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_driver_and_a_broker_die(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.send(4_000)
    with running(world.pipeline) as pipeline:
        done = strike(
            pipeline, random.Random(SEED), [world.kill_broker, pipeline.kill, pipeline.kill_driver_alone], within_seconds=3
        )  # fmt: skip
        print(done)
        world.send(500)
        pipeline.start()
        pipeline.finish()
    world.check()


@pytest.mark.long
@pytest.mark.timeout(KILLS * 120 + 600)
def test_drivers_and_brokers_die_again_and_again(make_world: Callable[..., World]) -> None:
    world = make_world()
    chance = random.Random(SEED)
    world.send(2_000)
    with running(world.pipeline) as pipeline:
        every = [pipeline.kill, pipeline.kill, pipeline.kill_driver_alone, world.kill_broker]
        with steadily(lambda: world.send(300), 0.5):
            print(strike(pipeline, chance, chance.choices(every, k=KILLS), within_seconds=6))
        if pipeline.is_running:
            pipeline.finish()
        pipeline.start()
        pipeline.finish()
    print(f"{world.check()} dead letters twice")


@pytest.mark.long
@pytest.mark.timeout(KILLS * 60 + 600)
def test_executors_die_on_a_cluster(make_world: Callable[..., World], tmp_path: Path) -> None:
    from tidelog.spark.standalone import bring_down, bring_up

    chance = random.Random(SEED)
    cluster = bring_up(tmp_path / "cluster", workers=2, cores=1, memory="1g", port=0)
    try:
        world = make_world(cluster.master)
        workers = [int(each.process["pid"]) for each in cluster.members[1:]]

        killed: list[int] = []

        def kill_executor() -> None:
            """One that there is; a driver that has just begun has none yet, and one that has ended has none any more."""
            until = time.monotonic() + 60
            while world.pipeline.is_running and time.monotonic() < until:
                alive = [pid for worker in workers for pid in executors(worker)]
                if alive:
                    with suppress(ProcessLookupError):
                        os.kill(alive[chance.randrange(len(alive))], signal.SIGKILL)
                        killed.append(len(alive))
                    return
                time.sleep(0.05)

        world.send(10_000)
        with running(world.pipeline) as pipeline:
            with steadily(lambda: world.send(300), 0.5):
                every = [kill_executor, kill_executor, kill_executor, pipeline.kill]
                wanted = [kill_executor, *chance.choices(every, k=KILLS - 1)]
                print(strike(pipeline, chance, wanted, within_seconds=4), f"{len(killed)} executors")
            assert killed, "no executor was there to be killed: nothing was shown"
            if pipeline.is_running:
                pipeline.finish()
            pipeline.start()
            pipeline.finish()
        print(f"{world.check()} dead letters twice")
    finally:
        bring_down(tmp_path / "cluster")
