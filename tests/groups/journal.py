"""What the members of a group wrote down, read and judged: who owned what and when, what was delivered, where reading resumed.

Owns the parsing of the lines that `members/pen.py` writes and every judgement on them. Knows nothing of processes and brokers:
a test hands in the lives of the members and gets back what is wrong, as sentences. Times are the machine's monotonic clock.

The rules (I34, I35):
* A partition has one owner at a time. An ownership begins when the library tells its program so, before the first fetch, and
  ends when the program has handed it back, before the library tells the broker; so a right handover never overlaps, whatever the
  machine does in between. The ownership of a member that was killed ends with its kill.
* An ownership begins reading at the last committed offset. A commit whose answer the member did not live to see, that was
  refused, or that was answered only later (librdkafka keeps commits back while it has no coordinator), may or may not have been
  made by then: its position is right too. A member that gets back what nobody else has had in
  between may go on where it was (kafka-python does).
* Within an ownership records come in order and without a gap, and nothing is read outside of one.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

Place = tuple[int, int]
"""Partition and offset."""


class Event(NamedTuple):
    kind: str
    at: float
    fields: Mapping[str, Any]


class Record(NamedTuple):
    partition: int
    offset: int
    value: str
    at: float


class Commit(NamedTuple):
    """One attempt: what it asked for, when it began, and what the broker acknowledged of it."""

    member: str
    began: float
    positions: Mapping[int, int]
    acknowledged: Mapping[int, int]
    answered: float = math.inf


class Stall(NamedTuple):
    """A member had a partition, data was there, and for so long nothing of it arrived."""

    seconds: float
    member: str
    partition: int
    ended_at: float


class Journal:
    """One member's file. `refresh` reads what has been added since; a torn last line waits for its rest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.events: list[Event] = []

    def refresh(self) -> list[Event]:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._position += len(whole)
            self.events.extend(_parsed(whole))
        return self.events


def _parsed(lines: bytes) -> Iterator[Event]:
    for line in lines.splitlines():
        fields = json.loads(line)
        yield Event(fields.pop("event"), fields.pop("at"), fields)


@dataclass(frozen=True, slots=True)
class Life:
    """One process: its name, what it wrote, and when it was killed, if it was."""

    name: str
    events: Sequence[Event]
    killed_at: float = math.inf


@dataclass(slots=True)
class Ownership:
    member: str
    partition: int
    since: float
    until: float = math.inf
    end: str = ""
    """revoked, lost, left or killed; empty while it lasts."""
    records: list[Record] = field(default_factory=list)

    def __str__(self) -> str:
        end = f"{self.end} at {self.until:.3f}" if self.end else "still"
        return f"{self.member} owns {self.partition} from {self.since:.3f}, {end}"


