"""Processor time of a process and of everything it has started: a driver, its Java, and the Python workers of that."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_seconds(root: int) -> float:
    """Of those that live, and of those that have ended and were waited for by a parent that lives."""
    return sum(cpu_seconds_by_program(root).values())


def cpu_seconds_by_program(root: int) -> dict[str, float]:
    """The same, of every program by its name."""
    children: dict[int, list[int]] = {}
    spent: dict[int, tuple[str, float]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            begin, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:  # it has just ended
            continue
        pid, fields = int(entry.name), rest.split()
        children.setdefault(int(fields[1]), []).append(pid)
        spent[pid] = (begin.partition("(")[2], sum(map(int, fields[11:15])) / _TICKS)
    totals: dict[str, float] = {}
    left = [root]
    while left:
        pid = left.pop()
        if pid in spent:
            name, seconds = spent[pid]
            totals[name] = totals.get(name, 0.0) + seconds
        left += children.get(pid, [])
    return totals
