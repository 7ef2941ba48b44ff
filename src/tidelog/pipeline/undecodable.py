"""Records of a batch that were not understood and are on the driver already: told to a person, or handed to the dead letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidelog.errors import TidelogError
from tidelog.pipeline.latest import OFFSET, PARTITION, TIMESTAMP, TOPIC

if TYPE_CHECKING:
    from tidelog.pipeline.context import JobContext
    from tidelog.pipeline.dead_letters import DeadLetters

REASON: Final = "__reason"
"""Why; null: it was understood; empty: the decoder can explain."""
RECORD: Final = "__record"
"""Key, value and headers."""
_SHOWN_MAX: Final = 3
_MARKED: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, tidelog_problem STRING"
)
Row = Mapping[str, Any]
Explain = Callable[[bytes | None, str], str]


class UndecodableError(TidelogError):
    """Records that cannot be understood stop the flow."""

    def __init__(self, rows: Sequence[Row], explain: Explain) -> None:
        first = sorted(rows, key=lambda row: (row[TOPIC], row[PARTITION], row[OFFSET]))[:_SHOWN_MAX]
        more = f", and {len(rows) - len(first)} more in this batch" if len(rows) > len(first) else ""
        told = (
            f"{row[TOPIC]}-{row[PARTITION]} at offset {row[OFFSET]}: {explain(row[RECORD]['value'], row[REASON])}"
            for row in first
        )
        super().__init__(
            f'{"; ".join(told)}{more}. Mend the producer or the schema; or have such records sent to a topic with on_undecodable = "dead-letter"'
        )


def send(
    context: JobContext,
    letters: DeadLetters,
    rows: Sequence[Row],
    explain: Explain,
    *,
    query: str,
    batch: int,
) -> None:
    """Before the batch is committed, so that no crash loses one."""
    from tidelog.pipeline.ddl import parse_columns

    marked = context.spark.createDataFrame([_marked(row, explain) for row in rows], parse_columns(_MARKED))
    letters.send(marked.coalesce(1), as_said, query=query, batch=batch)


def as_said(value: bytes | None, said: str) -> str:
    return said


def _marked(row: Row, explain: Explain) -> tuple[Any, ...]:
    record = row[RECORD]
    headers = [(each["key"], each["value"]) for each in record.get("headers") or ()]
    reason = explain(record["value"], row[REASON])
    place = (row[TOPIC], row[PARTITION], row[OFFSET], row[TIMESTAMP])
    return (record["key"], record["value"], *place, headers, reason)
