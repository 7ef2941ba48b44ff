"""A table of state in PostgreSQL. Rows go in with COPY into a temporary table and from there in two statements, so a batch costs few round trips.

The ledger's row is locked (`FOR UPDATE`) before anything is decided: of two runners, one waits for the other's commit and then sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tidelog.pipeline.databases import StateDatabase, shown
from tidelog.pipeline.databases_ledger import Batch, Kept
from tidelog.pipeline.databases_sql import (
    LEDGER,
    DatabaseError,
    Dialect,
    Found,
    Table,
    delete_using,
    quoted,
    quoted_table,
    upsert,
)
from tidelog.pipeline.latest import DELETED

if TYPE_CHECKING:
    import pyarrow as pa

CONNECT_SECONDS_MAX: Final = 30
ROWS_PER_COPY: Final = 10_000
_INCOMING: Final = "tidelog_incoming"
_LOCK: Final = 0x7469_6465
"""Of the moment in which a ledger or its row is made: `CREATE … IF NOT EXISTS` alone fails when two do it at once."""


class PostgresState(StateDatabase):
    dialect: ClassVar[Dialect] = "postgresql"

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        import psycopg

        try:
            with psycopg.connect(self.url, connect_timeout=CONNECT_SECONDS_MAX) as connection:
                connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_LOCK, self.table.name))
                yield connection
        except psycopg.Error as error:
            raise DatabaseError(
                f"{shown(self.url)}, table {self.table.name}: {str(error).strip()}; nothing of this batch is known to be written"
            ) from error

    def _run(self, connection: Any, statement: str) -> None:
        if LEDGER in statement and statement.startswith("CREATE TABLE"):
            connection.execute("SELECT pg_advisory_xact_lock(%s, 0)", (_LOCK,))
        connection.execute(statement)

    def _found(self, connection: Any, table: Table) -> list[Found]:
        rows = connection.execute(
            """
            SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
                   EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisprimary AND a.attnum = ANY (i.indkey))
            FROM pg_attribute a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
            """,
            (table.quoted,),
        ).fetchall()
        return [
            Found(name, _short(kind), bool(is_key), bool(required)) for name, kind, required, is_key in rows
        ]

    def _kept(self, connection: Any) -> Kept | None:
        row = connection.execute(
            f"SELECT flow, checkpoint, batch, offsets, rebuilding FROM {quoted(LEDGER, self.dialect)} WHERE target = %s FOR UPDATE",
            (self.table.name,),
        ).fetchone()
        return None if row is None else Kept(row[0], row[1], row[2], row[3], bool(row[4]))

    def _change(self, connection: Any, table: Table, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        names = ", ".join(quoted(name, self.dialect) for name in table.names)
        incoming, deleted = quoted_table(_INCOMING, self.dialect), quoted(DELETED, self.dialect)
        columns = ", ".join(f"{quoted(column.name, self.dialect)} {column.type}" for column in table.columns)
        connection.execute(
            f"CREATE TEMPORARY TABLE {incoming} ({columns}, {deleted} BOOLEAN NOT NULL) ON COMMIT DROP"
        )
        with (
            connection.cursor() as cursor,
            cursor.copy(f"COPY {incoming} ({names}, {deleted}) FROM STDIN") as copy,
        ):
            for part in rows.select([*table.names, DELETED]).to_batches(max_chunksize=ROWS_PER_COPY):
                for row in zip(*(column.to_pylist() for column in part.columns), strict=True):
                    copy.write_row(row)
        connection.execute(f"ANALYZE {incoming}")
        connection.execute(delete_using(table, incoming, deleted))
        connection.execute(upsert(table, f"SELECT {names} FROM {incoming} WHERE NOT {deleted}"))

    def _note(self, connection: Any, batch: Batch, rebuilding: bool) -> None:
        connection.execute(
            f"INSERT INTO {quoted(LEDGER, self.dialect)} AS kept (target, flow, checkpoint, batch, offsets, rebuilding, changed_at) "
            "VALUES (%s, %s, %s, %s, %s, %s, now()::text) ON CONFLICT (target) DO UPDATE SET flow = excluded.flow, "
            "checkpoint = excluded.checkpoint, batch = excluded.batch, offsets = excluded.offsets, "
            "rebuilding = excluded.rebuilding, changed_at = excluded.changed_at",
            (self.table.name, batch.flow, batch.checkpoint, batch.number, batch.offsets, int(rebuilding)),
        )


def _short(kind: str) -> str:
    """A type as `databases_sql` writes it."""
    return {
        "timestamp with time zone": "TIMESTAMPTZ",
        "timestamp without time zone": "TIMESTAMP",
    }.get(kind, kind.upper())
