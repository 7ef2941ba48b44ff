"""Scenario files: what a quorum does, step by step, for people to read and for this test to check.

A file has commands, each with what came of it behind a line of dashes:

    voters 1 2 3 [observers 4]    make nodes and start them
    start N / crash N             a power loss: what was not synced is gone
    wait SECONDS [held]           time passes, and messages arrive; `held`: none arrives
    deliver [A>B ...]             what is under way arrives, once; only from A to B, if that is said
    stabilize                     messages arrive until there are none
    drop [A>B ...]                what is under way is lost
    cut A B ... / heal            nothing passes from A to B, for each pair, both ways; A>B for one way
    append N VALUE                node N, which leads, appends
    snapshot N                    node N takes a snapshot of what is committed
    resign N
    disconnected N M              node N has lost its connection to M
    quietly COMMAND               any of these, and nothing is written down
    status                        a line for each node; rN is a record of epoch N, LN the leader change that begins it

`TIDELOG_REWRITE_SCENARIOS=1` writes down what happens instead of comparing: read the difference before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.quorum.table import Table

SCENARIOS = sorted(Path(__file__).with_name("scenarios").glob("*.txt"))
DASHES = "----"


def pairs(words: list[str]) -> list[tuple[int, int]]:
    found = []
    for word in words:
        sender, to = word.split(">")
        found.append((int(sender), int(to)))
    return found


def both_ways(words: list[str]) -> list[tuple[int, int]]:
    if any(">" in word for word in words):
        return pairs(words)
    nodes = [int(word) for word in words]
    return [pair for other in nodes[1:] for pair in ((nodes[0], other), (other, nodes[0]))]


class Run:
    """One scenario on its table."""

    table: Table

    def do(self, command: str) -> list[str]:
        name, *words = command.split()
        if name == "quietly":
            self.do(" ".join(words))
            return []
        if name == "voters":
            split = words.index("observers") if "observers" in words else len(words)
            voters, observers = [int(w) for w in words[:split]], [int(w) for w in words[split + 1 :]]
            self.table = Table(voters, observers)
            words = [str(node_id) for node_id in (*voters, *observers)]
            name = "start"
        self.table.lines = []
        getattr(self, f"_{name}")(*words)
        return self.table.lines

    def _start(self, *nodes: str) -> None:
        for node_id in nodes:
            self.table.start(int(node_id))

    def _crash(self, *nodes: str) -> None:
        for node_id in nodes:
            self.table.crash(int(node_id))

    def _wait(self, seconds: str, held: str = "") -> None:
        self.table.wait(float(seconds), deliver=not held)

    def _deliver(self, *words: str) -> None:
        self.table.deliver(pairs(list(words)) if words else None)

    def _drop(self, *words: str) -> None:
        dropped = pairs(list(words))
        self.table.in_flight = [
            message
            for message in self.table.in_flight
            if dropped and (message.sender, message.to) not in dropped
        ]

    def _stabilize(self) -> None:
        self.table.stabilize()

    def _cut(self, *words: str) -> None:
        self.table.cuts.update(both_ways(list(words)))

    def _heal(self) -> None:
        self.table.cuts.clear()

    def _append(self, node_id: str, value: str) -> None:
        self.table.append(int(node_id), value)

    def _snapshot(self, node_id: str) -> None:
        self.table.snapshot(int(node_id))

    def _resign(self, node_id: str) -> None:
        self.table.players[int(node_id)].quorum.resign()

    def _disconnected(self, node_id: str, other: str) -> None:
        self.table.players[int(node_id)].quorum.disconnected(int(other))

    def _status(self) -> None:
        self.table.lines.extend(self.table.status())


def play(text: str) -> str:
    """The same text with what really came of each command."""
    run = Run()
    out: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        out.append(line)
        if not line or line.startswith("#"):
            continue
        if next(lines, None) != DASHES:
            raise ValueError(f"{DASHES} was expected behind the command {line!r}")
        out.append(DASHES)
        while next(lines, ""):
            pass
        out.extend(run.do(line))
        out.append("")
    return "\n".join(out).rstrip("\n") + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_quorum_does_what_the_scenario_says(path: Path) -> None:
    expected = path.read_text()
    found = play(expected)
    if os.environ.get("TIDELOG_REWRITE_SCENARIOS"):
        path.write_text(found)
        return
    assert found == expected


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 9
