"""Where results are shown: a picture that is redrawn on a terminal, plain lines every few seconds in a file or a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from examples.food_delivery.view import Snapshot, lines, picture

if TYPE_CHECKING:
    from rich.live import Live

REDRAW_SECONDS: Final = 1.0
LINES_SECONDS: Final = 5.0


def say(sentence: str) -> None:
    print(sentence, flush=True)


class Screen:
    def __init__(self, title: str) -> None:
        self._title = title
        self._live: Live | None = None
        self._began_at = time.monotonic()
        self._has_had_results = False
        self._said: set[str] = set()
        self._said_at = 0.0

    @property
    def pause_seconds(self) -> float:
        """Until results are worth looking at again; the first ones are looked for more often."""
        return REDRAW_SECONDS

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False, vertical_overflow="visible")
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, snapshot: Snapshot, troubles: Sequence[str]) -> None:
        is_first = snapshot.has_results and not self._has_had_results
        if is_first:
            self._has_had_results = True
        if self._live is not None:
            whole = replace(snapshot, troubles=(*snapshot.troubles, *troubles))
            self._live.update(picture(whole, self._title), refresh=True)
            return
        if is_first:
            say(f"first results after {time.monotonic() - self._began_at:.1f} s")
        for trouble in (*snapshot.troubles, *troubles):
            if trouble not in self._said:  # once is enough
                self._said.add(trouble)
                say(f"{time.strftime('%H:%M:%S')}  {trouble}")
        if is_first or time.monotonic() - self._said_at >= LINES_SECONDS:
            self._said_at = time.monotonic()
            for line in lines(snapshot):
                say(f"{time.strftime('%H:%M:%S')}  {line}")
