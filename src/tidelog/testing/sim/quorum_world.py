"""A whole simulated quorum: voters, observers, a network, clients that append, and everything that goes wrong. One seed decides all of it.

Owns the swarm (what kind of world a seed means), the faults, the two phases: anything may happen and nothing may be violated; then all is healed, and within a bound
somebody leads, an append is committed, and everybody has it. The same seed gives the same trace, event by event (I59).
"""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from random import Random
from typing import Any

from tidelog.quorum.effects import Effect
from tidelog.quorum.events import Answered, Event, Received
from tidelog.quorum.roles import Leader
from tidelog.quorum.values import QuorumSettings, SnapshotId, Voters
from tidelog.storage.disk import DiskError
from tidelog.testing.sim import quorum_invariants
from tidelog.testing.sim.disk import CrashMode, SimDisk
from tidelog.testing.sim.quorum_ledger import Ledger, Violation
from tidelog.testing.sim.quorum_loop import Heap
from tidelog.testing.sim.quorum_net import NetFaults, Process, SimNet
from tidelog.testing.sim.quorum_node import SimNode

LIVENESS_S = 10.0


@dataclass(frozen=True, slots=True)
class Options:
    """What a seed means. Rates are means of seconds between two of a kind; 0 is never."""

    voters: int = 3
    observers: int = 0
    seconds: float = 25.0
    net: NetFaults = field(default_factory=NetFaults)
    crash_s: float = 0.0
    pause_s: float = 0.0
    cut_s: float = 0.0
    disk_error_s: float = 0.0
    resign_s: float = 0.0
    slow_disk: float = 0.0
    append_s: float = 0.2
    snapshot_every: int = 12
    checkpoint_s: float = 3.0
    hints: bool = True
    drift: float = 0.0

    @staticmethod
    def of(seed: int) -> Options:
        rng = Random(f"options/{seed}")

        def sometimes(low: float, high: float, chance: float = 0.7) -> float:
            return rng.uniform(low, high) if rng.random() < chance else 0.0

        slow_net = rng.random() < 0.3
        return Options(
            voters=rng.choice((1, 3, 3, 3, 5)),
            observers=rng.choice((0, 0, 1, 2)),
            net=NetFaults(
                delay_ms=(1.0, rng.uniform(10, 120)) if slow_net else (0.2, rng.uniform(0.5, 5)),
                loss=sometimes(0.001, 0.1, 0.5),
                duplicates=sometimes(0.01, 0.1, 0.5),
                late_s=rng.uniform(0.1, 4.0),
            ),
            crash_s=sometimes(0.7, 8),
            pause_s=sometimes(1, 8, 0.5),
            cut_s=sometimes(1, 8),
            disk_error_s=sometimes(5, 20, 0.2),
            resign_s=sometimes(1, 10, 0.4),
            slow_disk=sometimes(0.001, 0.05, 0.4),
            append_s=rng.uniform(0.02, 0.5),
            snapshot_every=rng.choice((5, 12, 40, 1000)),
            checkpoint_s=rng.choice((0.0, 0.5, 3.0)),
            hints=rng.random() < 0.6,
            drift=sometimes(0.001, 0.02, 0.5),
        )


