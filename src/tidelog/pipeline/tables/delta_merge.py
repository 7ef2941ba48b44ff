"""A Delta table of current state: rows of a batch are merged in by key, in one commit that says which batch it was.

Updates, inserts and deletions of a batch, its application transaction (checkpoint, batch) and the ledger's facts are one Delta commit, so they are there together or not
at all; a repeated batch writes nothing. Two runners cannot both commit: Delta refuses the second, and its repeat finds the first one's word. A rebuild collects beside the table and
replaces all of its rows in one commit; readers see the old rows or the new ones.
The rows of one batch are in the driver's memory, and files that hold a changed row are written anew: keep batches bounded and the table's files of moderate size.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidelog.pipeline.databases_ledger import Batch, Kept, is_new
from tidelog.pipeline.latest import DELETED
from tidelog.pipeline.microbatches import local_path
from tidelog.pipeline.tables.table import TableError

if TYPE_CHECKING:
    import pyarrow as pa

_FACT: Final = "tidelog."
HOURS_ENFORCED: Final = 168.0
"""Delta wants to be told twice to remove files sooner."""
HISTORY_MAX: Final = 200
"""How many commits back ours is looked for: compaction and others commit in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """Small files are made one, and files that were replaced go after a while."""

    every_batches: int = 100
    """0: never."""
    retention_hours: float = 168.0


class DeltaState:
    """`prepare` once, `apply` for every batch."""

    def __init__(
        self,
        path: str,
        schema: pa.Schema,
        key: Sequence[str],
        *,
        nullable: Sequence[str] = (),
        upkeep: Upkeep | None = None,
    ) -> None:
        """`nullable`: columns of the key in which null is a value like others. For the rest, a merge knows which files it need not look at."""
        self.path = path.rstrip("/")
        self.schema = schema
        self.key = tuple(key)
        self.nullable = frozenset(nullable)
        self.upkeep = upkeep or Upkeep()

    @property
    def staging(self) -> str:
        return f"{self.path}__rebuild"

    def prepare(self, *, is_rebuild: bool = False) -> None:
        """Make the table, or see that the one there will do; a rebuild replaces one that will not."""
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self.path):
            DeltaTable.create(self.path, self.schema)
        elif not is_rebuild:
            self._check(DeltaTable(self.path))

    def kept(self) -> Kept | None:
        from deltalake import DeltaTable

        return _kept(DeltaTable(self.path)) if DeltaTable.is_deltatable(self.path) else None

    def holds(self, batch: Batch) -> bool:
        """Whether the batch is there already. FencedError as from `apply`."""
        kept = self.kept()
        is_ours = kept is not None and kept.checkpoint == batch.checkpoint
        if batch.is_rebuild and not is_ours:
            return False
        return not is_new(kept, batch, self.path)

    def apply(self, batch: Batch, rows: pa.Table) -> bool:
        """False: the batch was there already."""
        from deltalake import DeltaTable

        table = DeltaTable(self.path)
        kept = _kept(table)
        is_ours = kept is not None and kept.checkpoint == batch.checkpoint
        if batch.is_rebuild and not is_ours:
            return self._collect(batch, rows)
        if not is_new(kept, batch, self.path):
            return False
        self._merge(table, batch, rows)
        if self.upkeep.every_batches and (batch.number + 1) % self.upkeep.every_batches == 0:
            self._keep_up(table)
        return True

    def _keep_up(self, table: Any) -> None:
        hours = self.upkeep.retention_hours
        table.optimize.compact(max_concurrent_tasks=2)
        table.vacuum(
            retention_hours=int(hours), dry_run=False, enforce_retention_duration=hours >= HOURS_ENFORCED
        )

    def _collect(self, batch: Batch, rows: pa.Table) -> bool:
        """Into the table beside, and from there over the table once that has caught up."""
        from deltalake import DeltaTable, write_deltalake

        is_there = DeltaTable.is_deltatable(self.staging)
        kept = _kept(DeltaTable(self.staging)) if is_there else None
        is_fresh = is_new(kept if kept and kept.checkpoint == batch.checkpoint else None, batch, self.staging)
        if is_fresh and batch.number == 0:  # whatever an earlier rebuild left is gone with this
            write_deltalake(
                self.staging,
                self._alive(rows),
                mode="overwrite",
                schema_mode="overwrite",
                commit_properties=_facts(batch),
            )
        elif is_fresh:
            self._merge(DeltaTable(self.staging), batch, rows)
        if not batch.is_caught_up:
            return is_fresh
        whole = DeltaTable(self.staging).to_pyarrow_dataset().scanner(columns=self.schema.names).to_reader()
        write_deltalake(
            self.path, whole, mode="overwrite", schema_mode="overwrite", commit_properties=_facts(batch)
        )
        if (directory := local_path(self.staging)) is not None:
            shutil.rmtree(directory, ignore_errors=True)
        return True

    def _merge(self, table: Any, batch: Batch, rows: pa.Table) -> None:
        from deltalake import write_deltalake
        from deltalake.exceptions import CommitFailedError

        # In brackets: DataFusion takes all that follows IS NOT DISTINCT FROM for its right side.
        same = " AND ".join(
            f"(kept.{_quoted(name)} {'IS NOT DISTINCT FROM' if name in self.nullable else '='} new.{_quoted(name)})"
            for name in self.key
        )
        try:
            changed = 0
            if rows.num_rows:
                metrics = (
                    table.merge(
                        rows.select([*self.schema.names, DELETED]),
                        predicate=same,
                        source_alias="new",
                        target_alias="kept",
                        commit_properties=_facts(batch),
                    )
                    .when_matched_delete(f"new.{DELETED}")
                    .when_matched_update_all(f"NOT new.{DELETED}", except_cols=[DELETED])
                    .when_not_matched_insert_all(f"NOT new.{DELETED}", except_cols=[DELETED])
                    .execute()
                )
                changed = sum(
                    metrics[f"num_target_rows_{what}"] for what in ("inserted", "updated", "deleted")
                )
            if not changed:  # a merge that changes nothing commits nothing; the batch is noted all the same
                write_deltalake(
                    table, self.schema.empty_table(), mode="append", commit_properties=_facts(batch)
                )
        except CommitFailedError as error:
            raise TableError(
                f"table {self.path}: somebody else wrote to it while batch {batch.number} of flow {batch.flow} was merged, which was not written: {error}"
            ) from error

    def _alive(self, rows: pa.Table) -> pa.Table:
        import pyarrow.compute as pc

        return rows.filter(pc.invert(rows[DELETED])).select(self.schema.names)

    def _check(self, table: Any) -> None:
        import pyarrow as pa

        there = {field.name: field.type for field in pa.schema(table.schema().to_arrow())}
        wanted = {field.name: field.type for field in self.schema}
        problems = [f"it has no column {name} ({kind})" for name, kind in wanted.items() if name not in there]
        problems += [
            f"its column {name} is {there[name]}, not {kind}"
            for name, kind in wanted.items()
            if name in there and not _is_same(there[name], kind)
        ]
        problems += [f"it has a column {name} that the state has not" for name in there if name not in wanted]
        if problems:
            raise TableError(
                f"table {self.path} cannot hold this state: {'; '.join(problems)}. Change the schema of the flow, or let --rebuild replace the table"
            )


