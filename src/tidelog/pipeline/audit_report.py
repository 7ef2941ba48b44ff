"""The audit as a page to read: what is wrong first, then how the load is spread. Markdown, with its plots beside it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from tidelog.pipeline.audit_checks import KINDS, Finding, Kind
from tidelog.pipeline.audit_plots import write_plots
from tidelog.pipeline.audit_tables import Results

FINDINGS_SHOWN: Final = 50
PARTITIONS_SHOWN: Final = 200
_TITLES: Final[dict[Kind, tuple[str, str]]] = {
    "damage": (
        "Damage",
        "bytes that hold no sound batch: `tidelog log verify` shows the same; a replica that is sound can take their place",
    ),
    "gaps": ("Gaps", "offsets that are not there"),
    "duplicates": ("Duplicates", "records that are there twice"),
    "epochs": ("Leader epochs", "batches of a leader that should not have written them"),
    "indexes": ("Indexes", "files beside the log that say something else; they are derived from it"),
    "replicas": ("Replicas", "copies that are not alike, within what both have committed"),
}


def write_report(results: Results, directory: str) -> str:
    """Returns the page's path."""
    os.makedirs(directory, exist_ok=True)
    plots = write_plots(results, os.path.join(directory, "plots"))
    relative = {name: os.path.relpath(path, directory) for name, path in plots.items()}
    path = os.path.join(directory, "report.md")
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write("\n".join(page(results, relative)) + "\n")
    os.replace(path + ".new", path)
    return path


def page(results: Results, plots: dict[str, str]) -> Iterator[str]:
    errors = [each for each in results.findings if each.severity == "error"]
    yield "# Audit"
    yield ""
    records = sum(row["records"] for row in results.partitions)
    size = sum(row["bytes"] for row in results.partitions)
    names = {(row["topic"], row["partition"]) for row in results.partitions}
    yield (
        f"{len(names):,} partitions in {len(results.partitions):,} replicas, {records:,} records, {_size(size)}, from"
        f" {', '.join(f'`{path}`' for path in results.paths)}."
    )
    yield ""
    yield f"**{len(errors):,} findings.**" if errors else "**Nothing is wrong.**"
    yield ""
    yield from _table(
        ("", "errors", "notes"),
        (
            (
                _TITLES[kind][0],
                sum(each.kind == kind for each in errors),
                sum(each.kind == kind and each.severity == "note" for each in results.findings),
            )
            for kind in KINDS
        ),
    )
    for kind in KINDS:
        yield from _findings(kind, [each for each in results.findings if each.kind == kind])
    yield from _load(results, plots)


def _findings(kind: Kind, findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        return
    title, meaning = _TITLES[kind]
    yield ""
    yield f"## {title}"
    yield ""
    yield f"{meaning[0].upper()}{meaning[1:]}."
    yield ""
    ordered = sorted(findings, key=lambda each: each.severity)  # errors before notes
    yield from _table(
        ("partition", "offsets", "where", "what"),
        (
            (
                f"{each.topic}-{each.partition}",
                _offsets(each),
                _where(each),
                each.what if each.severity == "error" else f"{each.what} (as it should be)",
            )
            for each in ordered[:FINDINGS_SHOWN]
        ),
    )
    if len(findings) > FINDINGS_SHOWN:
        yield ""
        yield f"{len(findings) - FINDINGS_SHOWN:,} more are in the table `tables/{kind}`."


def _load(results: Results, plots: dict[str, str]) -> Iterator[str]:
    yield ""
    yield "## Load"
    yield ""
    if "partitions" in plots:
        yield f"![Records and bytes by partition]({plots['partitions']})"
        yield ""
    yield from _table(
        (
            "replica",
            "partition",
            "records",
            "of its topic",
            "× average",
            "size",
            "offsets",
            "committed",
            "from",
            "to",
        ),
        (
            (
                f"`{row['replica']}`",
                f"{row['topic']}-{row['partition']}",
                f"{row['records']:,}",
                f"{row['share']:.1%}",
                f"{row['times_average']:.2f}",
                _size(row["bytes"]),
                f"{row['log_start_offset']}–{row['log_end_offset']}",
                "?" if row["high_watermark"] is None else row["high_watermark"],
                _moment(row["first_ms"]),
                _moment(row["last_ms"]),
            )
            for row in results.partitions[:PARTITIONS_SHOWN]
        ),
    )
    if results.hot_keys:
        yield ""
        yield "## Hot keys"
        yield ""
        if "hot_keys" in plots:
            yield f"![Share of the hottest keys]({plots['hot_keys']})"
            yield ""
        yield from _table(
            ("topic", "", "key", "records", "share", "partition"),
            (
                (
                    row["topic"],
                    row["rank"],
                    f"`{row['text']}`",
                    f"{row['records']:,}",
                    f"{row['share']:.2%}",
                    row["partition"]
                    if row["partitions"] == 1
                    else f"{row['partition']} and {row['partitions'] - 1} more",
                )
                for row in results.hot_keys
            ),
        )
    if "timeline" in plots:
        yield ""
        yield "## Records over time"
        yield ""
        yield "Each batch counts at the time of its latest record."
        yield ""
        yield f"![Records over time]({plots['timeline']})"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield "| " + " | ".join(_cell(each) for each in row) + " |"


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _offsets(finding: Finding) -> str:
    if finding.first_offset is None:
        return ""
    if finding.end_offset is None or finding.end_offset <= finding.first_offset + 1:
        return str(finding.first_offset)
    return f"{finding.first_offset}–{finding.end_offset - 1}"


def _where(finding: Finding) -> str:
    if finding.segment is None:
        return f"`{finding.replica}`"
    return f"`{finding.segment}`" + ("" if finding.position is None else f", position {finding.position}")


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def _moment(ms: int | None) -> str:
    if ms is None:
        return ""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
