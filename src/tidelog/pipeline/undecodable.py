"""Records of a batch that were not understood: told to a person, or sent to a topic of dead letters with their bytes, place and reason.

They arrive as rows of `changes`. The letters go out before the batch is committed, so none is lost; a batch that is run again sends its letters again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidelog.client.dead_letters import Origin, dead_letter_headers
from tidelog.errors import TidelogError
from tidelog.pipeline.latest import OFFSET, PARTITION, TIMESTAMP, TOPIC

if TYPE_CHECKING:
    from tidelog.pipeline.context import JobContext

REASON: Final = "__reason"
RECORD: Final = "__record"
"""Key, value and headers."""
_SHOWN_BYTES_MAX: Final = 100
_SHOWN_MAX: Final = 3
_LETTER: Final = "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


class UndecodableError(TidelogError):
    """Records that cannot be understood stop the flow."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        first = sorted(rows, key=lambda row: (row[TOPIC], row[PARTITION], row[OFFSET]))[:_SHOWN_MAX]
        more = f", and {len(rows) - len(first)} more in this batch" if len(rows) > len(first) else ""
        super().__init__(
            f"{'; '.join(map(_told, first))}{more}. Mend the producer or the schema; or set undecodable to the name of a topic that such records are sent to"
        )


def _told(row: Mapping[str, Any]) -> str:
    value = row[RECORD]["value"]
    shown = "no value" if value is None else repr(bytes(value[:_SHOWN_BYTES_MAX]))[1:]
    return f"{row[TOPIC]}-{row[PARTITION]} offset {row[OFFSET]}: {row[REASON]} ({shown}{'…' if value and len(value) > _SHOWN_BYTES_MAX else ''})"


def send_dead_letters(context: JobContext, topic: str, rows: Sequence[Mapping[str, Any]]) -> None:
    from tidelog.pipeline.ddl import parse_columns

    letters = [_letter(row, context.name) for row in rows]
    (
        context.spark.createDataFrame(letters, parse_columns(_LETTER))
        .coalesce(1)
        .write.format("tidelog")
        .options(**context.kafka_options())
        .option("topic", topic)
        .mode("append")
        .save()
    )


def _letter(
    row: Mapping[str, Any], flow: str
) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    record = row[RECORD]
    headers = tuple((each["key"], each["value"]) for each in record.get("headers") or ())
    time = row[TIMESTAMP]
    origin = Origin(
        row[TOPIC],
        row[PARTITION],
        row[OFFSET],
        int(time.timestamp() * 1000) if time is not None else -1,
        row[REASON],
        1,
        flow,
    )
    return record["key"], record["value"], list(dead_letter_headers(headers, origin))
