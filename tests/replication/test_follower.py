"""A follower: takes what checks out, cuts what its leader does not have, and believes no more than its own log bears out."""

from __future__ import annotations

import pytest

from tests.replication.replica_world import NOW_MS, Replica
from tidelog.errors import CorruptDataError, RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch import PartitionData


def pair(*, durable: bool = False) -> tuple[Replica, Replica]:
    leader, follower = Replica(1), Replica(2, durable=durable)
    for replica in (leader, follower):
        replica.assign(1, 1, (1, 2))
    return leader, follower


def test_it_has_what_the_leader_has_and_knows_what_is_committed_a_fetch_later() -> None:
    leader, follower = pair()
    leader.append(3)
    follower.follow(leader)
    assert follower.ends == (0, 3)
    follower.follow(leader)
    assert (leader.ends, follower.ends) == ((3, 3), (3, 3))


def test_its_watermark_is_never_beyond_its_log() -> None:
    _, follower = pair()
    assert follower.partition.follower is not None
    follower.partition.apply_fetched(
        follower.partition.follower, PartitionData(high_watermark=7, log_start_offset=0), now_ms=NOW_MS
    )
    assert follower.ends == (0, 0)


def test_a_damaged_batch_does_not_get_in() -> None:
    """M27."""
    leader, follower = pair()
    leader.append(3)
    data = leader.answer_to(follower)
    assert isinstance(data.records, bytes)
    data.records = data.records[:-1] + bytes((data.records[-1] ^ 1,))
    assert follower.partition.follower is not None
    with pytest.raises(CorruptDataError):
        follower.partition.apply_fetched(follower.partition.follower, data, now_ms=NOW_MS)
    assert follower.ends == (0, 0)


def test_a_durable_follower_claims_only_what_is_synced() -> None:
    """M33."""
    leader, follower = pair(durable=True)
    leader.append(3)
    follower.follow(leader)
    assert not follower.partition.is_synced()
    follower.queue.run()
    assert follower.partition.is_synced()


def test_a_diverging_answer_cuts_and_says_nothing_about_what_is_committed() -> None:
    leader, follower = pair()
    leader.append(2)
    follower.follow(leader)
    follower.assign(2, 2)
    follower.append(2)
    leader.assign(1, 3, partition_epoch=3)
    follower.assign(1, 3, partition_epoch=3)
    leader.append(1)
    follower.follow(leader)
    assert follower.ends == (0, 2), "its two records of epoch 2 are gone"
    follower.follow(leader)
    assert follower.log.epochs.checkpoint_entries() == [(1, 0), (3, 2)]


def test_becoming_a_follower_cuts_nothing() -> None:
    """M1: its high watermark is behind, and what lies above it may be committed."""
    leader, follower = pair()
    leader.append(3)
    follower.follow(leader)
    follower.assign(3, 2)
    assert follower.ends == (0, 3)


def test_a_retry_after_failover_gets_its_first_offset() -> None:
    """I39, M20: what followers replicate tells them of producers, too."""
    leader, follower = pair()
    numbered = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    leader.append(2, **numbered)
    leader.append(1)
    follower.follow(leader)
    follower.assign(2, 2)
    retried = follower.append(2, **numbered)
    assert (retried.base_offset, retried.duplicate) == (0, True)
    with pytest.raises(RequestError) as caught:
        follower.append(1, producer_id=9, producer_epoch=0, base_sequence=7)
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_retry_of_what_was_cut_is_new() -> None:
    leader, follower = pair()
    leader.append(1)
    follower.follow(leader)
    follower.assign(2, 2)
    follower.append(2, producer_id=9, producer_epoch=0, base_sequence=0)
    leader.assign(1, 3, partition_epoch=3)
    follower.assign(1, 3, partition_epoch=3)
    follower.follow(leader)
    assert follower.ends[1] == 1
    follower.assign(2, 4, partition_epoch=4)
    assert not follower.append(2, producer_id=9, producer_epoch=0, base_sequence=0).duplicate


def test_the_leaders_log_start_is_its_own() -> None:
    leader, follower = pair()
    leader.append(1)
    leader.append(2)
    follower.follow(leader)
    follower.follow(leader)
    leader.partition.delete_records(1)
    leader.append(1)
    follower.follow(leader)
    assert follower.log.log_start_offset == 1


def test_it_starts_over_only_where_the_leader_has_deleted_what_comes_next() -> None:
    leader, follower = pair()
    role = follower.partition.follower
    assert role is not None
    leader.append(3)
    follower.follow(leader)
    assert not role.start_over(2, now_ms=NOW_MS), "the leader has what comes next"
    assert not role.start_over(-1, now_ms=NOW_MS), "it did not say where it begins"
    assert follower.ends[1] == 3
    assert role.start_over(10, now_ms=NOW_MS)
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (10, 10)
    assert role.position().last_fetched_epoch == -1


def test_consumers_on_a_follower_wait_for_what_it_knows_to_be_committed() -> None:
    """H10."""
    leader, follower = pair()
    leader.append(3)
    with pytest.raises(RequestError) as caught:
        follower.partition.check_readable(
            2
        )  # on its way, as far as this replica knows: nothing is out of range
    assert caught.value.code == ErrorCode.OFFSET_NOT_AVAILABLE
    follower.follow(leader)
    follower.partition.check_readable(2)
    assert follower.partition.visible_end(committed_only=False) == 0, "here, and not known to be committed"
    follower.follow(leader)
    follower.partition.check_readable(3)
    assert follower.partition.visible_end(committed_only=False) == 3
    with pytest.raises(RequestError) as caught:
        follower.partition.check_latest()
    assert caught.value.code == ErrorCode.OFFSET_NOT_AVAILABLE
