"""The audit's plots, as PNG files beside the report: load by partition, hot keys, records over time. Nothing here decides anything."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tidelog.pipeline.audit_tables import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTITIONS_MAX: Final = 60
TOPICS_MAX: Final = 8
KEYS_MAX: Final = 12
_BLUE: Final = "#2b6cb0"
_ORANGE: Final = "#dd6b20"
_COLORS: Final = ("#2b6cb0", "#dd6b20", "#2f855a", "#b83280", "#6b46c1", "#b7791f", "#319795", "#718096")


def write_plots(results: Results, directory: str) -> dict[str, str]:
    """Paths of the files by what they show; only what there is something to show for."""
    from matplotlib.figure import Figure

    os.makedirs(directory, exist_ok=True)
    made: dict[str, str] = {}

    def save(name: str, figure: Any) -> None:
        made[name] = os.path.join(directory, f"{name}.png")
        figure.savefig(made[name], dpi=110)

    rows = _first_replicas(results)
    if rows:
        figure = Figure(figsize=(10, 0.8 + 0.28 * min(len(rows), PARTITIONS_MAX)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        shown = sorted(rows, key=lambda row: -row["bytes"])[:PARTITIONS_MAX]
        shown.sort(key=lambda row: (row["topic"], row["partition"]))
        names = [f"{row['topic']}-{row['partition']}" for row in shown]
        _bars(left, names, [row["records"] for row in shown], "records", _BLUE)
        scale, unit = _unit(max(row["bytes"] for row in shown))
        _bars(right, names, [row["bytes"] / scale for row in shown], f"{unit} on disk", _ORANGE)
        left.invert_yaxis()
        save("partitions", figure)
    topics = list(dict.fromkeys(row["topic"] for row in results.hot_keys))[:TOPICS_MAX]
    if topics:
        counts = [min(KEYS_MAX, sum(row["topic"] == topic for row in results.hot_keys)) for topic in topics]
        figure = Figure(figsize=(10, sum(0.9 + 0.26 * count for count in counts)), layout="constrained")
        axes = figure.subplots(
            len(topics), 1, squeeze=False, gridspec_kw={"height_ratios": [c + 2 for c in counts]}
        )
        for topic, axis in zip(topics, axes[:, 0], strict=True):
            keys = [row for row in results.hot_keys if row["topic"] == topic][:KEYS_MAX]
            labels = [f"{_short(row['text'])}  (partition {row['partition']})" for row in keys]
            _bars(axis, labels, [100 * row["share"] for row in keys], f"% of the records of {topic}", _BLUE)
            axis.invert_yaxis()
        save("hot_keys", figure)
    if results.timeline:
        figure = Figure(figsize=(10, 3.6), layout="constrained")
        axis = figure.subplots()
        _timeline(axis, results.timeline)
        save("timeline", figure)
    return made


def _first_replicas(results: Results) -> list[dict[str, Any]]:
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in results.partitions:
        found.setdefault((row["topic"], row["partition"]), row)
    return list(found.values())


def _unit(largest: int) -> tuple[int, str]:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if largest >= 1 << power:
            return 1 << power, unit
    return 1, "bytes"


def _bars(axis: Axes, names: list[str], values: list[float], label: str, color: str) -> None:
    places = list(range(len(names)))
    axis.barh(places, values, color=color, height=0.7)
    axis.set_yticks(places, names, fontsize=8)
    axis.set_xlabel(label, fontsize=9)
    axis.set_xlim(left=0)
    axis.grid(axis="x", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _timeline(axis: Axes, rows: list[dict[str, Any]]) -> None:
    import matplotlib.dates

    dates: Any = matplotlib.dates

    start, end = min(row["start_ms"] for row in rows), max(row["end_ms"] for row in rows)
    width_ms = rows[0]["end_ms"] - rows[0]["start_ms"]
    edges = list(range(start, end, width_ms))
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["topic"]] = totals.get(row["topic"], 0) + row["records"]
    named = sorted(totals, key=lambda topic: -totals[topic])
    bottom = [0.0] * len(edges)
    for number, topic in enumerate([*named[: TOPICS_MAX - 1], None]):
        chosen = [
            row
            for row in rows
            if (row["topic"] == topic if topic else row["topic"] in named[TOPICS_MAX - 1 :])
        ]
        if not chosen:
            continue
        heights = [0.0] * len(edges)
        for row in chosen:
            heights[(row["start_ms"] - start) // width_ms] += row["records"]
        moments: Any = [datetime.fromtimestamp(edge / 1000, UTC) for edge in edges]
        axis.bar(
            moments,
            heights,
            width=width_ms / 86_400_000,
            bottom=bottom,
            align="edge",
            color=_COLORS[number],
            label=topic or "others",
        )
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    locator = dates.AutoDateLocator()
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    axis.set_ylabel(f"records in {width_ms / 1000:,.0f} s", fontsize=9)
    axis.set_xlabel("time of the records, UTC", fontsize=9)
    axis.legend(fontsize=8, frameon=False)
    axis.grid(axis="y", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "…"