class QuorumWorld:
    def __init__(self, seed: int, options: Options | None = None, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.options = options or Options.of(seed)
        self.rng = Random(seed)
        self.heap = Heap()
        self.voters = Voters.of(range(1, self.options.voters + 1))
        ids = range(1, self.options.voters + self.options.observers + 1)
        drift = self.options.drift
        self.rates = {node_id: 1 + self.rng.uniform(-drift, drift) for node_id in ids}
        self.settings = QuorumSettings(
            0, self.voters, "world", fetch_snapshot_max_bytes=150, fetch_max_bytes=600
        )
        self.net = SimNet(self.heap, self.rng, self.options.net)
        self.net.on_message = self._said
        self.net.on_arrival = self._arrived
        self.ledger = Ledger()
        self.invariants = [make(self) for make in quorum_invariants.ALL]
        self.resumed_at: dict[int, float] = {}
        self.faults: Counter[str] = Counter()
        self.coverage: Counter[str] = Counter()
        self.trace: list[str] | None = [] if keep_trace else None
        self._hash = blake2b(digest_size=16)
        self._values = 0
        self._leaders: set[tuple[int, int]] = set()
        self._is_healed = False
        self.nodes: dict[int, SimNode] = {}
        for node_id in ids:
            self._start(node_id, SimDisk(Random(f"{seed}/disk/{node_id}")), life=0)

    @property
    def elections(self) -> int:
        """How many leaders there have been."""
        return len(self._leaders)

    # ---- running

    def run(self) -> str:
        """Both phases; returns the trace's hash. Violation, with the seed, if something does not hold."""
        try:
            self._schedule_faults()
            self._clients_turn()
            self._run_until(self.options.seconds)
            self._heal()
            self._must_recover()
        except AssertionError as error:
            raise Violation(f"seed {self.seed} at {self.heap.now:.3f} s: {error} [{self.options}]") from error
        return self.trace_hash

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    def _run_until(self, end: float) -> None:
        while self.heap.step(end):
            for invariant in self.invariants:
                invariant.moment()

    def _must_recover(self) -> None:
        """Liveness: a leader and a commit within a bound, and soon everybody has everything."""
        end = self.heap.now + LIVENESS_S
        before = self.ledger.end_offset
        while self.heap.now < end:
            self._run_until(self.heap.now + 0.25)
            committed = self.ledger.end_offset > before + 1 and bool(self.leaders())
            same = {(node.applied_offset, node.digest) for node in self.nodes.values()}
            if committed and len(same) == 1:
                return
        state = {
            node.id: (type(node.quorum.core.node.role).__name__, node.quorum.epoch, node.applied_offset)
            for node in self.nodes.values()
        }
        raise Violation(
            f"I50: {LIVENESS_S} s after everything was healed, {state}, committed {before} to {self.ledger.end_offset}"
        )

    # ---- nodes come and go

    def leaders(self) -> list[SimNode]:
        return [
            node
            for node in self.nodes.values()
            if node.loop.is_alive
            and not node.loop.is_paused
            and isinstance(node.quorum.core.node.role, Leader)
        ]

    def _start(self, node_id: int, disk: SimDisk, life: int) -> None:
        node = SimNode(self, replace(self.settings, node_id=node_id), disk, life)
        self.nodes[node_id] = self.net.processes[node_id] = node
        self.resumed_at[node_id] = self.heap.now
        node.start()

    def crash(self, node: SimNode, mode: CrashMode, down_s: float) -> None:
        """The process or the machine stops at once, and comes back with what its disk has kept."""
        if not node.loop.is_alive:
            return
        self._trace(f"{node.id} crash {mode}")
        self.faults[f"crash {mode}"] += 1
        node.die()
        self._hint(node.id)
        self.heap.after(down_s, lambda: self._start(node.id, node.disk.crash(mode), node.life + 1))

    def _hint(self, node_id: int) -> None:
        """Connections to a dead process break, for those who had one."""
        if not self.options.hints:
            return
        for other in self.nodes.values():
            if other.loop.is_alive and other.id != node_id and self.rng.random() < 0.8:
                tell = partial(other.quorum.disconnected, node_id)
                other.loop.call_later(self.rng.uniform(0, 0.01), tell)

    def node_failed(self, node: SimNode, error: Exception) -> None:
        if not isinstance(error, DiskError):
            raise error
        self.faults["disk error"] += 1
        self.crash(node, "keep_all", self.rng.uniform(0.05, 2))

    # ---- faults

    def _schedule_faults(self) -> None:
        options = self.options
        for mean, fault in (
            (options.crash_s, self._crash_somebody),
            (options.pause_s, self._pause_somebody),
            (options.cut_s, self._cut_something),
            (options.disk_error_s, self._break_a_disk),
            (options.resign_s, self._resign_somebody),
        ):
            if mean > 0:
                self._again(mean, fault)

    def _again(self, mean: float, fault: Any) -> None:
        def strike() -> None:
            if not self._is_healed:
                fault()
                self._again(mean, fault)

        self.heap.after(self.rng.expovariate(1 / mean), strike)

    def _somebody(self) -> SimNode:
        """More often the leader: that is where it hurts."""
        leaders = self.leaders()
        if leaders and self.rng.random() < 0.4:
            return self.rng.choice(leaders)
        return self.rng.choice(list(self.nodes.values()))

    def _crash_somebody(self) -> None:
        modes: tuple[CrashMode, ...] = ("keep_all", "lose_unsynced", "random", "random")
        victims = list(self.nodes.values()) if self.rng.random() < 0.08 else [self._somebody()]
        for victim in victims:
            down_s = self.rng.choice((0.0, 0.05, 0.3, 2.0)) + self.rng.uniform(0, 0.1)
            self.crash(victim, self.rng.choice(modes), down_s)

    def _pause_somebody(self) -> None:
        node = self._somebody()
        if node.loop.is_paused or not node.loop.is_alive:
            return
        self.faults["pause"] += 1
        node.loop.pause()
        self.heap.after(self.rng.choice((0.01, 0.3, 2.0, 4.0)), lambda: self._resume(node))

    def _resume(self, node: SimNode) -> None:
        if node.loop.is_alive and node.loop.is_paused:
            self.resumed_at[node.id] = self.heap.now
            node.loop.resume()

    def _cut_something(self) -> None:
        ids = list(self.nodes)
        self.rng.shuffle(ids)
        kind = self.rng.choice(("one", "one", "leader", "halves", "one way", "link", "bridge"))
        leaders = self.leaders()
        first = leaders[0].id if kind == "leader" and leaders else ids[0]
        rest = [node_id for node_id in ids if node_id != first]
        half = ids[: len(ids) // 2]
        match kind:
            case "halves":
                cuts = [(a, b) for a in half for b in ids if b not in half]
            case "link":
                cuts = [(first, rest[0])] if rest else []
            case "bridge":  # two halves that only the first can talk to
                others = rest[: len(rest) // 2]
                cuts = [(a, b) for a in others for b in rest if b not in others]
            case _:
                cuts = [(first, b) for b in rest]
        if kind != "one way":
            cuts += [(b, a) for a, b in cuts]
        elif self.rng.random() < 0.5:
            cuts = [(b, a) for a, b in cuts]
        self.faults[f"cut {kind}"] += 1
        self._trace(f"cut {kind} {first}")
        self.net.cuts.update(cuts)
        self.heap.after(self.rng.choice((0.2, 1.0, 3.0, 6.0)), lambda: self.net.cuts.difference_update(cuts))

    def _break_a_disk(self) -> None:
        node = self._somebody()
        operation = self.rng.choice(("sync", "write", "sync directory", "rename"))
        node.disk.fail(operation, errno.EIO, skip=self.rng.randrange(3))

    def _resign_somebody(self) -> None:
        node = self._somebody()
        if not node.loop.is_alive or node.loop.is_paused:
            return
        if self.rng.random() < 0.5:
            self.faults["resign"] += 1
            node.quorum.resign()
            return
        self.faults["stop"] += 1
        node.quorum.stop(lambda: self.crash(node, "keep_all", self.rng.uniform(0, 1)), within_s=0.5)

    def _heal(self) -> None:
        self._is_healed = True
        self.net.cuts.clear()
        self.net.faults = replace(self.net.faults, loss=0.0, duplicates=0.0, delay_ms=(0.2, 2.0))
        for node in self.nodes.values():
            node.threads.slow = 0.0
            node.disk.faults.clear()
            self._resume(node)
        self._trace("healed")

    # ---- clients

    def _clients_turn(self) -> None:
        for node in self.leaders():
            self._values += 1
            node.append(b"value %d" % self._values, batches=self.rng.choice((1, 1, 1, 3)))
        pause_s = min(self.options.append_s, 0.1) if self._is_healed else self.options.append_s
        self.heap.after(self.rng.expovariate(1 / pause_s), self._clients_turn)

    def client_told(self, node: SimNode, end_offset: int, value: bytes, is_committed: bool) -> None:
        self.coverage["append committed" if is_committed else "append given up"] += 1
        if is_committed:
            self.ledger.acknowledge(node.id, end_offset, value)

    # ---- what nodes do, for invariants and the trace

    def stepped(self, node: SimNode, event: Event, effects: list[Effect]) -> None:
        role = type(node.quorum.core.node.role).__name__
        detail = type(event).__name__
        if isinstance(event, Received):
            detail += " " + type(event.request).__name__
        elif isinstance(event, Answered):
            detail += " " + ("nothing" if event.response is None else type(event.response).__name__)
        self.coverage[f"{role} {detail}"] += 1
        kinds = ",".join(type(effect).__name__ for effect in effects)
        core = node.quorum.core.node
        self._trace(
            f"{node.id}.{node.life} {detail} -> {role} {core.epoch} {core.high_watermark} {core.log.end} {kinds}"
        )
        for invariant in self.invariants:
            invariant.stepped(node, effects)

    def committed(self, node: SimNode, high_watermark: int) -> None:
        for invariant in self.invariants:
            invariant.committed(node, high_watermark)

    def told_leader(self, node: SimNode, leader_id: int | None, epoch: int) -> None:
        if leader_id is not None:
            self._leaders.add((epoch, leader_id))

    def loaded_snapshot(self, node: SimNode, snapshot: SnapshotId, digest: bytes) -> None:
        self.coverage["snapshot loaded"] += 1
        for invariant in self.invariants:
            if isinstance(invariant, quorum_invariants.SnapshotAtLogStart):
                invariant.loaded(node, snapshot, digest)

    def _said(self, sender: Process, to: int, message: Any) -> None:
        assert isinstance(sender, SimNode)
        for invariant in self.invariants:
            invariant.said(sender, to, message)

    def _arrived(self, receiver: Process, sender: int, message: Any) -> None:
        assert isinstance(receiver, SimNode)
        for invariant in self.invariants:
            invariant.arrived(receiver, sender, message)

    def _trace(self, line: str) -> None:
        text = f"{self.heap.now:.6f} {line}"
        self._hash.update(text.encode())
        if self.trace is not None:
            self.trace.append(text)
