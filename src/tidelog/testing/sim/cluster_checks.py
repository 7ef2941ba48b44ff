"""Invariants of a cluster's metadata and of its nodes (RELIABILITY §8), beside those of the quorum and of each partition: small classes that are told what happens."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from tidelog.controller.image import LeaderRecoveryState, MetadataImage
from tidelog.storage.log_loading import NO_TOPIC_ID
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.inodes import Directory, Inode
from tidelog.testing.sim.quorum_invariants import LOG_DIR
from tidelog.testing.sim.storage_checks import Violation

if TYPE_CHECKING:
    from tidelog.testing.sim.cluster_node import SimNode
    from tidelog.testing.sim.cluster_truth import Key
    from tidelog.testing.sim.cluster_world import ClusterWorld


class MetadataInvariant:
    looks_at: Container[int] = ()
    """Which nodes, by id, it is asked about after each of their steps."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world

    def changed(self, before: MetadataImage, image: MetadataImage, changed: set[Key]) -> None: ...

    def node_started(self, node: SimNode) -> None: ...

    def logs_loaded(self, node: SimNode) -> None: ...

    def log_begins(self, node: SimNode, start: int) -> None:
        """The metadata log of a node begins elsewhere than before its step; that of a new node, elsewhere than at 0."""

    def looked_at(self, node: SimNode) -> None:
        """After a step of a node that it `looks_at`."""

    def broken(self, what: str) -> Violation:
        return Violation(type(self).__name__, f"at {self.world.heap.now:.3f} s: {what}")


class OnlyActiveBrokersAreInSync(MetadataInvariant):
    """I22, ValidControllerState: nobody who is fenced, stops or is of an earlier run comes into an ISR, and nobody such leads."""

    def changed(self, before: MetadataImage, image: MetadataImage, changed: set[Key]) -> None:
        for topic_id, index in sorted(changed):
            partition = image.topics_by_id[topic_id].partitions[index]
            old_topic = before.topics_by_id.get(topic_id)
            old = None if old_topic is None else old_topic.partitions.get(index)
            joined = set(partition.isr) - set(() if old is None else old.isr)
            for broker_id in joined:
                broker = image.brokers.get(broker_id)
                if broker is None or not broker.active:
                    raise self.broken(
                        f"broker {broker_id} joined the ISR of {topic_id.hex()[:6]}-{index} and is {'unknown' if broker is None else 'not active'}"
                    )
            leader = image.brokers.get(partition.leader)
            is_new = old is None or old.leader != partition.leader
            if partition.leader >= 0 and is_new and (leader is None or not leader.active):
                raise self.broken(f"broker {partition.leader} was elected and is not active")


class NothingIsUnclean(MetadataInvariant):
    """Within the fault atlas nobody is ever elected who may lack something: unclean elections are forbidden, and not needed.

    But for a partition that never had enough replicas in sync, because it was made while brokers were away: nothing was committed in it.
    """

    def changed(self, before: MetadataImage, image: MetadataImage, changed: set[Key]) -> None:
        for topic_id, index in sorted(changed):
            partition = image.topics_by_id[topic_id].partitions[index]
            ledger = self.world.watch.ledgers.get((topic_id, index))
            has_records = ledger is not None and ledger.committed_end > 0
            if has_records and partition.leader_recovery_state == LeaderRecoveryState.RECOVERING:
                raise self.broken(f"the leader of {topic_id.hex()[:6]}-{index} came from outside ISR and ELR")


class DirectoriesAreKept(MetadataInvariant):
    """I6: what was on a disk when a node started is not deleted by it, unless the metadata deleted its topic while it was there to see it.

    Looked at as soon as the node acts by metadata: what that does not claim has a name that says so.
    """

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(world)
        self._found: dict[int, tuple[SimNode, dict[str, bytes]]] = {}
        self.looks_at = self._found
        self._known: dict[int, set[bytes]] = {}
        """Topics that its metadata have named since: when they are gone from there, the node has seen why."""

    def logs_loaded(self, node: SimNode) -> None:
        """Every log that was opened, with the topic that it belongs to: that of its name, where a power cut took the file that says so."""
        topics = node.cluster.metadata.image.topics_by_name
        found = {
            f"{topic}-{index}": topics[topic].topic_id
            if log.topic_id == NO_TOPIC_ID and topic in topics
            else log.topic_id
            for (topic, index), log in node.logs.logs.items()
        }
        self._found[node.id] = (node, found)
        self._known[node.id] = set(node.cluster.metadata.image.topics_by_id)

    def looked_at(self, node: SimNode) -> None:
        known = self._found[node.id]
        if known[0] is not node:
            return
        seen = self._known[node.id]
        seen |= node.cluster.metadata.image.topics_by_id.keys()
        if node.cluster.replicas.image is None:
            return
        del self._found[node.id]
        claimed = node.cluster.replicas.image.topics_by_id
        names = node.disk.list_dir("/data")
        for name, topic_id in known[1].items():
            if topic_id in claimed or topic_id in seen or name in names:
                continue
            if not any(each.startswith(f"{name}.") and each.endswith("-stray") for each in names):
                raise self.broken(
                    f"node {node.id} had {name} when it started, and has nothing of it now: {names}"
                )
            self.world.sometimes("set aside")


class SnapshotsOutliveTheirLog(MetadataInvariant):
    """I15, persist before forgetting: where a metadata log begins, a power loss at this moment would leave the snapshot that reaches there."""

    def log_begins(self, node: SimNode, start: int) -> None:
        if start == 0:
            return
        log = node.quorum.log
        for snapshot in log.snapshots.known:
            if snapshot.end_offset >= start and is_durable(node.disk, node.quorum.path_of(snapshot)):
                return
        raise self.broken(
            f"the metadata log of node {node.id} begins at {start}, and none of {log.snapshots.known} in {LOG_DIR} would survive a power loss"
        )


def is_durable(disk: SimDisk, path: str) -> bool:
    """Name and content would be there after a power loss."""
    found: Inode | Directory | None = disk.machine.root
    for name in path.strip("/").split("/"):
        found = found.durable.get(name) if isinstance(found, Directory) else None
    return isinstance(found, Inode) and bool(found.durable) and found.durable == found.live


def metadata_invariants(world: ClusterWorld) -> list[MetadataInvariant]:
    return [
        OnlyActiveBrokersAreInSync(world),
        NothingIsUnclean(world),
        DirectoriesAreKept(world),
        SnapshotsOutliveTheirLog(world),
    ]
