"""A pipeline's status for people: a live table on a terminal, a line for each flow every few seconds elsewhere. Reads values and prints; asks nobody."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidelog.pipeline.progress import QueryProgress
from tidelog.pipeline.status import FlowStatus, PipelineStatus

if TYPE_CHECKING:
    from rich.console import Group

LINES_EVERY_SECONDS: Final = 5.0
COLUMNS: Final = ("flow", "state", "batch", "rows/s", "rows", "lag", "batch ms", "watermark", "counted")
RIGHT: Final = ("batch", "rows/s", "rows", "lag", "batch ms")


class Shown(Protocol):
    def __call__(self, status: PipelineStatus, /) -> None: ...


def rows(status: PipelineStatus) -> Iterator[tuple[str, ...]]:
    """A row for each query; a flow without one has a row as well."""
    for flow in status.flows:
        for number, query in enumerate(flow.queries or (QueryProgress(name=flow.name),)):
            yield (
                query.name,
                state_text(flow),
                _number(query.batch),
                f"{query.rows_per_second:,.0f}" if flow.queries else "-",
                f"{query.rows:,}" if flow.queries else "-",
                _number(query.lag),
                _number(query.batch_ms),
                (query.watermark or "-").replace(".000Z", "Z"),
                counters_text(flow) if number == 0 else "",
            )


def state_text(flow: FlowStatus) -> str:
    return f"{flow.state} ({flow.restarts} restarts)" if flow.restarts else flow.state


def counters_text(flow: FlowStatus) -> str:
    said = [f"{name} {count:,}" for name, count in flow.counters.items()]
    if flow.result is not None:
        said += [
            f"{name} {value}"
            for name, value in flow.result.items()
            if isinstance(value, (int, float, str, bool))
        ]
    return ", ".join(said)


def errors(status: PipelineStatus) -> Iterator[str]:
    for flow in status.flows:
        if flow.error:
            yield f"{flow.name}: {flow.error}"


def warnings(status: PipelineStatus) -> Iterator[str]:
    for flow in status.flows:
        if flow.warning:
            yield f"{flow.name}: {flow.warning}"


def line(flow: FlowStatus) -> str:
    """All of a flow in one line."""
    parts = [state_text(flow)]
    for query in flow.queries:
        name = query.name.removeprefix(flow.name).removeprefix(": ")
        said = [
            f"batch {_number(query.batch)}",
            f"{query.rows_per_second:,.0f} rows/s",
            f"{query.rows:,} rows",
        ]
        said += [f"lag {query.lag:,}"] if query.lag is not None else []
        said += [f"watermark {query.watermark}"] if query.watermark is not None else []
        parts.append((f"{name} " if name else "") + ", ".join(said))
    if counted := counters_text(flow):
        parts.append(counted)
    return f"{flow.name}: {'; '.join(parts)}"


@contextmanager
def shown(*, live: bool | None = None) -> Iterator[Shown]:
    """What to call with each status. `live` decides between the table and lines; by default it is whether stdout is a terminal."""
    if sys.stdout.isatty() if live is None else live:
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(markup=False, highlight=False), auto_refresh=False) as table:
            yield lambda status: table.update(rendered(status), refresh=True)
    else:
        yield Lines()


class Lines:
    """Every few seconds, and at once when a flow's state changes or it fails."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[float, str, str | None]] = {}
        self._warned: dict[str, str] = {}
        self._pipeline_state = ""

    def __call__(self, status: PipelineStatus) -> None:
        now = time.monotonic()
        if status.state != self._pipeline_state:
            self._pipeline_state = status.state
            self._put(f"pipeline {status.name}: {status.state}")
        for flow in status.flows:
            text = line(flow)
            if flow.warning is not None and flow.warning != self._warned.get(flow.name):
                self._warned[flow.name] = flow.warning
                self._put(f"{flow.name}: {flow.warning}")
            when, last, error = self._said.get(flow.name, (0.0, "", None))
            if flow.error is not None and flow.error != error:
                self._put(f"{flow.name}: {flow.error}")
            elif text == last or (
                now - when < LINES_EVERY_SECONDS and last.startswith(f"{flow.name}: {state_text(flow)}")
            ):
                continue
            self._put(text)
            self._said[flow.name] = (now, text, flow.error)

    def _put(self, text: str) -> None:
        moment = datetime.now().strftime("%H:%M:%S")
        print("\n".join(f"{moment} {each}" for each in text.splitlines()), flush=True)


def rendered(status: PipelineStatus, life: str | None = None) -> Group:
    """The table, and what has gone wrong below it."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in RIGHT else "left", overflow="fold")
    for row in rows(status):
        table.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    below: list[Any] = [Text(each, style="yellow") for each in warnings(status)]
    below += [Text(each, style="red") for each in errors(status)]
    return Group(Text(headline(status, life)), table, *below)


def headline(status: PipelineStatus, life: str | None = None) -> str:
    since = datetime.fromtimestamp(status.started_at).strftime("%Y-%m-%d %H:%M:%S")
    return (
        f"pipeline {status.name}: {life or status.state} · since {since} · {status.brokers} · {status.master}"
    )


def _style(cell: str) -> str:
    return {"failed": "red", "waiting": "yellow", "running": "green"}.get(cell.split(" ", maxsplit=1)[0], "")


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
