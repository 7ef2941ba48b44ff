"""Why a stream cannot go on where it was, told apart; and where it goes on if that is accepted."""

from __future__ import annotations

import pytest

from tidelog.client.metadata import TopicPartition
from tidelog.spark.loss import Cause, DataLossError, LogView, go_on, losses_of
from tidelog.spark.offsets import Offsets

A = TopicPartition("a", 0)
OLD, NEW = "0" * 32, "1" * 32


def read(offset: int, *, topic_id: str = OLD, epoch: int | None = None) -> Offsets:
    return Offsets({A: offset}, {"a": topic_id}, {} if epoch is None else {A: epoch})


def log(earliest: int, latest: int, *, topic_id: str = OLD, epoch_end: int | None = None) -> LogView:
    ends = {} if epoch_end is None else {A: epoch_end}
    return LogView({A: earliest}, {A: latest}, {"a": topic_id}, ends)


@pytest.mark.parametrize(
    ("was", "now", "cause", "goes_on_at"),
    [
        (read(20), log(0, 20), None, None),
        (read(20), log(20, 40), None, None),
        (read(20), log(30, 40), Cause.AGED_OUT, 30),
        (read(20), log(0, 5), Cause.CUT, 5),
        (read(20, epoch=3), log(0, 50, epoch_end=15), Cause.CUT, 15),
        (read(20, epoch=3), log(0, 50, epoch_end=20), None, None),
        (read(20), log(0, 5, topic_id=NEW), Cause.MADE_ANEW, 0),
        (read(20), log(0, 30, topic_id=NEW), Cause.MADE_ANEW, 0),
        (Offsets({A: 20}), log(0, 30, topic_id=NEW), None, None),
        (read(20), LogView({}, {}), Cause.GONE, None),
    ],
)
def test_causes_are_told_apart(
    was: Offsets, now: LogView, cause: Cause | None, goes_on_at: int | None
) -> None:
    losses = losses_of(was, now)
    if cause is None:
        assert losses == []
        return
    (loss,) = losses
    assert (loss.cause, loss.goes_on_at) == (cause, goes_on_at)
    after = go_on(was, losses, now)
    assert after.next == ({} if goes_on_at is None else {A: goes_on_at})
    assert losses_of(after, now) == [], "told once"


def test_the_error_says_what_happened_and_what_to_do() -> None:
    with pytest.raises(DataLossError, match=r"made anew(.|\n)*failOnDataLoss to false"):
        raise DataLossError(losses_of(read(20), log(0, 30, topic_id=NEW)))
