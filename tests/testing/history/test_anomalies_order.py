"""Order: for each anomaly the smallest history that has it, and the nearest one that has it not."""

from __future__ import annotations

import pytest

from tests.testing.history.story import P0, P1, Story
from tidelog.testing.history import AnomalyError, check


def names(story: Story) -> set[str]:
    return check(story.history).names


@pytest.fixture
def five() -> Story:
    """Five records, acknowledged and read by somebody else."""
    story = Story()
    for offset, value in enumerate("abcde"):
        story.ack(value, offset)
    story.poll(*enumerate("abcde"), process="other")
    return story


# ---- polls


def test_a_record_is_skipped_between_polls(five: Story) -> None:
    five.poll((0, "a"), (1, "b"))
    five.poll((3, "d"))
    report = check(five.history)
    assert report.names == {"poll-skip"}
    (found,) = report.of("poll-skip")
    assert (found.offset, found.value) == (2, "c")
    assert "returned offset 3 where 2 was next; 1 skipped" in found.text
    with pytest.raises(AnomalyError, match="poll-skip"):
        report.raise_if_dirty()


def test_a_record_is_skipped_within_a_poll(five: Story) -> None:
    five.poll((0, "a"), (2, "c"))
    assert names(five) == {"int-poll-skip"}


def test_what_holds_nothing_readable_may_be_passed_over() -> None:
    story = Story()
    story.ack("a", 0)
    story.refuse("x")
    story.lose_answer("y")
    aborted = story.begin()
    story.ack("z", 1, transaction=aborted)
    story.abort(aborted)
    story.ack("b", 5)
    story.ack("c", 7)
    story.poll((0, "a"), (5, "b"))
    story.poll((7, "c"))
    assert names(story) == set()


def test_the_first_poll_begins_where_the_consumer_was_told_to(five: Story) -> None:
    five.assign(1)
    five.poll((2, "c"))
    assert names(five) == {"poll-skip"}


def test_a_poll_goes_back(five: Story) -> None:
    five.poll((0, "a"), (1, "b"))
    five.poll((1, "b"), (2, "c"))
    assert names(five) == {"nonmonotonic-poll"}


def test_a_poll_is_out_of_order(five: Story) -> None:
    five.poll((1, "b"), (0, "a"), (1, "b"), (2, "c"))
    assert names(five) == {"int-nonmonotonic-poll"}


def test_the_same_record_twice_in_a_poll(five: Story) -> None:
    five.poll((1, "b"), (1, "b"))
    assert names(five) == {"int-nonmonotonic-poll"}


def test_consumers_and_partitions_have_positions_of_their_own(five: Story) -> None:
    five.ack("f", 0, tp=P1)
    five.poll((3, "d"), (4, "e"), process="c1")
    five.poll((0, "a"), process="c2")
    five.poll((0, "f"), process="c1", tp=P1)
    assert names(five) == set()


def test_a_poll_without_an_end_moves_nobody(five: Story) -> None:
    five.poll((0, "a"))
    five.history.unknown(five.history.poll("c", five.tick()), five.tick())
    five.poll((1, "b"))
    assert names(five) == set()


@pytest.mark.parametrize("first, then", [((0, "a"), (3, "d")), ((3, "d"), (0, "a"))])
def test_jumps_are_allowed_where_the_consumer_was_moved(
    five: Story, first: tuple[int, str], then: tuple[int, str]
) -> None:
    five.poll(first)
    five.seek(then[0])
    five.poll(then)
    five.seek(None)
    five.poll(first)
    five.assign()
    five.poll(then)
    five.history.subscribe("c", five.tick(), ["t"])
    five.rebalance(assigned=[P0])
    five.poll(first)
    five.rebalance(revoked=[P0])
    five.rebalance(assigned=[P0])
    five.poll(then)
    assert names(five) == set()


def test_a_rebalance_of_other_partitions_moves_nobody(five: Story) -> None:
    five.poll((0, "a"))
    five.rebalance(assigned=[P1])
    five.poll((2, "c"))
    assert names(five) == {"poll-skip"}


