"""What goes wrong, chosen by the seed and kept within what is promised: any violation is then a bug (the fault atlas).

* A process may be killed, paused or stopped cleanly at any time: its disk keeps what it wrote.
* In `durability=fsync` the power of any number of brokers may fail, all at once included: only what was not synced is lost.
* In `durability=replicated` a power failure takes what was not synced, and the broker says so when it comes back. At most
  min.insync.replicas − 1 brokers may be on their way back from one. The same holds, in both, for disks that are replaced by empty ones.
* The network loses, delays, doubles and damages messages and is cut in one direction or both; leaders are moved for no reason.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tidelog.testing.sim.replication_controller import CONTROLLER_ID
from tidelog.testing.sim.replication_network import Weather

if TYPE_CHECKING:
    from tidelog.testing.sim.replication_world import ReplicationWorld


class Nemesis:
    def __init__(self, world: ReplicationWorld, rng: Random) -> None:
        self._world = world
        self._rng = rng
        self._stopped = False
        self.faults: dict[str, int] = {}
        # Swarm: each seed leaves some kinds out, and prefers others.
        kinds: list[tuple[Callable[[], None], str]] = [
            (self._kill, "kill"),
            (self._power, "power"),
            (self._power_of_all, "power of all"),
            (self._replace_disk, "disk"),
            (self._pause, "pause"),
            (self._stop_cleanly, "stop"),
            (self._cut, "cut"),
            (self._isolate, "isolate"),
            (self._move_leader, "move"),
            (self._move_often, "move often"),
            (self._slow_link, "slow"),
        ]
        self._kinds = [kind for kind in kinds if rng.random() < 0.7] or kinds
        self._weights = [rng.choice((1, 1, 3)) for _ in self._kinds]
        self._pause_s = rng.choice((0.5, 1.0, 2.0))
        world.network.weather = Weather(
            straggle=rng.choice((0.0, 0.02, 0.05, 0.15)),
            straggler_delay=rng.choice((0.3, 1.0, 4.0)),
            loss=rng.choice((0.0, 0.0, 0.01, 0.05)),
            duplication=rng.choice((0.0, 0.0, 0.05)),
            corruption=rng.choice((0.0, 0.0, 0.02)),
        )
        world.heap.after(0.5 + rng.random(), self._strike)
        self._restless_s = rng.choice((0.0, 0.0, 0.3, 1.0))
        if self._restless_s:
            self._later(1.0, self._move_again)

    def stop(self) -> None:
        """Everything heals: the network is sound, whoever hangs goes on, whoever is down comes back."""
        self._stopped = True
        network = self._world.network
        network.weather = Weather()
        network.cut.clear()
        network.slow.clear()
        self._world.heal()

    def _strike(self) -> None:
        if self._stopped:
            return
        kind = self._rng.choices(self._kinds, self._weights)[0]
        self._world.trace(f"fault {kind[1]}")
        self.faults[kind[1]] = self.faults.get(kind[1], 0) + 1
        kind[0]()
        self._world.heap.after(self._rng.random() * 2 * self._pause_s, self._strike)

    def _later(self, delay: float, action: Callable[[], object]) -> None:
        def act() -> None:
            if not self._stopped:
                action()

        self._world.heap.after(delay, act)

    def _victim(self) -> int:
        """Leaders are hit more often than others."""
        leader = self._world.controller.assignment.leader
        if leader >= 0 and self._rng.random() < 0.5:
            return leader
        return self._rng.choice(self._world.replicas)

    def _back_soon(self, broker_id: int) -> None:
        delay = self._rng.choice((0.05, 0.5, 3.0)) * (0.5 + self._rng.random())
        self._world.heap.after(delay, lambda: self._world.start(broker_id))

    # ---- processes and disks

    def _kill(self) -> None:
        victim = self._victim()
        self._world.kill(victim)
        self._back_soon(victim)

    def _may_lose(self) -> bool:
        world = self._world
        return len(world.on_their_way_back()) < min(world.options.min_isr, len(world.replicas)) - 1

    def _power(self) -> None:
        victim = self._victim()
        if self._world.options.durable or victim in self._world.on_their_way_back() or self._may_lose():
            self._world.power_off(victim)
        else:
            self._world.kill(victim)
        self._back_soon(victim)

    def _power_of_all(self) -> None:
        for broker_id in self._world.replicas:
            if self._world.options.durable:
                self._world.power_off(broker_id)
            else:
                self._world.kill(broker_id)
            self._back_soon(broker_id)

    def _replace_disk(self) -> None:
        victim = self._victim()
        if victim in self._world.on_their_way_back() or self._may_lose():
            self._world.replace_disk(victim)
            self._back_soon(victim)

    def _pause(self) -> None:
        broker = self._world.brokers.get(self._victim())
        if broker is not None:
            broker.process.paused_until = self._world.heap.now + self._rng.random() * self._rng.choice(
                (0.3, 2.0, 5.0)
            )

    def _stop_cleanly(self) -> None:
        self._world.stop_cleanly(self._victim(), self._back_soon)

    # ---- the network

    def _cut(self) -> None:
        """Between two nodes, in one direction or both."""
        nodes = (*self._world.replicas, CONTROLLER_ID)
        one, other = self._rng.sample(nodes, 2)
        pairs = [(one, other)] if self._rng.random() < 0.5 else [(one, other), (other, one)]
        self._cut_for(pairs, self._rng.random() * 4)

    def _isolate(self) -> None:
        """A broker from all others, but perhaps not from the controller; or from the controller alone."""
        victim = self._victim()
        others = [broker_id for broker_id in self._world.replicas if broker_id != victim]
        reached = self._rng.choice(("nobody", "controller", "brokers"))
        away = {"nobody": [*others, CONTROLLER_ID], "controller": others, "brokers": [CONTROLLER_ID]}[reached]
        pairs = [(victim, other) for other in away] + [(other, victim) for other in away]
        self._cut_for(pairs, 1 + self._rng.random() * 4)

    def _cut_for(self, pairs: list[tuple[int, int]], seconds: float) -> None:
        self._world.network.cut.update(pairs)
        self._later(seconds, lambda: self._world.network.cut.difference_update(pairs))

    def _slow_link(self) -> None:
        leader = self._world.controller.assignment.leader
        follower = self._rng.choice(self._world.replicas)
        delay = self._rng.choice((0.05, 0.3, 0.8))
        self._slow_for((leader, follower), delay, seconds=2 + self._rng.random() * 8)

    def _slow_for(self, link: tuple[int, int], delay: float, *, seconds: float) -> None:
        slow = self._world.network.slow
        slow[link] = delay
        self._later(seconds, lambda: slow.pop(link, None))

    # ---- elections

    def _move_leader(self) -> None:
        self._world.controller.elect(self._rng.choice(self._world.replicas))

    def _move_again(self) -> None:
        """Of some seeds: leadership goes round all the time, so that brokers lead again what they led before."""
        self._move_leader()
        self._later(self._rng.random() * 2 * self._restless_s, self._move_again)

    def _move_often(self) -> None:
        """And perhaps one of the brokers hears of it late, while it hears and is heard by the others."""
        if self._rng.random() < 0.5:
            self._slow_for((CONTROLLER_ID, self._victim()), 0.2 + self._rng.random() * 2, seconds=1.5)
        self._move_leader()
        for _ in range(3):
            self._later(self._rng.random() * 0.4, self._move_leader)
