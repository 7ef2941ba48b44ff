"""What `bench.failover` measured, the file that it is kept in, and what follows from it. Pure but for that file; measures nothing."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

KILL, STOP, PAUSE = "kill -9", "controlled", "SIGSTOP"
KINDS = (KILL, STOP, PAUSE)


class Try(NamedTuple):
    """One node went. Seconds from the moment that the signal was sent, but for `outage` and `others`."""

    peer: str
    commit: str
    kind: str
    was_controller: bool
    """The node was the active controller as well."""
    controller: float | None
    """Until another node is the active controller; None where it need not be, or was not seen in time."""
    detected: float | None
    """Until a broker that is left names another leader for all that the node led: it is fenced by then."""
    outage: float
    """Without a writable leader: from the last acknowledged write before to the first one after, the worst partition that the node led."""
    others: float
    """The same of partitions that the node only followed: they cannot commit before it has left the ISR."""
    newcomer: float | None = None
    """Of a pause, from `detected` on: until a client that began then has written to all that the node led. Those that were there before wait for answers until they give up."""


class Spread(NamedTuple):
    tries: int
    p50: float
    most: float


class Row(NamedTuple):
    """All tries of one kind."""

    peer: str
    kind: str
    was_controller: bool | None
    """None: of either sort."""
    outage: Spread
    controller: Spread | None
    detected: Spread | None
    election: Spread | None
    """From there to the first acknowledged write."""
    others: Spread
    newcomer: Spread | None


class Aim(NamedTuple):
    kind: str
    p50: float
    most: float


AIMS = (Aim(KILL, 2.0, 3.0), Aim(STOP, 0.2, 0.2))


def spread(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(len(known), statistics.median(known), max(known)) if known else None


def rows(tries: Sequence[Try]) -> list[Row]:
    found = []
    for peer in dict.fromkeys(each.peer for each in tries):
        for kind in KINDS:
            for was_controller in (None, False, True):
                chosen = [
                    each
                    for each in tries
                    if (each.peer, each.kind) == (peer, kind)
                    and was_controller in (None, each.was_controller)
                ]
                if chosen:
                    found.append(_row(peer, kind, was_controller, chosen))
    return found


def _row(peer: str, kind: str, was_controller: bool | None, tries: Sequence[Try]) -> Row:
    outage, others = spread(each.outage for each in tries), spread(each.others for each in tries)
    assert outage is not None and others is not None
    return Row(
        peer,
        kind,
        was_controller,
        outage,
        spread(each.controller for each in tries),
        spread(each.detected for each in tries),
        spread(None if each.detected is None else each.outage - each.detected for each in tries),
        others,
        spread(each.newcomer for each in tries),
    )


def missed(tries: Sequence[Try], peer: str) -> list[str]:
    """The aims that a peer has not reached, in words."""
    problems = []
    for aim in AIMS:
        found = spread(each.outage for each in tries if (each.peer, each.kind) == (peer, aim.kind))
        if found is not None and (found.p50 > aim.p50 or found.most > aim.most):
            problems.append(
                f"{aim.kind}: p50 {found.p50:.2f} s, max {found.most:.2f} s; the aim is {aim.p50:g} and {aim.most:g} s"
            )
    return problems


class TriesFile:
    """One line for each try, written as soon as it is over: a run that was stopped goes on where it was."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Try]:
        if not self._path.exists():
            return []
        return [Try(**json.loads(line)) for line in self._path.read_text().splitlines()]

    def add(self, done: Try) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(done._asdict()) + "\n")
