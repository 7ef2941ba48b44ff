"""Anomalies of records that readers of committed ones must not see: failed, aborted, or not committed yet."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history.evidence import Evidence, Fate, Place
from tidelog.testing.history.operations import Outcome, Send, Transaction
from tidelog.testing.history.report import Found, anomaly


@anomaly("aborted-read", "I42")
def aborted_read(evidence: Evidence) -> Iterator[Found]:
    """G1a: a value was read whose send failed for certain, or was in a transaction that was aborted, and no other send of it can be what was read."""
    for send in evidence.history.sends:
        if not _is_gone(evidence, send):
            continue
        sends = evidence.sends_of(send.value)
        if not all(_is_gone(evidence, each) for each in sends):
            places = evidence.places_of_send(send)
        elif send is sends[0]:
            places = evidence.places_of(send.value)
        else:
            continue
        never_stored = all(each.outcome is Outcome.FAIL for each in sends)
        for tp, offset, _at in _seen(evidence, send, places, uncommitted=never_stored):
            text = f"{evidence.tell_send(send)}{_tell_end(evidence, send.transaction)}; {evidence.tell_readers(tp, offset, send.value)}"
            yield Found(tp, offset, send.value, text)


@anomaly("precommitted-read", "I42")
def precommitted_read(evidence: Evidence) -> Iterator[Found]:
    """A value was read, be it by its own transaction, before anybody had asked to commit the transaction that it was sent in."""
    for transaction in evidence.history.transactions:
        if evidence.fates[transaction] is Fate.ABORTED:
            continue
        asked = min(
            (ending.invoked for ending in transaction.endings if ending.is_commit), default=float("inf")
        )
        for send in transaction.sends:
            for tp, offset, at in _seen(evidence, send, evidence.places_of_send(send), uncommitted=False):
                if at < asked:
                    text = f"{evidence.tell_send(send)}{_tell_end(evidence, transaction)}; {evidence.tell_readers(tp, offset, send.value)}"
                    yield Found(tp, offset, send.value, text)


def _is_gone(evidence: Evidence, send: Send) -> bool:
    return send.outcome is Outcome.FAIL or (
        send.transaction is not None and evidence.fates[send.transaction] is Fate.ABORTED
    )


def _seen(
    evidence: Evidence, send: Send, places: list[Place], *, uncommitted: bool
) -> Iterator[tuple[TopicPartition, int, float]]:
    """Where and when first the value was read; by readers of uncommitted records only if they must not see it either."""
    for tp, offset in places:
        part = evidence.partitions[tp]
        at = part.reads.get(offset)
        if at is None and uncommitted:
            at = part.glimpses.get(offset)
        if at is not None and evidence.read_there(tp, offset, send.value):
            yield tp, offset, at


def _tell_end(evidence: Evidence, transaction: Transaction | None) -> str:
    if transaction is None:
        return ""
    told = [
        f"{'commit' if ending.is_commit else 'abort'} asked at {evidence.clock(ending.invoked)} ({ending.outcome})"
        for ending in transaction.endings
    ]
    return f", in a transaction of {evidence.clock(transaction.began)}: {', '.join(told) or 'never ended'}"
