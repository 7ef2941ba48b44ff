"""What a history proves, gathered once and shared by all anomalies.

Owns the answers to: which value is at which offset, as acknowledgements of all (`acks=all`) and polls say; what was read and when first; what became of a
transaction; what must be readable. Draws no conclusion: whether that is as it should be is for `anomalies_*`. One pass over sends and one over polled records, because
it runs after every simulated seed; what only words need is gathered when something is wrong.

An acknowledgement of less than all is no evidence: its record may be gone, and another one in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from operator import attrgetter

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history.consumers import Jump, follow
from tidelog.testing.history.history import History
from tidelog.testing.history.operations import (
    ACKS_ALL,
    NEVER,
    Operation,
    Outcome,
    Poll,
    Send,
    Transaction,
    Value,
)

Place = tuple[TopicPartition, int]


class Fate(Enum):
    """What became of a transaction, as far as clients can know."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    """Nobody whose commit could have been carried out has asked for one."""
    OPEN = "open"
    """Nobody has asked for its end."""
    UNKNOWN = "unknown"


class PartitionEvidence:
    __slots__ = (
        "acks",
        "disputed",
        "final",
        "glimpses",
        "must_be_readable",
        "readable",
        "reads",
        "tp",
        "trimmed",
        "values",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.values: dict[int, Value] = {}
        self.disputed: dict[int, list[Value]] = {}
        """All values of the offsets that have more than one."""
        self.acks: list[Send] = []
        """Acknowledged by all, whatever became of their transactions."""
        self.must_be_readable: list[Send] = []
        self.reads: dict[int, float] = {}
        """When an offset was first returned to somebody who reads what is committed."""
        self.glimpses: dict[int, float] = {}
        """The same for those who read everything."""
        self.final: set[int] = set()
        self.readable: list[int] | None = None
        self.trimmed = 0

    def learn(self, offset: int, value: Value) -> None:
        known = self.values.setdefault(offset, value)
        if known != value:
            values = self.disputed.setdefault(offset, [known])
            if value not in values:
                values.append(value)


class Evidence:
    def __init__(self, history: History) -> None:
        self.history = history
        self.partitions: dict[TopicPartition, PartitionEvidence] = {}
        self.sends: dict[Value, Send] = {}
        """The first send of each value."""
        self.resends: dict[Value, list[Send]] = {}
        """All sends of those that were sent more than once."""
        self.has_final_polls = False
        self._learn_sends()
        self._learn_polls()
        for trim in history.trims:
            if trim.outcome is not Outcome.FAIL:
                part = self.partition(trim.tp)
                part.trimmed = max(part.trimmed, trim.offset)
        self.places: dict[Value, Place] = {}
        """Where each value is; the first place found."""
        self.more_places: dict[Value, list[Place]] = {}
        """All places of the values that have more than one."""
        self._learn_places()
        self.fates = {transaction: self._fate(transaction) for transaction in history.transactions}
        self._learn_promises()

    def partition(self, tp: TopicPartition) -> PartitionEvidence:
        part = self.partitions.get(tp)
        if part is None:
            part = self.partitions[tp] = PartitionEvidence(TopicPartition(*tp))
        return part

    # ---- gathering

    def _learn_sends(self) -> None:
        sends, ok = self.sends, Outcome.OK
        for send in self.history.sends:
            first = sends.setdefault(send.value, send)
            if first is not send:
                self.resends.setdefault(send.value, [first]).append(send)
            if send.outcome is ok and send.acks == ACKS_ALL and send.partition is not None:
                # The plain tuple finds its partition too, and costs less.
                part = self.partitions.get((send.topic, send.partition))  # type: ignore[call-overload]
                if part is None:
                    part = self.partition(TopicPartition(send.topic, send.partition))
                part.acks.append(send)
                if send.offset >= 0:
                    part.learn(send.offset, send.value)

    def _learn_polls(self) -> None:
        for poll in sorted(self.history.polls, key=attrgetter("completed")):
            if poll.outcome is not Outcome.OK:
                continue
            self.has_final_polls = self.has_final_polls or poll.final
            completed = poll.completed
            for tp, pairs in poll.records.items():
                part = self.partition(tp)
                values, learn = part.values, part.learn
                first_times = part.reads if poll.committed else part.glimpses
                for offset, value in pairs:
                    if values.get(offset) != value:
                        learn(offset, value)
                    if offset not in first_times:
                        first_times[offset] = completed
                if poll.final:
                    part.final.update([offset for offset, _ in pairs])

    def _learn_places(self) -> None:
        places = self.places
        for part in self.partitions.values():
            tp = part.tp
            for offset, value in part.values.items():
                if value in places:
                    self.more_places.setdefault(value, [places[value]]).append((tp, offset))
                else:
                    places[value] = (tp, offset)
            for offset, values in part.disputed.items():
                for value in values[1:]:
                    if value in places:
                        self.more_places.setdefault(value, [places[value]]).append((tp, offset))
                    else:
                        places[value] = (tp, offset)

    def _fate(self, transaction: Transaction) -> Fate:
        commits = [ending for ending in transaction.endings if ending.is_commit]
        if any(commit.outcome is Outcome.OK for commit in commits):
            return Fate.COMMITTED
        if all(commit.outcome is Outcome.FAIL for commit in commits):
            return Fate.ABORTED if transaction.endings else Fate.OPEN
        # Atomicity (I41): one record of it that was seen by a reader of committed ones speaks for all others.
        return Fate.COMMITTED if any(map(self.is_read, transaction.sends)) else Fate.UNKNOWN

    def is_read(self, send: Send) -> bool:
        """By somebody who reads what is committed."""
        return any(
            offset in self.partitions[tp].reads and self.read_there(tp, offset, send.value)
            for tp, offset in self.places_of_send(send)
        )

    def _learn_promises(self) -> None:
        for part in self.partitions.values():
            if self.fates:
                part.must_be_readable = [
                    send
                    for send in part.acks
                    if send.transaction is None or self.fates[send.transaction] is Fate.COMMITTED
                ]
            else:
                part.must_be_readable = part.acks

    # ---- questions

    def places_of(self, value: Value) -> list[Place]:
        more = self.more_places.get(value)
        if more is not None:
            return more
        place = self.places.get(value)
        return [place] if place is not None else []

    def places_of_send(self, send: Send) -> list[Place]:
        """Where this very send is: of a value that was sent more than once, only where it was acknowledged."""
        if send.value not in self.resends:
            return self.places_of(send.value)
        if send.offset < 0 or send.partition is None or send.acks != ACKS_ALL:
            return []
        return [(TopicPartition(send.topic, send.partition), send.offset)]

    def sends_of(self, value: Value) -> list[Send]:
        more = self.resends.get(value)
        if more is not None:
            return more
        send = self.sends.get(value)
        return [send] if send is not None else []

    def readable(self, part: PartitionEvidence) -> list[int]:
        """Offsets that nobody who reads on may pass over, in order."""
        if part.readable is None:
            found = set(part.reads)
            found.update(send.offset for send in part.must_be_readable if send.offset >= 0)
            part.readable = sorted(offset for offset in found if offset >= part.trimmed)
        return part.readable

    def read_there(self, tp: TopicPartition, offset: int, value: Value, *, final: bool = False) -> bool:
        """Whether this value was read at an offset that was read: the same unless the offset is disputed."""
        if offset not in self.partitions[tp].disputed:
            return True
        return any(
            (poll.final or not final) and (offset, value) in poll.records[tp]
            for poll in self.readers(tp, offset)
        )

    @cached_property
    def jumps(self) -> list[Jump]:
        return [jump for stream in self.history.streams.values() for jump in follow(stream)]

    # ---- for words

    @cached_property
    def start(self) -> float:
        history = self.history
        first: list[Operation] = [*history.sends[:1], *history.polls[:1], *history.moves[:1]]
        return min((operation.invoked for operation in first), default=0.0)

    @cached_property
    def _readers(self) -> dict[Place, list[Poll]]:
        found: dict[Place, list[Poll]] = {}
        for poll in self.history.polls:
            for tp, pairs in poll.records.items():
                for offset, _ in pairs:
                    found.setdefault((tp, offset), []).append(poll)
        return found

    def readers(self, tp: TopicPartition, offset: int) -> list[Poll]:
        """Every poll that returned something at this offset."""
        return self._readers.get((tp, offset), [])

    def clock(self, at: float) -> str:
        """Seconds since the history began."""
        return "never" if at == NEVER else f"{at - self.start:.6f}"

    def tell_send(self, send: Send) -> str:
        where = f"{send.topic}-{'?' if send.partition is None else send.partition}"
        text = f"{send.process} sent {send.value!r} to {where} at {self.clock(send.invoked)}"
        if send.outcome is Outcome.OK:
            at = f"offset {send.offset}" if send.offset >= 0 else "an offset nobody told"
            acks = "" if send.acks == ACKS_ALL else f" with acks={send.acks}"
            return f"{text}, acknowledged{acks} at {at} at {self.clock(send.completed)}"
        why = f" ({send.why})" if send.why else ""
        if send.outcome is Outcome.FAIL:
            return f"{text}, which failed{why} at {self.clock(send.completed)}"
        return f"{text}, which nobody knows the end of{why}"

    def tell_sends(self, value: Value) -> str:
        return "; ".join(map(self.tell_send, self.sends_of(value))) or f"nobody sent {value!r}"

    def tell_poll(self, poll: Poll) -> str:
        final = "final " if poll.final else ""
        return f"{poll.process}'s {final}poll of {self.clock(poll.invoked)} to {self.clock(poll.completed)}"

    def tell_readers(self, tp: TopicPartition, offset: int, value: Value, count: int = 2) -> str:
        """The first polls that returned the value there."""
        polls = [poll for poll in self.readers(tp, offset) if (offset, value) in poll.records[tp]]
        told = ", ".join(map(self.tell_poll, polls[:count]))
        more = f" and {len(polls) - count} more" if len(polls) > count else ""
        return f"read by {told}{more}" if polls else "read by nobody"


def parts_in_order(evidence: Evidence) -> Iterator[PartitionEvidence]:
    """The same order for the same history, whoever came first: reports can be compared."""
    for tp in sorted(evidence.partitions):
        yield evidence.partitions[tp]
