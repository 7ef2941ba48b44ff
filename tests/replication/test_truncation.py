"""Where a follower's log parts from its leader's (KIP-101, 279, 595): two logs that disagree always end up the same."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.errors import RequestError
from tidelog.records.batch import iter_headers, read_header
from tidelog.records.builder import BatchBuilder
from tidelog.replication.truncation import EpochEnd, divergence, truncate, truncation_offset
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.recovery import open_log
from tidelog.testing.sim.disk import SimDisk
from tidelog.wire.error_codes import ErrorCode

NOW_MS = 1_700_000_000_000


def log_of(*epochs: int) -> Log:
    """One record for each epoch given; `-n` begins epoch n and writes nothing."""
    log = open_log(SimDisk(Random(1)), "/data/t-0", "t", 0, config=LogConfig(), now_ms=NOW_MS)
    for epoch in epochs:
        if epoch < 0:
            log.start_epoch(-epoch)
            continue
        builder = BatchBuilder()
        builder.append(NOW_MS, None, f"epoch {epoch}".encode())
        batch = builder.build()
        log.append_as_leader(batch, read_header(batch), leader_epoch=epoch, now_ms=NOW_MS)
    return log


def ask(leader: Log, follower: Log) -> EpochEnd | None:
    latest = follower.latest_epoch
    return divergence(
        leader, last_fetched_epoch=-1 if latest is None else latest, fetch_offset=follower.log_end_offset
    )


def epochs_in(log: Log) -> list[int]:
    if log.log_end_offset == 0:
        return []
    found = log.read(0, 1 << 20, end_offset=log.log_end_offset)
    assert found.range is not None
    headers = [header.partition_leader_epoch for _, header in iter_headers(found.range.read())]
    found.range.release()
    return headers


def test_logs_that_agree_are_not_cut() -> None:
    assert ask(log_of(1, 1, 2), log_of(1, 1)) is None
    assert ask(log_of(1, 1, 2), log_of(1, 1, 2)) is None
    assert ask(log_of(1), log_of()) is None


def test_what_the_leader_does_not_have_of_its_epoch_is_cut() -> None:
    leader, follower = log_of(1, 1, -2), log_of(1, 1, 1, 1)
    assert ask(leader, follower) == EpochEnd(1, 2)
    assert truncate(follower, EpochEnd(1, 2)) == 2


def test_an_epoch_the_leader_never_had_is_cut_wholly() -> None:
    """KIP-279: the leader answers with the largest epoch it knows below, not with the one that was asked for (M2)."""
    leader, follower = log_of(1, 1, 3), log_of(1, 2, 2, 2)
    found = ask(leader, follower)
    assert found == EpochEnd(1, 2)
    assert truncation_offset(follower, found) == 1


def test_an_epoch_the_follower_never_had_leads_to_another_question() -> None:
    leader, follower = log_of(1, 2, 2, 4), log_of(1, 3, 3)
    found = ask(leader, follower)
    assert found == EpochEnd(2, 3)
    assert truncate(follower, found) == 1
    assert ask(leader, follower) is None


def test_an_epoch_that_was_begun_and_left_empty_is_forgotten() -> None:
    """The follower was elected, wrote nothing and was deposed: it must not ask about that epoch for ever."""
    leader, follower = log_of(1, 1, -3), log_of(1, 1, -2)
    found = ask(leader, follower)
    assert found == EpochEnd(1, 2)
    assert truncate(follower, found) == 2, "no record goes"
    assert ask(leader, follower) is None


def test_an_epoch_of_the_future_is_out_of_range() -> None:
    with pytest.raises(RequestError) as caught:
        ask(log_of(1), log_of(1, 2))
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


@settings(max_examples=60)
@given(st.data())
def test_a_follower_always_arrives_at_what_the_leader_has(data: st.DataObject) -> None:
    """Any two logs with a common beginning, each with epochs of its own behind it, the leader with the latest: a few questions, and what is
    left of the follower is a beginning of the leader, with the whole of what they had in common.
    """
    shared = sorted(data.draw(st.lists(st.integers(1, 4), max_size=4)))
    floor = max(shared, default=0)
    mine = sorted(data.draw(st.lists(st.sampled_from([5, 7, 9]), max_size=4)))
    theirs = sorted(data.draw(st.lists(st.sampled_from([4 + floor % 2, 6, 8, 10]), max_size=4)))
    leader = log_of(*shared, *[epoch for epoch in theirs if epoch > floor and epoch not in mine], -11)
    follower = log_of(*shared, *mine)
    for _ in range(10):
        found = ask(leader, follower)
        if found is None:
            break
        truncate(follower, found)
    else:
        raise AssertionError("they never agree")
    left = epochs_in(follower)
    assert left == epochs_in(leader)[: len(left)]
    assert len(left) >= len(shared)
