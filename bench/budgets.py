"""Microseconds that each operation on a hot path may cost, CPU of one thread on the machine of docs/PERFORMANCE.md.

One place for all of them; the source of each hot path repeats its own budget beside the code. An operation without a budget is only shown.
"""

from __future__ import annotations

BUDGETS: dict[str, float] = {}
"""Operation, as `python -m bench.micro` prints it, to microseconds."""
