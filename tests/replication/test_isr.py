"""The ISR: proposed by the leader, changed by the controller, and counted at its largest meanwhile."""

from __future__ import annotations

import pytest

from tidelog.replication.assignment import Assignment
from tidelog.replication.isr import EveryBroker, Isr, IsrAnswer, Member, Proposal, may_join, members
from tidelog.replication.replica_state import RemoteReplica
from tidelog.wire.error_codes import ErrorCode

TOPIC_ID = bytes(16)


def isr_of(*brokers: int, min_isr: int = 1) -> Isr:
    return Isr(Assignment(1, 3, 10, (1, 2, 3), brokers), min_isr=min_isr)


def proposal(*brokers: int, partition_epoch: int = 10) -> Proposal:
    return Proposal(TOPIC_ID, 0, 3, partition_epoch, tuple(Member(broker, 5) for broker in brokers))


def accepted(*brokers: int, partition_epoch: int = 11, leader_epoch: int = 3) -> IsrAnswer:
    return IsrAnswer(ErrorCode.NONE, leader_epoch, partition_epoch, brokers)


def test_whoever_is_proposed_counts_and_whoever_is_to_leave_still_does() -> None:
    isr = isr_of(1, 2)
    isr.propose(proposal(1, 3))
    assert (isr.committed, isr.maximal) == ((1, 2), {1, 2, 3})


def test_an_accepted_proposal_is_the_isr() -> None:
    isr, asked = isr_of(1, 2), proposal(1, 2, 3)
    isr.propose(asked)
    assert isr.answered(asked, accepted(1, 2, 3))
    assert (isr.committed, isr.maximal, isr.partition_epoch, isr.pending) == ((1, 2, 3), {1, 2, 3}, 11, None)


@pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_a_refusal_that_changed_nothing_leaves_the_isr_as_it_was(error: ErrorCode) -> None:
    isr, asked = isr_of(1, 2), proposal(1, 2, 3)
    isr.propose(asked)
    assert isr.answered(asked, IsrAnswer(error))
    assert (isr.committed, isr.maximal, isr.pending) == ((1, 2), {1, 2}, None)


@pytest.mark.parametrize(
    "error", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NEW_LEADER_ELECTED]
)
def test_while_nobody_knows_what_became_of_it_everybody_counts(error: ErrorCode) -> None:
    """The first try may have been applied and its answer lost: the second is then refused as stale."""
    isr, asked = isr_of(1, 2), proposal(1, 2, 3)
    isr.propose(asked)
    assert not isr.answered(asked, IsrAnswer(error))
    assert (isr.maximal, isr.pending) == ({1, 2, 3}, asked)
    assert isr.committed_as((1, 2, 3), 11), "the metadata says it"
    assert (isr.committed, isr.pending) == ((1, 2, 3), None)


def test_a_refusal_of_what_was_said_twice_settles_nothing() -> None:
    """The other copy may still be under way, and be accepted when the broker that was out of service is back."""
    isr, asked = isr_of(1, 2), proposal(1, 2, 3)
    isr.propose(asked)
    isr.unanswered(asked)
    assert not isr.answered(asked, IsrAnswer(ErrorCode.INELIGIBLE_REPLICA))
    isr.withdraw(as_it_is := proposal(1, 2))
    assert (isr.committed, isr.maximal, isr.pending) == ((1, 2), {1, 2, 3}, as_it_is)
    assert isr.answered(as_it_is, accepted(1, 2))
    assert (isr.maximal, isr.pending, isr.is_repeated) == ({1, 2}, None, False)


def test_older_metadata_changes_nothing() -> None:
    isr, asked = isr_of(1, 2), proposal(1, 2, 3)
    isr.propose(asked)
    assert not isr.committed_as((1,), 10)
    assert (isr.committed, isr.pending) == ((1, 2), asked)


def test_an_answer_after_newer_metadata_says_nothing() -> None:
    isr, asked = isr_of(1, 2), proposal(1, 2, 3)
    isr.propose(asked)
    isr.committed_as((1,), 12)
    assert not isr.answered(asked, accepted(1, 2, 3))
    assert isr.committed == (1,)


def test_an_answer_of_another_leader_epoch_says_nothing() -> None:
    isr, asked = isr_of(1, 2), proposal(1, 2, 3)
    isr.propose(asked)
    assert not isr.answered(asked, accepted(1, 2, 3, leader_epoch=4))
    assert isr.maximal == {1, 2, 3}


def test_nobody_can_ask_for_more_in_sync_than_there_are() -> None:
    assert not isr_of(1, 2, 3, min_isr=5).below_min
    assert isr_of(1, 2, min_isr=5).below_min
    isr = isr_of(1, 2, min_isr=2)
    assert not isr.below_min
    isr.committed_as((1,), 11)
    assert isr.below_min
    isr.require(1, 3)
    assert not isr.below_min


def replica_at(offset: int) -> RemoteReplica:
    replica = RemoteReplica(2, caught_up_at=0.0)
    replica.fetched(offset, log_start_offset=0, leader_end=20, broker_epoch=5, now=1.0)
    return replica


class Known:
    def __init__(self, broker_epoch: int) -> None:
        self.broker_epoch = broker_epoch

    def may_join(self, broker_id: int, broker_epoch: int, /) -> bool:
        return broker_epoch == self.broker_epoch


@pytest.mark.parametrize(
    ("offset", "high_watermark", "epoch_start", "expected"),
    [
        (10, 10, 10, True),
        (9, 10, 8, False),  # lacks what is committed
        (9, 5, 10, False),  # may lack what the leader before has committed (M6)
        (12, 10, 11, True),
    ],
)
def test_who_may_join(offset: int, high_watermark: int, epoch_start: int, expected: bool) -> None:
    found = may_join(
        replica_at(offset), EveryBroker(), high_watermark=high_watermark, epoch_start_offset=epoch_start
    )
    assert found is expected


def test_nobody_joins_without_a_fetch_in_this_epoch() -> None:
    replica = RemoteReplica(2, caught_up_at=0.0)
    assert not may_join(replica, EveryBroker(), high_watermark=-1, epoch_start_offset=-1)


def test_nobody_joins_with_the_fetch_of_an_earlier_run() -> None:
    assert may_join(replica_at(10), Known(5), high_watermark=0, epoch_start_offset=0)
    assert not may_join(replica_at(10), Known(6), high_watermark=0, epoch_start_offset=0)


def test_members_carry_the_broker_epoch_they_fetched_with() -> None:
    assert members((1, 2, 3), Member(1, 9), {2: replica_at(1)}) == (Member(1, 9), Member(2, 5), Member(3, -1))
