"""A table of current state in a relational database: one transaction per batch, which changes the rows and notes the batch's number.

`open_state` chooses the database by its address. Rows come as an Arrow table with one row per key and a column `DELETED`; whoever calls has made them unique. A connection
lives as long as a batch does: Spark calls from changing threads, and a database that was restarted in between is found again.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tidelog.pipeline.databases_ledger import Batch, Kept, is_new
from tidelog.pipeline.databases_sql import (
    DatabaseError,
    Dialect,
    Found,
    Table,
    create_ledger,
    create_table,
    differences,
    replace_all,
    replace_table,
    table_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

_POSTGRES: Final = ("postgresql://", "postgres://")


def dialect_of(url: str) -> Dialect:
    if url.startswith("sqlite:///"):
        return "sqlite"
    if url.startswith(_POSTGRES):
        return "postgresql"
    raise DatabaseError(
        f"{shown(url)}: a database is sqlite:///orders.db, sqlite:////var/lib/orders.db or postgresql://user@host/name"
    )


def shown(url: str) -> str:
    """Without the password."""
    return re.sub(r"(://[^/:@]*):.*@", r"\1:…@", url)


def open_state(url: str, table: str, schema: pa.Schema, key: Sequence[str]) -> StateDatabase:
    from tidelog.pipeline.databases_postgres import PostgresState
    from tidelog.pipeline.databases_sqlite import SqliteState

    dialect = dialect_of(url)
    kind: type[StateDatabase] = SqliteState if dialect == "sqlite" else PostgresState
    return kind(url, table_of(table, schema, key, dialect))


class StateDatabase(ABC):
    """What the two have in common: the order of things within the transaction."""

    dialect: ClassVar[Dialect]

    def __init__(self, url: str, table: Table) -> None:
        self.url = url
        self.table = table

    def prepare(self, *, is_rebuild: bool = False) -> None:
        """Make the table, or see that the one there will do; a rebuild replaces one that will not."""
        with self._transaction() as connection:
            self._run(connection, create_ledger(self.dialect))
            if not is_rebuild:
                self._ready(connection, self.table)

    def kept(self) -> Kept | None:
        with self._transaction() as connection:
            self._run(connection, create_ledger(self.dialect))
            return self._kept(connection)

    def apply(self, batch: Batch, rows: pa.Table) -> bool:
        """False: the batch was there already. All of it is there when this returns, or none."""
        with self._transaction() as connection:
            kept = self._kept(connection)
            if not is_new(kept, batch, self.table.name):
                return False
            is_first = kept is None or kept.checkpoint != batch.checkpoint
            is_staging = batch.is_rebuild if is_first else kept is not None and kept.rebuilding
            if is_first and is_staging and self._found(connection, self.table.staging):
                self._run(connection, f"DROP TABLE {self.table.staging.quoted}")
            goes_to = self.table.staging if is_staging else self.table
            if is_first:
                self._ready(connection, goes_to)
            self._change(connection, goes_to, rows)
            if is_staging and batch.is_caught_up:
                self._swap(connection)
                is_staging = False
            self._note(connection, batch, is_staging)
        return True

    def _ready(self, connection: Any, table: Table) -> None:
        found = self._found(connection, table)
        if not found:
            self._run(connection, create_table(table))
        elif problems := differences(table, found):
            raise DatabaseError(
                f"table {table.name} of {shown(self.url)} cannot hold this state: {'; '.join(problems)}. "
                "Change the schema of the flow or the table, or let --rebuild replace it"
            )

    def _swap(self, connection: Any) -> None:
        found = self._found(connection, self.table)
        if not found:
            self._run(connection, create_table(self.table))
        fits = not found or not differences(self.table, found)
        for statement in replace_all(self.table) if fits else replace_table(self.table):
            self._run(connection, statement)

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Any]:
        """A connection in a transaction that is durable after the block, or undone when it raises."""

    @abstractmethod
    def _run(self, connection: Any, statement: str) -> None: ...

    @abstractmethod
    def _found(self, connection: Any, table: Table) -> list[Found]:
        """The columns of the table; none: there is no such table."""

    @abstractmethod
    def _kept(self, connection: Any) -> Kept | None:
        """The ledger's row, nobody else's until the transaction ends."""

    @abstractmethod
    def _change(self, connection: Any, table: Table, rows: pa.Table) -> None: ...

    @abstractmethod
    def _note(self, connection: Any, batch: Batch, rebuilding: bool) -> None: ...
