"""What jobs with a table of state have in common: where reading begins, what each batch is to the table's ledger, and when a rebuild is over.

Decides nothing about rows. What it needs to know of the past is in the checkpoint and the plan of the rebuild.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidelog.pipeline import rebuild
from tidelog.pipeline.context import JobContext
from tidelog.pipeline.databases_ledger import Batch
from tidelog.pipeline.decoding_options import FromValues
from tidelog.pipeline.microbatches import planned, query_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class IntoState(FromValues):
    """Options of jobs with a table of state."""

    rebuild: bool = False
    """Build the table anew from the first offset; the old rows are replaced, all at once, when the new ones have caught up."""
    take_over: bool = False
    """Go on with a table that was written under another checkpoint, from the offsets of this one's."""


class StateFlow:
    """A rebuild that was asked for, or that is under way, begins with this."""

    def __init__(self, context: JobContext, options: IntoState) -> None:
        self._context = context
        self._options = options
        self._takes_over = options.take_over
        self._plan = rebuild.begun(context.state, context.checkpoint)
        if options.rebuild and self._plan is None:
            source = options.source_options(context)
            self._plan = rebuild.begin_from(context.state, context.checkpoint, source)

    @property
    def is_rebuild(self) -> bool:
        return self._plan is not None

    def stream(self) -> DataFrame:
        chosen = replace(self._options, start="earliest") if self.is_rebuild else self._options
        return chosen.stream(self._context)

    def batch(self, number: int) -> Batch:
        """Within `foreachBatch`."""
        where = planned(self._context.checkpoint, number)
        return Batch(
            flow=self._context.name,
            checkpoint=query_id(self._context.spark),
            number=number,
            offsets=where.offsets if where else "",
            is_rebuild=self.is_rebuild,
            is_caught_up=self._plan is None or self._plan.is_reached(where),
            takes_over=self._takes_over,
        )

    def is_written(self, batch: Batch) -> None:
        """The batch is in the table."""
        self._takes_over = False
        if self._plan is not None and batch.is_caught_up:
            rebuild.is_done(self._context.state)
            self._plan = None
