"""A table of state in SQLite: a file, no server. A new file gets a write-ahead log, so that readers are not held up; commits are synced either way."""

from __future__ import annotations

import datetime
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tidelog.pipeline.databases import StateDatabase
from tidelog.pipeline.databases_ledger import Batch, Kept
from tidelog.pipeline.databases_sql import (
    LEDGER,
    DatabaseError,
    Dialect,
    Found,
    Table,
    delete_by_key,
    quoted,
    upsert,
)
from tidelog.pipeline.latest import DELETED

if TYPE_CHECKING:
    import pyarrow as pa

BUSY_SECONDS_MAX: Final = 30.0
"""How long somebody else's transaction is waited for."""


class SqliteState(StateDatabase):
    dialect: ClassVar[Dialect] = "sqlite"

    @property
    def path(self) -> str:
        return self.url.removeprefix("sqlite:///")

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        is_there = os.path.exists(self.path)
        try:
            with closing(
                sqlite3.connect(self.path, timeout=BUSY_SECONDS_MAX, isolation_level=None)
            ) as connection:
                if not is_there:
                    connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")
                connection.execute("BEGIN IMMEDIATE")  # the right to write, before anything is read
                try:
                    yield connection
                except BaseException:
                    connection.rollback()
                    raise
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise DatabaseError(
                f"{self.path}, table {self.table.name}: {error}; nothing of this batch was written"
            ) from error

    def _run(self, connection: Any, statement: str) -> None:
        connection.execute(statement)

    def _found(self, connection: Any, table: Table) -> list[Found]:
        rows = connection.execute(
            'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)', (table.name,)
        ).fetchall()
        return [
            Found(name, kind, bool(place), bool(required) and default is None)
            for name, kind, required, default, place in rows
        ]

    def _kept(self, connection: Any) -> Kept | None:
        row = connection.execute(
            f"SELECT flow, checkpoint, batch, offsets, rebuilding FROM {quoted(LEDGER, self.dialect)} WHERE target = ?",
            (self.table.name,),
        ).fetchone()
        return None if row is None else Kept(row[0], row[1], row[2], row[3], bool(row[4]))

    def _change(self, connection: Any, table: Table, rows: pa.Table) -> None:
        import pyarrow.compute as pc

        gone = rows.filter(rows[DELETED])
        kept = rows.filter(pc.invert(rows[DELETED]))
        marks = ", ".join("?" * len(table.columns))
        connection.executemany(delete_by_key(table), _tuples(gone.select(list(table.key))))
        connection.executemany(upsert(table, f"VALUES ({marks})"), _tuples(kept.select(list(table.names))))

    def _note(self, connection: Any, batch: Batch, rebuilding: bool) -> None:
        connection.execute(
            f"INSERT OR REPLACE INTO {quoted(LEDGER, self.dialect)} "
            "(target, flow, checkpoint, batch, offsets, rebuilding, changed_at) VALUES (?, ?, ?, ?, ?, ?, datetime('now'))",
            (self.table.name, batch.flow, batch.checkpoint, batch.number, batch.offsets, int(rebuilding)),
        )


def _tuples(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Row by row, in what SQLite can keep; a part of the table at a time."""
    changes = [_change_of(field.type) for field in rows.schema]
    for part in rows.to_batches(max_chunksize=10_000):
        yield from zip(
            *(
                part.column(at).to_pylist()
                if change is None
                else [None if value is None else change(value) for value in part.column(at).to_pylist()]
                for at, change in enumerate(changes)
            ),
            strict=True,
        )


def _change_of(kind: pa.DataType) -> Callable[[Any], Any] | None:
    import pyarrow as pa

    if pa.types.is_boolean(kind):
        return int
    if pa.types.is_decimal(kind):
        return _decimal_text
    if pa.types.is_timestamp(kind):
        return _time_text
    if pa.types.is_date(kind):
        return datetime.date.isoformat
    return None


def _decimal_text(value: Decimal) -> str:
    return format(value, "f")


def _time_text(value: datetime.datetime) -> str:
    """UTC, always with all six digits: as text, times sort as they are."""
    moment = value.astimezone(datetime.UTC) if value.tzinfo else value
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")
