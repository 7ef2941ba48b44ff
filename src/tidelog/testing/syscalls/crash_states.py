"""Where in a recording power may fail, and what of the unsynced operations the disk may hold then.

Owns the choice: every answer to a client, every sync and every change of names is a moment; at each the clear-cut losses are tried (all of
it, only bytes, only names, the newest alone), and as many drawn ones as asked for. What a loss does to files is the model's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from tidelog.testing.sim.inodes import DataOp, Fate, Machine, NameOp
from tidelog.testing.syscalls.conversations import Conversations
from tidelog.testing.syscalls.filesystem import TracedFiles
from tidelog.testing.syscalls.history import History
from tidelog.testing.syscalls.strace import Event, read_trace

SECTORS: Final = (512, 4096)
_SYNCS: Final = frozenset({"fsync", "fdatasync"})
_NAME_CHANGES: Final = frozenset(
    {"rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat"}
)

Ops = Sequence[DataOp | NameOp]


@dataclass(frozen=True, slots=True)
class Moment:
    """A place in the recording after which the machine may stop: `why` says what has just happened."""

    place: int
    why: str


def left_by(trace: Path) -> Path:
    """Where a copy of the directory is kept as the process of this trace left it."""
    return trace.with_name(trace.name + ".left")


class Recording:
    """The traces of one broker's processes, one after another on the same directory, as one row of events."""

    def __init__(self, root: str, traces: Sequence[Path]) -> None:
        self.root = root
        self.events: list[Event | None] = []  # None: the process has ended
        self._left: dict[int, Path | None] = {}
        for trace in traces:
            self.events += [*read_trace(trace), None]
            self._left[len(self.events) - 1] = left_by(trace) if left_by(trace).exists() else None
        conversations = Conversations()
        for place, event in enumerate(self.events):
            if event is None:
                conversations.process_ended()
            elif event.ended:
                conversations.end(event.call, place)
            else:
                conversations.begin(event.call, place)
        self.exchanges = conversations.exchanges
        self.history = History(self.exchanges)

    def replay(self) -> Iterator[tuple[int, Event | None, TracedFiles]]:
        """The disk after each event, always the same object."""
        files = TracedFiles(self.root)
        for place, event in enumerate(self.events):
            if event is None:
                files.process_ended(self._left[place])
            elif event.ended:
                files.end(event.call)
            else:
                files.begin(event.call)
            yield place, event, files

    def moments(self) -> Iterator[tuple[Moment, Machine]]:
        """Every moment that is worth a crash, with the disk of that moment, always the same object."""
        answers = {exchange.answered_at for exchange in self.exchanges}
        unsynced = 0
        for place, event, files in self.replay():
            why = ""
            if event is None:
                why = "the process ended"
            elif place in answers:
                why = "an answer"
            elif event.call.name in _SYNCS and not event.call.failed:
                why = event.call.name + (" done" if event.ended else " begun")
            elif event.ended and event.call.name in _NAME_CHANGES and not event.call.failed:
                why = event.call.name
            if why:
                left = len(files.machine.pending_ops())
                if why == "an answer" or left or unsynced:
                    yield Moment(place, why), files.machine
                unsynced = left

    def final_state(self) -> Machine:
        machine = Machine()
        for _, _, files in self.replay():
            machine = files.machine
        return machine


def _fates(ops: Ops, *, data: Fate, names: Fate) -> list[Fate]:
    return [data if isinstance(op, DataOp) else names for op in ops]


def _all_but(ops: Ops, number: int, rest: Fate, one: Fate) -> list[Fate]:
    return [one if index == number else rest for index in range(len(ops))]


KEPT, LOST, ZEROED = Fate.kept(), Fate.lost(), Fate.zeroed()

LOSSES: Final[dict[str, Callable[[Ops], list[Fate]]]] = {
    "all is lost": lambda ops: _fates(ops, data=LOST, names=LOST),
    "all is kept": lambda ops: _fates(ops, data=KEPT, names=KEPT),
    "bytes are lost, names kept": lambda ops: _fates(ops, data=LOST, names=KEPT),
    "names are lost, bytes kept": lambda ops: _fates(ops, data=KEPT, names=LOST),
    "bytes are zeroes, names kept": lambda ops: _fates(ops, data=ZEROED, names=KEPT),
    "the newest alone is kept": lambda ops: _all_but(ops, len(ops) - 1, LOST, KEPT),
    "the oldest alone is lost": lambda ops: _all_but(ops, 0, KEPT, LOST),
}


def drawn(ops: Ops, chance: Random) -> list[Fate]:
    """Fates as chance has it; a write may be kept, lost, zeroed, cut off anywhere, or kept in some of its sectors only."""
    keeping = chance.choice((0.2, 0.5, 0.8))

    def draw(op: DataOp | NameOp) -> Fate:
        if chance.random() < keeping:
            return KEPT
        if not isinstance(op, DataOp) or not op.data or chance.random() < 0.5:
            return LOST
        kind = chance.randrange(3)
        if kind == 0:
            return ZEROED
        if kind == 1:
            return Fate.torn(chance.randrange(len(op.data) + 1))
        sector = chance.choice(SECTORS)
        return Fate.sectors(tuple(chance.random() < 0.5 for _ in range(0, len(op.data), sector)), sector)

    return [draw(op) for op in ops]


def crash_states(
    machine: Machine, losses: Sequence[str], draws: int, chance: Random
) -> Iterator[tuple[str, Machine]]:
    """Disks that a power loss at this moment may leave, each with the words for it."""
    ops = machine.pending_ops()
    for label in losses:
        yield label, machine.after_power_loss(LOSSES[label](ops))
    for _ in range(draws if ops else 0):
        fates = drawn(ops, chance)
        yield " ".join(map(str, fates)), machine.after_power_loss(fates)
