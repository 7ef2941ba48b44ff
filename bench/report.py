"""Results as tables for the terminal and as Markdown for the documents: what was measured, what was aimed at, what is possible."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.results import Metric, Ratio, Results
from bench.scenarios import MACHINE, READ_LIMIT, SYNC_LIMIT, WRITE_LIMIT, limit_metric
from bench.targets import SIZES, TARGETS, Target, judge

Rows = list[list[str]]


def figure(value: float | None) -> str:
    if value is None:
        return "–"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratio_cell(ratio: Ratio | None) -> str:
    return f"{ratio.median:.2f}× ({ratio.low:.2f}–{ratio.high:.2f})" if ratio else "–"


def baseline_cell(results: Results, metric: Metric) -> str:
    spread = results.spread(metric, results.baseline)
    if spread is None:
        return "–"
    return f"{figure(results.median(metric, results.baseline))} ({figure(spread[0])}–{figure(spread[1])})"


def peer_cell(results: Results, metric: Metric, peer: str) -> str:
    """The ratio with its spread; the bare figure where there is nothing to compare with."""
    ratio = results.ratio(metric, peer)
    return ratio_cell(ratio) if ratio else figure(results.median(metric, peer))


def header(results: Results, peers: list[str]) -> list[str]:
    return ["metric", results.baseline, *(peer for peer in peers if peer != results.baseline)]


def rows(results: Results, peers: list[str]) -> Rows:
    others = [peer for peer in peers if peer != results.baseline]
    return [
        [
            f"{metric.name} [{metric.unit}] {'↑' if metric.more_is_better else '↓'}",
            baseline_cell(results, metric),
            *(peer_cell(results, metric, peer) for peer in others),
        ]
        for metric in results.samples
        if MACHINE not in results.samples[metric]
    ]


TARGET_HEADER = ["target", "of", "beside", "aim", "measured", "rounds", "verdict"]


def target_rows(results: Results, targets: Sequence[Target] = TARGETS) -> Rows:
    return [
        [
            verdict.target.metric,
            verdict.target.peer,
            verdict.target.beside or "–",
            verdict.target.text,
            f"{figure(verdict.median)}{verdict.unit} ({figure(verdict.low)}–{figure(verdict.high)})",
            f"{verdict.rounds_met} of {verdict.rounds}",
            "met" if verdict.is_met else "missed",
        ]
        for verdict in judge(results, targets)
    ]


def limit_rows(results: Results, peers: list[str]) -> Rows:
    """Each peer as a share of what the same bytes take without a broker; fsync peers beside the limit with fdatasync."""
    found = []
    for size in SIZES:
        for what in ("produce", "raw produce", "raw fetch"):
            metric = Metric(f"{what} {size}", "MB/s", True)
            cells = [ratio_cell(_share(results, metric, peer, size)) for peer in peers]
            if any(cell != "–" for cell in cells):
                found.append([metric.name, *cells])
    return found


def _share(results: Results, metric: Metric, peer: str, size: str) -> Ratio | None:
    if metric.name.startswith("raw fetch"):
        kind = READ_LIMIT
    else:
        kind = SYNC_LIMIT if peer.endswith("fsync") else WRITE_LIMIT
    return results.ratio(metric, peer, MACHINE, other_metric=limit_metric(kind, size))


def print_table(results: Results, peers: list[str], console: Console) -> None:
    title = f"ratios to {results.baseline}: median of the rounds (lowest–highest); ↑ more is better, ↓ less is better"
    _print(console, title, header(results, peers), rows(results, peers))


def print_all(
    results: Results, peers: list[str], console: Console, targets: Sequence[Target] = TARGETS
) -> None:
    print_table(results, peers, console)
    if shares := limit_rows(results, peers):
        _print(console, "of the machine's own limit: the same bytes without a broker", ["", *peers], shares)
    if judged := target_rows(results, targets):
        _print(console, "targets, judged by the median of the rounds", TARGET_HEADER, judged)


def _print(console: Console, title: str, names: list[str], lines: Rows) -> None:
    table = Table(title=title)
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    console.print(table)


def markdown(results: Results, peers: list[str], targets: Sequence[Target] = TARGETS) -> str:
    parts = [_markdown_table(header(results, peers), rows(results, peers))]
    if shares := limit_rows(results, peers):
        parts += ["Of the machine's own limit:", _markdown_table(["", *peers], shares)]
    if judged := target_rows(results, targets):
        parts += ["Targets:", _markdown_table(TARGET_HEADER, judged)]
    return "\n\n".join(parts)


def _markdown_table(names: list[str], lines: Rows) -> str:
    head = ["| " + " | ".join(names) + " |", "|---" + "|---:" * (len(names) - 1) + "|"]
    return "\n".join(head + ["| " + " | ".join(line) + " |" for line in lines])
