"""Proposals on their way to the controller: batched, one request at a time, asked again until somebody answers."""

from __future__ import annotations

from tests.replication.replica_world import TOPIC_ID, Loop, Peers, Replica
from tidelog.replication.isr_changes import IsrChanges
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ResponsePartitionData,
    ResponseTopicData,
)


class World:
    def __init__(self) -> None:
        self.loop, self.peers, self.leader = Loop(), Peers(), Replica(1)
        self.controller: int | None = 7
        self.changes = IsrChanges(
            broker_id=1,
            broker_epoch=lambda: 5,
            controller_id=lambda: self.controller,
            peers=self.peers,
            scheduler=self.loop,
            clock=self.loop,
        )
        self.leader.proposals.propose = self.changes.propose  # type: ignore[method-assign]
        self.leader.assign(1, 4, (1, 2), partition_epoch=9)
        self.leader.fetch(3, 0, broker_epoch=6)

    def answer(self, error: ErrorCode = ErrorCode.NONE, *, isr: tuple[int, ...] = (1, 2, 3)) -> None:
        partition = ResponsePartitionData(
            error_code=error, leader_id=1, leader_epoch=4, isr=list(isr), partition_epoch=10
        )
        self.peers.answer(
            AlterPartitionResponse(topics=[ResponseTopicData(topic_id=TOPIC_ID, partitions=[partition])])
        )
        self.loop.turn()

    @property
    def in_sync(self) -> tuple[int, ...]:
        assert self.leader.partition.leader is not None
        return self.leader.partition.leader.isr.committed


def test_a_proposal_carries_both_epochs_and_those_of_its_members() -> None:
    world = World()
    world.loop.turn()
    node, request, _ = world.peers.asked[0]
    assert isinstance(request, AlterPartitionRequest)
    partition = request.topics[0].partitions[0]
    assert (node, request.broker_id, request.broker_epoch) == (7, 1, 5)
    assert (partition.leader_epoch, partition.partition_epoch) == (4, 9)
    members = [(member.broker_id, member.broker_epoch) for member in partition.new_isr_with_epochs]
    assert members == [(1, 5), (2, -1), (3, 6)]


def test_what_the_controller_says_is_the_isr() -> None:
    world = World()
    world.loop.turn()
    world.answer()
    assert world.in_sync == (1, 2, 3)


def test_without_an_answer_it_is_asked_again() -> None:
    world = World()
    world.loop.turn()
    world.peers.answer(None)
    assert world.peers.asked == []
    world.loop.advance(0.06)
    world.answer()
    assert world.in_sync == (1, 2, 3)


def test_another_controller_is_asked_when_this_one_is_none() -> None:
    world = World()
    world.loop.turn()
    world.controller = None
    world.peers.answer(AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER))
    world.loop.advance(0.06)
    assert world.peers.asked == [], "nobody knows who it is"
    world.controller = 8
    world.loop.advance(0.06)
    assert world.peers.asked[0][0] == 8


def test_a_proposal_that_metadata_has_overtaken_is_not_sent() -> None:
    world = World()
    world.leader.assign(1, 4, (1,), partition_epoch=11)
    world.loop.turn()
    assert world.peers.asked == []


def test_a_refused_proposal_is_not_asked_again() -> None:
    world = World()
    world.loop.turn()
    world.answer(ErrorCode.INELIGIBLE_REPLICA)
    world.loop.advance(10)
    assert (world.peers.asked, world.in_sync) == ([], (1, 2))


def test_a_proposal_that_was_said_twice_and_refused_is_taken_back() -> None:
    """Whoever was proposed counts until the controller has taken the ISR as it is: from then on a late copy has an old partition epoch."""
    world = World()
    world.loop.turn()
    world.peers.answer(None)
    world.loop.advance(0.06)
    world.answer(ErrorCode.INELIGIBLE_REPLICA)
    assert world.leader.partition.leader is not None
    isr = world.leader.partition.leader.isr
    assert isr.maximal == {1, 2, 3}
    partition = world.peers.asked[0][1].topics[0].partitions[0]
    assert (partition.new_isr, partition.partition_epoch) == ([1, 2], 9)
    world.answer(isr=(1, 2))
    assert (world.peers.asked, isr.pending, isr.maximal, isr.partition_epoch) == ([], None, {1, 2}, 10)


def test_taking_back_is_tried_until_it_is_done() -> None:
    world = World()
    world.loop.turn()
    for answer in (None, ErrorCode.INELIGIBLE_REPLICA, None, ErrorCode.OPERATION_NOT_ATTEMPTED):
        world.peers.answer(None) if answer is None else world.answer(answer)
        world.loop.advance(0.06)
    partition = world.peers.asked[0][1].topics[0].partitions[0]
    assert (partition.new_isr, partition.partition_epoch) == ([1, 2], 9)
    world.answer(isr=(1, 2))
    assert world.peers.asked == []
