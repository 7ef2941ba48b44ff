"""What of a stream's logs is not there any more, and why: deleted, made anew, aged out, or cut.

Offsets alone cannot tell these apart: a topic that was made anew with more records than were read looks like one that grew. The topic's id and the leader epoch of the last record
can (`offsets`). With `failOnDataLoss` each is an error that says which it was; without, reading goes on at the first record that was not read before, and nothing that is there is passed over. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tidelog.client.metadata import TopicPartition
from tidelog.errors import TidelogError
from tidelog.spark.offsets import Offsets


class Cause(Enum):
    GONE = "gone"
    MADE_ANEW = "made anew"
    AGED_OUT = "aged out"
    CUT = "cut"


class Loss(NamedTuple):
    tp: TopicPartition
    cause: Cause
    read_up_to: int
    goes_on_at: int | None
    """None: there is nothing to go on with."""
    explanation: str


class DataLossError(TidelogError):
    """Records that the stream had not read are gone, or it cannot be told that they are not."""

    def __init__(self, losses: Sequence[Loss]) -> None:
        self.losses = tuple(losses)
        lines = "\n".join(f"  {loss.explanation}" for loss in losses)
        super().__init__(
            f"the stream cannot go on where it was:\n{lines}\n"
            "To go on with what is there, set failOnDataLoss to false; to begin anew, use another checkpoint"
        )


@dataclass(frozen=True, slots=True)
class LogView:
    """The logs of a subscription as the brokers have them now."""

    earliest: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    epoch_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """For partitions whose last read epoch is known and not the leader's: where the records of that epoch end now."""
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of the leaders that said so."""


def losses_of(read: Offsets, now: LogView) -> list[Loss]:
    found = (_loss_of(tp, offset, read, now) for tp, offset in sorted(read.next.items()))
    return [loss for loss in found if loss is not None]


def _loss_of(tp: TopicPartition, offset: int, read: Offsets, now: LogView) -> Loss | None:
    earliest, latest = now.earliest.get(tp), now.latest.get(tp)
    if earliest is None or latest is None:
        why = f"{tp} is not there any more: it was deleted, or does not belong to what is read; the stream had read up to offset {offset}"
        return Loss(tp, Cause.GONE, offset, None, why)
    old_id, new_id = read.topic_ids.get(tp.topic), now.topic_ids.get(tp.topic)
    if old_id is not None and new_id is not None and old_id != new_id:
        why = f"topic {tp.topic} was deleted and made anew (its id was {old_id} and is {new_id}); what {tp} held behind offset {offset} is gone, and it has offsets {earliest} to {latest} now"
        return Loss(tp, Cause.MADE_ANEW, offset, earliest, why)
    if offset < earliest:
        why = f"{tp}: offsets {offset} to {earliest} were deleted before they were read, by retention or on demand"
        return Loss(tp, Cause.AGED_OUT, offset, earliest, why)
    end = now.epoch_ends.get(tp)
    if end is not None and end < offset:
        why = f"{tp}: the log was cut at offset {end}, and {offset} was read already: a leader was elected without those records"
        return Loss(tp, Cause.CUT, offset, max(end, earliest), why)
    if offset > latest:
        why = f"{tp} ends at offset {latest}, and {offset} was read already: its log was cut, or the topic was made anew"
        return Loss(tp, Cause.CUT, offset, latest, why)
    return None


def go_on(read: Offsets, losses: Sequence[Loss], now: LogView) -> Offsets:
    """Where a stream that accepts its losses goes on. Topics that were made anew begin at their beginning."""
    offsets = dict(read.next)
    for loss in losses:
        if loss.goes_on_at is None:
            del offsets[loss.tp]
        else:
            offsets[loss.tp] = loss.goes_on_at
    return Offsets(offsets, {**read.topic_ids, **now.topic_ids}, read.with_next(offsets).epochs)
