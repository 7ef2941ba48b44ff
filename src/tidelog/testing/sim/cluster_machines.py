"""Machines of a simulated cluster: disks that outlive processes, processes that come and go, and who has lost what (the fault atlas's books)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final, cast

from tidelog.errors import CorruptDataError
from tidelog.quorum.roles import Follower, Leader
from tidelog.testing.sim.cluster_node import LOG_DIR, SimNode
from tidelog.testing.sim.cluster_shape import Shape
from tidelog.testing.sim.disk import CrashMode, SimDisk
from tidelog.testing.sim.events import EventHeap, Process
from tidelog.testing.sim.storage_checks import Violation

if TYPE_CHECKING:
    from tidelog.testing.sim.cluster_net import Network
    from tidelog.testing.sim.cluster_truth import Key, Truth
    from tidelog.testing.sim.cluster_watch import Watch
    from tidelog.testing.sim.cluster_world import ClusterWorld

_DERIVED: Final = (".index", ".timeindex", ".txnindex", ".snapshot", "-checkpoint")


class Machines:
    seed: int
    heap: EventHeap
    network: Network
    shape: Shape
    watch: Watch
    truth: Truth
    skews: dict[int, int]

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.disks = {node: self._new_disk(node, 0) for node in self.shape.nodes}
        self.boots = {node: f"boot-{node}-0" for node in self.shape.nodes}
        self.nodes: dict[int, SimNode] = {}
        """The last life of each."""
        self.by_process: dict[Process, SimNode] = {}
        self.resumed_at: dict[int, float] = {}
        self._disks_given = 0
        self._boots = 0
        self._lossy: dict[Key, dict[int, int]] = {}
        """Replicas that have lost something and are not in sync again, with the life that lost it."""
        self._lives: dict[bytes, int] = {}
        """By incarnation. Not every life gets as far as to register: which one the metadata speak of must be known."""

    def _new_disk(self, node_id: int, number: int) -> SimDisk:
        return SimDisk(Random(f"{self.seed}/disk/{node_id}/{number}"))

    def trace(self, line: str) -> None:
        raise NotImplementedError

    def sometimes(self, what: str) -> None:
        raise NotImplementedError

    def running(self, node_id: int) -> SimNode | None:
        node = self.nodes.get(node_id)
        return node if node is not None and node.process.alive else None

    # ---- coming

    def start(self, node_id: int) -> None:
        if self.running(node_id) is not None:
            return
        last = self.nodes.get(node_id)
        life = 0 if last is None else last.life + 1
        self.trace(f"start {node_id}.{life}")
        disk = self.disks[node_id]
        try:
            node = SimNode(cast("ClusterWorld", self), node_id, disk, life)
        except CorruptDataError as error:
            raise Violation("NodesStartAgain", f"node {node_id} cannot start: {error}") from error
        self.nodes[node_id] = node
        self._lives[node.incarnation] = life
        self.by_process[node.process] = node
        self.network.hosts[node_id] = node
        self.network.process_started(node_id)
        self.resumed_at[node_id] = self.heap.now
        self.watch.started(node)
        node.start()

    # ---- going

    def kill(self, node_id: int) -> None:
        self._end(node_id, "keep_all", silently=False)

    def power_off(self, node_id: int, *, lossy: bool) -> None:
        self._end(node_id, "random", silently=True)
        if lossy:
            self.count_as_lossy(node_id)

    def replace_disk(self, node_id: int) -> None:
        self._end(node_id, None, silently=True)
        self._disks_given += 1
        self.disks[node_id] = self._new_disk(node_id, self._disks_given)
        self.count_as_lossy(node_id)

    def _end(
        self, node_id: int, crash: CrashMode | None, *, silently: bool, disk_failed: bool = False
    ) -> None:
        """`crash`: what becomes of what was not synced. None: the disk is gone."""
        self.trace(f"end {node_id} {crash or 'disk gone'}")
        node = self.running(node_id)
        if node is not None:
            self.watch.look_at(node)
        self.watch.ended(node_id, crash, was_running=node is not None, disk_failed=disk_failed)
        if node is not None:
            node.process.kill()
            node.logs.release_locks()
            del self.by_process[node.process]
            self.network.process_ended(node.process, silently=silently)
        if silently:
            self.network.dark.add(node_id)
            self._boots += 1
            self.boots[node_id] = f"boot-{node_id}-{self._boots}"
        if crash is not None:
            self.disks[node_id] = self.disks[node_id].crash(crash)
        if node_id in self.nodes:
            self.nodes[node_id].disk = self.disks[node_id]

    def stop_cleanly(self, node_id: int, stopped: Callable[[], None]) -> None:
        node = self.running(node_id)
        if node is None or not node.is_started or node.is_stopping:
            return
        self.trace(f"stopping {node_id}")

        def over() -> None:
            self.trace(f"stopped {node_id}")
            self.sometimes("stopped cleanly")
            self._end(node_id, "keep_all", silently=False)
            stopped()

        node.stop_cleanly(over)

    def disk_failed(self, node: SimNode) -> None:
        """The process ends itself. What it could not sync is gone; the disk works again when it comes back."""

        def end() -> None:
            if node.process.alive:
                self._end(node.id, "keep_all", silently=False, disk_failed=True)
                self.heap.after(0.2 + self._rng.random(), lambda: self.start(node.id))

        self.heap.after(0.0, end)

    # ---- other trouble

    def pause(self, node_id: int, seconds: float) -> None:
        node = self.running(node_id)
        if node is not None:
            self.trace(f"pause {node_id} {seconds:.3f}")
            until = self.heap.now + seconds
            node.process.paused_until = max(node.process.paused_until, until)
            self.resumed_at[node_id] = node.process.paused_until

    def move_clock(self, node_id: int, by_ms: int) -> None:
        self.skews[node_id] += by_ms
        node = self.running(node_id)
        if node is not None:
            node.process.wall_skew_ms += by_ms

    def delete_derived_files(self, node_id: int, rng: Random) -> None:
        """While nobody has them open."""
        if self.running(node_id) is not None:
            return
        disk = self.disks[node_id]
        if not disk.is_dir(LOG_DIR):
            return
        for name in disk.list_dir(LOG_DIR):
            path = f"{LOG_DIR}/{name}"
            if not disk.is_dir(path) or name.startswith("__cluster_metadata"):
                continue
            for file in disk.list_dir(path):
                if file.endswith(_DERIVED) and rng.random() < 0.5:
                    self.sometimes("derived file deleted")
                    disk.remove(f"{path}/{file}")

    def heal_machines(self) -> None:
        for node_id in self.shape.nodes:
            self.disks[node_id].faults.clear()
            self.start(node_id)
            node = self.nodes[node_id]
            node.disk.faults.clear()
            if node.process.is_paused:
                self.heap.resume(node.process)
                self.resumed_at[node_id] = self.heap.now
            node.syncs.slow = 0.0

    # ---- the atlas's books

    def count_as_lossy(self, node_id: int) -> None:
        last = self.nodes.get(node_id)
        life = -1 if last is None else last.life
        for key, truth in self.truth.partitions.items():
            if node_id in truth.assignment.replicas:
                self._lossy.setdefault(key, {})[node_id] = life

    def settle_losses(self, key: Key) -> None:
        """A partition has changed: whoever is in sync again, in a later run, has lost nothing any more."""
        lossy = self._lossy.get(key)
        if not lossy:
            return
        truth = self.truth.partitions.get(key)
        for node_id, life in list(lossy.items()):
            known = self.truth.registrations.get(node_id)
            again = known is not None and self._lives[known.incarnation] > life
            if truth is None or (again and node_id in truth.assignment.isr):
                del lossy[node_id]

    def may_lose(self, node_id: int) -> bool:
        """Whether what this node has may be lost: for every partition, enough others have it."""
        for key, truth in self.truth.partitions.items():
            if node_id in truth.assignment.replicas:
                others = [each for each in self._lossy.get(key, ()) if each != node_id]
                if len(others) + 1 > truth.effective_min - 1:
                    return False
        return True

    def may_lose_vote(self, node_id: int) -> bool:
        """Whether a voter's disk may go (H14): all others follow one leader and have all that it has."""
        if node_id not in self.shape.voters:
            return True
        end = self.truth.ledger.end_offset
        epochs = set()
        for voter in self.shape.voters:
            if voter == node_id:
                continue
            node = self.running(voter)
            if node is None or node.process.is_paused:
                return False
            role = node.quorum.core.node.role
            log = node.quorum.log
            if not isinstance(role, (Leader, Follower)) or log.synced_offset < max(end, log.end.offset):
                return False
            epochs.add((node.quorum.epoch, node.quorum.leader_id, log.end))
        return len(epochs) == 1 and node_id not in {leader for _, leader, _ in epochs}
