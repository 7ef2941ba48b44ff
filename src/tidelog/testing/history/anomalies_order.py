"""Anomalies of order: consumers that skip or go back, producers whose records change places, and acknowledgements that contradict the clock.

How consumers are followed is in `consumers`. Offsets that hold nothing readable (markers, aborted records, what was neither acknowledged by all nor ever read, what was
deleted) may be passed over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history.evidence import Evidence, parts_in_order
from tidelog.testing.history.operations import NEVER, Send
from tidelog.testing.history.report import Found, anomaly


@anomaly("poll-skip", "I46")
def poll_skip(evidence: Evidence) -> Iterator[Found]:
    """A consumer went on behind a readable record that it had not been given, between two polls or from where it was told to begin."""
    return _skips(evidence, is_internal=False)


@anomaly("int-poll-skip", "I46")
def internal_poll_skip(evidence: Evidence) -> Iterator[Found]:
    """A readable record is missing between two others of the same poll."""
    return _skips(evidence, is_internal=True)


@anomaly("nonmonotonic-poll", "I46")
def nonmonotonic_poll(evidence: Evidence) -> Iterator[Found]:
    """A consumer was given a record at or before its position again, without a rebalance, a seek or an assignment in between."""
    return _steps_back(evidence, is_internal=False)


@anomaly("int-nonmonotonic-poll", "I46")
def internal_nonmonotonic_poll(evidence: Evidence) -> Iterator[Found]:
    """The records of one poll are not in the order of their offsets."""
    return _steps_back(evidence, is_internal=True)


@anomaly("nonmonotonic-send", "I46")
def nonmonotonic_send(evidence: Evidence) -> Iterator[Found]:
    """Of two acknowledged records that an idempotent producer sent to one partition, the later one has the lower offset."""
    latest: dict[tuple[str, str, int | None], tuple[int, Send]] = {}
    for send in evidence.history.sends:
        if not (send.is_promised and send.idempotent):
            continue
        offset = send.offset if send.offset >= 0 else _only_place(evidence, send)
        if offset is None:
            continue
        key = (send.process, send.topic, send.partition)
        before = latest.get(key)
        if before is not None and offset <= before[0]:
            tp = TopicPartition(send.topic, send.partition or 0)
            text = f"{evidence.tell_send(send)}; before that, {evidence.tell_send(before[1])}"
            yield Found(tp, offset, send.value, text)
        else:
            latest[key] = (offset, send)


@anomaly("real-time-order", "I48")
def real_time_order(evidence: Evidence) -> Iterator[Found]:
    """A record is at an offset that was acknowledged or read, or before one that was, before it was even sent: the partition is not linearizable."""
    sends = evidence.sends
    for part in parts_in_order(evidence):
        values, reads, glimpses = part.values, part.reads, part.glimpses
        acks = {send.offset: send.completed for send in part.acks}
        known_since, known = NEVER, -1  # when the log was first known to reach so far, or farther
        for offset in sorted(values, reverse=True):
            since = min(acks.get(offset, NEVER), reads.get(offset, NEVER), glimpses.get(offset, NEVER))
            if since < known_since:
                known_since, known = since, offset
            send = sends.get(values[offset])  # the first one: if it was sent again, then later
            if send is not None and send.invoked > known_since:
                text = (
                    f"{evidence.tell_sends(send.value)}; it is at offset {offset},"
                    f" although offset {known} was known at {evidence.clock(known_since)}"
                )
                yield Found(part.tp, offset, send.value, text)


# ---- consumers


def _skips(evidence: Evidence, *, is_internal: bool) -> Iterator[Found]:
    for jump in evidence.jumps:
        if jump.is_internal is is_internal and jump.came > jump.due:
            readable = evidence.readable(evidence.partitions[jump.tp])
            first = bisect_left(readable, jump.due)
            skipped = bisect_left(readable, jump.came) - first
            if skipped:
                offset = readable[first]
                value = evidence.partitions[jump.tp].values[offset]
                text = (
                    f"{evidence.tell_poll(jump.poll)} returned offset {jump.came} where {jump.due} was next;"
                    f" {skipped} skipped, the first {value!r}: {evidence.tell_sends(value)}"
                )
                yield Found(jump.tp, offset, value, text)


def _steps_back(evidence: Evidence, *, is_internal: bool) -> Iterator[Found]:
    for jump in evidence.jumps:
        if jump.is_internal is is_internal and jump.came < jump.due:
            value = evidence.partitions[jump.tp].values[jump.came]
            text = f"{evidence.tell_poll(jump.poll)} returned offset {jump.came} where {jump.due} was next"
            yield Found(jump.tp, jump.came, value, text)


# ---- producers


def _only_place(evidence: Evidence, send: Send) -> int | None:
    """Where an acknowledgement without an offset must have meant; None if that is not certain."""
    place = evidence.places.get(send.value)
    if place is None or send.value in evidence.more_places or send.value in evidence.resends:
        return None
    return place[1] if place[0] == (send.topic, send.partition) else None
