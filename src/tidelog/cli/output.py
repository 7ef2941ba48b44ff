"""What commands print: JSON for machines, tables for people, warnings on stderr.

On a terminal tables are rich's; into a file or pipe they are plain aligned columns, never cut to a width.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def put_out(data: bytes) -> None:
    """All of it, or an error. With PYTHONUNBUFFERED stdout takes what it can, and says so only in what `write` returns."""
    left = memoryview(data)
    while left:
        left = left[sys.stdout.buffer.write(left) :]
    sys.stdout.buffer.flush()


def print_json(document: Any) -> None:
    print(json.dumps(document, ensure_ascii=False))


def warn(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        print(f"warning: {sentence}", file=sys.stderr)


def note(sentence: str) -> None:
    """For the person at the terminal: on stderr, and only if that is one."""
    if sys.stderr.isatty():
        print(sentence, file=sys.stderr)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """`right` names the columns of numbers."""
    cells = [[text(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich_table(columns, cells, right)
    else:
        _plain_table(columns, cells, right)


def text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, (tuple, list)) and not hasattr(
        value, "_fields"
    ):  # a named one has a text of its own
        return ",".join(map(str, value)) or "-"
    return str(value)


def _plain_table(columns: Sequence[str], cells: list[list[str]], right: Sequence[str]) -> None:
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(columns)]
    for row in [[name.upper() for name in columns], *cells]:
        parts = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(columns, row, widths, strict=True)
        ]
        print("  ".join(parts).rstrip())


def rich_table(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(text(value) for value in row))
    return table


def _print_rich_table(columns: Sequence[str], cells: list[list[str]], right: Sequence[str]) -> None:
    from rich.console import Console

    # Cell texts are data: square brackets in them are no markup.
    Console(markup=False, highlight=False).print(rich_table(columns, cells, right))


@contextmanager
def byte_progress(verb: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, if that is a terminal: call what it yields with bytes done and bytes in all."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(verb), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(verb, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def bytes_field(name: str, data: bytes | None) -> dict[str, str | None]:
    """A record's bytes in JSON: as text where they are UTF-8, otherwise under `<name>_base64`, so that nothing is lost."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def human_bytes(count: float) -> str:
    if abs(count) < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.1f} {unit}"
    raise AssertionError("unreachable")


def topic_id_text(topic_id: bytes) -> str:
    """Kafka's way to write an id: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
