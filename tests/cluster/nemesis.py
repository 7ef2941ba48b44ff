"""Faults at random, one after the other, under a load that never ends: what `make cluster` does for hours and `make test` for half a minute.

A seed says which faults, against whom and for how long; when exactly they strike is up to the machine. "Whom" is often a role ("the leader of orders-1"), which is looked up when it happens. After each
fault everything is healed, and everything must go on: all replicas in sync, both producers acknowledged, both readers at the end. There is one history over all cycles; it is checked every
`CHECK_EVERY` cycles for whatever can be seen before its end, and as a whole, with a last reading from the beginning, at the end.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from tests.cluster.load import Load
from tests.cluster.processes import Processes
from tidelog.testing.history import Report
from tidelog.testing.proxy import Direction

CHECK_EVERY: Final = 10
Say = Callable[[str], None]


class Scene(NamedTuple):
    """What a fault has to work with."""

    cluster: Processes
    load: Load
    topic: str
    partitions: int
    chance: random.Random

    def seconds(self, least: float, most: float) -> float:
        return round(self.chance.uniform(least, most), 1)

    def somebody(self) -> tuple[str, int]:
        """A node, and how it was chosen. The choice takes the same draws whoever it is."""
        number, partition = self.chance.randrange(4), self.chance.randrange(self.partitions)
        if number == 0:
            return "the active controller", self.cluster.controller()
        if number == 1:
            node_id = self.chance.choice(self.cluster.node_ids)
            return f"node {node_id}", node_id
        return f"the leader of {self.topic}-{partition}", self.cluster.leader_of(self.topic, partition)


def kill(scene: Scene, say: Say) -> None:
    seconds = scene.seconds(0.0, 4.0)
    who, node_id = scene.somebody()
    say(f"kill -9 of {who} ({node_id}), back after {seconds} s")
    scene.cluster.kill(node_id)
    time.sleep(seconds)
    scene.cluster.start(node_id)


def kill_while_starting(scene: Scene, say: Say) -> None:
    seconds = [scene.seconds(0.1, 3.0) for _ in range(scene.chance.randrange(1, 4))]
    who, node_id = scene.somebody()
    say(f"kill -9 of {who} ({node_id}), and again {', '.join(map(str, seconds))} s after it was started")
    scene.cluster.kill(node_id)
    for each in seconds:
        scene.cluster.launch(node_id)
        time.sleep(each)
        scene.cluster.kill(node_id)
    scene.cluster.start(node_id)


def kill_all(scene: Scene, say: Say) -> None:
    order = scene.chance.sample(scene.cluster.node_ids, len(scene.cluster.node_ids))
    gaps = [scene.seconds(0.0, 1.5) for _ in order]
    say(f"kill -9 of all at once, started again in the order {order} with pauses of {gaps} s")
    scene.cluster.kill(*scene.cluster.node_ids)
    for node_id, gap in zip(order, gaps, strict=True):
        time.sleep(gap)
        scene.cluster.launch(node_id)
    for node_id in order:
        scene.cluster.wait_until_ready(node_id)


def kill_two(scene: Scene, say: Say) -> None:
    """Nothing is acknowledged any more, and no controller is left; one of the two comes back first."""
    pair = scene.chance.sample(scene.cluster.node_ids, 2)
    seconds = scene.seconds(0.0, 3.0)
    say(f"kill -9 of {pair[0]} and {pair[1]}, back after {seconds} s")
    scene.cluster.kill(*pair)
    time.sleep(seconds)
    scene.cluster.start(*pair)


def stop(scene: Scene, say: Say) -> None:
    who, node_id = scene.somebody()
    say(f"controlled shutdown of {who} ({node_id})")
    scene.cluster.stop(node_id)
    scene.load.goes_on()
    scene.cluster.start(node_id)


def rolling_restart(scene: Scene, say: Say) -> None:
    order = scene.chance.sample(scene.cluster.node_ids, len(scene.cluster.node_ids))
    say(f"rolling restart of {order}")
    for node_id in order:
        scene.cluster.stop(node_id)
        scene.cluster.start(node_id)
        scene.cluster.wait_until_in_sync(scene.topic)


def pause(scene: Scene, say: Say) -> None:
    seconds = scene.seconds(0.2, 7.0)
    who, node_id = scene.somebody()
    say(f"SIGSTOP of {who} ({node_id}) for {seconds} s")
    scene.cluster.pause(node_id)
    time.sleep(seconds)
    scene.cluster.resume(node_id)


def lose_disk(scene: Scene, say: Say) -> None:
    who, node_id = scene.somebody()
    say(f"the disk of {who} ({node_id}) is lost")
    scene.cluster.kill(node_id)
    scene.cluster.lose_disk(node_id)
    scene.load.goes_on()
    scene.cluster.start(node_id)


def cut_off(scene: Scene, say: Say) -> None:
    """From other brokers, from the controllers, or from both; in both directions, or so that it hears and is not heard, or the other way round."""
    networks = scene.chance.choice((("brokers",), ("controllers",), ("brokers", "controllers")))
    ways = scene.chance.choice(("both", "both", "out", "in"))
    seconds = scene.seconds(0.5, 8.0)
    who, node_id = scene.somebody()
    told = {"both": "cut off from", "out": "not heard by", "in": "deaf to"}[ways]
    say(f"{who} ({node_id}) is {told} {' and '.join(networks)} for {seconds} s")
    network = scene.cluster.network
    assert network is not None
    for name in networks:
        mesh = network.brokers if name == "brokers" else network.controllers
        for other in scene.cluster.node_ids:
            if other == node_id:
                continue
            if ways == "in":
                mesh.partition(other, node_id, one_way=True)
            else:
                mesh.partition(node_id, other, one_way=ways == "out")
    time.sleep(seconds)
    network.heal()


def tear(scene: Scene, say: Say) -> None:
    """Connections end in the middle of a request or an answer."""
    counts = [scene.chance.randrange(1, 5_000) for _ in range(5)]
    say(
        f"all connections between nodes are torn after {', '.join(map(str, counts))} bytes, one time after the other"
    )
    network = scene.cluster.network
    assert network is not None
    for count in counts:
        for mesh in (network.brokers, network.controllers):
            for one in scene.cluster.node_ids:
                for other in scene.cluster.node_ids:
                    if one != other:
                        mesh.proxy(one, other).drop_after(count, Direction.BOTH)
        time.sleep(0.5)
    network.heal()


def cut_and_kill(scene: Scene, say: Say) -> None:
    """A leader that nobody hears of is killed, and comes back into a network that is whole."""
    seconds = scene.seconds(0.5, 4.0)
    who, node_id = scene.somebody()
    say(f"{who} ({node_id}) is cut off from everybody for {seconds} s, then killed, then all is well")
    network = scene.cluster.network
    assert network is not None
    network.brokers.isolate(node_id)
    network.controllers.isolate(node_id)
    time.sleep(seconds)
    scene.cluster.kill(node_id)
    network.heal()
    scene.cluster.start(node_id)


FAULTS: Final[tuple[tuple[int, Callable[[Scene, Say], None]], ...]] = (
    (4, kill),
    (1, kill_while_starting),
    (2, kill_all),
    (1, kill_two),
    (1, stop),
    (1, rolling_restart),
    (4, pause),
    (2, lose_disk),
    (6, cut_off),
    (1, tear),
    (2, cut_and_kill),
)
"""With how often each is drawn."""


class Nemesis:
    def __init__(
        self, cluster: Processes, load: Load, topic: str, partitions: int, *, seed: int, say: Say
    ) -> None:
        self._scene = Scene(cluster, load, topic, partitions, random.Random(seed))
        self._say = say
        self.struck: Counter[str] = Counter()

    def run(self, cycles: int) -> None:
        faults = [fault for _, fault in FAULTS]
        weights = [weight for weight, _ in FAULTS]
        chance = self._scene.chance
        began = time.monotonic()
        for cycle in range(1, cycles + 1):
            (fault,) = chance.choices(faults, weights)
            time.sleep(self._scene.seconds(0.0, 1.0))
            self._strike(fault, f"{cycle}/{cycles}", began)
            if cycle % CHECK_EVERY == 0 and cycle < cycles:
                self._say(f"  so far: {self._check()}")

    def _strike(self, fault: Callable[[Scene, Say], None], number: str, began: float) -> None:
        scene = self._scene
        struck = time.monotonic()
        fault(scene, lambda text: self._say(f"{number} {struck - began:6.1f} s: {text}"))
        healed = time.monotonic()
        scene.load.goes_on()
        going_on = time.monotonic()
        scene.cluster.wait_until_in_sync(scene.topic)
        self.struck[fault.__name__] += 1
        self._say(
            f"    {scene.load.told()}; goes on {going_on - healed:.1f} s and in sync {time.monotonic() - healed:.1f} s after the end of the fault"
        )

    def _check(self) -> Report:
        """Everything but what only the last reading can tell."""
        report = self._scene.load.tally.check()
        report.raise_if_dirty()
        return report
