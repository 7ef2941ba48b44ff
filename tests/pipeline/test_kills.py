"""Drivers, executors and brokers die by kill -9 while `tidelog pipeline run` copies topics to a Delta table and to SQLite: in the end the tables hold every acknowledged record once."""

from __future__ import annotations

import itertools
import random
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.pipeline.kills import KILLS, SEED, Kill, Pipeline, kill_one_executor, steadily, strike
from tests.pipeline.kills_sinks import Delta, Sink, Sqlite
from tidelog.spark.standalone import bring_down, bring_up
from tools.peers.tidelog import TidelogPeer

LOCAL = "local[2]"
CLUSTER = "cluster"
AWAY_SECONDS_MAX = 2.0


class World:
    """A broker, a pipeline with a flow for each sink, and, if that is where it runs, a cluster of two executors."""

    def __init__(self, directory: Path, sinks: Sequence[type[Sink]], where: str, stack: ExitStack) -> None:
        self.chance = random.Random(SEED)
        print(f"TIDELOG_KILLS_SEED={SEED}")
        self._workers: list[int] = []
        if where == CLUSTER:
            cluster = bring_up(directory / "cluster", workers=2, cores=1, memory="1g", port=0)
            stack.callback(bring_down, directory / "cluster")
            self._workers = [int(each.process["pid"]) for each in cluster.members[1:]]
            where = cluster.master
        self._broker = TidelogPeer(data_dir=directory / "broker", durability="replicated")
        stack.callback(self._broker.kill)
        self._broker.start()
        self._sinks = [sink(self._broker.bootstrap, directory) for sink in sinks]
        spec = directory / "pipeline.toml"
        text = f"""
            [pipeline]
            brokers = "{self._broker.bootstrap}"
            state = "state"
            master = "{where}"
            trigger = "0 seconds"
            on_failure = "stop"
            [pipeline.spark]
            spark.driver.memory = "768m"
            spark.executor.memory = "768m"
            """
        spec.write_text("".join(map(textwrap.dedent, [text, *(sink.flow for sink in sinks)])))
        self.pipeline = Pipeline(spec, directory / "state", directory / "pipeline.log")
        stack.callback(self.pipeline.kill_driver)

    def send(self, count: int) -> None:
        for sink in self._sinks:
            sink.send(count)

    def kill_broker(self) -> None:
        self._broker.kill()
        time.sleep(self.chance.uniform(0, AWAY_SECONDS_MAX))
        self._broker.start()

    def kill_executor(self) -> None:
        kill_one_executor(self.pipeline, self._workers, self.chance)

    def kinds(self) -> list[Kill]:
        """Each is to have its share of a long run."""
        kinds: list[Kill] = [self.pipeline.kill_driver, self.kill_broker, self.pipeline.kill_driver_alone]
        return [*kinds, self.kill_executor] if self._workers else kinds

    def kill(self, kills: Sequence[Kill], *, within_seconds: float, after_batch: float) -> None:
        for said in strike(
            self.pipeline, self.chance, kills, within_seconds=within_seconds, after_batch=after_batch
        ):
            print(said, flush=True)
        print(Counter(kill.__name__ for kill in kills), f"in {self.pipeline.starts} starts")

    def check(self) -> None:
        for sink in self._sinks:
            print(sink.check())


MakeWorld = Callable[[Sequence[type[Sink]], str], World]


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    with ExitStack() as stack:
        yield lambda sinks, where: World(tmp_path, sinks, where, stack)


def die_one_after_the_other(world: World, kills: Sequence[Kill]) -> None:
    """Under a steady load. The driver should be the last, because starting Spark is what takes long."""
    world.send(500)
    with steadily(lambda: world.send(20), 0.25):
        world.kill(kills, within_seconds=2, after_batch=1.0)
    world.pipeline.catch_up()
    world.check()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_broker_and_a_driver_die(make_world: MakeWorld) -> None:
    """Under both sinks at once."""
    world = make_world([Delta, Sqlite], LOCAL)
    die_one_after_the_other(world, [world.kill_broker, world.pipeline.kill_driver])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_executor_a_broker_and_a_driver_die(make_world: MakeWorld) -> None:
    """The same on a cluster."""
    world = make_world([Delta, Sqlite], CLUSTER)
    die_one_after_the_other(world, [world.kill_executor, world.kill_broker, world.pipeline.kill_driver])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(KILLS * 120 + 1800)
@pytest.mark.parametrize("sink", [Delta, Sqlite])
@pytest.mark.parametrize("where", [LOCAL, CLUSTER])
def test_they_die_again_and_again(make_world: MakeWorld, sink: type[Sink], where: str) -> None:
    world = make_world([sink], where)
    kills = list(itertools.islice(itertools.cycle(world.kinds()), KILLS))
    world.chance.shuffle(kills)
    world.send(1_000)
    with steadily(lambda: world.send(100), 0.5):
        world.kill(kills, within_seconds=6, after_batch=0.5)
    if world.pipeline.is_running:  # what died last was no driver
        world.pipeline.kill_driver()
    world.pipeline.catch_up()
    world.check()
