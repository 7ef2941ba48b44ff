"""What the log holds: for each anomaly the smallest history that has it, and the nearest one that has it not."""

from __future__ import annotations

from tests.testing.history.story import P1, Story
from tidelog.testing.history import check


def names(story: Story) -> set[str]:
    return check(story.history).names


# ---- two values at one offset


def test_two_readers_disagree() -> None:
    story = Story()
    story.lose_answer("a")
    story.lose_answer("b")
    story.poll((0, "a"), process="c1")
    story.poll((0, "b"), process="c2")
    assert names(story) == {"inconsistent-offsets"}


def test_an_acknowledgement_and_a_reader_disagree() -> None:
    story = Story()
    story.ack("a", 0)
    story.ack("b", 1)
    story.poll((0, "b"))
    found = check(story.history)
    assert "inconsistent-offsets" in found.names and "lost-write" in found.names
    (dispute,) = found.of("inconsistent-offsets")
    assert dispute.offset == 0
    assert "p sent 'a' to t-0 at 0.000000, acknowledged at offset 0 at 1.000000" in dispute.text
    assert "read by c's poll of 4.000000 to 5.000000" in dispute.text


def test_the_same_offset_of_two_partitions_is_two_places() -> None:
    story = Story()
    story.ack("a", 0)
    story.ack("b", 0, tp=P1)
    story.poll((0, "a"))
    story.poll((0, "b"), tp=P1)
    assert names(story) == set()


def test_an_acknowledgement_of_the_leader_alone_proves_nothing() -> None:
    story = Story()
    story.ack("a", 0, acks=1, process="p1")
    story.ack("b", 0, process="p2")
    story.poll((0, "b"))
    story.poll((0, "b"), process="f", final=True)
    assert names(story) == set()


# ---- lost


def test_acknowledged_and_passed_by_all_readers() -> None:
    story = Story()
    story.ack("a", 0)
    story.ack("b", 1)
    story.poll((1, "b"))
    report = check(story.history)
    assert report.names == {"lost-write"}
    assert [found.value for found in report.of("lost-write")] == ["a"]


def test_acknowledged_and_not_reached_yet_is_not_lost() -> None:
    story = Story()
    story.ack("a", 0)
    story.ack("b", 1)
    story.poll((0, "a"))
    assert names(story) == set()


def test_an_answer_that_was_lost_promises_nothing() -> None:
    story = Story()
    story.lose_answer("a")
    story.ack("b", 1)
    story.poll((1, "b"))
    story.poll((1, "b"), process="f", final=True)
    assert names(story) == set()


def test_a_torn_transaction_is_a_lost_write() -> None:
    """Nobody knows whether it was committed, until one of its records is read: then all of them must be there (I41)."""
    story = Story()
    transaction = story.begin()
    story.ack("a", 0, transaction=transaction)
    story.ack("b", 1, transaction=transaction)
    story.history.unknown(story.history.end(transaction, story.tick(), commit=True), story.tick())
    assert names(story) == set()
    story.poll((1, "b"))
    assert names(story) == {"lost-write"}


def test_what_was_deleted_is_not_lost() -> None:
    story = Story()
    story.ack("a", 0)
    story.ack("b", 1)
    story.trim(1)
    story.assign(0)
    story.poll((1, "b"))
    story.poll((1, "b"), process="f", final=True)
    assert names(story) == set()


def test_a_deletion_that_failed_excuses_nothing() -> None:
    story = Story()
    story.ack("a", 0)
    story.ack("b", 1)
    story.history.failed(story.history.trim("admin", story.tick(), P1._replace(partition=0), 1), story.tick())
    story.poll((1, "b"))
    assert names(story) == {"lost-write"}


# ---- unseen


def test_acknowledged_and_not_found_at_the_end() -> None:
    story = Story()
    story.ack("a", 0)
    story.ack("b", 1)
    story.poll((0, "a"), final=True)
    report = check(story.history)
    assert report.names == {"unseen"}
    assert [found.value for found in report.of("unseen")] == ["b"]


