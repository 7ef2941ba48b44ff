"""Majorities, exhaustively: small enough to be looked at from every side."""

from __future__ import annotations

from itertools import product

import pytest

from tidelog.quorum.values import LogEnd, Voters


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_two_majorities_always_share_a_voter(count: int) -> None:
    voters = Voters.of(range(count))
    assert 2 * voters.majority > count
    assert 2 * (count - voters.majority) < count


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_what_is_reached_is_reached_by_a_majority_and_nothing_more_is(count: int) -> None:
    voters = Voters.of(range(count))
    for values in product(range(4), repeat=count):
        reached = voters.reached(values)
        assert sum(value >= reached for value in values) >= voters.majority
        assert sum(value > reached for value in values) < voters.majority


def test_a_later_epoch_is_further_than_a_longer_log() -> None:
    assert LogEnd(epoch=2, offset=1) > LogEnd(epoch=1, offset=100)
    assert LogEnd(epoch=2, offset=5) > LogEnd(epoch=2, offset=4)


@pytest.mark.parametrize("ids", [(), (1, 1)])
def test_voters_are_somebody_and_each_of_them_once(ids: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="voters"):
        Voters.of(ids)
