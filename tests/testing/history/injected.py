"""One anomaly put into a history that has none. Each function changes the history in one spot, or says that it has no spot for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history import History
from tidelog.testing.history.evidence import Evidence, Fate
from tidelog.testing.history.operations import Outcome, Poll, Records, Send, Value

Injection = Callable[[History, random.Random], bool]
Pairs = list[tuple[int, Value]]


def _finals(history: History) -> list[tuple[Poll, TopicPartition, Pairs]]:
    return [(poll, tp, pairs) for poll in history.polls if poll.final for tp, pairs in poll.records.items()]


def _all(history: History) -> Iterator[tuple[TopicPartition, Pairs]]:
    for poll in history.polls:
        yield from poll.records.items()


def _promised(history: History) -> list[tuple[TopicPartition, Send]]:
    """Acknowledged at an offset, readable, not deleted, sent once."""
    evidence = Evidence(history)
    return [
        (part.tp, send)
        for part in evidence.partitions.values()
        for send in part.must_be_readable
        if send.offset >= part.trimmed and send.value not in evidence.resends
    ]


def _forget(history: History, tp: TopicPartition, value: Value) -> None:
    """As if nobody had ever been given it."""
    for poll in history.polls:
        if tp in poll.records:
            kept = [pair for pair in poll.records[tp] if pair[1] != value]
            if kept:
                poll.records[tp] = kept
            else:
                del poll.records[tp]


def _consecutive(history: History) -> list[tuple[Records, Records, TopicPartition]]:
    """Polls of one consumer that follow each other without a move, both with records of a partition."""
    found = []
    for stream in history.streams.values():
        for first, second in pairwise(stream):
            if isinstance(first, Poll) and isinstance(second, Poll):
                moved = any(
                    first.begun < move.begun < second.ended
                    for move in history.moves
                    if move.process == first.process
                )
                both = first.records.keys() & second.records.keys()
                found.extend((first.records, second.records, tp) for tp in sorted(both) if not moved)
    return found


def _undisturbed(history: History, least: int) -> list[tuple[TopicPartition, Pairs]]:
    """What polls without a move in their middle returned of a partition."""
    return [
        (tp, pairs)
        for poll in history.polls
        if not any(
            poll.begun < move.begun < poll.ended for move in history.moves if move.process == poll.process
        )
        for tp, pairs in poll.records.items()
        if len(pairs) >= least
    ]


def _known_to_others(history: History, tp: TopicPartition, offset: int, except_in: Pairs) -> bool:
    trims = [trim.offset for trim in history.trims if trim.tp == tp]
    return offset >= max(trims, default=0) and any(
        other == tp and pairs is not except_in and any(offset == each for each, _ in pairs)
        for poll in history.polls
        if poll.committed
        for other, pairs in poll.records.items()
    )


def inconsistent_offsets(history: History, rng: random.Random) -> bool:
    spots = [
        (pairs, index)
        for tp, pairs in _all(history)
        for index, (offset, _) in enumerate(pairs)
        if _known_to_others(history, tp, offset, pairs)
    ]
    if not spots:
        return False
    pairs, index = rng.choice(spots)
    pairs[index] = (pairs[index][0], "another")
    return True


def lost_write(history: History, rng: random.Random) -> bool:
    highest: dict[TopicPartition, int] = {}
    for tp, pairs in _all(history):
        highest[tp] = max(highest.get(tp, -1), *(offset for offset, _ in pairs))
    spots = [(tp, send) for tp, send in _promised(history) if send.offset < highest.get(tp, -1)]
    if not spots:
        return False
    tp, send = rng.choice(spots)
    _forget(history, tp, send.value)
    return True


def unseen(history: History, rng: random.Random) -> bool:
    """The end of a log is gone when it is read at last."""
    promised = {send.value for _, send in _promised(history)}
    spots = [
        (poll, tp, pairs)
        for poll, tp, pairs in _finals(history)
        if pairs is _last(history, tp) and pairs[-1][1] in promised
    ]
    if not spots:
        return False
    poll, tp, pairs = rng.choice(spots)
    poll.records[tp] = pairs[:-1]
    if not poll.records[tp]:
        del poll.records[tp]
    return True


def _last(history: History, tp: TopicPartition) -> Pairs:
    return [pairs for _, other, pairs in _finals(history) if other == tp][-1]


def duplicate(history: History, rng: random.Random) -> bool:
    once = {send.value for send in history.sends if send.idempotent} - Evidence(history).resends.keys()
    spots = [(tp, value) for _, tp, pairs in _finals(history) for _, value in pairs if value in once]
    if not spots:
        return False
    tp, value = rng.choice(spots)
    last = _last(history, tp)
    last.append((last[-1][0] + 1, value))
    return True


def phantom(history: History, rng: random.Random) -> bool:
    spots = _finals(history)
    if not spots:
        return False
    last = _last(history, rng.choice(spots)[1])
    last.append((last[-1][0] + 1, "of nobody"))
    return True


def aborted_read(history: History, rng: random.Random) -> bool:
    read = {value for _, _, pairs in _finals(history) for _, value in pairs}
    once = read - Evidence(history).resends.keys()
    spots = [send for send in history.sends if send.value in once and send.ended]
    if not spots:
        return False
    rng.choice(spots).outcome = Outcome.FAIL
    return True


def precommitted_read(history: History, rng: random.Random) -> bool:
    evidence = Evidence(history)
    spots = [
        transaction
        for transaction, fate in evidence.fates.items()
        if fate is Fate.COMMITTED and any(map(evidence.is_read, transaction.sends))
    ]
    if not spots:
        return False
    for ending in rng.choice(spots).endings:
        ending.invoked = ending.completed = history.polls[-1].completed + 1.0
    return True


def poll_skip(history: History, rng: random.Random) -> bool:
    spots = [
        (second, tp)
        for _, second, tp in _consecutive(history)
        if len(second[tp]) > 1 and _known_to_others(history, tp, second[tp][0][0], second[tp])
    ]
    if not spots:
        return False
    records, tp = rng.choice(spots)
    del records[tp][0]
    return True


def internal_poll_skip(history: History, rng: random.Random) -> bool:
    spots = [
        (pairs, index)
        for tp, pairs in _undisturbed(history, 3)
        for index in range(1, len(pairs) - 1)
        if _known_to_others(history, tp, pairs[index][0], pairs)
    ]
    if not spots:
        return False
    pairs, index = rng.choice(spots)
    del pairs[index]
    return True


def nonmonotonic_poll(history: History, rng: random.Random) -> bool:
    spots = _consecutive(history)
    if not spots:
        return False
    first, second, tp = rng.choice(spots)
    second[tp].insert(0, first[tp][-1])
    return True


def internal_nonmonotonic_poll(history: History, rng: random.Random) -> bool:
    spots = _undisturbed(history, 2)
    if not spots:
        return False
    _, pairs = rng.choice(spots)
    index = rng.randrange(len(pairs) - 1)
    pairs[index], pairs[index + 1] = pairs[index + 1], pairs[index]
    return True


def nonmonotonic_send(history: History, rng: random.Random) -> bool:
    told = [send for send in history.sends if send.is_promised and send.idempotent and send.offset >= 0]
    spots = [
        (first, second)
        for index, first in enumerate(told)
        for second in told[index + 1 :]
        if (first.process, first.partition) == (second.process, second.partition)
    ]
    if not spots:
        return False
    first, second = rng.choice(spots)
    first.offset, second.offset = second.offset, first.offset
    return True


def real_time_order(history: History, rng: random.Random) -> bool:
    """A record was sent only after one behind it had been read."""
    spots = [
        (first, last)
        for _, tp, pairs in _finals(history)
        for (_, first), (last, _) in pairwise(pairs)
        if _known_to_others(history, tp, last, pairs)
    ]
    if not spots:
        return False
    value, _ = rng.choice(spots)
    for send in history.sends:
        if send.value == value:
            send.invoked = history.polls[-1].completed + 1.0
    return True


INJECTIONS: dict[str, Injection] = {
    "inconsistent-offsets": inconsistent_offsets,
    "lost-write": lost_write,
    "unseen": unseen,
    "duplicate": duplicate,
    "phantom": phantom,
    "aborted-read": aborted_read,
    "precommitted-read": precommitted_read,
    "poll-skip": poll_skip,
    "int-poll-skip": internal_poll_skip,
    "nonmonotonic-poll": nonmonotonic_poll,
    "int-nonmonotonic-poll": internal_nonmonotonic_poll,
    "nonmonotonic-send": nonmonotonic_send,
    "real-time-order": real_time_order,
}
