"""A leader that was not in sync when it was chosen stays alone until it has said that it goes on from what it has (KIP-704)."""

from __future__ import annotations

from tests.replication.replica_world import BROKERS, Replica
from tidelog.replication.assignment import Assignment
from tidelog.replication.isr import IsrAnswer
from tidelog.wire.error_codes import ErrorCode


def assign(replica: Replica, *, epoch: int = 4, partition_epoch: int = 9, recovering: bool = True) -> None:
    replica.partition.assign(
        Assignment(1, epoch, partition_epoch, BROKERS, (1,), recovering), now=replica.now
    )


def recovering_leader() -> Replica:
    leader = Replica(1)
    leader.assign(2, 3)
    assign(leader)
    return leader


def proposed(replica: Replica) -> list[tuple[int, ...]]:
    return [proposal.broker_ids for proposal in replica.proposals.made]


def test_it_says_so_at_once_and_takes_nobody_in_before_that_is_known() -> None:
    leader = recovering_leader()
    assert proposed(leader) == [(1,)]
    leader.fetch(2, 0)
    leader.fetch(3, 0)
    assert proposed(leader) == [(1,)], "alone until then"
    leader.accept(partition_epoch=10)
    leader.fetch(2, 0)
    assert proposed(leader) == [(1,), (1, 2)]


def test_the_metadata_may_be_faster_than_the_answer() -> None:
    leader = recovering_leader()
    assign(leader, partition_epoch=10, recovering=False)
    leader.fetch(2, 0)
    assert proposed(leader) == [(1,), (1, 2)]


def test_it_says_so_again_as_long_as_the_metadata_says_otherwise() -> None:
    leader = recovering_leader()
    # Something else about the partition has changed first: the proposal came too late.
    leader.partition.isr_answered(
        leader.proposals.made[0], IsrAnswer(ErrorCode.INVALID_UPDATE_VERSION), now=leader.now
    )
    leader.fetch(2, 0)
    assert proposed(leader) == [(1,)]
    assign(leader, partition_epoch=10)
    assert proposed(leader) == [(1,), (1,)]
    assert leader.proposals.made[1].partition_epoch == 10
    # Refused for another reason: with the next look at the ISR.
    leader.partition.isr_answered(
        leader.proposals.made[1], IsrAnswer(ErrorCode.OPERATION_NOT_ATTEMPTED), now=leader.now
    )
    leader.fetch(2, 0)
    assert proposed(leader) == [(1,), (1,)]
    leader.partition.check_isr(now=leader.now)
    assert proposed(leader) == [(1,), (1,), (1,)]


def test_a_leader_that_was_in_sync_has_nothing_to_say() -> None:
    leader = Replica(1)
    assign(leader, recovering=False)
    assert proposed(leader) == []
