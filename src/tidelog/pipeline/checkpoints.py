"""A flow's position as plain offsets: out of the checkpoint that Spark keeps of it, and into a new one.

A checkpoint is tied to a query and its sources; offsets are not, so they survive a changed job, another Spark or a move to another machine. What else a
checkpoint holds (state of aggregations, the watermark) does not come along. Must not be called for a flow that runs: the state directory is locked meanwhile.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from typing import Any, Final

from tidelog.errors import TidelogError
from tidelog.pipeline.state_directory import StateDirectory
from tidelog.pipeline.values import Pipeline
from tidelog.spark.offsets import Offsets, OffsetsError

_VERSION_LINE: Final = "v1"


class CheckpointError(TidelogError):
    """There is no checkpoint to read, or none may be written."""


def export_offsets(pipeline: Pipeline, flow: str) -> dict[str, Any]:
    """The next offset of every partition, with the ids of the topics: `{"orders": {"0": 33}, "#": …}`. Of the last batch that is done."""
    return read_offsets(_checkpoint(pipeline, flow)).to_json()


def import_offsets(pipeline: Pipeline, flow: str, text: str, *, overwrite: bool = False) -> str | None:
    """Make a checkpoint that begins there. Returns where a former one was put, if there was one."""
    checkpoint = _checkpoint(pipeline, flow)
    try:
        offsets = Offsets.from_json(text)
    except OffsetsError as error:
        raise CheckpointError(f"these are no offsets: {error}") from None
    if not offsets.next:
        raise CheckpointError("these offsets name no partition")
    if below := [str(tp) for tp, offset in offsets.next.items() if offset < 0]:
        raise CheckpointError(
            f"offsets of a checkpoint are not negative, and those of {', '.join(below)} are"
        )
    kept: str | None = None
    with StateDirectory(pipeline.state) as directory:
        directory.claim(pipeline)
        if os.path.lexists(checkpoint):
            if not overwrite:
                raise CheckpointError(
                    f"flow {flow} has a checkpoint already, {checkpoint}: --overwrite puts it aside and begins at these offsets"
                )
            kept = f"{checkpoint}.{time.strftime('%Y%m%d-%H%M%S')}"
            os.rename(checkpoint, kept)
        write_offsets(checkpoint, offsets)
    return kept


def read_offsets(checkpoint: str) -> Offsets:
    """Up to where the last finished batch has read."""
    batch = max(_numbers(os.path.join(checkpoint, "commits")), default=None)
    if batch is None:
        raise CheckpointError(f"there is no finished batch in {checkpoint}: nothing to export")
    path = os.path.join(checkpoint, "offsets", str(batch))
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        raise CheckpointError(
            f"{checkpoint} has finished batch {batch} and no offsets of it: it is damaged"
        ) from None
    if len(lines) < 3 or lines[0] != _VERSION_LINE:
        raise CheckpointError(f"{path} is not as this version knows it: it begins with {lines[:1]}")
    if len(lines) > 3:
        raise CheckpointError(f"{path} has offsets of {len(lines) - 2} sources, and only one can be exported")
    try:
        return Offsets.from_json(lines[2])
    except OffsetsError as error:
        raise CheckpointError(f"{path} holds no offsets of topics: {error}") from None


def write_offsets(checkpoint: str, offsets: Offsets) -> None:
    """A checkpoint in which batch 0 has ended at these offsets, under a query id of its own."""
    position = json.dumps(offsets.to_json(), separators=(",", ":"))
    meta = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}})
    files = {
        "metadata": json.dumps({"id": str(uuid.uuid4())}),
        os.path.join("offsets", "0"): f"{_VERSION_LINE}\n{meta}\n{position}",
        os.path.join("commits", "0"): f"{_VERSION_LINE}\n" + json.dumps({"nextBatchWatermarkMs": 0}),
    }
    unfinished = f"{checkpoint}.unfinished-{os.getpid()}"
    for name, text in files.items():
        path = os.path.join(unfinished, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    os.rename(unfinished, checkpoint)


def _numbers(directory: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(directory) if name.isdecimal()]
    except FileNotFoundError:
        return []


def _checkpoint(pipeline: Pipeline, flow: str) -> str:
    if flow not in [each.name for each in pipeline.flows]:
        there_are = ", ".join(each.name for each in pipeline.flows)
        raise CheckpointError(f"there is no flow {flow}; there are {there_are}")
    directory = pipeline.checkpoints_of(flow)
    if "://" in directory:
        raise CheckpointError(
            f"the checkpoint is at {directory}, and only those in directories can be exported and imported"
        )
    return os.path.join(directory, "checkpoint")
