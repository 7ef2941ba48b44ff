"""What a leader knows of a follower: only what it was told in this epoch, and whether that is in time."""

from __future__ import annotations

from tidelog.replication.replica_state import RemoteReplica, new_remotes

LAG_S = 10.0


def fetch(replica: RemoteReplica, offset: int, *, leader_end: int, now: float) -> None:
    replica.fetched(offset, log_start_offset=0, leader_end=leader_end, broker_epoch=7, now=now)


def test_nothing_is_known_before_the_first_fetch() -> None:
    replica = RemoteReplica(2, caught_up_at=0.0)
    assert not replica.has_fetched
    fetch(replica, 0, leader_end=5, now=1.0)
    assert (replica.has_fetched, replica.log_end_offset, replica.broker_epoch) == (True, 0, 7)


def test_a_fetch_at_the_leaders_end_is_caught_up_now() -> None:
    replica = RemoteReplica(2, caught_up_at=0.0)
    fetch(replica, 5, leader_end=5, now=3.0)
    assert replica.caught_up_at == 3.0


def test_who_has_by_now_what_the_leader_had_at_the_last_fetch_was_caught_up_then() -> None:
    replica = RemoteReplica(2, caught_up_at=0.0)
    fetch(replica, 3, leader_end=5, now=3.0)
    assert replica.caught_up_at == 0.0
    fetch(replica, 5, leader_end=9, now=4.0)
    assert replica.caught_up_at == 3.0


def test_fetching_without_arriving_is_not_being_in_time() -> None:
    """M34: under a steady load the follower is one batch further with each fetch, and the leader two."""
    replica = RemoteReplica(2, caught_up_at=0.0)
    for second in range(1, 30):
        fetch(replica, second, leader_end=2 * second + 1, now=float(second))
    assert not replica.is_in_time(100, now=30.0, lag_seconds_max=LAG_S)
    assert replica.is_in_time(replica.log_end_offset, now=30.0, lag_seconds_max=LAG_S), (
        "an idle leader waits for nobody"
    )


def test_time_never_goes_back_with_a_late_fetch() -> None:
    replica = RemoteReplica(2, caught_up_at=0.0)
    fetch(replica, 5, leader_end=5, now=8.0)
    fetch(replica, 5, leader_end=7, now=9.0)
    assert replica.caught_up_at == 8.0


def test_members_of_the_isr_begin_in_time_and_others_late() -> None:
    remotes = new_remotes((2, 3), (1, 2), now=50.0, lag_seconds_max=LAG_S)
    assert remotes[2].is_in_time(9, now=59.0, lag_seconds_max=LAG_S)
    assert not remotes[3].is_in_time(9, now=50.0, lag_seconds_max=LAG_S)
    assert not any(replica.has_fetched for replica in remotes.values())
