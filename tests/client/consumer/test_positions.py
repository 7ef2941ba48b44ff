"""Where a consumer is: nothing of before a seek comes after it, nothing is skipped, what is fetched ahead has a bound."""

from __future__ import annotations

from tests.client.consumer.test_records import data_batch
from tidelog.client.consumer.handed_out import first_of
from tidelog.client.consumer.positions import LATEST, NOWHERE, Positions, Spot, Want
from tidelog.client.consumer.records import Chunk
from tidelog.client.metadata import TopicPartition
from tidelog.records.control import build_end_transaction_marker

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


def chunk(tp: TopicPartition, first: int, count: int = 3) -> Chunk:
    data = b"".join(data_batch(first + number, b"%d" % (first + number)) for number in range(count))
    return Chunk(tp, memoryview(data), first)


def reading(*tps: TopicPartition, bytes_ahead: int = 1 << 20) -> Positions:
    positions = Positions(bytes_ahead=bytes_ahead)
    positions.assign(tps)
    for tp in tps:
        positions.states[tp].move_to(Spot(0))
    return positions


def test_a_new_partition_first_asks_where_its_group_was() -> None:
    positions = Positions(bytes_ahead=100)
    positions.assign([A])
    assert [state.tp for state in positions.wanting(Want.COMMITTED, 0.0)] == [A]
    assert positions.fetchable() == []
    positions.states[A].move_to(Spot(7, 2))
    assert [state.tp for state in positions.fetchable()] == [A]
    assert positions.offsets() == {A: Spot(7, 2)}


def test_records_come_in_order_and_the_position_follows_what_was_handed_out() -> None:
    positions = reading(A, B)
    for tp in (A, B):
        assert positions.take(tp, positions.states[tp].version, chunk(tp, 0))
    records = positions.next_records(2)
    assert [(r.partition, r.offset) for r in records] == [(0, 0), (0, 1)]
    assert positions.offsets() == {A: Spot(2, -1), B: Spot(0, -1)}
    assert [(r.partition, r.offset) for r in positions.next_records(10)] == [(1, 0), (1, 1), (1, 2), (0, 2)]
    assert not positions.has_records


def test_answers_to_questions_of_before_a_seek_are_dropped() -> None:
    positions = reading(A)
    version = positions.states[A].version
    assert positions.take(A, version, chunk(A, 0))
    positions.states[A].move_to(Spot(100))
    assert not positions.has_records
    assert not positions.take(A, version, chunk(A, 3))
    assert positions.take(A, positions.states[A].version, chunk(A, 100))
    assert [r.offset for r in positions.next_records(10)] == [100, 101, 102]


def test_an_answer_that_repeats_what_is_here_is_dropped() -> None:
    positions = reading(A)
    version = positions.states[A].version
    assert positions.take(A, version, chunk(A, 0))
    assert not positions.take(A, version, chunk(A, 0))
    assert [r.offset for r in positions.next_records(10)] == [0, 1, 2]


def test_what_is_fetched_ahead_has_a_bound_and_starves_nobody() -> None:
    positions = reading(A, B, bytes_ahead=50)
    assert {state.tp for state in positions.fetchable()} == {A, B}
    positions.take(A, positions.states[A].version, chunk(A, 0))
    assert [state.tp for state in positions.fetchable()] == [B]
    wide = reading(A)
    for first in (0, 3):
        wide.take(A, wide.states[A].version, chunk(A, first))
    assert wide.fetchable() == [], "one that is read, one behind it"


def test_markers_at_the_end_move_the_position_on() -> None:
    positions = reading(A)
    marker = build_end_transaction_marker(
        commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=1, base_offset=1
    )
    both = Chunk(A, memoryview(data_batch(0, b"0") + marker), 0)
    positions.take(A, positions.states[A].version, both)
    assert [r.offset for r in positions.next_records(10)] == [0]
    assert positions.next_records(10) == []
    assert positions.offsets() == {A: Spot(2, -1)}


def test_paused_partitions_hand_nothing_out_and_lose_nothing() -> None:
    positions = reading(A)
    positions.take(A, positions.states[A].version, chunk(A, 0))
    positions.states[A].is_paused = True
    assert positions.next_records(10) == [] and not positions.has_records and positions.fetchable() == []
    positions.states[A].is_paused = False
    assert [r.offset for r in positions.next_records(10)] == [0, 1, 2]


def test_partitions_that_stay_go_on_and_others_are_forgotten() -> None:
    positions = reading(A, B)
    positions.take(A, positions.states[A].version, chunk(A, 0))
    positions.assign([A])
    assert [r.offset for r in positions.next_records(2)] == [0, 1]
    positions.remove([A])
    assert not positions.states and positions.next_records(10) == []


def test_a_new_leader_is_asked_whether_it_has_what_was_read() -> None:
    positions = reading(A)
    state = positions.states[A]
    state.move_to(Spot(50, 3))
    positions.new_leader(A, 4)
    assert state.want is Want.VALIDATE and positions.fetchable() == []
    assert positions.validated(A, state.version, 4, Spot(60, 3)) is None
    assert state.want is None
    positions.new_leader(A, 4)
    assert state.want is None, "once for each epoch"
    positions.new_leader(A, 5)
    assert positions.validated(A, state.version, 5, Spot(40, 3)) == Spot(40, 3), "cut below what was read"
    assert state.want is Want.VALIDATE, "whoever decides moves the position"


def test_markers_of_a_later_leader_are_compared_with_its_epoch() -> None:
    """Else the end of the earlier epoch, before the markers, would look like a cut."""
    positions = reading(A)
    marker = build_end_transaction_marker(
        commit=True,
        producer_id=1,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=1,
        base_offset=1,
        partition_leader_epoch=7,
    )
    both = Chunk(A, memoryview(data_batch(0, b"0") + marker), 0)
    positions.take(A, positions.states[A].version, both)
    positions.next_records(10)
    assert positions.offsets() == {A: Spot(2, 7)}


def test_a_longer_log_of_an_earlier_leader_is_no_reason_to_pass_over_anything() -> None:
    """Two unclean elections: offsets 40 to 49 are there, but they are not what was read. Where the logs part is not known."""
    positions = reading(A)
    state = positions.states[A]
    state.move_to(Spot(50, 3))
    positions.new_leader(A, 5)
    assert positions.validated(A, state.version, 5, Spot(60, 2)) == Spot(50, 2)


def test_a_leader_that_knows_nothing_of_our_epoch_cannot_tell() -> None:
    positions = reading(A)
    state = positions.states[A]
    state.move_to(Spot(50, 3))
    positions.new_leader(A, 5)
    assert positions.validated(A, state.version, 5, Spot(-1, -1)) is NOWHERE


def test_a_seek_by_time_is_looked_up() -> None:
    positions = reading(A)
    positions.states[A].wants(Want.RESET, reset_to=LATEST)
    assert positions.offsets() == {}
    assert [state.reset_to for state in positions.wanting(Want.RESET, 0.0)] == [LATEST]


def test_the_first_offsets_of_what_was_handed_out() -> None:
    positions = reading(A, B)
    for tp in (A, B):
        positions.take(tp, positions.states[tp].version, chunk(tp, 5))
    positions.states[A].position = 5
    assert first_of(positions.next_records(10)) == {A: 5, B: 5}
