"""A leader with followers: what is committed, who is answered what, who is in sync."""

from __future__ import annotations

import pytest

from tests.replication.replica_world import LAG_S, Replica
from tidelog.errors import RequestError
from tidelog.replication.isr import IsrAnswer
from tidelog.wire.error_codes import ErrorCode


def leading(*, isr: tuple[int, ...] = (1, 2, 3), durable: bool = False, min_isr: int = 1) -> Replica:
    replica = Replica(durable=durable, min_isr=min_isr)
    replica.assign(1, 4, isr)
    return replica


def test_committed_is_what_every_replica_in_sync_has() -> None:
    leader = leading()
    leader.append(3)
    leader.wait_for(2)
    leader.fetch(2, 3, last_epoch=4)
    assert (leader.ends, leader.codes) == ((0, 3), []), (
        "broker 3 has not fetched in this epoch: nothing is known of it"
    )
    leader.fetch(3, 2, last_epoch=4)
    assert leader.ends == (2, 3)
    leader.fetch(3, 3, last_epoch=4)
    assert (leader.ends, leader.codes) == ((3, 3), [ErrorCode.NONE])


def test_the_watermark_never_goes_back() -> None:
    leader = leading(isr=(1, 2))
    leader.append(3)
    leader.fetch(2, 3, last_epoch=4)
    leader.fetch(2, 1, last_epoch=4)
    assert leader.ends == (3, 3)


def test_a_durable_leader_counts_what_it_has_synced() -> None:
    leader = leading(isr=(1, 2), durable=True)
    leader.append(3)
    leader.fetch(2, 3, last_epoch=4)
    assert leader.ends == (0, 3), "followers may be ahead of the leader's own disk"
    leader.queue.run()
    assert leader.ends == (3, 3)


def test_who_is_in_sync_alone_commits_alone() -> None:
    leader = leading(isr=(1,))
    leader.append(2)
    assert leader.ends == (2, 2)
    durable = leading(isr=(1,), durable=True)
    durable.append(2)
    durable.queue.run()
    assert durable.ends == (2, 2)


def test_acks_all_is_refused_while_too_few_are_in_sync() -> None:
    leader = leading(isr=(1,), min_isr=2)
    with pytest.raises(RequestError) as caught:
        leader.append(acks_all=True)
    assert caught.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.append(acks_all=False).base_offset == 0
    assert leader.ends == (0, 1), "taken, and invisible"


def test_what_a_shrunken_isr_holds_becomes_visible_when_it_recovers() -> None:
    leader = leading(isr=(1,), min_isr=2)
    leader.append(2)
    leader.fetch(2, 2, last_epoch=4)
    assert [proposal.broker_ids for proposal in leader.proposals.made] == [(1, 2)]
    assert leader.ends == (0, 2), "proposed is not yet in sync"
    leader.accept(partition_epoch=2)
    assert leader.ends == (2, 2)


def test_producers_hear_when_too_few_are_left_and_coordinators_wait() -> None:
    leader = leading(isr=(1, 2), min_isr=2)
    leader.append()
    patient: list[ErrorCode] = []
    leader.wait_for(0)
    leader.partition.when_committed(0, patient.append, patient=True)
    leader.assign(1, 4, (1,), partition_epoch=2)
    assert (leader.codes, patient) == ([ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND], [])
    leader.assign(1, 4, (1, 2), partition_epoch=3)
    leader.fetch(2, 1, last_epoch=4)
    assert (leader.codes[1:], patient) == ([], [ErrorCode.NONE])
    leader.assign(1, 4, (1,), partition_epoch=4)
    leader.wait_for(0)
    assert leader.codes[1:] == [ErrorCode.NONE], "committed stays committed"


def test_whoever_waits_hears_that_the_leader_is_another() -> None:
    leader = leading(isr=(1, 2))
    leader.append()
    leader.wait_for(0)
    leader.assign(2, 5)
    leader.wait_for(0)
    assert leader.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    with pytest.raises(RequestError) as caught:
        leader.append()
    assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_new_epoch_of_the_same_leader_counts_nothing_of_the_one_before() -> None:
    leader = leading(isr=(1, 2))
    leader.append(2)
    leader.wait_for(1)
    leader.fetch(2, 1, last_epoch=4)
    leader.assign(1, 6, (1, 2), partition_epoch=2)
    leader.append()
    assert leader.ends == (1, 3)
    leader.fetch(2, 3, last_epoch=6)
    assert (leader.ends, leader.codes) == ((3, 3), [ErrorCode.NONE]), "those who waited are where they were"


