"""docs/CONFIGURATION.md, from the tables: `python -m tidelog.config.docs > docs/CONFIGURATION.md`.

Owns the page's text; writes to standard output only. A test compares the page with what this file renders.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from tidelog.config.broker_settings import SECTIONS
from tidelog.config.definition import SAME_AS_KAFKA, Effect, Setting, UpdateMode
from tidelog.config.group_settings import GROUP_SETTINGS
from tidelog.config.topic_settings import TOPIC_SETTINGS

_INTRODUCTION = """\
# Configuration

<!-- Written by `python -m tidelog.config.docs`. Change the tables in src/tidelog/config/tables instead. -->

Settings carry Kafka's names, types and defaults (Kafka 4.3). They are given, each source overruling the ones before:

1. in a properties file: `tidelog start --config server.properties`; Kafka's own file works;
2. as environment variables: `TIDELOG_LOG_RETENTION_MS=60000` sets `log.retention.ms`;
3. on the command line: `--set log.retention.ms=60000`.

Within one source, milliseconds win over minutes and minutes over hours. A name or value that is not allowed stops the
start with a message that says what is. While the broker runs, settings marked *per-broker* or *cluster-wide* can be
changed, and topics and groups have settings of their own. What counts for a topic: its own setting, then the broker's
dynamic setting, then the cluster's dynamic default, then the static setting, then the default.

The column *effect* says what Tidelog does with a setting: **acts** on it; **none**: it is accepted, so that existing
files load, and changes nothing; **refused**: only the default is accepted, because ignoring it would break a promise.
"""

_EFFECTS = {Effect.ACTS: "acts", Effect.ACCEPTED: "none", Effect.REFUSED: "refused"}


def render() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, "## Where defaults differ from Kafka's\n", _differences(), "## Topic settings\n"]
    parts.append(_topic_table(TOPIC_SETTINGS.values()))
    for title, rows in SECTIONS.items():
        parts += [f"## {title}\n", _broker_table(rows)]
    parts += ["## Group settings\n", _topic_table(GROUP_SETTINGS.values())]
    return "\n".join(parts)


def differences() -> list[Setting]:
    """The settings whose default is not Kafka's, for this page and for docs/GUARANTEES.md."""
    return [row for rows in SECTIONS.values() for row in rows if row.kafka_default is not SAME_AS_KAFKA]


def kafka_default_text(setting: Setting) -> str:
    """Kafka's default in words, of a setting whose default differs."""
    value = setting.kafka_default
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def _differences() -> str:
    lines = ["| setting | Tidelog | Kafka | why |", "|---|---|---|---|"]
    for row in differences():
        ours, theirs = _code(row.default_text), _code(kafka_default_text(row))
        lines.append(f"| `{row.name}` | {ours} | {theirs} | {row.reason} |")
    return "\n".join(lines) + "\n"


def _topic_table(rows: Iterable[Setting]) -> str:
    lines = [
        "| setting | default | allowed | falls back to | effect | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        chain = ", ".join(f"`{fallback.name}`" for fallback in row.fallbacks)
        lines.append(
            f"| `{row.name}` | {_code(row.default_text)} | {_allowed(row)} | {chain} | {_EFFECTS[row.effect]} | {row.doc} |"
        )
    return "\n".join(lines) + "\n"


def _broker_table(rows: Iterable[Setting]) -> str:
    lines = ["| setting | default | allowed | change | effect | meaning |", "|---|---|---|---|---|---|"]
    for row in rows:
        change = "at start" if row.update is UpdateMode.READ_ONLY else row.update.value
        lines.append(
            f"| `{row.name}` | {_code(row.default_text)} | {_allowed(row)} | {change} | {_EFFECTS[row.effect]} | {row.doc} |"
        )
    return "\n".join(lines) + "\n"


def _allowed(row: Setting) -> str:
    kind = row.type.name
    return f"{kind}, {row.validator.description}" if row.validator is not None else kind


def _code(text: str | None) -> str:
    if text is None:
        return "–"
    return f"`{text}`" if text else "(empty)"


if __name__ == "__main__":
    sys.stdout.write(render())
