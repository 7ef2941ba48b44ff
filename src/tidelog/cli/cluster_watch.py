"""The live view of `cluster status --watch`: a screen that is drawn anew on a terminal; in a pipe one block, or one JSON document, after the other."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from tidelog.cli import cluster_status as report
from tidelog.cli.cluster import shown_partitions
from tidelog.cli.output import print_json, print_table, rich_table

if TYPE_CHECKING:
    from rich.live import Live

    from tidelog.cli.cluster_facts import Facts
    from tidelog.client.errors import ClientError

LINES_AROUND: Final = 9
"""Of the screen: headlines, and the frames of two tables."""
ROWS_MIN: Final = 3
_BROKER_COLUMNS: Final = (*report.BROKER_COLUMNS[:9],)


class Watch:
    def __init__(self, topics: list[str] | None, *, json: bool) -> None:
        self._topics = topics
        self._json = json
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if not self._json and sys.stdout.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(markup=False, highlight=False), screen=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, facts: Facts) -> None:
        if self._json:
            print_json(report.document(facts, shown_partitions(facts, self._topics)))
            sys.stdout.flush()
        elif self._live is not None:
            self._draw(self._live, facts)
        else:
            self._print(facts)

    def show_trouble(self, error: ClientError) -> None:
        """Nobody could be asked; the next look may find somebody."""
        if self._json:
            print_json({"error": str(error)})
            sys.stdout.flush()
        elif self._live is not None:
            from rich.text import Text

            self._live.update(
                Text(f"{_now()}  Ctrl-C ends it\nno broker tells anything: {error}"), refresh=True
            )
        else:
            print(f"-- {_now()}\nno broker tells anything: {error}\n", flush=True)

    def _print(self, facts: Facts) -> None:
        print(f"-- {_now()}")
        for line in report.headline(facts):
            print(line)
        rows = [row[:9] for row in report.broker_rows(report.brokers(facts))]
        print_table(_BROKER_COLUMNS, rows, right=report.BROKER_NUMBERS)
        print_table(
            report.PARTITION_COLUMNS,
            report.partition_rows(shown_partitions(facts, self._topics)),
            right=report.PARTITION_NUMBERS,
        )
        print(flush=True)

    def _draw(self, live: Live, facts: Facts) -> None:
        from rich.console import Group
        from rich.text import Text

        shown = shown_partitions(facts, self._topics)
        brokers = [row[:9] for row in report.broker_rows(report.brokers(facts))]
        room = max(ROWS_MIN, live.console.size.height - LINES_AROUND - len(brokers))
        left_out = len(shown) - room
        lines = [*report.headline(facts), f"{_now()}  Ctrl-C ends it"]
        if left_out > 0:
            lines.append(f"{left_out} more partitions do not fit: name topics with --topic")
        live.update(
            Group(
                Text("\n".join(lines)),
                rich_table(_BROKER_COLUMNS, brokers, report.BROKER_NUMBERS),
                rich_table(
                    report.PARTITION_COLUMNS, report.partition_rows(shown[:room]), report.PARTITION_NUMBERS
                ),
            ),
            refresh=True,
        )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