def test_older_metadata_is_left_aside() -> None:
    leader = leading(isr=(1, 2))
    leader.assign(2, 3)
    assert leader.partition.leader is not None


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (3, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_a_follower_in_another_epoch_is_fenced(epoch: int, code: ErrorCode) -> None:
    leader = leading(isr=(1, 2))
    leader.append()
    with pytest.raises(RequestError) as caught:
        leader.fetch(2, 1, epoch=epoch, last_epoch=4)
    assert caught.value.code == code
    assert leader.ends == (0, 1)


def test_a_fetch_of_an_earlier_run_of_a_broker_says_nothing() -> None:
    leader = leading(isr=(1, 2))
    leader.append()
    leader.fetch(2, 0, broker_epoch=8)
    with pytest.raises(RequestError) as caught:
        leader.fetch(2, 1, broker_epoch=7, last_epoch=4)
    assert (caught.value.code, leader.ends) == (ErrorCode.STALE_BROKER_EPOCH, (0, 1))


def test_who_is_no_replica_is_not_served() -> None:
    with pytest.raises(RequestError) as caught:
        leading().fetch(9, 0)
    assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_offset_beyond_the_log_is_no_claim() -> None:
    leader = leading(isr=(1, 2))
    with pytest.raises(RequestError) as caught:
        leader.fetch(2, 7)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert leader.ends == (0, 0)


def test_late_followers_are_proposed_to_leave_once() -> None:
    leader = leading()
    leader.append(5)
    leader.now += LAG_S - 1
    leader.fetch(2, 5, last_epoch=4)
    leader.partition.check_isr(now=leader.now)
    assert leader.proposals.made == []
    leader.now += 2
    leader.partition.check_isr(now=leader.now)
    leader.partition.check_isr(now=leader.now)
    assert [proposal.broker_ids for proposal in leader.proposals.made] == [(1, 2)], "one at a time"
    assert leader.ends == (0, 5), "the controller may not have heard of it"
    leader.accept(partition_epoch=2)
    assert leader.ends == (5, 5)


def test_a_broker_that_is_fenced_does_not_join() -> None:
    leader = leading(isr=(1, 2))
    leader.brokers.away.add(3)
    leader.fetch(3, 0)
    assert leader.proposals.made == []
    leader.brokers.away.clear()
    leader.fetch(3, 0)
    assert [proposal.broker_ids for proposal in leader.proposals.made] == [(1, 2, 3)]


def test_after_a_refusal_nobody_is_proposed_for_a_while() -> None:
    leader = leading(isr=(1, 2))
    leader.fetch(3, 0)
    leader.partition.isr_answered(
        leader.proposals.made[0], IsrAnswer(ErrorCode.INELIGIBLE_REPLICA), now=leader.now
    )
    leader.fetch(3, 0)
    assert len(leader.proposals.made) == 1
    leader.now += 1
    leader.fetch(3, 0)
    assert len(leader.proposals.made) == 2


def test_a_follower_that_is_about_to_join_is_waited_for() -> None:
    """Otherwise a busy partition would always be ahead of it."""
    leader = leading(isr=(1, 2))
    leader.brokers.away.add(3)
    leader.append(2)
    leader.fetch(3, 2, last_epoch=4)
    leader.brokers.away.clear()
    leader.append(2)
    leader.fetch(3, 2, last_epoch=4)
    leader.fetch(2, 4, last_epoch=4)
    assert leader.ends[0] == 2
    leader.now += LAG_S + 1
    leader.proposals.made.clear()
    leader.assign(1, 4, (1, 2), partition_epoch=9)
    leader.partition.check_isr(now=leader.now)
    assert leader.ends[0] == 4, "but not for ever"


def test_a_new_leader_tells_no_end_before_it_knows_what_was_committed() -> None:
    """I49: its own high watermark may be behind what the leader before has told consumers."""
    replica = Replica()
    replica.assign(1, 4, (1, 2))
    replica.append(3)
    replica.assign(2, 5)
    replica.assign(1, 6, (1, 2), partition_epoch=3)
    with pytest.raises(RequestError) as caught:
        replica.partition.check_latest()
    assert caught.value.code == ErrorCode.OFFSET_NOT_AVAILABLE
    replica.fetch(2, 3, last_epoch=4)
    replica.partition.check_latest()
    assert replica.partition.visible_end(committed_only=False) == 3


def test_raising_the_minimum_holds_the_watermark() -> None:
    leader = leading(isr=(1, 2), min_isr=1)
    leader.partition.set_min_isr(3)
    leader.append()
    leader.fetch(2, 1, last_epoch=4)
    assert leader.ends == (0, 1)
    leader.partition.set_min_isr(2)
    assert leader.ends == (1, 1)


class Watcher:
    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def test_followers_are_woken_by_what_is_written_and_consumers_by_what_is_committed() -> None:
    leader, follower, consumer = leading(isr=(1, 2)), Watcher(), Watcher()
    leader.partition.watch_end(follower)
    leader.partition.watch(consumer)
    leader.append()
    assert (follower.woken, consumer.woken) == (1, 0)
    leader.fetch(2, 1, last_epoch=4)
    assert (follower.woken, consumer.woken) == (1, 1)
    leader.assign(2, 5)
    assert (follower.woken, consumer.woken) == (2, 2), "they must hear that the leader is another"


def test_nothing_is_deleted_anywhere_that_a_replica_still_has() -> None:
    leader = leading(isr=(1, 2))
    leader.append(4)
    leader.fetch(2, 4, last_epoch=4)
    assert leader.partition.delete_records(3) == 3
    assert leader.partition.leader is not None
    assert leader.partition.leader.low_watermark() == 0, "broker 2 has not heard of it"


def test_nobody_waits_for_a_follower_that_was_fenced() -> None:
    """It has caught up a moment ago, and would be waited for if it could come back in time."""
    leader = leading()
    leader.append(3)
    for broker_id in (2, 3):
        leader.fetch(broker_id, 3, last_epoch=4)
    leader.append(1)
    leader.fetch(2, 4, last_epoch=4)
    leader.brokers.away.add(3)
    leader.assign(1, 4, (1, 2), partition_epoch=2)
    assert leader.ends == (4, 4)
