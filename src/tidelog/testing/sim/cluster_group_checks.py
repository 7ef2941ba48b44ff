"""Invariants of groups in a simulated cluster (I34 to I36, I38): who owns what at the coordinator, what was committed, and that a shard is what its log says."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from tidelog.broker.group_journal import PartitionJournal
from tidelog.client.metadata import TopicPartition
from tidelog.coordinator.group.record_serde import decode_record
from tidelog.coordinator.group.shard import GroupShard
from tidelog.coordinator.runtime_load import Load
from tidelog.storage.disk import Buffer
from tidelog.testing.sim.storage_checks import Violation

if TYPE_CHECKING:
    from tidelog.testing.sim.cluster_node import SimNode
    from tidelog.testing.sim.cluster_world import ClusterWorld


class Commits:
    """I35: an acknowledged offset is found again by whoever asks later. One whose fate nobody knows may turn up at any time, even late."""

    def __init__(self) -> None:
        self._acked: dict[TopicPartition, int] = {}
        self._doubtful: dict[TopicPartition, Counter[int]] = {}

    def acknowledged(self) -> dict[TopicPartition, int]:
        return dict(self._acked)

    def sent(self, tp: TopicPartition, offset: int) -> None:
        self._doubtful.setdefault(tp, Counter())[offset] += 1

    def acked(self, tp: TopicPartition, offset: int) -> None:
        self._doubtful[tp][offset] -= 1
        self._acked[tp] = max(offset, self._acked.get(tp, -1))

    def refused(self, tp: TopicPartition, offset: int) -> None:
        self._doubtful[tp][offset] -= 1

    def fetched(self, tp: TopicPartition, offset: int, acked_before: int) -> None:
        if offset < acked_before and self._doubtful.get(tp, Counter[int]())[offset] <= 0:
            raise Violation(
                "CommittedOffsetsStay",
                f"{tp.topic}-{tp.partition} is told to be at {offset}, {acked_before} was committed before (I35)",
            )


class _Rest:
    """A journal from somewhere on."""

    def __init__(self, journal: PartitionJournal, start: int) -> None:
        self._journal = journal
        self.start_offset = start
        self.end_offset = journal.end_offset

    def read(self, offset: int, max_bytes: int) -> Buffer:
        return self._journal.read(offset, max_bytes)


class _Shadow:
    __slots__ = ("position", "shadow", "shard")

    def __init__(self, shard: GroupShard, shadow: GroupShard, position: int) -> None:
        self.shard = shard
        self.shadow = shadow
        self.position = position


class ShardsAreTheirLogs:
    """I34 and I36, of every shard that serves: it equals what a replay of its log gives, and no partition has two owners in it."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._shadows: dict[tuple[int, int], _Shadow] = {}

    def look_at(self, node: SimNode) -> None:
        groups = node.groups
        for index, journal in groups.journals.items():
            shard = groups.runtime.shard(index)
            if shard is None or journal.partition.leader is None:
                self._shadows.pop((node.id, index), None)
                continue
            known = self._shadows.get((node.id, index))
            if known is None or known.shard is not shard:
                shadow = GroupShard(self._world.shape.group_settings, Random(0), groups.topics)
                known = self._shadows[node.id, index] = _Shadow(shard, shadow, journal.start_offset)
            if known.position < journal.end_offset:
                self._compare(node, index, known, journal)

    def _compare(self, node: SimNode, index: int, known: _Shadow, journal: PartitionJournal) -> None:
        load = Load(known.shadow, _Rest(journal, known.position), decode_record)  # type: ignore[arg-type]
        while load.step():
            pass
        known.position = journal.end_offset
        if known.shard.persistent_state() != known.shadow.persistent_state():
            raise Violation(
                "ShardsAreTheirLogs",
                f"node {node.id}, shard {index} at {journal.end_offset} (I36): {known.shard.persistent_state()} is not {known.shadow.persistent_state()}",
            )
        for group_id, group in known.shard.consumer._groups.items():
            owners: dict[tuple[bytes, int], str] = {}
            for member_id, member in group.members.items():
                for held in (member.assigned, member.revoking):
                    for topic_id, partitions in held.items():
                        for partition in partitions:
                            other = owners.setdefault((topic_id, partition), member_id)
                            if other != member_id:
                                raise Violation(
                                    "OneOwner",
                                    f"partition {partition} of {group_id} is {other}'s and {member_id}'s (I34)",
                                )
