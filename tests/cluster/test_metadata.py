"""The metadata as a node knows it: committed records and nothing else, the same on whoever leads and whoever follows."""

from __future__ import annotations

from typing import Any

from tidelog.cluster.image_change import ImageChange, between
from tidelog.cluster.metadata import NodeMetadata
from tidelog.controller.delta import MetadataDelta
from tidelog.controller.image import EMPTY_IMAGE, MetadataImage
from tidelog.controller.metadata_log import encode_batches
from tidelog.controller.metadata_records import PartitionRecord, RemoveTopicRecord, TopicRecord
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.quorum.values import SnapshotId
from tidelog.records.batch import iter_headers


def topic(number: int, partitions: int = 1) -> list[MetadataRecord]:
    topic_id = number.to_bytes(16, "big")
    return [
        TopicRecord(name=f"topic-{number}", topic_id=topic_id),
        *(
            PartitionRecord(partition_id=index, topic_id=topic_id, replicas=[1], isr=[1], leader=1)
            for index in range(partitions)
        ),
    ]


class Log:
    """Batches of a metadata log, as the quorum gives them out."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        self.committed = 0

    def append(self, records: list[MetadataRecord], *, epoch: int = 1, records_max: int = 10_000) -> None:
        for batch in encode_batches(
            records, base_offset=self.end, leader_epoch=epoch, timestamp_ms=0, batch_records_max=records_max
        ):
            self.batches.append(batch.data)
            self.end = batch.next_offset

    def read(self, offset: int, max_bytes: int) -> bytes:
        found = b""
        for batch in self.batches:
            ((_, header),) = iter_headers(batch)
            if offset <= header.base_offset and header.next_offset <= self.committed:
                found += batch
        return found


class Node:
    """What a node does with its metadata: the audience, and the controller."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.changes: list[ImageChange] = []
        self.heard: list[Any] = []
        self.metadata = NodeMetadata(1, audience=self, read_snapshot=lambda snapshot: self.snapshot)
        self.metadata.attach(log, self)
        self.snapshot = EMPTY_IMAGE
        self.predecessor: int | None = None

    def commit(self, offset: int) -> None:
        self.log.committed = offset
        self.metadata.committed(offset)

    def changed(self, change: ImageChange, image: MetadataImage) -> None:
        self.changes.append(change)

    def leader_is(self, leader_id: int | None, epoch: int) -> None:
        self.heard.append((leader_id, epoch))

    def leading(self) -> None:
        self.heard.append("leading")

    def failed(self, error: Exception) -> None:
        self.heard.append(error)

    def lead(
        self, epoch: int, image: MetadataImage, *, torn_transaction: bool, predecessor: int | None
    ) -> None:
        self.heard.append(("lead", epoch, image.offset, torn_transaction))
        self.predecessor = predecessor

    def lost(self) -> None:
        self.heard.append("lost")

    def committed(self, end_offset: int) -> None:
        self.heard.append(("committed", end_offset))


def names(node: Node) -> list[str]:
    return sorted(node.metadata.image.topics_by_name)


def test_what_is_committed_becomes_true_and_what_is_not_does_not() -> None:
    node = Node(Log())
    node.log.append(topic(1))
    node.log.append(topic(2))
    node.commit(2)
    assert (names(node), node.metadata.offset) == (["topic-1"], 1)
    node.commit(4)
    assert (names(node), node.metadata.offset) == (["topic-1", "topic-2"], 3)
    assert [len(change.partitions) for change in node.changes] == [1, 1]


def test_a_change_that_is_committed_in_parts_is_true_when_its_end_is() -> None:
    node = Node(Log())
    node.log.append(topic(1))
    node.log.append(topic(2, partitions=8), records_max=3)
    before_end = node.log.end - 1
    node.commit(before_end)
    assert (names(node), node.metadata.offset) == (["topic-1"], 1)
    node.commit(node.log.end)
    assert names(node) == ["topic-1", "topic-2"]
    assert node.metadata.offset == node.log.end - 1


def test_the_controller_hears_that_it_leads_when_all_before_it_is_in_the_image() -> None:
    node = Node(Log())
    node.log.append(topic(1))
    node.metadata.leader_is(1, 5)
    assert node.heard == [(1, 5)]
    node.commit(2)
    assert node.heard[1:] == [("lead", 5, 1, False), "leading"]
    assert names(node) == ["topic-1"]


def test_the_controller_hears_who_led_before() -> None:
    node = Node(Log())
    node.log.append(topic(1))
    for leader_id, epoch in ((3, 4), (None, 5), (1, 6)):
        node.metadata.leader_is(leader_id, epoch)
    node.commit(2)
    assert node.predecessor == 3


def test_a_torn_transaction_is_told_to_the_next_controller() -> None:
    node = Node(Log())
    node.log.append(topic(1))
    node.log.append(topic(2, partitions=8), records_max=3)
    node.log.batches.pop()  # its writer died before the end
    node.metadata.leader_is(1, 5)
    node.commit(node.log.end - 1)
    assert node.heard[1:] == [("lead", 5, 1, True), "leading"]


def test_what_the_controller_of_this_node_did_is_read_from_the_log_by_nobody() -> None:
    node = Node(Log())
    node.metadata.leader_is(1, 5)
    node.log.append(topic(1))
    node.commit(2)
    delta = MetadataDelta(node.metadata.image).replay_all(topic(2))
    node.log.append(topic(2))
    node.commit(4)
    assert names(node) == ["topic-1"], "the controller says when"
    node.metadata.changed_by_controller(delta, delta.apply(offset=3, epoch=5))
    assert names(node) == ["topic-1", "topic-2"]


def test_after_a_lost_leadership_reading_goes_on_where_the_image_ends() -> None:
    node = Node(Log())
    node.metadata.leader_is(1, 5)
    node.log.append(topic(1), epoch=5)
    node.commit(2)
    node.metadata.leader_is(2, 6)
    assert node.heard[-2:] == ["lost", (2, 6)]
    node.log.append(topic(2), epoch=6)
    node.commit(4)
    assert names(node) == ["topic-1", "topic-2"]


def test_a_snapshot_takes_the_place_of_what_was_known() -> None:
    node = Node(Log())
    node.log.append(topic(1))
    node.commit(2)
    node.snapshot = MetadataDelta(EMPTY_IMAGE).replay_all([*topic(2), *topic(3)]).apply(offset=99, epoch=7)
    node.metadata.load_snapshot(SnapshotId(100, 7))
    change = node.changes[-1]
    assert names(node) == ["topic-2", "topic-3"]
    assert [gone.name for gone in change.deleted] == ["topic-1"]
    assert len(change.partitions) == 2


def test_a_difference_says_what_the_delta_says() -> None:
    before = MetadataDelta(EMPTY_IMAGE).replay_all([*topic(1), *topic(2)]).apply(offset=3, epoch=1)
    delta = MetadataDelta(before).replay_all(
        [RemoveTopicRecord(topic_id=(1).to_bytes(16, "big")), *topic(3, 2)]
    )
    after = delta.apply(offset=6, epoch=1)
    worked_out = between(before, after)
    assert worked_out.deleted == delta.topics.deleted
    assert worked_out.partitions == delta.topics.changed_partitions()
    assert between(after, after).is_empty
