"""Readers of a simulated cluster: one that reads a partition from its beginning on, and asks where its end is; members of a group, who share partitions and commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tidelog.client.metadata import TopicPartition
from tidelog.records.batch import iter_headers
from tidelog.records.record import iter_records
from tidelog.testing.sim.cluster_clients import TIMEOUT_S, SimClient
from tidelog.testing.sim.cluster_messages import Latest, LatestAnswer, Read, ReadAnswer
from tidelog.testing.sim.cluster_net import Lane
from tidelog.testing.sim.cluster_node import CLIENT
from tidelog.testing.sim.replication_ledger import Batch
from tidelog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from tidelog.testing.sim.cluster_world import ClusterWorld

WAIT_MS: Final = 2000


class PartitionReader:
    """Reads one partition on behalf of a client, from an offset on, for as long as it is wanted. `process`: its name in the history."""

    def __init__(
        self, client: SimClient, process: str, tp: TopicPartition, offset: int, *, final: bool = False
    ) -> None:
        self.client = client
        self.name = process
        self.tp = tp
        self.offset = offset
        self.final = final
        self.is_wanted = True
        self.from_followers = False
        # A connection of its own: a fetch that waits holds up whatever is behind it.
        self._lane = Lane(client.world.network, client.own_id, client.process, CLIENT)
        self.next()

    def next(self) -> None:
        if not self.is_wanted:
            return
        client = self.client
        source = client.leader_of(*self.tp)
        if self.from_followers and client.rng.random() < 0.5:
            source = client.anybody()
        if source is None:
            client.refresh()
            client.process.call_later(client.soon(), self.next)
            return
        request = Read(self.tp.topic, self.tp.partition, self.offset, WAIT_MS, self.from_followers)
        self._lane.ask(source, request, self._answered, timeout_s=WAIT_MS / 1000 + TIMEOUT_S)

    def _answered(self, answer: ReadAnswer | None) -> None:
        client, world = self.client, self.client.world
        if not self.is_wanted:
            return
        if answer is None or answer.error:
            client.refresh()
            client.process.call_later(client.soon(), self.next)
            return
        world.watermark_told(self.tp, answer.leader_epoch, answer.high_watermark)
        if answer.records:
            poll = world.history.poll(self.name, client.now, final=self.final)
            found: list[tuple[TopicPartition, int, str]] = []
            for position, header in iter_headers(answer.records):
                world.was_read(self.tp, Batch.of(header))
                found += [
                    (self.tp, record.offset, bytes(record.value or b"").rstrip(b".").decode())
                    for record in iter_records(answer.records, position, header)
                    if record.offset >= self.offset
                ]
                self.offset = max(self.offset, header.next_offset)
            world.history.polled(poll, client.now, found)
        self.next()


class SimReader(SimClient):
    """Reads all partitions of a topic (assign)."""

    def __init__(
        self, world: ClusterWorld, own_id: int, topic: str, partitions: int, *, final: bool = False
    ) -> None:
        super().__init__(world, own_id)
        self.topic = topic
        self.final = final
        self.parts: list[PartitionReader] = []
        self.process.call_later(self.rng.random() * (0.05 if final else 1.0), lambda: self._begin(partitions))

    def _begin(self, partitions: int) -> None:
        for index in range(partitions):
            tp = TopicPartition(self.topic, index)
            name = f"r{self.own_id}/{self.topic}-{index}"
            self.world.history.assign(name, self.now, {tp: 0})
            reader = PartitionReader(self, name, tp, 0, final=self.final)
            reader.from_followers = not self.final and self.rng.random() < 0.3
            self.parts.append(reader)
        if not self.final:
            self.process.call_later(self.rng.random(), self._ask_latest)

    def _ask_latest(self) -> None:
        """Of whoever may lead: only answers of leaders count, and what was told before the question was asked."""
        tp = TopicPartition(self.topic, self.rng.randrange(max(1, len(self.parts))))
        told = dict(self.world.exposed(tp))

        def answered(answer: LatestAnswer | None) -> None:
            if answer is not None and answer.error == ErrorCode.NONE:
                before = [offset for epoch, offset in told.items() if epoch <= answer.leader_epoch]
                self.world.latest_told(tp, answer.leader_epoch, answer.offset, max(before, default=0))

        target: Any = self.leader_of(*tp)
        if target is None or self.rng.random() < 0.3:
            target = self.anybody()
        self.ask(target, Latest(*tp), answered)
        self.process.call_later(0.4 + self.rng.random() * 1.2, self._ask_latest)
