"""Options that many commands share, and the small languages of their values. Pure parsing, no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated

import typer

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar="TIDELOG_BOOTSTRAP_SERVERS",
        metavar="HOST:PORT,…",
        help="A broker of the cluster, or several.",
    ),
]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

Json = Annotated[
    bool, typer.Option("--json", help="Machine-readable output on stdout, and nothing else there.")
]

_DURATION = re.compile(r"-?(\d+)(ms|s|m|h|d|w)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def parse_assignments(texts: Iterable[str], option: str) -> dict[str, str]:
    """`name=value` texts as a dict; the value may contain further equals signs or be empty."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not of the form name=value", param_hint=option)
        if name in found:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=option)
        found[name] = value.strip()
    return found


def parse_partition(text: str) -> tuple[str, int] | None:
    """`orders-0`, as logs and directories name a partition; a topic's own name may have hyphens. None: it is none."""
    topic, hyphen, number = text.rpartition("-")
    return (topic, int(number)) if hyphen and topic and number.isascii() and number.isdigit() else None


def parse_headers(texts: Iterable[str]) -> tuple[tuple[str, bytes | None], ...]:
    """`name=value` record headers in order; names may repeat, a text without `=` is a header with a null value."""
    headers: list[tuple[str, bytes | None]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise typer.BadParameter(f"{text!r} has no header name", param_hint="--header")
        headers.append((name, value.encode() if equals else None))
    return tuple(headers)


def parse_timestamp(text: str, now_ms: int) -> int:
    """Milliseconds since the epoch; an ISO 8601 date or time (UTC unless it says otherwise); or an age such as 90s, 30m, 2h, 7d."""
    if re.fullmatch(r"\d+", text):
        return int(text)
    if match := _DURATION.fullmatch(text):
        return now_ms - int(match[1]) * _UNIT_MS[match[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time: write milliseconds since 1970, an ISO 8601 time (2025-01-31T12:00), or an age (30m, 2h, 7d)",
            param_hint="--timestamp",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def unescape(text: str) -> str:
    r"""`\t`, `\n`, `\r`, `\0` and `\\` as shells pass them on, literally."""
    names = {"t": "\t", "n": "\n", "r": "\r", "0": "\0", "\\": "\\"}
    return re.sub(r"\\([tnr0\\])", lambda match: names[match[1]], text)
