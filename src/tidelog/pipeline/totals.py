"""Numbers of a flow that add up over batches and restarts, each batch once: in a file of its state, with the number of the batch that they include.

A batch that is run again finds what the numbers were before it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from tidelog.pipeline.context import Counters
from tidelog.pipeline.decoding import write_atomically


class Totals:
    def __init__(self, state: str, counters: Counters) -> None:
        self._path = os.path.join(state, "totals.json")
        self._counters = counters
        self._show(self._read().get("now", {}))

    def add(self, query: str, batch: int, numbers: Mapping[str, int]) -> None:
        kept = self._read()
        is_repeat = (kept.get("query"), kept.get("batch")) == (query, batch)
        before: dict[str, int] = kept.get("before" if is_repeat else "now", {})
        now = {name: before.get(name, 0) + numbers.get(name, 0) for name in {*before, *numbers}}
        document = {"query": query, "batch": batch, "before": before, "now": now}
        write_atomically(self._path, json.dumps(document, sort_keys=True))
        self._show(now)

    def now(self) -> dict[str, int]:
        return dict(self._read().get("now", {}))

    def _show(self, numbers: Mapping[str, int]) -> None:
        shown = self._counters.now()
        for name, number in numbers.items():
            if (more := number - shown.get(name, 0)) > 0:
                self._counters.add(name, more)

    def _read(self) -> dict[str, Any]:
        try:
            with open(self._path, encoding="utf-8") as file:
                found: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            return {}
        return found