def test_read_by_somebody_and_not_found_at_the_end() -> None:
    """What a consumer has read is committed, acknowledged or not (I19)."""
    story = Story()
    story.ack("a", 0)
    story.lose_answer("b")
    story.poll((0, "a"), (1, "b"))
    story.poll((0, "a"), process="f", final=True)
    assert names(story) == {"unseen"}


def test_acknowledged_without_an_offset_and_not_found_at_the_end() -> None:
    story = Story()
    story.ack("a")
    story.poll(final=True)
    assert names(story) == {"unseen"}


def test_where_records_were_deleted_one_without_an_offset_may_be_among_them() -> None:
    story = Story()
    story.ack("a")
    story.trim(1)
    story.poll(final=True)
    assert names(story) == set()


def test_everything_is_found_at_the_end() -> None:
    story = Story()
    story.ack("a", 0)
    story.ack("b")
    story.lose_answer("c")
    story.refuse("d")
    story.poll((0, "a"), final=True)
    story.poll((1, "b"), final=True)
    assert names(story) == set()


def test_without_a_final_reading_nothing_is_unseen() -> None:
    story = Story()
    story.ack("a", 0)
    story.poll()
    assert names(story) == set()


# ---- duplicates


def test_one_record_at_two_offsets() -> None:
    story = Story()
    story.lose_answer("a")
    story.poll((0, "a"), (1, "a"))
    assert names(story) == {"duplicate"}


def test_one_record_in_two_partitions() -> None:
    story = Story()
    story.history.send("p", story.tick(), "t", None, "a")
    story.poll((0, "a"))
    story.poll((0, "a"), tp=P1)
    assert names(story) == {"duplicate"}


def test_acknowledged_at_one_offset_and_read_at_another() -> None:
    story = Story()
    story.ack("a", 0)
    story.poll((1, "a"))
    assert names(story) == {"duplicate", "lost-write"}


def test_the_applications_own_retry_is_not_the_logs_duplicate() -> None:
    story = Story()
    story.lose_answer("a")
    story.ack("a", 1)
    story.poll((0, "a"), (1, "a"))
    assert names(story) == set()
    story.poll((2, "a"))
    assert names(story) == {"duplicate"}


def test_a_retry_of_what_failed_for_certain_is_one_record() -> None:
    story = Story()
    story.refuse("a")
    story.ack("a", 0)
    story.poll((0, "a"), (1, "a"))
    assert names(story) == {"duplicate"}


def test_a_producer_that_is_not_idempotent_may_repeat() -> None:
    story = Story()
    story.lose_answer("a", idempotent=False)
    story.poll((0, "a"), (1, "a"))
    assert names(story) == set()


# ---- of nobody


def test_a_value_that_nobody_sent() -> None:
    story = Story()
    story.poll((0, "a"))
    assert names(story) == {"phantom"}


def test_a_value_of_another_partition() -> None:
    story = Story()
    story.lose_answer("a", tp=P1)
    story.poll((0, "a"))
    assert names(story) == {"phantom"}


def test_a_value_that_was_read_before_it_was_sent() -> None:
    story = Story()
    story.poll((0, "a"))
    story.lose_answer("a")
    assert "phantom" in names(story)


def test_a_value_whose_partition_the_client_chose() -> None:
    story = Story()
    send = story.history.send("p", story.tick(), "t", None, "a")
    story.poll((0, "a"), tp=P1)
    assert names(story) == set()
    story.history.sent(send, story.tick(), 0, partition=1)
    assert names(story) == set()


def test_a_report_is_read_by_people() -> None:
    story = Story()
    story.ack("a", 0)
    story.ack("b", 1)
    story.poll((1, "b"))
    report = check(story.history)
    text = str(report)
    assert text.startswith(
        "3 operations with anomalies:\nlost-write (I19, I46): 1. A record that was acknowledged"
    )
    assert (
        "t-0 offset 0: p sent 'a' to t-0 at 0.000000, acknowledged at offset 0 at 1.000000; others have read up to offset 1"
        in text
    )
    assert str(check(Story().history)) == "0 operations without an anomaly"
