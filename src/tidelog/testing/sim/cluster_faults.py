"""What goes wrong in a simulated cluster, chosen by the seed and kept within what is promised: any violation is then a bug (the fault atlas).

* A process may be killed, paused or stopped cleanly at any time: its disk keeps what it wrote.
* In `durability=fsync` the power of any number of machines may fail, of all of them too: only what was not synced is lost.
* Of the replicas of each partition at most min.insync.replicas − 1 may have lost something (power in `replicated`, a disk, a sync that failed) and not be in sync again.
* Voters are fixed, and one whose disk is gone could vote twice (H14): that happens only while all the others follow a leader and have all that it has.
* The network delays, stalls, resets, cuts in one direction or both, and damages records; clocks are wrong and run at different speeds; leaders are moved for no reason, topics come and go.

Each fault has a random stream of its own, so that one can be left out (`dropped`) and the others stay what they were.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.testing.sim.cluster_net import Weather
from tidelog.wire.messages.elect_leaders import ElectLeadersRequest
from tidelog.wire.messages.elect_leaders import TopicPartitions as ElectedPartitions

if TYPE_CHECKING:
    from tidelog.testing.sim.cluster_world import ClusterWorld


class PlannedFault(NamedTuple):
    number: int
    at: float
    kind: str


_WEIGHTS: Final = {
    "kill": 5,
    "kill often": 2,
    "kill all": 1,
    "power": 4,
    "power of all": 2,
    "disk": 2,
    "pause": 4,
    "stop": 3,
    "cut": 3,
    "isolate": 5,
    "halves": 2,
    "slow link": 2,
    "slow node": 2,
    "reset": 2,
    "clock": 1,
    "move": 4,
    "move often": 3,
    "disk error": 2,
    "derived files": 1,
    "resign": 2,
}


class Plan(NamedTuple):
    weather: Weather
    faults: tuple[PlannedFault, ...]

    def told(self) -> str:
        kinds: dict[str, int] = {}
        for fault in self.faults:
            kinds[fault.kind] = kinds.get(fault.kind, 0) + 1
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        return f"{told}; {self.weather}"


def plan_of(seed: int, *, first_s: float, last_s: float) -> Plan:
    """Swarm: each seed leaves some kinds out, and prefers others."""
    rng = Random(f"faults/{seed}")
    kinds = [kind for kind in _WEIGHTS if rng.random() < 0.6] or list(_WEIGHTS)
    weights = [_WEIGHTS[kind] * rng.choice((1, 1, 3)) for kind in kinds]
    weather = Weather(
        jitter=rng.choice((0.002, 0.002, 0.02)),
        straggle=rng.choice((0.0, 0.02, 0.05)),
        straggler_delay=rng.choice((0.3, 1.0, 3.0)),
        late=rng.choice((0.2, 0.8)),
        corruption=rng.choice((0.0, 0.0, 0.03)),
    )
    pause_s = rng.choice((0.8, 1.5, 3.0))
    faults: list[PlannedFault] = []
    at = first_s + rng.random() * 2
    while at < last_s:
        faults.append(PlannedFault(len(faults), at, rng.choices(kinds, weights)[0]))
        at += rng.random() * 2 * pause_s
    return Plan(weather, tuple(faults))


class Nemesis:
    def __init__(self, world: ClusterWorld, plan: Plan, dropped: Iterable[int] = ()) -> None:
        self._world = world
        self._is_over = False
        self.struck: dict[str, int] = {}
        self._kinds: dict[str, Callable[[Random], None]] = {
            "kill": self._kill,
            "kill often": self._kill_often,
            "kill all": self._kill_all,
            "power": self._power,
            "power of all": self._power_of_all,
            "disk": self._replace_disk,
            "pause": self._pause,
            "stop": self._stop,
            "cut": self._cut,
            "isolate": self._isolate,
            "halves": self._halves,
            "slow link": self._slow_link,
            "slow node": self._slow_node,
            "reset": self._reset,
            "clock": self._clock,
            "move": self._move,
            "move often": self._move_often,
            "disk error": self._disk_error,
            "derived files": self._derived_files,
            "resign": self._resign,
        }
        world.network.weather = plan.weather
        left_out = set(dropped)
        for fault in plan.faults:
            if fault.number not in left_out:
                world.heap.at(fault.at, partial(self._strike, fault))

    def stop(self) -> None:
        self._is_over = True

    def _strike(self, fault: PlannedFault) -> None:
        if not self._is_over:
            self._world.trace(f"fault {fault.number} {fault.kind}")
            self.struck[fault.kind] = self.struck.get(fault.kind, 0) + 1
            self._kinds[fault.kind](Random(f"{self._world.seed}/fault/{fault.number}"))

    def _later(self, delay: float, action: Callable[[], object]) -> None:
        def act() -> None:
            if not self._is_over:
                action()

        self._world.heap.after(delay, act)

    def _victim(self, rng: Random) -> int:
        """Whoever leads something, or the quorum, is hit more often than others."""
        world = self._world
        chance = rng.random()
        if chance < 0.35:
            leaders = [
                truth.assignment.leader
                for truth in world.truth.partitions.values()
                if truth.assignment.leader >= 0
            ]
            if leaders:
                return rng.choice(leaders)
        elif chance < 0.55:
            controllers = world.leaders()
            if controllers:
                return controllers[0].id
        return rng.choice(world.shape.nodes)

    def _back(self, rng: Random, node_id: int) -> None:
        """Sometimes so soon that the next fault meets it in its recovery."""
        delay = rng.choice((0.02, 0.3, 1.0, 4.0)) * (0.5 + rng.random())
        self._world.heap.after(delay, lambda: self._world.start(node_id))

    # ---- processes and machines

    def _kill(self, rng: Random) -> None:
        self._kill_one(rng, self._victim(rng))

    def _kill_one(self, rng: Random, victim: int) -> None:
        self._world.kill(victim)
        self._back(rng, victim)

    def _kill_often(self, rng: Random) -> None:
        victim = self._victim(rng)
        for number in range(3):
            self._later(number * 0.4 * rng.random(), lambda: self._kill_one(rng, victim))

    def _kill_all(self, rng: Random) -> None:
        for node_id in self._world.shape.nodes:
            self._kill_one(rng, node_id)

    def _power(self, rng: Random) -> None:
        self._power_off(rng, self._victim(rng))

    def _power_off(self, rng: Random, victim: int) -> None:
        world = self._world
        if world.shape.durable or world.may_lose(victim):
            world.power_off(victim, lossy=not world.shape.durable)
            self._back(rng, victim)

    def _power_of_all(self, rng: Random) -> None:
        for node_id in self._world.shape.nodes:
            self._power_off(rng, node_id)

    def _replace_disk(self, rng: Random) -> None:
        world, victim = self._world, self._victim(rng)
        if world.may_lose(victim) and world.may_lose_vote(victim):
            world.replace_disk(victim)
            self._back(rng, victim)

    def _pause(self, rng: Random) -> None:
        self._world.pause(self._victim(rng), rng.random() * rng.choice((0.3, 3.0, 8.0)))

    def _stop(self, rng: Random) -> None:
        victim = self._victim(rng)
        self._world.stop_cleanly(victim, lambda: self._back(rng, victim))
        if rng.random() < 0.3:
            self._later(rng.random(), lambda: self._kill_one(rng, victim))

    def _slow_node(self, rng: Random) -> None:
        node = self._world.running(self._victim(rng))
        if node is not None:
            node.syncs.slow = rng.choice((0.2, 0.8))
            self._later(2 + rng.random() * 6, lambda: setattr(node.syncs, "slow", 0.0))

    def _clock(self, rng: Random) -> None:
        self._world.move_clock(self._victim(rng), rng.choice((-3_600_000, -5000, 5000, 3_600_000)))

    def _disk_error(self, rng: Random) -> None:
        """An EIO: of a sync, it takes what was not synced with it."""
        world, victim = self._world, self._victim(rng)
        node = world.running(victim)
        if node is not None and world.may_lose(victim):
            operation = rng.choice(("sync", "sync", "write", "rename", "sync directory"))
            node.disk.fail(operation, errno.EIO, skip=rng.randrange(4))
            world.count_as_lossy(victim)

    def _derived_files(self, rng: Random) -> None:
        """Indexes and the like of a node that is down may be deleted: they are made again."""
        self._world.delete_derived_files(self._victim(rng), rng)

    # ---- the network

    def _cut(self, rng: Random) -> None:
        """Between two nodes, in one direction or both."""
        nodes = self._world.shape.nodes
        if len(nodes) < 2:
            return
        one, other = rng.sample(nodes, 2)
        pairs = {(one, other)} if rng.random() < 0.5 else {(one, other), (other, one)}
        self._cut_for(pairs, rng.random() * 5)

    def _isolate(self, rng: Random) -> None:
        """A node from all others, from brokers or from controllers, and perhaps in one direction only; clients may still reach it."""
        world, victim = self._world, self._victim(rng)
        others = [node for node in world.shape.nodes if node != victim]
        active = [node.id for node in world.leaders()]
        away = {
            "all": others,
            "but the controller": [node for node in others if node not in active],
            "the controller": [node for node in others if node in active],
        }[rng.choice(("all", "but the controller", "the controller"))]
        there = {(victim, other) for other in away}
        back = {(other, victim) for other in away}
        self._cut_for(rng.choice((there | back, there | back, there, back)), 1 + rng.random() * 6)

    def _halves(self, rng: Random) -> None:
        nodes = list(self._world.shape.nodes)
        rng.shuffle(nodes)
        half = nodes[: len(nodes) // 2]
        bridge = {nodes[-1]} if rng.random() < 0.4 else set()
        cut = {(one, other) for one in half for other in nodes if other not in half and other not in bridge}
        self._cut_for(cut | {(other, one) for one, other in cut}, 1 + rng.random() * 6)

    def _cut_for(self, pairs: set[tuple[int, int]], seconds: float) -> None:
        self._world.network.cut |= pairs
        self._later(seconds, lambda: self._world.network.heal(pairs))

    def _slow_link(self, rng: Random) -> None:
        nodes = self._world.shape.nodes
        if len(nodes) < 2:
            return
        link = tuple(rng.sample(nodes, 2))
        slow = self._world.network.slow
        slow[link[0], link[1]] = rng.choice((0.05, 0.3, 0.9))
        self._later(2 + rng.random() * 8, lambda: slow.pop((link[0], link[1]), None))

    def _reset(self, rng: Random) -> None:
        self._world.network.reset_some(rng, self._victim(rng))

    # ---- elections

    def _move(self, rng: Random) -> None:
        """Preferred leaders are elected again: whatever was led by others moves."""
        world = self._world
        if rng.random() < 0.6 or not world.truth.partitions:
            world.admin.ask_anybody(ElectLeadersRequest(election_type=0, topic_partitions=None))
            return
        topic = rng.choice(sorted(world.truth.image.topics_by_name))
        partitions = list(world.truth.image.topics_by_name[topic].partitions)
        wanted = [ElectedPartitions(topic, partitions)]
        world.admin.ask_anybody(ElectLeadersRequest(election_type=0, topic_partitions=wanted))

    def _move_often(self, rng: Random) -> None:
        """Leaders are cut off from the controller for a moment, one after the other, and taken back."""
        for number in range(3):
            self._later(number * 1.5 * rng.random(), lambda: self._move(rng))
        self._isolate(rng)

    def _resign(self, rng: Random) -> None:
        for node in self._world.leaders():
            node.quorum.resign()
