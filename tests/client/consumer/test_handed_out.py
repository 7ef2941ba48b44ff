"""What may be committed when positions move under records that an application still has."""

from __future__ import annotations

from tests.client.consumer.test_positions import A, B, chunk, reading
from tidelog.client.consumer.handed_out import HandedOut, first_of
from tidelog.client.consumer.positions import Positions, Spot, Want


def with_records(*, held: bool) -> tuple[Positions, HandedOut]:
    """Six records of two partitions are taken; an iteration holds them all, or a poll has given them out."""
    positions = reading(A, B)
    for tp in (A, B):
        positions.take(tp, positions.states[tp].version, chunk(tp, 0))
    handed_out = HandedOut(positions)
    records = positions.next_records(10)
    if held:
        handed_out.held = records[::-1]
    else:
        handed_out.give(first_of(records))
    return positions, handed_out


def test_a_position_that_moved_back_is_committed_at_once() -> None:
    """What the application has in hand is of a log that is gone: whoever comes after must not begin behind the new position."""
    positions, handed_out = with_records(held=False)
    assert handed_out.safe() == {A: Spot(0), B: Spot(0)}
    handed_out.dealt_with()
    handed_out.give({A: 2})
    positions.states[A].move_to(Spot(1, 4))
    assert handed_out.safe() == {A: Spot(1, 4), B: Spot(3)}


def test_records_are_held_while_their_position_is_looked_for() -> None:
    positions, handed_out = with_records(held=True)
    positions.states[A].wants(Want.RESET)
    assert handed_out.consumed() == {A: Spot(0), B: Spot(0)}


def test_what_is_held_behind_a_cut_goes() -> None:
    _, handed_out = with_records(held=True)
    assert handed_out.next_held() is not None
    assert handed_out.cut(A, 2) == 1
    assert [(r.partition, r.offset) for r in handed_out.held[::-1]] == [(0, 1), (1, 0), (1, 1), (1, 2)]
    assert handed_out.cut(A, 0) == 1
    assert handed_out.cut(A, 0) is None
    assert len(handed_out.held) == 3
