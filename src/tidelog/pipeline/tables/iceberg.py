"""An Iceberg table, through the package pyiceberg: files from Spark's executors, one commit by the driver.

The commit adds the files and sets a property of the table, the last batch of the query, in the same step; snapshots say query and batch, too, for people. pyiceberg would repeat a commit that met
another one without looking at that property, so it is told not to: the table is looked at again first. The catalog is a SQLite file beside the table unless the options say otherwise.
"""

from __future__ import annotations

import datetime as dt
import os
from typing import Any, Final

from pyspark.sql import types as t

from tidelog.pipeline.tables.schemas import Plan
from tidelog.pipeline.tables.table import (
    Compacted,
    Staged,
    Table,
    TableError,
    TableSettings,
    Written,
    query_digest,
)

IDENTIFIER: Final = "identifier"
CATALOG: Final = "catalog"
"""Options that are ours: the table's name in the catalog, and the catalog's own; all others are properties of the catalog."""
QUERY, BATCH, DIRECTORY = "tidelog.query", "tidelog.batch", "tidelog.directory"
COMMITS_MAX: Final = 10
"""How often a commit is tried that meets others."""
NEW_TABLE: Final = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""A stream commits for ever: what describes the table must not grow with every batch."""


class IcebergTable(Table):
    keeps_partition_columns = True  # pyiceberg learns a file's partition from the values in it
    _opened: Any = None

    def __init__(self, settings: TableSettings) -> None:
        super().__init__(settings)
        options = dict(settings.options)
        folder, name = os.path.split(self.path)
        self._identifier = options.pop(IDENTIFIER, f"default.{name}")
        self._name = options.pop(CATALOG, "tidelog")
        self._properties = (
            options
            if "uri" in options or "type" in options
            else {
                "type": "sql",
                "uri": f"sqlite:///{os.path.join(folder, 'iceberg.db')}",
                "warehouse": f"file://{folder}",
                **options,
            }
        )

    def last_batch(self, query: str) -> int:
        table = self._table()
        return -1 if table is None else _last_batch(table, query)

    def schema(self) -> t.StructType | None:
        from pyspark.sql.pandas.types import from_arrow_schema

        table = self._table()
        return None if table is None else from_arrow_schema(table.schema().as_arrow())

    def staging(self, query: str) -> str:
        return os.path.join(self.path, "data", f"tidelog-{query_digest(query)}")

    def widens(self, of: object, to: object) -> bool:
        if isinstance(of, t.DecimalType) and isinstance(to, t.DecimalType):
            return of.scale == to.scale
        pairs = ((t.IntegerType, t.LongType), (t.FloatType, t.DoubleType))
        return any(isinstance(of, one) and isinstance(to, other) for one, other in pairs)

    def commit(self, staged: Staged) -> Written:
        from pyiceberg.exceptions import CommitFailedException

        if not staged.files:
            self.discard(staged)
            return Written()
        table = self._table() or self._create(staged.plan)
        self._check_partitions(table)
        for left in reversed(range(COMMITS_MAX)):
            if _last_batch(table, staged.query) >= staged.batch:
                self.discard(staged)
                return Written(is_repeat=True)
            try:
                self._commit(table, staged)
                break
            except CommitFailedException as error:
                if left == 0:
                    raise TableError(
                        f"table {self.settings.path}: batch {staged.batch} met {COMMITS_MAX} commits of others: {error}"
                    ) from error
                table = self._table()
        self.sweep(query=staged.query, batch=staged.batch, keep=os.path.basename(staged.directory))
        return staged.written()

    def _commit(self, table: Any, staged: Staged) -> None:
        # Only in this process' copy: what others do when their commits meet is their business.
        once = {**table.metadata.properties, "commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"properties": once})
        says = {
            QUERY: staged.query,
            BATCH: str(staged.batch),
            DIRECTORY: os.path.relpath(staged.directory, self.path),
        }
        with table.transaction() as transaction:
            if staged.plan.changes_table:
                with transaction.update_schema() as update:
                    update.union_by_name(_arrow(staged.plan.schema))
            transaction.add_files(
                [f"file://{os.path.join(self.path, each.path)}" for each in staged.files],
                snapshot_properties=says,
                check_duplicate_files=False,  # names are never used twice, and looking would read the whole table
            )
            transaction.set_properties(**{_property(staged.query): str(staged.batch)})

    def _create(self, plan: Plan) -> Any:
        from pyiceberg.exceptions import TableAlreadyExistsError

        catalog = self._catalog()
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0] or "default")
        try:
            return catalog.create_table(
                self._identifier, _arrow(plan.schema), location=f"file://{self.path}", properties=NEW_TABLE
            )
        except TableAlreadyExistsError:
            return self._table()

    def _check_partitions(self, table: Any) -> None:
        has = tuple(table.schema().find_column_name(each.source_id) for each in table.spec().fields)
        if has == self.settings.partition_by:
            return
        if not has and table.current_snapshot() is None:  # just made
            with table.update_spec() as update:
                for name in self.settings.partition_by:
                    update.add_identity(name)
            return
        raise TableError(
            f"table {self.settings.path} is partitioned by {', '.join(has) or 'nothing'}, not by "
            f"{', '.join(self.settings.partition_by) or 'nothing'}: change the table, or partition_by"
        )

    def committed_directory(self, *, query: str, batch: int) -> str | None:
        table = self._table()
        prefix = os.path.relpath(os.path.join(self.staging(query), f"batch-{batch:09d}-"), self.path)
        for snapshot in reversed(table.snapshots() if table is not None else ()):
            said = snapshot.summary.additional_properties if snapshot.summary is not None else {}
            if said.get(DIRECTORY, "").startswith(prefix):
                return os.path.basename(str(said[DIRECTORY]))
        return None

    def compact(self) -> Compacted:
        """pyiceberg cannot make one data file of many. What it can: forget snapshots that are older than the retention."""
        table = self._table()
        if table is not None:
            before = dt.datetime.now(dt.UTC) - dt.timedelta(hours=self.settings.retention_hours)
            table.maintenance.expire_snapshots().older_than(before).commit()
        return Compacted()

    def _table(self) -> Any:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self._catalog().load_table(self._identifier)
        except NoSuchTableError:
            return None

    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        if self._opened is None:
            if self._properties.get("type") == "sql":
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
            self._opened = load_catalog(self._name, **self._properties)
        return self._opened


def _property(query: str) -> str:
    return f"tidelog.last-batch.{query}"


def _last_batch(table: Any, query: str) -> int:
    return int(table.properties.get(_property(query), -1))


def _arrow(schema: t.StructType) -> Any:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
