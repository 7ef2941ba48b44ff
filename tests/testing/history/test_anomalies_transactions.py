"""Transactions and failures: for each anomaly the smallest history that has it, and the nearest one that has it not."""

from __future__ import annotations

from tests.testing.history.story import Story
from tidelog.testing.history import check


def names(story: Story) -> set[str]:
    return check(story.history).names


def test_a_failed_send_is_read() -> None:
    story = Story()
    story.refuse("a")
    story.poll((0, "a"), committed=False)
    report = check(story.history)
    assert report.names == {"aborted-read"}
    assert "which failed (too large) at 1.000000; read by c's poll" in report.of("aborted-read")[0].text


def test_a_send_that_nobody_knows_the_end_of_is_read() -> None:
    story = Story()
    story.lose_answer("a")
    story.begin_send("b")
    story.poll((0, "a"), (1, "b"))
    assert names(story) == set()


def test_a_failed_send_that_was_sent_again_and_aborted_is_read_by_somebody_who_wants_everything() -> None:
    story = Story()
    story.refuse("a")
    transaction = story.begin()
    story.lose_answer("a", transaction=transaction)
    story.abort(transaction)
    story.poll((0, "a"), committed=False)
    assert names(story) == set()
    story.poll((0, "a"), process="c2")
    assert names(story) == {"aborted-read"}


def test_a_failed_send_that_was_sent_again_is_read() -> None:
    story = Story()
    story.refuse("a")
    story.lose_answer("a")
    story.poll((0, "a"))
    assert names(story) == set()


def test_an_aborted_record_is_read() -> None:
    story = Story()
    transaction = story.begin()
    story.ack("a", 0, transaction=transaction)
    story.abort(transaction)
    story.poll((0, "a"))
    assert names(story) == {"aborted-read"}


def test_an_aborted_record_is_read_by_somebody_who_wants_everything() -> None:
    story = Story()
    transaction = story.begin()
    story.ack("a", 0, transaction=transaction)
    story.abort(transaction)
    story.poll((0, "a"), committed=False)
    story.poll(process="f", final=True)
    assert names(story) == set()


def test_a_transaction_whose_commit_failed_is_read() -> None:
    story = Story()
    transaction = story.begin()
    story.ack("a", 0, transaction=transaction)
    story.history.failed(story.history.end(transaction, story.tick(), commit=True), story.tick(), "fenced")
    story.poll((0, "a"))
    assert names(story) == {"aborted-read"}


def test_a_transaction_whose_commit_was_not_answered_is_read() -> None:
    story = Story()
    transaction = story.begin()
    story.ack("a", 0, transaction=transaction)
    story.history.end(transaction, story.tick(), commit=True)
    story.abort(transaction)
    story.poll((0, "a"))
    assert names(story) == set()


def test_a_transaction_reads_its_own_write() -> None:
    story = Story()
    transaction = story.begin()
    story.ack("a", 0, transaction=transaction)
    story.poll((0, "a"), process="p")
    story.commit(transaction)
    assert names(story) == {"precommitted-read"}


def test_an_open_transaction_is_read() -> None:
    story = Story()
    transaction = story.begin()
    story.ack("a", 0, transaction=transaction)
    story.poll((0, "a"))
    report = check(story.history)
    assert report.names == {"precommitted-read"}
    assert "in a transaction of" in report.of("precommitted-read")[0].text
    assert "never ended" in report.of("precommitted-read")[0].text


def test_a_transaction_is_read_while_it_is_committed() -> None:
    story = Story()
    transaction = story.begin()
    story.ack("a", 0, transaction=transaction)
    commit = story.history.end(transaction, story.tick(), commit=True)
    story.poll((0, "a"))
    story.history.done(commit, story.tick())
    assert names(story) == set()


def test_an_open_transaction_is_read_by_somebody_who_wants_everything() -> None:
    story = Story()
    transaction = story.begin()
    story.ack("a", 0, transaction=transaction)
    story.poll((0, "a"), committed=False)
    story.commit(transaction)
    assert names(story) == set()


def test_a_committed_record_is_promised() -> None:
    story = Story()
    transaction = story.begin()
    story.ack("a", 0, transaction=transaction)
    story.commit(transaction)
    story.ack("b", 2)
    story.poll((2, "b"), final=True)
    assert names(story) == {"lost-write", "unseen"}


def test_an_open_record_is_not() -> None:
    story = Story()
    transaction = story.begin()
    story.ack("a", 0, transaction=transaction)
    story.ack("b", 2, process="p2")
    story.poll((2, "b"), final=True)
    assert names(story) == set()


def twice() -> Story:
    """A transaction whose commit was not answered, and all of it again in another one that was committed."""
    story = Story()
    for base in (0, 3):
        transaction = story.begin()
        story.ack("a", base, transaction=transaction)
        story.ack("b", base + 1, transaction=transaction)
        if base == 0:
            story.history.unknown(story.history.end(transaction, story.tick(), commit=True), story.tick())
        else:
            story.commit(transaction)
    return story


def test_a_transaction_that_was_tried_again_is_read_once() -> None:
    story = twice()
    story.poll((3, "a"), (4, "b"), final=True)
    assert names(story) == set()


def test_a_transaction_that_was_tried_again_may_have_been_committed_twice() -> None:
    story = twice()
    story.poll((0, "a"), (1, "b"), (3, "a"), (4, "b"), final=True)
    assert names(story) == set()


def test_a_transaction_that_was_tried_again_is_torn() -> None:
    story = twice()
    story.poll((0, "a"), final=True)
    story.poll((3, "a"), (4, "b"), final=True)
    assert names(story) == {"lost-write", "unseen", "poll-skip"}


def test_the_aborted_attempt_is_read() -> None:
    story = Story()
    first = story.begin()
    story.ack("a", 0, transaction=first)
    story.abort(first)
    second = story.begin()
    story.ack("a", 2, transaction=second)
    story.commit(second)
    story.poll((2, "a"))
    assert names(story) == set()
    story.poll((0, "a"), process="c2")
    assert names(story) == {"aborted-read"}