class Story:
    """The lives of all members of one group on one topic."""

    def __init__(self, lives: Iterable[Life]) -> None:
        self.ownerships: list[Ownership] = []
        self.strays: list[str] = []
        self.commits: list[Commit] = []
        self.complaints: list[tuple[str, str]] = []
        for life in lives:
            self._read(life)
        self.ownerships.sort(key=lambda ownership: ownership.since)
        self.commits.sort(key=lambda commit: commit.began)

    # ---- reading

    def _read(self, life: Life) -> None:
        owned: dict[int, Ownership] = {}
        attempts: dict[int, Commit] = {}
        for event in life.events:
            match event.kind:
                case "assigned":
                    for partition in event.fields["partitions"]:
                        owned.setdefault(partition, Ownership(life.name, partition, event.at))
                case "revoked" | "lost":
                    for partition in event.fields["partitions"]:
                        self._close(owned, partition, event.at, event.kind)
                case "left":
                    for partition in list(owned):
                        self._close(owned, partition, event.at, event.kind)
                case "record":
                    self._record(life.name, owned, event)
                case "committing":
                    positions = _numbers(event.fields["positions"])
                    attempts[event.fields["commit"]] = Commit(life.name, event.at, positions, {})
                case "committed":
                    number = event.fields["commit"]
                    attempts[number] = attempts[number]._replace(
                        acknowledged=_numbers(event.fields["positions"]), answered=event.at
                    )
                case "complaint":
                    self.complaints.append((life.name, event.fields["error"]))
        for partition in list(owned):
            if life.killed_at < math.inf:
                self._close(owned, partition, life.killed_at, "killed")
            else:
                self.ownerships.append(owned[partition])
        self.commits.extend(attempts.values())

    def _close(self, owned: dict[int, Ownership], partition: int, at: float, end: str) -> None:
        ownership = owned.pop(partition, None)
        if ownership is not None:
            ownership.until, ownership.end = at, end
            self.ownerships.append(ownership)

    def _record(self, name: str, owned: Mapping[int, Ownership], event: Event) -> None:
        record = Record(at=event.at, **event.fields)
        if record.partition in owned:
            owned[record.partition].records.append(record)
        else:
            self.strays.append(f"{name} read {record} without owning the partition")

    # ---- questions

    def owners(self) -> dict[int, list[str]]:
        """Who owns each partition now."""
        found: dict[int, list[str]] = {}
        for ownership in self.ownerships:
            if not ownership.end:
                found.setdefault(ownership.partition, []).append(ownership.member)
        return found

    def shares(self) -> dict[str, set[int]]:
        """What each member owns now; one that owns nothing is not in it."""
        found: dict[str, set[int]] = {}
        for partition, names in self.owners().items():
            for name in names:
                found.setdefault(name, set()).add(partition)
        return found

    def records(self) -> Iterator[Record]:
        for ownership in self.ownerships:
            yield from ownership.records

    def delivered(self) -> set[str]:
        return {record.value for record in self.records()}

    def repeated(self) -> int:
        """How many deliveries were not the first of their record."""
        places = [(record.partition, record.offset) for record in self.records()]
        return len(places) - len(set(places))

    def committed(self) -> dict[int, int]:
        """The highest acknowledged position of each partition."""
        found: dict[int, int] = {}
        for commit in self.commits:
            for partition, offset in commit.acknowledged.items():
                found[partition] = max(offset, found.get(partition, 0))
        return found

    def lost(self) -> list[Ownership]:
        return [ownership for ownership in self.ownerships if ownership.end == "lost"]

    # ---- judgements

    def faults(self) -> list[str]:
        """Everything that must never happen, whatever the assignor."""
        return [*self.overlaps(), *self.strays, *self.gaps(), *self.wrong_starts()]

    def overlaps(self) -> list[str]:
        latest: dict[int, Ownership] = {}
        found = []
        for ownership in self.ownerships:  # by the time of their beginning
            before = latest.get(ownership.partition)
            if before is not None and before.member != ownership.member and ownership.since < before.until:
                found.append(f"two owners: {before}; {ownership}")
            if before is None or ownership.until >= before.until:
                latest[ownership.partition] = ownership
        return found

    def gaps(self) -> list[str]:
        found = []
        for ownership in self.ownerships:
            for before, after in itertools.pairwise(ownership.records):
                if after.offset != before.offset + 1:
                    found.append(f"{ownership}: after offset {before.offset} came {after.offset}")
        return found

    def wrong_starts(self) -> list[str]:
        found = []
        own: dict[int, tuple[str, int]] = {}  # who had each partition last, and where it would have read on
        for ownership in self.ownerships:
            if ownership.records:
                right = self._right_starts(ownership)
                name, position = own.get(ownership.partition, ("", 0))
                if name == ownership.member:
                    right.add(position)
                if ownership.records[0].offset not in right:
                    found.append(
                        f"{ownership}: began at {ownership.records[0].offset}, not at {sorted(right)}"
                    )
                own[ownership.partition] = (ownership.member, ownership.records[-1].offset + 1)
        return found

    def _right_starts(self, ownership: Ownership) -> set[int]:
        last, undecided = 0, set()
        for commit in self.commits:
            if commit.began < ownership.since and ownership.partition in commit.positions:
                if ownership.partition in commit.acknowledged and commit.answered < ownership.since:
                    last = max(last, commit.acknowledged[ownership.partition])
                else:
                    undecided.add(commit.positions[ownership.partition])
        return {last, *(position for position in undecided if position > last)}

    def longest_stall(self, acknowledged: Mapping[Place, float], *, until: float = math.inf) -> Stall:
        """The longest time that an owner waited for a record that was there.

        Counted from the first record of an ownership on, so that what a handover takes is no part of it: this is what a
        rebalance costs those whom it does not concern. `acknowledged` says when the producer knew each record stored.
        """
        longest = Stall(0.0, "", -1, 0.0)
        for ownership in self.ownerships:
            for stall in _stalls(ownership, acknowledged, until):
                longest = max(longest, stall)
        return longest


def _stalls(ownership: Ownership, acknowledged: Mapping[Place, float], until: float) -> Iterator[Stall]:
    where = (ownership.member, ownership.partition)
    for before, after in itertools.pairwise(ownership.records):
        there = acknowledged.get((after.partition, after.offset), math.inf)
        yield Stall(after.at - max(before.at, there), *where, after.at)
    if ownership.records:  # and what never arrived
        last = ownership.records[-1]
        end = min(ownership.until, until)
        there = acknowledged.get((last.partition, last.offset + 1), math.inf)
        if end < math.inf:
            yield Stall(end - max(last.at, there), *where, end)


def _numbers(positions: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in positions.items()}
