"""Programs in other languages that run many checks and print one line for each: started here, reported one by one.

Owns the form of that line (outcome, name and reason with tabs between them) and how names are found in the sources, so
that every check is a test of its own although the program runs once.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

SUITE_SECONDS_MAX = 300.0
_LITERAL_NAME = re.compile(r'\bcheck\(\s*"([^"]+)",')


class Outcome(NamedTuple):
    word: str
    reason: str


class SuiteRun(NamedTuple):
    """What a program reported, and the end of what else it said."""

    outcomes: dict[str, Outcome]
    tail: str

    def expect_passed(self, name: str) -> None:
        found = self.outcomes.get(name)
        assert found is not None, f"the program ended before this check; it said:\n{self.tail}"
        if found.word == "skip":
            pytest.skip(found.reason)
        assert found.word == "ok", found.reason


def names_in(sources: Iterable[Path]) -> list[str]:
    """The names of the checks whose name is written out, in the order of the sources."""
    return [name for path in sorted(sources) for name in _LITERAL_NAME.findall(path.read_text())]


def run_suite(command: list[str], folder: Path) -> SuiteRun:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=SUITE_SECONDS_MAX, check=False
        )
        output, complaints = done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode(errors="replace")
        complaints = f"ended after {SUITE_SECONDS_MAX:.0f} s"
    outcomes = {}
    for line in output.splitlines():
        word, _, rest = line.partition("\t")
        if word in ("ok", "FAIL", "skip"):
            name, _, reason = rest.partition("\t")
            outcomes[name] = Outcome(word, reason)
    return SuiteRun(outcomes, complaints[-3000:])
