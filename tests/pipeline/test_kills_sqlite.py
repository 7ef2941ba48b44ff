"""Drivers and brokers die by kill -9 while a topic of changes is kept as a table in SQLite: in the end it has the latest row of each key, and no change went in twice.

A row that is written twice looks like one that is written once, so the database itself keeps account: triggers note every change, and the same record must not be there a second time.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.kills import KILLS, SEED, Pipeline, running, steadily, strike
from tests.pipeline.kills_sqlite import options
from tidelog.client.admin_values import NewTopic
from tidelog.client.blocking import Admin, Consumer, Producer
from tidelog.client.metadata import TopicPartition
from tidelog.pipeline.jobs.materialize import open_target
from tools.peers.tidelog import TidelogPeer

PARTITIONS = 2
KEYS = 150
ACCOUNT = """
CREATE TABLE account (what TEXT, id INTEGER, part INTEGER, at INTEGER);
CREATE TRIGGER added AFTER INSERT ON kept BEGIN INSERT INTO account VALUES ('put', NEW.id, NEW._partition, NEW._offset); END;
CREATE TRIGGER changed AFTER UPDATE ON kept BEGIN INSERT INTO account VALUES ('put', NEW.id, NEW._partition, NEW._offset); END;
CREATE TRIGGER removed AFTER DELETE ON kept BEGIN INSERT INTO account VALUES ('gone', OLD.id, OLD._partition, OLD._offset); END;
"""


class World:
    def __init__(self, tmp_path: Path) -> None:
        self.broker = TidelogPeer(data_dir=tmp_path / "broker", durability="replicated")
        self.broker.start()
        with Admin(self.broker.bootstrap) as admin:
            admin.create_topics([NewTopic("changes", PARTITIONS)])
        self.database = tmp_path / "state.db"
        url = f"sqlite:///{self.database}"
        open_target(options("changes", url)).prepare()
        with closing(sqlite3.connect(self.database)) as connection:
            connection.executescript(ACCOUNT)
        self.pipeline = Pipeline(
            [sys.executable, "-m", "tests.pipeline.kills_sqlite", self.broker.bootstrap, "changes", str(tmp_path / "state"), url],
            tmp_path / "pipeline.log",
            {"PYTHONPATH": os.getcwd()},
        )  # fmt: skip
        self._numbers = itertools.count()

    def send(self, count: int) -> None:
        """A change of a key in three is a tombstone; one key in two is the whale."""
        with Producer(self.broker.bootstrap, delivery_timeout_ms=120_000) as producer:
            for number in itertools.islice(self._numbers, count):
                key = 0 if number % 2 else number * 7919 % KEYS
                value = None if number % 3 == 0 else json.dumps({"id": key, "text": f"{number}"}).encode()
                producer.send("changes", value, key=json.dumps({"id": key}).encode())
            producer.flush()

    def kill_broker(self) -> None:
        self.broker.kill()
        self.broker.start()

    def expected(self) -> dict[int, tuple[str, int, int]]:
        found: dict[int, tuple[str, int, int]] = {}
        count = 0
        with Consumer(self.broker.bootstrap, auto_offset_reset="earliest") as consumer:
            tps = [TopicPartition("changes", number) for number in range(PARTITIONS)]
            ends = consumer.end_offsets(tps)
            consumer.assign(tps)
            while any(consumer.position(tp) < ends[tp] for tp in tps):
                for record in consumer.poll():
                    count += 1
                    key = json.loads(record.key or b"")["id"]
                    found.pop(key, None)
                    if record.value is not None:
                        found[key] = (json.loads(record.value)["text"], record.partition, record.offset)
        assert count == next(self._numbers), "the broker lost or doubled records itself"
        return found

    def check(self) -> None:
        with closing(sqlite3.connect(self.database)) as connection:
            rows: list[Any] = connection.execute("SELECT id, text, _partition, _offset FROM kept").fetchall()
            twice = connection.execute(
                "SELECT what, id, part, at FROM account GROUP BY what, part, at HAVING count(*) > 1"
            ).fetchall()
            batches = connection.execute("SELECT batch FROM tidelog_flows").fetchone()[0]
        assert not twice, f"changes went in twice: {twice[:5]}"
        assert {key: tuple(rest) for key, *rest in rows} == self.expected()
        assert batches >= 5


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    print(f"TIDELOG_KILLS_SEED={SEED}")
    made = World(tmp_path)
    yield made
    made.pipeline.kill()
    made.broker.kill()


def _until_caught_up(world: World, kills: list[Callable[[], None]], seconds: float) -> None:
    with running(world.pipeline) as pipeline:
        print(strike(pipeline, random.Random(SEED), kills, within_seconds=seconds))
        world.send(500)
        pipeline.start()
        pipeline.finish()
    world.check()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_driver_dies_twice_and_a_broker_once(world: World) -> None:
    world.send(4_000)
    _until_caught_up(world, [world.pipeline.kill, world.kill_broker, world.pipeline.kill_driver_alone], 3)


@pytest.mark.long
@pytest.mark.timeout(KILLS * 120 + 600)
def test_drivers_and_brokers_die_again_and_again(world: World) -> None:
    chance = random.Random(SEED)
    pipeline = world.pipeline
    every = [pipeline.kill, pipeline.kill, pipeline.kill_driver_alone, world.kill_broker]
    world.send(2_000)
    with running(pipeline), steadily(lambda: world.send(300), 0.5):
        print(strike(pipeline, chance, chance.choices(every, k=KILLS), within_seconds=6))
    _until_caught_up(world, [], 0)
