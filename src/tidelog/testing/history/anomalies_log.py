"""Anomalies of what the log holds: values that are lost, doubled, exchanged, or of nobody.

Each function reads the evidence and yields what is wrong. Compacted topics are not for these: there, records vanish by design.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history.evidence import Evidence, PartitionEvidence, parts_in_order
from tidelog.testing.history.operations import Outcome, Send, Value
from tidelog.testing.history.report import Found, anomaly


@anomaly("inconsistent-offsets", "I1, I26")
def inconsistent_offsets(evidence: Evidence) -> Iterator[Found]:
    """Two values at one offset: acknowledgements of all and readers, at whatever time, must agree."""
    for part in parts_in_order(evidence):
        for offset, values in part.disputed.items():
            told = "; ".join(
                f"{value!r}: {evidence.tell_sends(value)}, {evidence.tell_readers(part.tp, offset, value)}"
                for value in values
            )
            yield Found(part.tp, offset, values[0], told)


@anomaly("lost-write", "I19, I46")
def lost_write(evidence: Evidence) -> Iterator[Found]:
    """A record that was acknowledged by all, and committed if it was in a transaction, lies below the highest offset that was read, and nobody read it."""
    for part in parts_in_order(evidence):
        highest = max(max(part.reads, default=-1), max(part.glimpses, default=-1))
        for send in part.must_be_readable:
            offset = send.offset
            if not part.trimmed <= offset <= highest:
                continue
            is_read = offset in part.reads or offset in part.glimpses
            if is_read and evidence.read_there(part.tp, offset, send.value):
                continue
            text = f"{evidence.tell_send(send)}; others have read up to offset {highest}"
            yield Found(part.tp, offset, send.value, text)


@anomaly("unseen", "I47")
def unseen(evidence: Evidence) -> Iterator[Found]:
    """The final reading from the beginning to the end did not find a record that was acknowledged by all, or that somebody had read before."""
    if not evidence.has_final_polls:
        return
    for part in parts_in_order(evidence):
        told: set[Value] = set()
        for send in part.must_be_readable:
            if not _is_seen(evidence, part, send):
                told.add(send.value)
                yield Found(part.tp, send.offset, send.value, evidence.tell_send(send))
        for offset in part.reads:
            value = part.values[offset]
            if offset not in part.final and offset >= part.trimmed and value not in told:
                text = f"{value!r} was {evidence.tell_readers(part.tp, offset, value)}, and is gone"
                yield Found(part.tp, offset, value, text)


def _is_seen(evidence: Evidence, part: PartitionEvidence, send: Send) -> bool:
    """At the end; or it need not be, because it may be deleted."""
    offset, tp, final = send.offset, part.tp, part.final
    if offset >= 0:
        is_there = offset in final and evidence.read_there(tp, offset, send.value, final=True)
        return is_there or offset < part.trimmed
    offsets = [offset for other, offset in evidence.places_of(send.value) if other == tp]
    return part.trimmed > 0 or any(
        offset in final and evidence.read_there(tp, offset, send.value, final=True) for offset in offsets
    )


@anomaly("duplicate", "I39, I46")
def duplicate(evidence: Evidence) -> Iterator[Found]:
    """An idempotent producer's value is in more places than it was sent times."""
    for value, places in evidence.more_places.items():
        sends = evidence.sends_of(value)
        if not all(send.idempotent for send in sends):
            continue
        allowed = sum(send.outcome is not Outcome.FAIL for send in sends)
        if len(places) > max(allowed, 1):
            where = ", ".join(f"{tp} offset {offset}" for tp, offset in places)
            yield Found(*places[-1], value, f"{value!r} is at {where}; {evidence.tell_sends(value)}")


@anomaly("phantom", "I9")
def phantom(evidence: Evidence) -> Iterator[Found]:
    """A value was read that nobody had sent to that partition, or not yet."""
    for part in parts_in_order(evidence):
        tp = part.tp
        for first_times in (part.reads, part.glimpses):
            for offset, at in first_times.items():
                value = part.values[offset]
                send = evidence.sends.get(value)
                is_right = send is not None and _goes_to(send, tp) and send.invoked <= at
                if not is_right and offset not in part.disputed:
                    yield from _phantom(evidence, tp, offset, value, at)
        for offset, values in part.disputed.items():
            polls = evidence.readers(tp, offset)
            for value in values:
                times = [poll.completed for poll in polls if (offset, value) in poll.records[tp]]
                if times:
                    yield from _phantom(evidence, tp, offset, value, min(times))


def _phantom(evidence: Evidence, tp: TopicPartition, offset: int, value: Value, at: float) -> Iterator[Found]:
    """The first look takes the first send only; this one takes all of them."""
    if any(_goes_to(send, tp) and send.invoked <= at for send in evidence.sends_of(value)):
        return
    text = f"{value!r} was {evidence.tell_readers(tp, offset, value)}; {evidence.tell_sends(value)}"
    yield Found(tp, offset, value, text)


def _goes_to(send: Send, tp: TopicPartition) -> bool:
    return send.topic == tp.topic and (send.partition is None or send.partition == tp.partition)
