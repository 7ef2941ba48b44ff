"""Microseconds that each operation on a hot path may cost, CPU of one thread on the machine of docs/PERFORMANCE.md.

One place for all of them; the source of each hot path repeats its own budget beside the code. An operation without a budget is only shown.
"""

from __future__ import annotations

BUDGETS: dict[str, float] = {
    # wire/headers.py, wire/produce_frames.py, wire/fetch_frames.py
    "request header, read": 1.0,
    "Produce v7 frame, read": 2.0,
    "Produce v7 frame, answer": 1.2,
    "Produce v13 frame, read": 2.0,
    "Produce v13 frame, answer": 1.2,
    "Fetch v11 frame, answer": 2.5,
    "Fetch v17 frame, answer": 2.5,
    # broker/api/produce.py, the write included
    "produce request v7, one record": 15.0,
    "produce request v10, one record": 15.0,
    "produce request v13, one record": 15.0,
    # broker/api/fetch.py
    "fetch request v11, one new batch": 20.0,
    "fetch request v17, one new batch": 20.0,
}
"""Operation, as `python -m bench.micro` prints it, to microseconds."""
