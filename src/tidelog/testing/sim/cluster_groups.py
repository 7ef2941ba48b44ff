"""The group coordinator of a simulated broker: the product's runtime, shards and journal, on a process of the heap instead of asyncio.

Does what `broker.group_coordinator` does around them: leads the shards of what is led here, loads them in steps, wakes them when something is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.group_journal import PartitionJournal
from tidelog.broker.group_topics import ImageTopics
from tidelog.controller.image import MetadataImage, TopicImage
from tidelog.coordinator.group import refusals
from tidelog.coordinator.group.placement import partition_of
from tidelog.coordinator.group.record_serde import decode_record
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.shard import GroupShard
from tidelog.coordinator.group.world import Client
from tidelog.coordinator.outcome import Now, Outcome, Waiter, answered
from tidelog.coordinator.runtime import Runtime
from tidelog.errors import RequestError
from tidelog.internal_topics import CONSUMER_OFFSETS
from tidelog.replication.partition import Partition
from tidelog.testing.sim.events import Event
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.wire.messages.offset_commit import OffsetCommitRequest
from tidelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

if TYPE_CHECKING:
    from tidelog.testing.sim.cluster_node import SimNode

_CLIENT: Final = Client("sim", "/sim", 10)
GROUP_REQUESTS: Final = (ConsumerGroupHeartbeatRequest, OffsetCommitRequest, OffsetFetchRequest)
LOAD_STEP_S: Final = 0.002


class _Ask:
    __slots__ = ("deliver",)

    def __init__(self, deliver: Callable[[Any], None]) -> None:
        self.deliver = deliver


class SimGroups:
    def __init__(self, node: SimNode, settings: GroupSettings) -> None:
        self._node = node
        self._settings = settings
        self._process = node.process
        self.runtime: Runtime[GroupShard] = Runtime(
            self._new_shard,
            decode_record,
            lambda waiter, response: waiter.deliver(response),
            on_lost=self._lost,
        )
        self.journals: dict[int, PartitionJournal] = {}
        self.topics = ImageTopics(lambda: node.image, lambda: node.config)
        self._timer: Event | None = None
        self._timer_ms = 0
        self._is_loading = False

    def _new_shard(self, partition: int) -> GroupShard:
        return GroupShard(self._settings, self._node.rng, self.topics)

    def _now(self) -> Now:
        return Now(int(self._process.monotonic() * 1000), self._process.wall_ms())

    # ---- requests

    def handle(self, request: Any, respond: Callable[[Any], None]) -> None:
        if isinstance(request, ConsumerGroupHeartbeatRequest):
            beat = request
            self._submit(
                beat.group_id,
                lambda shard, waiter, now: shard.consumer_group_heartbeat(beat, _CLIENT, waiter, now),
                refusals.consumer_group_heartbeat,
                respond,
            )
        elif isinstance(request, OffsetCommitRequest):
            commit = request
            self._submit(
                commit.group_id,
                lambda shard, waiter, now: shard.offset_commit(commit, _CLIENT, waiter, now),
                refusals.offset_commit(commit),
                respond,
            )
        else:
            (group,) = request.groups
            self._submit(
                group.group_id,
                lambda shard, waiter, now: shard.offset_fetch(group, True, _CLIENT, waiter, now),
                refusals.offset_fetch(group, _CLIENT.version),
                lambda found: respond(OffsetFetchResponse(groups=[found])),
            )

    def _submit(
        self,
        group_id: str,
        call: Callable[[GroupShard, Waiter, Now], Outcome],
        refuse: refusals.Refuse,
        deliver: Callable[[Any], None],
    ) -> None:
        def handler(shard: GroupShard, waiter: Waiter, now: Now) -> Outcome:
            try:
                return call(shard, waiter, now)
            except RequestError as error:
                return answered(waiter, refuse(error.code, error.message))

        topic = self._node.image.topics_by_name.get(CONSUMER_OFFSETS)
        partition = 0 if topic is None else partition_of(group_id, len(topic.partitions))
        self.runtime.submit(partition, handler, _Ask(deliver), lambda code: refuse(code, ""), self._now())
        self._wake_by(self.runtime.next_deadline_ms())

    # ---- leadership

    def metadata_changed(self, image: MetadataImage, deleted: Iterable[TopicImage] = ()) -> None:
        topic = image.topics_by_name.get(CONSUMER_OFFSETS)
        led = {} if topic is None else {index: self._led(topic, index) for index in topic.partitions}
        for index in list(self.journals):
            if led.get(index) is not self.journals[index].partition:
                del self.journals[index]
                self.runtime.resign(index)
        for index, partition in led.items():
            if partition is not None:
                journal = self.journals.get(index)
                if journal is None:
                    journal = self.journals[index] = PartitionJournal(self._node, partition)
                self.runtime.become_leader(index, partition.leader_epoch, journal)
        gone = [(each.name, each.topic_id) for each in deleted]
        self.runtime.for_each(lambda shard, at: shard.topics_changed(gone, at), self._now())
        self._load()
        self._wake_by(self.runtime.next_deadline_ms())

    def _led(self, topic: TopicImage, index: int) -> Partition | None:
        partition = self._node.partitions.find(CONSUMER_OFFSETS, index)
        if partition is None or partition.stopped_with is not None:
            return None
        return partition if topic.partitions[index].leader == self._node.id else None

    def _lost(self, partition: int, reason: str) -> None:
        self._node.world.sometimes("shard lost")
        journal = self.journals.get(partition)
        if journal is not None and journal.partition.stopped_with is not None:
            del self.journals[partition]
            self.runtime.resign(partition)
        self._wake_by(self.runtime.next_deadline_ms())

    def _load(self) -> None:
        if self.runtime.is_loading and not self._is_loading:
            self._is_loading = True
            self._process.call_later(LOAD_STEP_S, self._load_some)

    def _load_some(self) -> None:
        self._is_loading = False
        self.runtime.load_some(self._now())
        self._load()
        self._wake_by(self.runtime.next_deadline_ms())

    # ---- time

    def _wake_by(self, deadline_ms: int | None) -> None:
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay = max(0, deadline_ms - self._now().ms) / 1000
        self._timer = self._process.call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self.runtime.expire(self._now())
        self._load()
        self._wake_by(self.runtime.next_deadline_ms())

    def stop(self) -> None:
        for index in list(self.journals):
            self.runtime.resign(index)
        self.journals.clear()
