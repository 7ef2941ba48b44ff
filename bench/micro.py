"""`python -m bench.micro`: what each hot path costs in microseconds, beside its budget.

Groups: wire, records, log, broker, process, client; all of them without a name. With `--check` the exit status says whether every budget was kept.
Microseconds are those of the reference machine (`bench/timing.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table

from bench import micro_broker, micro_client, micro_log, micro_process, micro_records, micro_wire
from bench.budgets import BUDGETS
from bench.timing import Timing, machine_speed

GROUPS: dict[str, Callable[[], Iterator[Timing]]] = {
    "wire": micro_wire.timings,
    "records": micro_records.timings,
    "log": micro_log.timings,
    "broker": micro_broker.timings,
    "process": micro_process.timings,
    "client": micro_client.timings,
}


def row(timing: Timing) -> tuple[str, str, str, str]:
    """Operation, microseconds, budget, and whether it is kept."""
    microseconds = timing.seconds * 1e6
    budget = BUDGETS.get(timing.operation)
    if budget is None:
        return timing.operation, figure(microseconds), "–", ""
    return timing.operation, figure(microseconds), figure(budget), "ok" if microseconds <= budget else "OVER"


def figure(microseconds: float) -> str:
    return f"{microseconds:.3f}" if microseconds < 1 else f"{microseconds:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.micro", description="Microseconds of the hot paths.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--check", action="store_true", help="fail when a budget is exceeded")
    options = parser.parse_args()
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"no group is called {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    console = Console(width=110, markup=False)
    over = []
    seen = set()
    for name in options.groups or GROUPS:
        table = Table("operation", title=f"{name}, µs of CPU on the reference machine")
        for column in ("µs", "budget", "ok"):
            table.add_column(column, justify="right")
        for timing in GROUPS[name]():
            cells = row(timing)
            table.add_row(*cells)
            seen.add(timing.operation)
            if cells[3] == "OVER":
                over.append(timing.operation)
        console.print(table)
    console.print(f"This machine ran at {machine_speed():.2f} of the reference machine's speed.")
    if not options.groups and (unmeasured := set(BUDGETS) - seen):
        sys.exit(f"budgets of operations that nothing measures: {', '.join(sorted(unmeasured))}")
    if over and options.check:
        sys.exit(f"over budget: {', '.join(over)}")


if __name__ == "__main__":
    main()
