"""The end of a simulated run: healed, a cluster takes writes within ten seconds (I50), replicas become the same, everything is read once more (I24, I46 to I48)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidelog.testing.history import check
from tidelog.testing.sim.cluster_clients import SimProducer
from tidelog.testing.sim.cluster_readers import SimReader
from tidelog.testing.sim.replication_ledger import Ledger
from tidelog.testing.sim.storage_checks import Violation

if TYPE_CHECKING:
    from tidelog.testing.sim.cluster_world import ClusterWorld

HEAL_S: Final = 10.0
SETTLE_S: Final = 12.0
READ_S: Final = 10.0
GROUPS_S: Final = 12.0
COPY_S_MAX: Final = 60.0
_LOOK_S: Final = 0.25


class Ending:
    def __init__(self, world: ClusterWorld) -> None:
        self._world = world

    def run(self) -> None:
        self._takes_writes()
        self._settles()
        self._is_read()
        self._is_as_promised()

    def _takes_writes(self) -> None:
        world = self._world
        probes = [
            SimProducer(world, 4000 + number, topic.name, topic.partitions, acks_all=True)
            for number, topic in enumerate(
                topic for topic in world.shape.topics for _ in range(topic.partitions)
            )
        ]
        before = [producer.acked for producer in world.producers]
        number = 0
        for topic in world.shape.topics:
            for index in range(topic.partitions):
                probes[number].only = index
                number += 1

        def done() -> bool:
            return all(probe.acked for probe in probes) and all(
                producer.acked > known for producer, known in zip(world.producers, before, strict=True)
            )

        if not self._wait(HEAL_S, done):
            waiting = [
                probe.own_id for probe in (*probes, *world.producers) if not probe.acked or not probe.is_idle
            ]
            raise Violation(
                "HealedClustersTakeWrites",
                f"{HEAL_S} s after everything was healed, {waiting} still wait: {self._state()}",
            )
        world.producers += probes

    def _settles(self) -> None:
        world = self._world
        for producer in world.producers:
            producer.is_stopped = True

        def done() -> bool:
            if any(not producer.is_idle for producer in world.producers):
                return False
            return self._all_settled()

        self._come_together(done)

    def _come_together(self, done: Callable[[], bool]) -> None:
        if not self._wait(SETTLE_S, done):
            raise Violation("ReplicasComeTogether", f"{SETTLE_S} s later they are not: {self._state()}")

    def _all_settled(self) -> bool:
        world = self._world
        return all(
            set(truth.assignment.isr) == set(truth.assignment.replicas)
            and (ledger := world.watch.ledgers.get(key)) is not None
            and self._is_settled(ledger, truth.assignment.replicas)
            for key, truth in world.truth.partitions.items()
        )

    def _is_settled(self, ledger: Ledger, replicas: tuple[int, ...]) -> bool:
        found = [ledger.replicas.get(each) for each in replicas]
        return all(
            each is not None
            and each.broker.process.alive
            and each.broker.log.log_end_offset == ledger.committed_end == each.broker.log.high_watermark
            for each in found
        )

    def _is_read(self) -> None:
        world = self._world
        final = [
            SimReader(world, 5000 + number, topic.name, topic.partitions, final=True)
            for number, topic in enumerate(world.shape.topics)
        ]

        def done() -> bool:
            return all(
                reader.parts
                and all(
                    (ledger := world.watch.ledger_of(*part.tp)) is None or part.offset >= ledger.committed_end
                    for part in reader.parts
                )
                for reader in (*final, *world.readers)
            )

        if not self._wait(READ_S, done):
            raise Violation(
                "EverythingIsRead", f"{READ_S} s later readers are not at the end: {self._state()}"
            )
        if not self._wait(GROUPS_S, self._group_has_all):
            owned = {member.name: (member.epoch, sorted(member.owned)) for member in world.members}
            raise Violation("GroupsSettle", f"{GROUPS_S} s later members have {owned} (I38)")

    def _group_has_all(self) -> bool:
        """I38: every partition has one member who reads it, to its end."""
        world = self._world
        if not world.members:
            return True
        wanted = sum(topic.partitions for topic in world.shape.topics)
        owned = [tp for member in world.members if member.is_settled for tp in member.owned]
        if len(owned) != wanted or len(set(owned)) != wanted:
            return False
        return all(
            reader is not None
            and ((ledger := world.watch.ledger_of(*tp)) is None or reader.offset >= ledger.committed_end)
            for member in world.members
            for tp, reader in member.owned.items()
        )

    def _is_as_promised(self) -> None:
        world = self._world
        if not self._all_settled():
            self._come_together(self._all_settled)  # members of the group go on committing their offsets
        for key in world.truth.partitions:
            world.watch.ledgers[key].ended()
        check(world.history).raise_if_dirty()

    def _wait(self, seconds: float, done: Callable[[], bool]) -> bool:
        """Whoever came back without a disk copies everything first, however long that takes in this network: the time counts from the end of that."""
        world = self._world
        end, at_most, copied = world.heap.now + seconds, world.heap.now + COPY_S_MAX, self._copied()
        while world.heap.now < end:
            world.run_until(world.heap.now + _LOOK_S)
            if done():
                return True
            if (more := self._copied()) > copied:
                copied, end = more, min(world.heap.now + seconds, at_most)
        return False

    def _copied(self) -> int:
        """Records, about, that replicas which are not in sync have by now."""
        world = self._world
        return sum(
            replica.broker.log.log_end_offset
            for key, truth in world.truth.partitions.items()
            for node_id, replica in world.watch.ledgers[key].replicas.items()
            if node_id not in truth.assignment.isr and replica.broker.process.alive
        )

    def _state(self) -> str:
        world = self._world
        parts = []
        for key, truth in world.truth.partitions.items():
            ledger = world.watch.ledgers[key]
            ends = {
                each: (replica.broker.process.alive, replica.end_offset, replica.high_watermark)
                for each, replica in sorted(ledger.replicas.items())
            }
            now = truth.assignment
            parts.append(
                f"{truth.name} leader {now.leader}/{now.leader_epoch} isr {now.isr} elr {truth.elr} {ends} of {ledger.committed_end}"
            )
        nodes = {
            node.id: f"{node.cluster.lifecycle.phase.name} meta {node.cluster.metadata.offset} quorum {node.quorum.leader_id}/{node.quorum.epoch}"
            for node in world.nodes.values()
        }
        return "; ".join(parts) + f"; {nodes}"
