"""Results as a table for the terminal, as Markdown for the documents, as JSON for programs."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.results import Metric, Results


def figure(value: float | None) -> str:
    if value is None:
        return "–"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def baseline_cell(results: Results, metric: Metric) -> str:
    spread = results.spread(metric, results.baseline)
    if spread is None:
        return "–"
    return f"{figure(results.median(metric, results.baseline))} ({figure(spread[0])}–{figure(spread[1])})"


def peer_cell(results: Results, metric: Metric, peer: str) -> str:
    """The ratio with its spread; the bare figure where there is nothing to compare with."""
    ratio = results.ratio(metric, peer)
    if ratio is None:
        return figure(results.median(metric, peer))
    return f"{ratio.median:.2f}× ({ratio.low:.2f}–{ratio.high:.2f})"


def rows(results: Results, peers: list[str]) -> list[list[str]]:
    others = [peer for peer in peers if peer != results.baseline]
    return [
        [
            f"{metric.name} [{metric.unit}] {'↑' if metric.more_is_better else '↓'}",
            baseline_cell(results, metric),
            *(peer_cell(results, metric, peer) for peer in others),
        ]
        for metric in results.samples
    ]


def header(results: Results, peers: list[str]) -> list[str]:
    return ["metric", results.baseline, *(peer for peer in peers if peer != results.baseline)]


def print_table(results: Results, peers: list[str], console: Console) -> None:
    table = Table(
        title=f"ratios to {results.baseline}: median of the rounds (lowest–highest); ↑ more is better, ↓ less is better"
    )
    for number, name in enumerate(header(results, peers)):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows(results, peers):
        table.add_row(*row)
    console.print(table)


def markdown(results: Results, peers: list[str]) -> str:
    names = header(results, peers)
    lines = ["| " + " | ".join(names) + " |", "|---" + "|---:" * (len(names) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows(results, peers)]
    return "\n".join(lines)
