"""What a table is to a job: batches go in exactly once, columns change by a policy, small files are made one.

An append has two steps, so that a job can do something in between (send dead letters): `stage` has the executors write Parquet files that nobody sees, `commit`
makes them part of the table in one atomic step that also says which batch of which query it was. A table holds no state of a stream besides that. It must
never decide on anything but the number of the batch whether it has been written: the contents of a repeated batch may be laid out differently.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from tidelog.pipeline.tables.files import DataFile
    from tidelog.pipeline.tables.schemas import Plan

TableFormat = Literal["delta", "parquet", "iceberg"]
SchemaChanges = Literal["fail", "add", "ignore"]
FORMATS: Final[tuple[TableFormat, ...]] = ("delta", "parquet", "iceberg")
_ATTEMPT: Final = re.compile(r"batch-(\d+)-[0-9a-f]+")


class TableError(TidelogError):
    """A table that cannot be written to, and why."""


class SchemaChangeError(TableError):
    """Columns of the records do not go into the table, by its policy or because its format cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    path: str
    """A directory that the driver and all executors see under this name."""
    partition_by: tuple[str, ...] = ()
    schema_changes: SchemaChanges = "add"
    retention_hours: float = 168.0
    """How long files that compaction replaced stay for readers that began before."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the format: properties of an Iceberg catalog, configuration of a new Delta table."""


@dataclass(frozen=True, slots=True)
class Written:
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    is_repeat: bool = False
    """The batch was in the table already; nothing was written."""


@dataclass(frozen=True, slots=True)
class Compacted:
    files_before: int = 0
    files_after: int = 0


@dataclass(frozen=True, slots=True)
class Staged:
    """Files that are written and not yet part of the table."""

    query: str
    batch: int
    directory: str
    files: tuple[DataFile, ...]
    plan: Plan

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)

    def written(self) -> Written:
        return Written(self.rows, len(self.files), sum(each.size_bytes for each in self.files))


class Table(ABC):
    """One process at a time appends for a query; several queries may append to one table, and anybody may read it meanwhile."""

    keeps_partition_columns = False
    """Whether data files hold the columns that they are partitioned by."""

    def __init__(self, settings: TableSettings) -> None:
        if "://" in settings.path and not settings.path.startswith("file://"):
            raise TableError(
                f"table {settings.path}: only directories can be written to; mount the storage, and give a path"
            )
        self.settings = settings
        self.path = os.path.abspath(settings.path.removeprefix("file://"))

    def append(self, frame: DataFrame, *, query: str, batch: int) -> Written:
        """Exactly once for (query, batch)."""
        if self.holds(query=query, batch=batch):
            return Written(is_repeat=True)
        return self.commit(self.stage(frame, query=query, batch=batch))

    @abstractmethod
    def last_batch(self, query: str) -> int:
        """The newest batch of the query that the table holds; -1 if none."""

    @abstractmethod
    def schema(self) -> StructType | None:
        """None if there is no such table yet."""

    @abstractmethod
    def commit(self, staged: Staged) -> Written:
        """One atomic step. Says `is_repeat` if somebody else committed this batch meanwhile."""

    @abstractmethod
    def compact(self) -> Compacted:
        """Make one file of many small ones, and drop what no reader needs any more."""

    @abstractmethod
    def staging(self, query: str) -> str:
        """The directory under which attempts of the query's batches are written."""

    def holds(self, *, query: str, batch: int) -> bool:
        """Whether the batch is in the table. If so, what failed attempts at it left behind is removed."""
        if self.last_batch(query) < batch:
            return False
        self.sweep(query=query, batch=batch)
        return True

    def stage(self, frame: DataFrame, *, query: str, batch: int) -> Staged:
        """Have Spark write the rows. SchemaChangeError if its columns must not go into the table."""
        from tidelog.pipeline.tables import files, schemas

        plan = schemas.plan(
            self.schema(),
            frame.schema,
            policy=self.settings.schema_changes,
            widens=self.widens,
            table=self.settings.path,
        )
        for name in self.settings.partition_by:
            schemas.check_partition_column(plan.schema, name, table=self.settings.path)
        directory = os.path.join(self.staging(query), f"batch-{batch:09d}-{uuid.uuid4().hex[:12]}")
        fitted = schemas.fit(frame, plan.schema)
        files.write_parquet(
            fitted, directory, self.settings.partition_by, keep_columns=self.keeps_partition_columns
        )
        return Staged(query, batch, directory, files.data_files(directory, self.path), plan)

    def discard(self, staged: Staged) -> None:
        shutil.rmtree(staged.directory, ignore_errors=True)

    def committed_directory(self, *, query: str, batch: int) -> str | None:
        """The name of the attempt that was committed, if the table still knows."""
        return None

    def sweep(self, *, query: str, batch: int, keep: str | None = None) -> None:
        """Remove the files of attempts at a committed batch other than the one that was committed.

        Only when it is committed: until then another driver that has not heard of its end could still commit one of them.
        """
        keep = keep or self.committed_directory(query=query, batch=batch)
        if keep is not None:
            self.remove_attempts(query=query, batch=batch, keep=keep)

    def remove_attempts(self, *, query: str, batch: int, keep: str) -> None:
        staging = self.staging(query)
        for name in os.listdir(staging) if os.path.isdir(staging) else ():
            found = _ATTEMPT.fullmatch(name)
            if found is not None and int(found[1]) == batch and name != keep:
                shutil.rmtree(os.path.join(staging, name), ignore_errors=True)

    def widens(self, of: object, to: object) -> bool:
        """Whether a column of the table can become a wider type (both are Spark's)."""
        return False


def query_digest(query: str) -> str:
    """Short, and fit for the name of a file."""
    return hashlib.sha256(query.encode()).hexdigest()[:12]


def open_table(kind: TableFormat, settings: TableSettings) -> Table:
    if kind == "delta":
        from tidelog.pipeline.tables.delta import DeltaLakeTable

        return DeltaLakeTable(settings)
    if kind == "parquet":
        from tidelog.pipeline.tables.parquet import ParquetTable

        return ParquetTable(settings)
    from tidelog.pipeline.tables.iceberg import IcebergTable

    return IcebergTable(settings)
