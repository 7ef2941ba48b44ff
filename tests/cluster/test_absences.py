"""Who is away, since when and why, as one node reads it off the metadata."""

from __future__ import annotations

import pytest

from tests.controller.world import World, topic
from tidelog.cluster.absences import Absences, BrokerState, ReplicaAbsence, Since, Why
from tidelog.cluster.image_change import between
from tidelog.controller.broker_states import directories_offline
from tidelog.controller.image import EMPTY_IMAGE, MetadataImage
from tidelog.controller.result import ControllerSettings
from tidelog.wire.messages.alter_partition import (
    AlterPartitionRequest,
    RequestPartitionData,
    RequestTopicData,
)
from tidelog.wire.messages.alter_partition import BrokerState as Member
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidelog.wire.messages.unregister_broker import UnregisterBrokerRequest


class Watched:
    """A controller's world, and a node that hears of every change at a time that the test says."""

    def __init__(self) -> None:
        self.world = World()
        self.epochs = {broker: self.world.add_broker(broker) for broker in (1, 2, 3)}
        assert self.world.create(
            topic("orders", -1, -1, assignments={0: [1, 2, 3]}), topic("other", 1, 1)
        ) == [0, 0]
        self.absences = Absences()
        self._seen: MetadataImage = EMPTY_IMAGE
        self.hear(1000, is_news=False)

    def hear(self, now_ms: int, *, is_news: bool = True) -> None:
        image = self.world.image
        self.absences.changed(between(self._seen, image), image, now_ms=now_ms, is_news=is_news)
        self._seen = image

    @property
    def topic_id(self) -> bytes:
        return self.world.image.topics_by_name["orders"].topic_id

    @property
    def out(self) -> dict[int, ReplicaAbsence]:
        return dict(self.absences.of_partition(self.topic_id, 0))

    def state(self, broker: int) -> tuple[BrokerState, Since]:
        return tuple(self.absences.brokers[broker])  # type: ignore[return-value]

    def shrink(self, *isr: int) -> None:
        partition = self.world.image.topics_by_name["orders"].partitions[0]
        request = AlterPartitionRequest(
            broker_id=partition.leader,
            broker_epoch=self.world.image.brokers[partition.leader].epoch,
            topics=[
                RequestTopicData(
                    topic_id=self.topic_id,
                    partitions=[
                        RequestPartitionData(
                            partition_index=0,
                            leader_epoch=partition.leader_epoch,
                            new_isr_with_epochs=[
                                Member(broker, self.world.image.brokers[broker].epoch) for broker in isr
                            ],
                            partition_epoch=partition.partition_epoch,
                        )
                    ],
                )
            ],
        )
        answer = self.world.do(self.world.controller.alter_partition(request))
        assert answer.topics[0].partitions[0].error_code == 0


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_of_what_is_well_nothing_is_known_but_that_it_is(watched: Watched) -> None:
    assert watched.out == {}
    assert watched.absences.leaderless(watched.topic_id, 0) is None
    assert watched.state(1) == (BrokerState.ACTIVE, Since(1000, False))


def test_a_broker_that_is_not_heard_of(watched: Watched) -> None:
    watched.world.do(watched.world.controller.fence_broker(2))
    watched.hear(2000)
    assert watched.state(2) == (BrokerState.FENCED, Since(2000, True))
    assert watched.out == {2: ReplicaAbsence(Why.FENCED, Since(2000, True))}
    watched.world.do(watched.world.controller.fence_broker(3))
    watched.hear(3000)
    assert watched.out[2].since.at_ms == 2000, "what happens to others does not make it younger"
    assert watched.out[3].since.at_ms == 3000


def test_a_broker_that_shuts_down_and_comes_back(watched: Watched) -> None:
    world = watched.world
    world.do(world.controller.begin_controlled_shutdown(2, watched.epochs[2]))
    watched.hear(2000)
    assert watched.state(2) == (BrokerState.SHUTTING_DOWN, Since(2000, True))
    assert watched.out[2].why is Why.SHUT_DOWN
    world.do(world.controller.fence_broker(2))
    watched.hear(2500)
    assert watched.state(2) == (BrokerState.SHUT_DOWN, Since(2500, True))
    world.add_broker(2, incarnation=1, unfence=False)
    watched.hear(4000)
    assert watched.state(2) == (BrokerState.STARTING, Since(4000, True))
    world.do(world.controller.unfence_broker(2, world.image.brokers[2].epoch))
    watched.hear(5000)
    assert watched.state(2) == (BrokerState.ACTIVE, Since(5000, True))
    assert watched.out == {2: ReplicaAbsence(Why.SHUT_DOWN, Since(2000, True))}, "it has still to catch up"
    watched.shrink(1, 2, 3)
    watched.hear(6000)
    assert watched.out == {}


def test_a_replica_that_is_late(watched: Watched) -> None:
    watched.shrink(1, 3)
    watched.hear(2000)
    assert watched.out == {2: ReplicaAbsence(Why.LATE, Since(2000, True))}
    assert watched.state(2)[0] is BrokerState.ACTIVE


def test_a_broker_that_came_back_without_its_records(watched: Watched) -> None:
    watched.world.do(watched.world.controller.fence_broker(1))
    watched.hear(2000)
    watched.world.add_broker(3, incarnation=1, previous_epoch=-1)
    watched.hear(3000)
    assert watched.out[3] == ReplicaAbsence(Why.RESTARTED, Since(3000, True))


def test_a_disk_that_failed(watched: Watched) -> None:
    world = watched.world
    spare = bytes([7]) * 16
    broker = world.image.brokers[2]
    two = broker._replace(log_dirs=(*broker.log_dirs, spare))
    result = directories_offline(world.image, two, {broker.log_dirs[0]}, ControllerSettings())
    world.write(result.records)
    watched.hear(2000)
    assert watched.out == {2: ReplicaAbsence(Why.DISK_FAILED, Since(2000, True))}


def test_a_broker_that_is_unregistered(watched: Watched) -> None:
    world = watched.world
    world.do(world.controller.unregister_broker(UnregisterBrokerRequest(broker_id=3)))
    watched.hear(2000)
    assert watched.out == {3: ReplicaAbsence(Why.UNREGISTERED, Since(2000, True))}
    assert 3 not in watched.absences.brokers


def test_nobody_leads(watched: Watched) -> None:
    for broker in (1, 2, 3):
        watched.world.do(watched.world.controller.fence_broker(broker))
    watched.hear(2000)
    assert watched.absences.leaderless(watched.topic_id, 0) == Since(2000, True)
    watched.world.do(watched.world.controller.unfence_broker(3, watched.epochs[3]))
    watched.hear(3000)
    assert watched.absences.leaderless(watched.topic_id, 0) is None


def test_what_was_so_before_this_node_knew_has_no_exact_time(watched: Watched) -> None:
    watched.world.do(watched.world.controller.fence_broker(2))
    later = Absences()
    later.begin_with(watched.world.image, now_ms=9000)
    assert later.of_partition(watched.topic_id, 0)[2].since == Since(9000, False)
    assert later.brokers[2].since == Since(9000, False)


def test_a_topic_that_is_deleted_is_forgotten(watched: Watched) -> None:
    watched.world.do(watched.world.controller.fence_broker(2))
    watched.hear(2000)
    topic_id = watched.topic_id
    watched.world.do(
        watched.world.controller.delete_topics(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]))
    )
    watched.hear(3000)
    assert watched.absences.of_partition(topic_id, 0) == {}