def _is_same(one: pa.DataType, other: pa.DataType) -> bool:
    """But for the names that lists and maps give their elements, which differ from library to library."""
    import pyarrow as pa

    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return [field.name for field in one] == [field.name for field in other] and all(
            _is_same(left.type, right.type) for left, right in zip(one, other, strict=True)
        )
    if pa.types.is_list(one) and pa.types.is_list(other):
        return _is_same(one.value_type, other.value_type)
    if pa.types.is_map(one) and pa.types.is_map(other):
        return _is_same(one.key_type, other.key_type) and _is_same(one.item_type, other.item_type)
    return bool(one == other)


def _facts(batch: Batch) -> Any:
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        app_transactions=[Transaction(batch.checkpoint, batch.number)],
        custom_metadata={
            f"{_FACT}flow": batch.flow,
            f"{_FACT}checkpoint": batch.checkpoint,
            f"{_FACT}batch": str(batch.number),
            f"{_FACT}offsets": batch.offsets,
        },
    )


def _kept(table: Any) -> Kept | None:
    """What the last commit of a flow says."""
    for limit in (1, HISTORY_MAX):
        for commit in table.history(limit):
            if f"{_FACT}batch" in commit:
                facts = {
                    name: str(commit[_FACT + name]) for name in ("flow", "checkpoint", "batch", "offsets")
                }
                return Kept(facts["flow"], facts["checkpoint"], int(facts["batch"]), facts["offsets"], False)
    return None


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
