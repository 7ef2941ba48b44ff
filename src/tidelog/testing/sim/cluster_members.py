"""Members of a consumer group in a simulated cluster (KIP-848): they join, take and give up partitions as they are told, read on from committed offsets, and commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.client.metadata import TopicPartition
from tidelog.coordinator.group.placement import partition_of
from tidelog.internal_topics import CONSUMER_OFFSETS
from tidelog.testing.sim.cluster_clients import SimClient
from tidelog.testing.sim.cluster_readers import PartitionReader
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

if TYPE_CHECKING:
    from tidelog.testing.sim.cluster_world import ClusterWorld

GROUP: Final = "diners"
_HEARTBEAT_S: Final = 1.2
_REJOIN: Final = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
_REFUSED: Final = (
    *_REJOIN,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.GROUP_ID_NOT_FOUND,
)
"""Answers that say for certain that nothing was stored."""


class SimMember(SimClient):
    def __init__(self, world: ClusterWorld, own_id: int, topics: list[str]) -> None:
        super().__init__(world, own_id)
        self.name = f"m{own_id}"
        self._topics = topics
        self._member_id = self.rng.randbytes(16).hex()
        self.epoch = 0
        self.owned: dict[TopicPartition, PartitionReader | None] = {}
        """None: nobody has said yet where to read on."""
        self._committed: dict[TopicPartition, int] = {}
        world.history.subscribe(self.name, self.now, topics)
        self.process.call_later(1.0 + self.rng.random() * 2, self._beat)
        self.process.call_later(3.0 + self.rng.random(), self._commit_again)

    @property
    def is_settled(self) -> bool:
        return self.epoch > 0 and all(reader is not None for reader in self.owned.values())

    def _coordinator(self) -> int | None:
        topic = self.image.topic(CONSUMER_OFFSETS)
        if topic is None:
            return None
        leader = topic.partitions[partition_of(GROUP, len(topic.partitions))].leader
        return leader if leader >= 0 else None

    # ---- the membership

    def _beat(self) -> None:
        coordinator = self._coordinator()
        if coordinator is None:
            self.refresh()
            self.process.call_later(self.soon(), self._beat)
            return
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self._member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=4000,
            subscribed_topic_names=list(self._topics),
            topic_partitions=self._told(),
        )
        self.ask(coordinator, request, self._beaten)

    def _told(self) -> list[TopicPartitions]:
        by_topic: dict[bytes, TopicPartitions] = {}
        for tp in sorted(self.owned):
            topic = self.image.topic(tp.topic)
            assert topic is not None
            by_topic.setdefault(topic.topic_id, TopicPartitions(topic.topic_id)).partitions.append(
                tp.partition
            )
        return list(by_topic.values())

    def _beaten(self, response: ConsumerGroupHeartbeatResponse | None) -> None:
        code = ErrorCode.NETWORK_EXCEPTION if response is None else ErrorCode(response.error_code)
        if code in _REJOIN:
            self.world.sometimes(f"member {code.name}")
            self._let_go(list(self.owned))
            self.epoch = 0
            self.process.call_later(0.0, self._beat)
            return
        if code or response is None:
            self.world.sometimes(f"member {code.name}")
            self.refresh()
            self.process.call_later(self.soon(), self._beat)
            return
        self.epoch = response.member_epoch
        changed = False
        if response.assignment is not None:
            changed = self._reconcile(response.assignment.topic_partitions)
        self.process.call_later(0.0 if changed else _HEARTBEAT_S, self._beat)

    def _reconcile(self, assigned: list[TopicPartitions]) -> bool:
        target: set[TopicPartition] = set()
        for each in assigned:
            topic = self.image.topic_by_id(each.topic_id)
            if topic is None:
                self.refresh()  # and the next heartbeat says what we have not got
                return False
            target |= {TopicPartition(topic.name, index) for index in each.partitions}
        revoked = [tp for tp in self.owned if tp not in target]
        added = sorted(tp for tp in target if tp not in self.owned)
        if not revoked and not added:
            return False
        self.world.sometimes("member rebalanced")
        self._let_go(revoked)
        for tp in added:
            self.owned[tp] = None
        if added:
            self.world.history.rebalance(self.name, self.now, assigned=added)
            self._find_positions()
        return True

    def _let_go(self, gone: list[TopicPartition]) -> None:
        if not gone:
            return
        for tp in gone:
            reader = self.owned.pop(tp)
            self._committed.pop(tp, None)
            if reader is not None:
                reader.is_wanted = False
        self.world.history.rebalance(self.name, self.now, revoked=gone)

    # ---- positions

    def _find_positions(self) -> None:
        missing = sorted(tp for tp, reader in self.owned.items() if reader is None)
        coordinator = self._coordinator()
        if not missing:
            return
        if coordinator is None:
            self.refresh()
            self.process.call_later(self.soon(), self._find_positions)
            return
        by_topic: dict[str, OffsetFetchRequestTopics] = {}
        for tp in missing:
            topic = self.image.topic(tp.topic)
            assert topic is not None
            wanted = by_topic.setdefault(
                tp.topic, OffsetFetchRequestTopics(name=tp.topic, topic_id=topic.topic_id)
            )
            wanted.partition_indexes.append(tp.partition)
        group = OffsetFetchRequestGroup(
            group_id=GROUP, member_id=self._member_id, member_epoch=self.epoch, topics=list(by_topic.values())
        )
        known = self.world.commits.acknowledged()
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        self.ask(coordinator, request, lambda response: self._found(response, known))

    def _found(self, response: OffsetFetchResponse | None, known: dict[TopicPartition, int]) -> None:
        group = None if response is None else response.groups[0]
        if group is None or group.error_code:
            self.refresh()
            self.process.call_later(self.soon(), self._find_positions)
            return
        for topic in group.topics:
            name = topic.name or self.image.topics_by_id[topic.topic_id].name
            for found in topic.partitions:
                tp = TopicPartition(name, found.partition_index)
                if found.error_code:
                    self.process.call_later(self.soon(), self._find_positions)
                    continue
                self.world.commits.fetched(tp, found.committed_offset, known.get(tp, -1))
                if tp in self.owned and self.owned[tp] is None:
                    self._committed[tp] = max(0, found.committed_offset)
                    self.owned[tp] = PartitionReader(self, self.name, tp, max(0, found.committed_offset))

    # ---- commits

    def _commit_again(self) -> None:
        self._commit()
        self.process.call_later(1.0 + self.rng.random() * 2, self._commit_again)

    def _commit(self) -> None:
        coordinator = self._coordinator()
        positions = {
            tp: reader.offset
            for tp, reader in self.owned.items()
            if reader is not None and reader.offset > self._committed.get(tp, 0)
        }
        if coordinator is None or not positions or self.epoch <= 0:
            return
        by_topic: dict[str, OffsetCommitRequestTopic] = {}
        for tp, offset in sorted(positions.items()):
            topic = self.image.topic(tp.topic)
            assert topic is not None
            wanted = by_topic.setdefault(
                tp.topic, OffsetCommitRequestTopic(name=tp.topic, topic_id=topic.topic_id)
            )
            wanted.partitions.append(OffsetCommitRequestPartition(tp.partition, offset))
            self.world.commits.sent(tp, offset)
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=self.epoch,
            member_id=self._member_id,
            topics=list(by_topic.values()),
        )
        self.ask(coordinator, request, lambda response: self._stored(response, positions))

    def _stored(self, response: OffsetCommitResponse | None, positions: dict[TopicPartition, int]) -> None:
        if response is None:
            self.refresh()
            return
        for topic in response.topics:
            name = topic.name or self.image.topics_by_id[topic.topic_id].name
            for each in topic.partitions:
                tp = TopicPartition(name, each.partition_index)
                if each.error_code == ErrorCode.NONE:
                    self.world.commits.acked(tp, positions[tp])
                    if tp in self._committed:
                        self._committed[tp] = max(self._committed[tp], positions[tp])
                else:
                    self.world.sometimes(f"commit {ErrorCode(each.error_code).name}")
                    if each.error_code in _REFUSED:
                        self.world.commits.refused(tp, positions[tp])
                    else:
                        self.refresh()
