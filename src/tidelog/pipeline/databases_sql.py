"""The SQL of a table of current state: names quoted, types chosen, statements written. Pure: nothing here talks to a database.

Every name that comes from a specification passes `quoted`; values never become part of a statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from tidelog.errors import TidelogError

if TYPE_CHECKING:
    import pyarrow as pa

Dialect = Literal["sqlite", "postgresql"]
NAME_BYTES_MAX: Final = {"sqlite": 1000, "postgresql": 63}
"""PostgreSQL cuts longer names off without an error; two columns could become one."""
LEDGER: Final = "tidelog_flows"
"""The table that says, for every table of state, which batch is in it."""


class DatabaseError(TidelogError):
    """The database, or what was asked of it, does not allow this table of state."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    """In the database's words."""


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    """May have a schema before a dot."""
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    dialect: Dialect

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def quoted(self) -> str:
        return quoted_table(self.name, self.dialect)

    @property
    def staging(self) -> Table:
        """Where a rebuild collects its rows until it has caught up."""
        return Table(f"{self.name}__rebuild", self.columns, self.key, self.dialect)


def quoted(name: str, dialect: Dialect) -> str:
    if not name or "\0" in name:
        raise DatabaseError(f"{name!r} cannot be a name in a database")
    if (size := len(name.encode())) > NAME_BYTES_MAX[dialect]:
        raise DatabaseError(
            f"the name {name!r} has {size} bytes, and {dialect} takes {NAME_BYTES_MAX[dialect]}: choose a shorter one"
        )
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str, dialect: Dialect) -> str:
    schema, dot, table = name.rpartition(".")
    return (
        f"{quoted(schema, dialect)}.{quoted(table, dialect)}"
        if dot and dialect == "postgresql"
        else quoted(name, dialect)
    )


def table_of(name: str, schema: pa.Schema, key: Sequence[str], dialect: Dialect) -> Table:
    columns = tuple(Column(field.name, sql_type(field.name, field.type, dialect)) for field in schema)
    if missing := [each for each in key if each not in schema.names]:
        raise DatabaseError(f"the key of table {name} has {', '.join(missing)}, which its schema has not")
    return Table(name, columns, tuple(key), dialect)


def sql_type(name: str, kind: pa.DataType, dialect: Dialect) -> str:
    """How a column of this Arrow type is kept. Nested values arrive as JSON text already."""
    import pyarrow as pa

    is_lite = dialect == "sqlite"
    if pa.types.is_string(kind):
        return "TEXT"
    if pa.types.is_boolean(kind):
        return "INTEGER" if is_lite else "BOOLEAN"
    if pa.types.is_integer(kind):
        return (
            "INTEGER"
            if is_lite
            else {8: "SMALLINT", 16: "SMALLINT", 32: "INTEGER"}.get(kind.bit_width, "BIGINT")
        )
    if pa.types.is_floating(kind):
        return "REAL" if is_lite or kind.bit_width == 32 else "DOUBLE PRECISION"
    if pa.types.is_binary(kind):
        return "BLOB" if is_lite else "BYTEA"
    if pa.types.is_decimal(kind):
        return "TEXT" if is_lite else f"NUMERIC({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "TEXT" if is_lite else "TIMESTAMPTZ" if kind.tz else "TIMESTAMP"
    if pa.types.is_date(kind):
        return "TEXT" if is_lite else "DATE"
    raise DatabaseError(f"column {name}: a database has no place for {kind}; declare it as string")


def create_table(table: Table) -> str:
    columns = ", ".join(
        f"{quoted(column.name, table.dialect)} {column.type}{' NOT NULL' if column.name in table.key else ''}"
        for column in table.columns
    )
    return f"CREATE TABLE {table.quoted} ({columns}, PRIMARY KEY ({_list(table, table.key)}))"


def create_ledger(dialect: Dialect) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(LEDGER, dialect)} (target TEXT NOT NULL PRIMARY KEY, flow TEXT NOT NULL, "
        "checkpoint TEXT NOT NULL, batch BIGINT NOT NULL, offsets TEXT NOT NULL, rebuilding INTEGER NOT NULL, "
        "changed_at TEXT NOT NULL)"
    )


def upsert(table: Table, source: str) -> str:
    """`source`: `VALUES (…)`, or a SELECT of all columns in the table's order."""
    others = [name for name in table.names if name not in table.key]
    sets = ", ".join(f"{_one(table, name)} = excluded.{_one(table, name)}" for name in others)
    action = f"DO UPDATE SET {sets}" if others else "DO NOTHING"
    return (
        f"INSERT INTO {table.quoted} ({_list(table, table.names)}) {source} "
        f"ON CONFLICT ({_list(table, table.key)}) {action}"
    )


def delete_by_key(table: Table) -> str:
    where = " AND ".join(f"{_one(table, name)} = ?" for name in table.key)
    return f"DELETE FROM {table.quoted} WHERE {where}"


def delete_using(table: Table, source: str, deleted: str) -> str:
    same = " AND ".join(f"kept.{_one(table, name)} = gone.{_one(table, name)}" for name in table.key)
    return f"DELETE FROM {table.quoted} AS kept USING {source} AS gone WHERE gone.{deleted} AND {same}"


def replace_all(table: Table) -> list[str]:
    """The rows of the staging table instead of the table's, its indexes, rights and views untouched."""
    names = _list(table, table.names)
    return [
        f"DELETE FROM {table.quoted}",
        f"INSERT INTO {table.quoted} ({names}) SELECT {names} FROM {table.staging.quoted}",
        f"DROP TABLE {table.staging.quoted}",
    ]


def replace_table(table: Table) -> list[str]:
    """The staging table instead of one with other columns."""
    plain = table.name.rpartition(".")[2] if table.dialect == "postgresql" else table.name
    return [
        f"DROP TABLE {table.quoted}",
        f"ALTER TABLE {table.staging.quoted} RENAME TO {quoted(plain, table.dialect)}",
    ]


@dataclass(frozen=True, slots=True)
class Found:
    """A column as the database has it."""

    name: str
    type: str
    is_key: bool
    is_required: bool
    """Has to be given a value: NOT NULL without a default."""


def differences(table: Table, found: Sequence[Found]) -> list[str]:
    """Why a table that is there cannot hold this state; empty: it can."""
    there = {column.name: column for column in found}
    problems = []
    for column in table.columns:
        if column.name not in there:
            problems.append(f"it has no column {column.name} ({column.type})")
        elif there[column.name].type.upper() != column.type:
            problems.append(f"its column {column.name} is {there[column.name].type}, not {column.type}")
    key = {column.name for column in found if column.is_key}
    if key != set(table.key):
        problems.append(
            f"its primary key is ({', '.join(sorted(key)) or 'nothing'}), not ({', '.join(sorted(table.key))})"
        )
    problems += [
        f"its column {column.name} must have a value, and the state has none for it"
        for column in found
        if column.name not in table.names and column.is_required and not column.is_key
    ]
    return problems


def _one(table: Table, name: str) -> str:
    return quoted(name, table.dialect)


def _list(table: Table, names: Sequence[str]) -> str:
    return ", ".join(_one(table, name) for name in names)
