"""A Delta table, through the package deltalake: files from Spark's executors, one commit by the driver.

The commit holds the files and an application transaction (the query, and the batch as its version), so that the two are in the table together or not at all.
A commit of the same query that happened meanwhile, by a driver that was thought dead, makes this one fail instead of being merged: Delta's own rule for such transactions.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import types as t

from tidelog.pipeline.tables.files import ColumnStats, DataFile
from tidelog.pipeline.tables.schemas import Plan
from tidelog.pipeline.tables.table import Compacted, Staged, Table, TableError, Written, query_digest

DIRECTORY: Final = "tidelog.directory"
HISTORY_MAX: Final = 200
"""How many commits back the attempt is looked for that wrote a batch; it is the last one or close to it."""
HOURS_ENFORCED: Final = 168.0
EMPTY_SECONDS_MIN: Final = 3600.0


class DeltaLakeTable(Table):
    _known: Any = None

    def last_batch(self, query: str) -> int:
        table = self._table()
        return -1 if table is None else _last_batch(table, query)

    def schema(self) -> t.StructType | None:
        table = self._table()
        return None if table is None else t.StructType.fromJson(json.loads(table.schema().to_json()))

    def staging(self, query: str) -> str:
        return os.path.join(self.path, f"tidelog-{query_digest(query)}")

    def commit(self, staged: Staged) -> Written:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        if not staged.files:
            self.discard(staged)
            return Written()
        properties = CommitProperties(
            app_transactions=[Transaction(staged.query, staged.batch)],
            custom_metadata={DIRECTORY: os.path.relpath(staged.directory, self.path)},
        )
        try:
            is_repeat = not self._commit(staged, properties)
        except CommitFailedError as error:
            if self.last_batch(staged.query) < staged.batch:
                raise TableError(f"table {self.settings.path}: batch {staged.batch}: {error}") from error
            is_repeat = True
        if is_repeat:
            self.discard(staged)
            return Written(is_repeat=True)
        self.sweep(query=staged.query, batch=staged.batch, keep=os.path.basename(staged.directory))
        return staged.written()

    def _commit(self, staged: Staged, properties: Any) -> bool:
        """False if the version of the table that the commit builds on holds the batch. One that comes later makes the commit fail."""
        from deltalake import Schema
        from deltalake.transaction import create_table_with_add_actions

        schema = Schema.from_json(staged.plan.schema.json())
        by = list(self.settings.partition_by)
        actions = [add_action(each) for each in staged.files]
        table = self._table()
        if table is None:
            create_table_with_add_actions(
                self.path, schema, actions, mode="error", partition_by=by, commit_properties=properties,
                configuration=dict(self.settings.options),
            )  # fmt: skip
            return True
        self._check_partitions(table)
        self._evolve(table, staged.plan)
        if _last_batch(table, staged.query) >= staged.batch:
            return False
        table.create_write_transaction(actions, "append", schema, by, commit_properties=properties)
        return True

    def _check_partitions(self, table: Any) -> None:
        has = tuple(table.metadata().partition_columns)
        if has != self.settings.partition_by:
            raise TableError(
                f"table {self.settings.path} is partitioned by {', '.join(has) or 'nothing'}, not by "
                f"{', '.join(self.settings.partition_by) or 'nothing'}: partition_by cannot be changed once a table is there"
            )

    def _evolve(self, table: Any, plan: Plan) -> None:
        """A commit of its own before that of the rows: a crash in between leaves columns that are all null, and the repeat finds them."""
        from deltalake import Field

        if not plan.added:
            return
        touched = {path.partition(".")[0] for path in plan.added}
        fields = [each for each in plan.schema.fields if each.name in touched]
        table.alter.add_columns([Field.from_json(field.json()) for field in fields])

    def committed_directory(self, *, query: str, batch: int) -> str | None:
        table = self._table()
        prefix = os.path.relpath(os.path.join(self.staging(query), f"batch-{batch:09d}-"), self.path)
        for commit in table.history(HISTORY_MAX) if table is not None else ():
            if str(commit.get(DIRECTORY, "")).startswith(prefix):
                return os.path.basename(str(commit[DIRECTORY]))
        return None

    def compact(self) -> Compacted:
        table = self._table()
        if table is None:
            return Compacted()
        metrics = table.optimize.compact(max_concurrent_tasks=2)
        hours = self.settings.retention_hours
        table.vacuum(
            retention_hours=int(hours), dry_run=False, enforce_retention_duration=hours >= HOURS_ENFORCED
        )
        _remove_empty(self.path)
        return Compacted(metrics["numFilesRemoved"], metrics["numFilesAdded"])

    def _table(self) -> Any:
        from deltalake import DeltaTable

        if self._known is None:
            if not DeltaTable.is_deltatable(self.path):
                return None
            self._known = DeltaTable(self.path)
        else:
            self._known.update_incremental()
        return self._known


def _last_batch(table: Any, query: str) -> int:
    version = table.transaction_version(query)
    return -1 if version is None else int(version)


def add_action(file: DataFile) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(
        file.path, file.size_bytes, file.partition, int(time.time() * 1000), True, delta_stats(file)
    )


def delta_stats(file: DataFile) -> str:
    """As Delta's protocol has them; readers skip files by these."""
    columns: Mapping[str, ColumnStats] = file.columns
    bounded = {name: stats for name, stats in columns.items() if stats.least is not None}
    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": {name: _bound(stats.least, is_most=False) for name, stats in bounded.items()},
            "maxValues": {name: _bound(stats.most, is_most=True) for name, stats in bounded.items()},
            "nullCount": {name: stats.nulls for name, stats in columns.items()},
        }
    )


def _bound(value: Any, *, is_most: bool) -> Any:
    if isinstance(value, dt.datetime):  # milliseconds, and never to the wrong side
        rest = value.microsecond % 1000
        value = value - dt.timedelta(microseconds=rest)
        if is_most and rest:
            value += dt.timedelta(milliseconds=1)
        return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
    return value.isoformat() if isinstance(value, dt.date) else value


def _remove_empty(path: str) -> None:
    """Folders of batches whose files a vacuum has removed. A young one may be empty because somebody has just begun to write to it."""
    for name in os.listdir(path):
        if not name.startswith("tidelog-"):
            continue
        for folder, _, _ in os.walk(os.path.join(path, name), topdown=False):
            is_old = os.path.getmtime(folder) < time.time() - EMPTY_SECONDS_MIN
            if is_old and folder != os.path.join(path, name) and not os.listdir(folder):
                os.rmdir(folder)
