"""Looks at a simulated cluster after every step of a node, and tells the invariants what is new: of the quorum, of the metadata, of every partition's replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tidelog.controller.image import MetadataImage
from tidelog.quorum.effects import InstallSnapshot, Truncate
from tidelog.quorum.roles import Leader, Role
from tidelog.replication.leader import ReplicaFetch
from tidelog.replication.partition import Partition
from tidelog.storage.files import SYNC_FAILED, join
from tidelog.storage.log import Log
from tidelog.testing.sim import quorum_invariants
from tidelog.testing.sim.cluster_checks import MetadataInvariant, metadata_invariants
from tidelog.testing.sim.cluster_group_checks import ShardsAreTheirLogs
from tidelog.testing.sim.disk import CrashMode, SimDisk
from tidelog.testing.sim.events import Process
from tidelog.testing.sim.quorum_invariants import NoLonelyLeader
from tidelog.testing.sim.replication_checks import invariants
from tidelog.testing.sim.replication_ledger import Ledger
from tidelog.testing.sim.storage_checks import Violation

if TYPE_CHECKING:
    from tidelog.testing.sim.cluster_node import SimNode
    from tidelog.testing.sim.cluster_truth import Key
    from tidelog.testing.sim.cluster_world import ClusterWorld

_LOOK_EVERY_S: Final = 0.5
"""At what depends on time alone."""
_NOTHING_SEEN: Final[tuple[Any, ...]] = (-1, -1, -1, None, None)


class ReplicaView:
    """Implements `replication_ledger.ObservedBroker`."""

    __slots__ = (
        "broker_id",
        "incarnation",
        "ledger",
        "log",
        "node",
        "on_counted",
        "partition",
        "process",
        "seen",
    )

    def __init__(self, node: SimNode, partition: Partition, ledger: Ledger) -> None:
        self.node = node
        self.partition = partition
        self.ledger = ledger
        self.log: Log = partition.log
        self.broker_id = node.id
        self.incarnation: Any = node.incarnation
        self.process: Process = node.process
        self.on_counted: Any = None
        self.seen: tuple[Any, ...] = _NOTHING_SEEN

    @property
    def broker_epoch(self) -> int:
        return self.node.cluster.lifecycle.epoch


class Watch:
    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self.ledgers: dict[Key, Ledger] = {}
        self._names: dict[tuple[str, int], Ledger] = {}
        self._views: dict[int, dict[Partition, ReplicaView]] = {}
        self._quorum = [make(world) for make in quorum_invariants.ALL]
        self._on_step = _hearing(self._quorum, "stepped")
        self._on_said = _hearing(self._quorum, "said")
        self._on_arrived = _hearing(self._quorum, "arrived")
        self._on_committed = _hearing(self._quorum, "committed")
        self._lonely = [each for each in self._quorum if isinstance(each, NoLonelyLeader)]
        for invariant in self._lonely:
            invariant.slack_s = 1.0  # syncs may take most of a second
        self._metadata: list[MetadataInvariant] = metadata_invariants(world)
        self._on_look = [
            each for each in self._metadata if type(each).looked_at is not MetadataInvariant.looked_at
        ]
        self._shards = ShardsAreTheirLogs(world)
        self._high_watermarks: dict[int, int] = {}
        self._log_starts: dict[int, int] = {}
        """Of the metadata log, by node."""
        self._roles: dict[int, type[Role]] = {}
        self._producer_ids: dict[int, int] = {}
        self._image_looks = 0
        self.elections = 0
        self.quorum_leaders_seen: set[tuple[int, int]] = set()
        world.heap.after(_LOOK_EVERY_S, self._moment)

    # ---- nodes

    def started(self, node: SimNode) -> None:
        self._views[node.id] = {}
        self._high_watermarks[node.id] = 0
        self._log_starts[node.id] = 0
        for invariant in self._metadata:
            invariant.node_started(node)

    def logs_loaded(self, node: SimNode) -> None:
        for invariant in self._metadata:
            invariant.logs_loaded(node)

    def ended(self, node_id: int, crash: CrashMode | None, *, was_running: bool, disk_failed: bool) -> None:
        """Whatever its logs must have when it comes back. None: its disk is gone. A sync that fails while a node starts may take what the life before had not synced."""
        if crash is None:
            for invariant in self._quorum:
                invariant.disk_replaced(node_id)
        for ledger in self.ledgers.values():
            replica = ledger.replicas.get(node_id)
            if replica is None:
                continue
            log = replica.broker.log
            just_ended = was_running and replica.broker.process.alive
            if crash is None or replica.broker.partition.stopped_with is not None:
                replica.kept = None
            elif just_ended:
                is_trusted = crash == "keep_all" and not _is_doubted(self._world.disks[node_id], log)
                replica.kept = log.log_end_offset if is_trusted else log.recovery_point
            elif (crash == "random" or disk_failed) and replica.kept is not None:
                replica.kept = min(replica.kept, log.recovery_point)

    def look_at(self, node: SimNode) -> None:
        if node.quorum.core.node.high_watermark != self._high_watermarks[node.id]:
            self._committed(node)
        start = node.quorum.log.log.log_start_offset
        if start != self._log_starts[node.id]:
            self._log_starts[node.id] = start
            for invariant in self._metadata:
                invariant.log_begins(node, start)
        for curious in self._on_look:
            if node.id in curious.looks_at:
                curious.looked_at(node)
        views = self._views[node.id]
        for partitions in node.partitions._by_topic.values():
            for partition in partitions.values():
                view = views.get(partition)
                if view is None:
                    view = self._opened(node, partition)
                    if view is None:
                        continue
                log, leader = view.log, partition.leader
                seen = (
                    log.log_end_offset,
                    log.high_watermark,
                    log.truncation_count,
                    partition.leader_epoch,
                    True if leader is None else leader.isr.pending or leader.isr.partition_epoch,
                )
                if seen != view.seen and partition.stopped_with is None:
                    self._changed(view, seen)

    def _committed(self, node: SimNode) -> None:
        world = self._world
        high_watermark = self._high_watermarks[node.id] = node.quorum.high_watermark
        world.truth.look_at(node)
        for invariant in self._on_committed:
            invariant.committed(node, high_watermark)
        self._image_looks += 1
        if self._image_looks % 4 == 0:
            world.truth.check_image(node)

    def _opened(self, node: SimNode, partition: Partition) -> ReplicaView | None:
        ledger = self.ledgers.get((partition.topic_id, partition.index))
        if ledger is None:
            return None
        view = self._views[node.id][partition] = ReplicaView(node, partition, ledger)
        ledger.started(view)
        node.counted = self._counted
        return view

    def _counted(self, partition: Partition, fetch: ReplicaFetch) -> None:
        view = self._views[partition.broker_id].get(partition)
        if view is not None and view.on_counted is not None:
            view.on_counted(fetch)

    def _changed(self, view: ReplicaView, seen: tuple[Any, ...]) -> None:
        before, view.seen = view.seen, seen
        is_new = before is _NOTHING_SEEN
        if not is_new and before[2] != seen[2]:
            self._world.sometimes("truncated")
        if is_new or before[3] != seen[3] or (before[4] is True) != (seen[4] is True):
            role = "follows" if view.partition.leader is None else "leads"
            self._world.trace(
                f"broker {view.broker_id} {role} {view.partition!r} epoch {seen[3]} from {seen[0]}, hw {seen[1]}"
            )
        view.ledger.look_at(view)

    def _moment(self) -> None:
        """What depends on time alone."""
        world = self._world
        for invariant in self._lonely:
            invariant.moment()
        for node in list(world.by_process.values()):
            for view in self._views[node.id].values():
                leader = view.partition.leader
                if leader is not None and leader.remotes and not node.process.is_paused:
                    view.ledger.look_at(view)
            if node.is_listening:
                self._shards.look_at(node)
        world.heap.after(_LOOK_EVERY_S, self._moment)

    # ---- metadata

    def metadata_changed(self, before: MetadataImage, image: MetadataImage, changed: set[Key]) -> None:
        world = self._world
        for key in sorted(changed):
            truth = world.truth.partitions[key]
            ledger = self.ledgers.get(key)
            if ledger is None:
                ledger = self.ledgers[key] = Ledger(truth, invariants(world.shape.lag_s))
                topic, _, index = truth.name.rpartition("-")
                self._names[topic, int(index)] = ledger
            now = truth.assignment
            old = _partition(before, key)
            if old is None or (old.leader, old.leader_epoch) != (now.leader, now.leader_epoch):
                self.elections += 1
                world.sometimes("leader elected" if now.leader >= 0 else "no leader")
                if old is not None and now.leader in old.elr:
                    world.sometimes("elected from ELR")
            if old is not None and len(old.isr) != len(now.isr):
                world.sometimes("ISR grew" if len(now.isr) > len(old.isr) else "ISR shrank")
            if truth.elr:
                world.sometimes("ELR")
            world.trace(
                f"{truth.name}: leader {now.leader} epoch {now.leader_epoch}/{now.partition_epoch} isr {now.isr} elr {truth.elr}"
            )
            world.settle_losses(key)
            ledger.image_changed(truth)
        for check in self._metadata:
            check.changed(before, image, changed)

    def ledger_of(self, topic: str, index: int) -> Ledger | None:
        return self._names.get((topic, index))

    def producer_ids_given(self, client_id: int, ids: range) -> None:
        for producer_id in (ids.start, ids.stop - 1):
            if producer_id in self._producer_ids:
                raise Violation(
                    "ProducerIdsAreGivenOnce",
                    f"producer id {producer_id} went to {self._producer_ids[producer_id]} and to {client_id}",
                )
            self._producer_ids[producer_id] = client_id

    # ---- the quorum

    def quorum_leaders(self) -> list[SimNode]:
        return [
            node
            for node in self._world.by_process.values()
            if isinstance(node.quorum.core.node.role, Leader) and not node.process.is_paused
        ]

    def quorum_stepped(self, node: SimNode, effects: list[Any]) -> None:
        core = node.quorum.core.node
        kind = type(core.role)
        if self._roles.get(node.id) is not kind:
            self._roles[node.id] = kind
            role = kind.__name__
            self._world.sometimes(f"quorum {role}")
            self._world.trace(f"node {node.id} is {role} in epoch {core.epoch}")
            if role == "Leader":
                self.quorum_leaders_seen.add((core.epoch, node.id))
        for effect in effects:
            if isinstance(effect, (InstallSnapshot, Truncate)):
                self._world.sometimes(f"quorum {type(effect).__name__}")
        for invariant in self._on_step:
            invariant.stepped(node, effects)

    def quorum_said(self, node: SimNode, to: int, message: Any) -> None:
        for invariant in self._on_said:
            invariant.said(node, to, message)

    def quorum_arrived(self, node: SimNode, source: int, message: Any) -> None:
        for invariant in self._on_arrived:
            invariant.arrived(node, source, message)


def _is_doubted(disk: SimDisk, log: Log) -> bool:
    """A sync has failed, perhaps before the process heard of it: the next start believes only what was synced (`storage/failed_sync.py`)."""
    return disk.exists(join(log.directory, SYNC_FAILED))


def _partition(image: MetadataImage, key: Key) -> Any:
    topic = image.topics_by_id.get(key[0])
    return None if topic is None else topic.partitions.get(key[1])


def _hearing(all_of_them: list[Any], name: str) -> list[Any]:
    base = getattr(quorum_invariants.Invariant, name)
    return [each for each in all_of_them if getattr(type(each), name) is not base]
