"""Which batch is in a table of state, and whether the next one may go in. Pure; the databases read and write the row in the transaction that changes the table.

That one row is what makes a database exactly once. The rows of a batch and the batch's number become durable together or not at all, so a batch that Spark repeats is
recognised by its number; and because whoever writes must first hold the row, a second runner finds what the first one wrote and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.errors import TidelogError


class FencedError(TidelogError):
    """Somebody else writes this table, or the checkpoint and the table do not belong together."""


@dataclass(frozen=True, slots=True)
class Batch:
    flow: str
    checkpoint: str
    """The id of the query, which is born with its checkpoint and gone with it."""
    number: int
    offsets: str = ""
    """Where the batch ends. Empty where that is not known; then it is not compared."""
    is_rebuild: bool = False
    """Rows are collected beside the table until `is_caught_up`."""
    is_caught_up: bool = True
    takes_over: bool = False
    """It may follow another checkpoint's. For the first batch of a run only: two runners must not take a table from each other by turns."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The ledger's row of a table."""

    flow: str
    checkpoint: str
    batch: int
    offsets: str
    rebuilding: bool


def is_new(kept: Kept | None, batch: Batch, target: str) -> bool:
    """False: it is in the table already. FencedError: it must not go in."""
    if kept is None:
        if batch.number > 0 and not batch.takes_over:
            raise FencedError(
                f"the checkpoint of flow {batch.flow} is at batch {batch.number}, but the database has never heard of it and table {target} may lack what came before: "
                "the database was emptied or restored, or the checkpoint imported. "
                "Rebuild the table from offset 0 with --rebuild, or set take_over = true to go on from the checkpoint's offsets"
            )
        return True
    if kept.flow != batch.flow:
        raise FencedError(
            f"table {target} is kept by flow {kept.flow}: flow {batch.flow} needs a table of its own"
        )
    if kept.checkpoint != batch.checkpoint:
        if batch.takes_over or (batch.is_rebuild and batch.number == 0):
            return True
        raise FencedError(
            f"table {target} was written up to batch {kept.batch} under checkpoint {kept.checkpoint}, and this run of flow {batch.flow} has checkpoint {batch.checkpoint}: "
            "either another runner has taken the flow over, and this one must end, or the checkpoint was lost or replaced. "
            "Then rebuild the table from offset 0 with --rebuild, or set take_over = true to go on from the offsets of the new checkpoint"
        )
    if batch.number == kept.batch:
        if batch.offsets and kept.offsets and batch.offsets != kept.offsets:
            raise FencedError(
                f"batch {batch.number} of flow {batch.flow} ended at {kept.offsets} when table {target} was written, and ends at {batch.offsets} now: "
                "the checkpoint was restored from a copy. Rebuild the table from offset 0 with --rebuild"
            )
        return False
    if batch.number == kept.batch + 1:
        return True
    if batch.number < kept.batch:
        raise FencedError(
            f"table {target} has batch {kept.batch} of flow {batch.flow} already, and this runner is at batch {batch.number}: "
            "another runner of the flow is ahead, and this one must end; or the checkpoint was restored from a copy, and the table has to be rebuilt with --rebuild"
        )
    raise FencedError(
        f"table {target} has flow {batch.flow} up to batch {kept.batch}, and the checkpoint is at batch {batch.number}: "
        "the database was restored from a copy and lacks what came between. Rebuild the table from offset 0 with --rebuild"
    )
