"""What the fuzz tests say when they are done: counts and throughput, at the end of the run (`make fuzz`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

LINE, TALLY = "fuzz line", "fuzz tally"


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """A line for the end of the run; it also gets there from a worker process."""
    return lambda line: record_property(LINE, line)


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Callable[[dict[str, float]], None]:
    """Numbers of one seed: those of all seeds become one line. Names that end in `max` are not summed up."""
    return lambda numbers: record_property(TALLY, numbers)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    lines = list(_properties(terminalreporter, LINE))
    tallies = list(_properties(terminalreporter, TALLY))
    if not lines and not tallies:
        return
    terminalreporter.section("fuzzing")
    if tallies:
        terminalreporter.write_line(_together(tallies))
    for line in lines:
        terminalreporter.write_line(line)


def _properties(terminalreporter: Any, wanted: str) -> Iterator[Any]:
    for outcome in ("passed", "failed"):
        for result in terminalreporter.stats.get(outcome, ()):
            if result.when == "call":
                yield from (value for name, value in result.user_properties if name == wanted)


def _together(tallies: list[dict[str, float]]) -> str:
    total: dict[str, float] = {}
    for tally in tallies:
        for name, number in tally.items():
            before = total.get(name, 0)
            total[name] = max(before, number) if name.endswith("max") else before + number
    frames, seconds = total.pop("frames"), total.pop("seconds")
    rest = ", ".join(
        f"{name} {number:,.{1 if name.endswith('max') else 0}f}" for name, number in total.items()
    )
    return f"decoders: {frames:,.0f} frames of {len(tallies)} seeds, {frames / seconds:,.0f} a second and process: {rest}"
