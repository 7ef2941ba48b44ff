"""Building a table of state anew from the first offset while the old one goes on being read.

What there is to know is in two places that survive a crash at any point between them: the plan (`rebuild.json` in the flow's state directory) names the checkpoint that it
replaces and how far the new rows must have come before they take the old ones' place; the checkpoint is moved away whole. A checkpoint that the plan names is moved away at the
next start, so a rebuild that was asked for is not lost.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.errors import TidelogError
from tidelog.pipeline.microbatches import Planned, local_path, stored_query_id
from tidelog.spark.offsets import Offsets

if TYPE_CHECKING:
    from tidelog.client.metadata import TopicPartition

FILE: Final = "rebuild.json"


class RebuildError(TidelogError):
    """A table cannot be built anew."""


@dataclass(frozen=True, slots=True)
class Plan:
    replaces: str | None
    """The checkpoint that came before; None: there was none."""
    goal: Offsets
    """Where the topics ended when the rebuild was asked for."""

    def is_reached(self, batch: Planned | None) -> bool:
        """Whether the batch ends at or behind the goal, everywhere."""
        end = batch.end if batch is not None else None
        if end is None:
            raise RebuildError(
                "a rebuild needs a checkpoint on a file system of this machine, to see how far it has come: "
                "begin with an empty table and no checkpoint instead"
            )
        return all(end.next.get(tp, 0) >= offset for tp, offset in self.goal.next.items())


def begin_from(state: str, checkpoint: str, source: Mapping[str, str]) -> Plan:
    """As `begin`, with the goal where the topics of a source (its options) end now."""
    from tidelog.spark.logs import Logs
    from tidelog.spark.options import SourceOptions

    view = Logs(SourceOptions.parse(source, is_stream=True)).look()
    return begin(state, checkpoint, view.latest, view.topic_ids)


def begin(
    state: str, checkpoint: str, goal: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]
) -> Plan:
    """The next start of the query reads from the beginning."""
    plan = Plan(stored_query_id(checkpoint), Offsets(dict(goal), dict(topic_ids)))
    os.makedirs(state, exist_ok=True)
    path = os.path.join(state, FILE)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump({"replaces": plan.replaces, "goal": plan.goal.to_json()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)
    carry_out(plan, checkpoint)
    return plan


def begun(state: str, checkpoint: str) -> Plan | None:
    """The plan of a rebuild, also when it has been done: then the table says that it has the new checkpoint's rows."""
    try:
        with open(os.path.join(state, FILE), encoding="utf-8") as file:
            document = json.load(file)
    except FileNotFoundError:
        return None
    plan = Plan(document["replaces"], Offsets.from_json(document["goal"]))
    carry_out(plan, checkpoint)
    return plan


def carry_out(plan: Plan, checkpoint: str) -> None:
    """Move the old checkpoint away, if it is still there. One is kept."""
    if plan.replaces is None or stored_query_id(checkpoint) != plan.replaces:
        return
    path = local_path(checkpoint)
    assert path is not None, "what could be looked into is local"
    shutil.rmtree(f"{path}.before-rebuild", ignore_errors=True)
    os.rename(path, f"{path}.before-rebuild")


def is_done(state: str) -> None:
    """Forget the plan: whatever comes now goes into the table itself."""
    path = os.path.join(state, FILE)
    if os.path.exists(path):
        os.remove(path)
