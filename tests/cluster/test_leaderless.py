"""What a broker tells with its heartbeats of partitions that nobody in sync is left of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tidelog.cluster.image_change import ImageChange
from tidelog.cluster.leaderless import LeaderlessReplicas
from tidelog.cluster.partitions import PartitionTable
from tidelog.controller.image import UNASSIGNED_DIRECTORY, MetadataImage, PartitionImage, TopicImage
from tidelog.wire.messages.broker_heartbeat import LeaderlessPartition, LeaderlessTopic

ID = bytes(range(16))
LED = PartitionImage((1, 2), (UNASSIGNED_DIRECTORY,) * 2, (1,), 1, 4, 7)
ABANDONED = LED._replace(isr=(), leader=-1, leader_epoch=5, last_known_elr=(1, 2))


class Table:
    """Partition 0, as this broker acts by it."""

    def __init__(self, leader_epoch: int = 5) -> None:
        log = SimpleNamespace(log_end_offset=17, latest_epoch=3)
        self.partition: Any = SimpleNamespace(
            topic_id=ID, leader_epoch=leader_epoch, stopped_with=None, log=log
        )

    def topic_name(self, topic_id: bytes) -> str | None:
        return "t" if topic_id == ID else None

    def find(self, topic: str, index: int) -> Any:
        return self.partition if (topic, index) == ("t", 0) else None


def replicas(table: Table, partition: PartitionImage, broker_id: int = 1) -> LeaderlessReplicas:
    found = LeaderlessReplicas(broker_id, cast(PartitionTable, table))
    topic = TopicImage("t", ID, {0: partition})
    found.begin(MetadataImage(topics_by_name={"t": topic}, topics_by_id={ID: topic}))
    return found


def change(partition: PartitionImage) -> ImageChange:
    return ImageChange([], {ID: {0: partition}}, frozenset(), frozenset())


TOLD = [LeaderlessTopic(ID, [LeaderlessPartition(0, 5, 3, 17)])]


def test_where_the_log_ends_while_nobody_leads() -> None:
    found = replicas(Table(), ABANDONED)
    assert found.log_ends() == TOLD
    assert not found.changed(change(LED._replace(leader_epoch=6)))
    assert found.log_ends() == []
    assert found.changed(change(ABANDONED)), "there is something to tell at once"
    assert found.log_ends() == TOLD
    found.changed(ImageChange([TopicImage("t", ID, {0: ABANDONED})], {}, frozenset(), frozenset()))
    assert found.log_ends() == []


def test_nothing_of_partitions_that_somebody_in_sync_may_come_back_to() -> None:
    assert replicas(Table(), ABANDONED._replace(elr=(2,))).log_ends() == []
    assert replicas(Table(), ABANDONED._replace(isr=(2,))).log_ends() == []
    assert replicas(Table(), LED).log_ends() == []


def test_nothing_by_who_was_not_last_in_sync() -> None:
    assert replicas(Table(), ABANDONED._replace(last_known_elr=(2,))).log_ends() == []


def test_nothing_before_the_end_of_the_last_leader_is_acted_by() -> None:
    """Until then the log may still grow, or be cut."""
    assert replicas(Table(leader_epoch=4), ABANDONED).log_ends() == []


def test_nothing_of_a_log_whose_disk_has_failed() -> None:
    table = Table()
    table.partition.stopped_with = 56
    assert replicas(table, ABANDONED).log_ends() == []
    table.partition = None
    assert replicas(table, ABANDONED).log_ends() == []
