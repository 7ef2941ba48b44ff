"""Records of a batch that were not understood: told to a person, or, where they are on the driver already, handed to the dead letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidelog.errors import TidelogError
from tidelog.pipeline.decoding import PROBLEM, DecodingError
from tidelog.pipeline.latest import OFFSET, PARTITION, TIMESTAMP, TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
        super().__init__(
            f'{told(rows, explain)}. Mend the producer or the schema; or have such records sent to a topic with on_undecodable = "dead-letter"'
        )


def told(rows: Sequence[Row], explain: Explain) -> str:
    """The first few: where they are, and why."""
    first = sorted(rows, key=lambda row: (row[TOPIC], row[PARTITION], row[OFFSET]))[:_SHOWN_MAX]
    more = f", and {len(rows) - len(first)} more in this batch" if len(rows) > len(first) else ""
    each = (
        f"{row[TOPIC]}-{row[PARTITION]} at offset {row[OFFSET]}: {explain(row[RECORD]['value'], row[REASON])}"
        for row in first
    )
    return f"{'; '.join(each)}{more}"


def first_of(marked: DataFrame, explain: Explain) -> str:
    """One of a decoded frame's records that have a problem: where it is, and why."""
    row: Any = marked.where(marked[PROBLEM].isNotNull()).first()
    if row is None:
        return "none that is still there"
    value = None if row["value"] is None else bytes(row["value"])
    return f"{row['topic']}-{row['partition']} at offset {row['offset']}: {explain(value, row[PROBLEM])}"


def refusal(flow: str, count: int, batch: int, first: str) -> DecodingError:
    return DecodingError(
        f"flow {flow}: {count} records of batch {batch} cannot be decoded, such as {first}; "
        'mend them, or have them sent to a topic with on_undecodable = "dead-letter"'
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