def test_a_rebalance_in_the_middle_of_a_poll(five: Story) -> None:
    """Some clients tell of it in the middle of collecting records: then the poll has records of both sides."""
    five.poll((0, "a"), (1, "b"))
    poll = five.history.poll("c", five.tick())
    five.rebalance(revoked=[P0])
    five.rebalance(assigned=[P0])
    five.history.polled(poll, five.tick(), [(P0, 2, "c"), (P0, 3, "d"), (P0, 0, "a"), (P0, 1, "b")])
    five.poll((2, "c"))
    assert names(five) == set()
    five.poll((1, "b"))
    assert names(five) == {"nonmonotonic-poll"}


# ---- sends


def test_the_sends_of_a_producer_change_places() -> None:
    story = Story()
    first, second = story.begin_send("a"), story.begin_send("b")
    story.history.sent(second, story.tick(), 0)
    story.history.sent(first, story.tick(), 1)
    assert names(story) == {"nonmonotonic-send"}


def test_the_sends_of_a_producer_change_places_as_readers_saw() -> None:
    story = Story()
    first, second = story.begin_send("a"), story.begin_send("b")
    story.history.sent(first, story.tick())
    story.history.sent(second, story.tick())
    story.poll((0, "b"), (1, "a"))
    assert names(story) == {"nonmonotonic-send"}


def test_sends_of_two_producers_have_no_order() -> None:
    story = Story()
    first, second = story.begin_send("a", process="p1"), story.begin_send("b", process="p2")
    story.history.sent(second, story.tick(), 0)
    story.history.sent(first, story.tick(), 1)
    assert names(story) == set()


def test_only_idempotent_producers_keep_the_order_of_pipelined_sends() -> None:
    story = Story()
    first, second = story.begin_send("a", idempotent=False), story.begin_send("b", idempotent=False)
    story.history.sent(second, story.tick(), 0)
    story.history.sent(first, story.tick(), 1)
    assert names(story) == set()


def test_a_send_without_an_answer_has_no_place_in_the_order() -> None:
    """A client that has given up on a record goes on under a new producer id; the broker may get the old request later."""
    story = Story()
    first, second = story.begin_send("a"), story.begin_send("b")
    story.history.unknown(first, story.tick())
    story.history.sent(second, story.tick(), 0)
    story.poll((0, "b"), (1, "a"))
    assert names(story) == set()


# ---- the clock


def test_a_later_send_is_acknowledged_before_an_earlier_one() -> None:
    story = Story()
    story.ack("a", 1, process="p1")
    story.ack("b", 0, process="p2")
    report = check(story.history)
    assert report.names == {"real-time-order"}
    (found,) = report.of("real-time-order")
    assert "it is at offset 0, although offset 1 was known at 1.000000" in found.text


def test_a_later_send_is_before_one_that_was_read() -> None:
    story = Story()
    story.lose_answer("a", process="p1")
    story.poll((1, "a"))
    story.lose_answer("b", process="p2")
    story.poll((0, "b"), process="c2")
    assert names(story) == {"real-time-order"}


def test_sends_that_overlap_have_any_order() -> None:
    story = Story()
    first, second = story.begin_send("a", process="p1"), story.begin_send("b", process="p2")
    story.history.sent(first, story.tick(), 1)
    story.history.sent(second, story.tick(), 0)
    assert names(story) == set()


def test_ending_and_beginning_at_the_same_time_is_overlapping() -> None:
    story = Story()
    first = story.history.send("p1", 1.0, "t", 0, "a")
    story.history.sent(first, 2.0, 1)
    second = story.history.send("p2", 2.0, "t", 0, "b")
    story.history.sent(second, 3.0, 0)
    assert names(story) == set()


def test_a_retry_may_have_been_stored_when_it_was_sent_first() -> None:
    story = Story()
    story.lose_answer("a", process="p1")
    story.ack("b", 1, process="p2")
    story.ack("a", 0, process="p1")
    assert names(story) == set()
