"""What is known of a running pipeline, in a file that others may read at any time: `status.json` in its state directory.

Written by the runner alone, whole or not at all. A reader also learns whether the process that wrote it still lives: its number is given to another
process some day, so its start time and the machine's boot are part of its identity.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tidelog.errors import TidelogError
from tidelog.pipeline.progress import QueryProgress
from tidelog.process_identity import why_gone

VERSION: Final = 1
FILE: Final = "status.json"
SILENT_SECONDS_MAX: Final = 15.0
"""The runner writes every second. One that lives and has not written for so long is stuck."""


class StatusError(TidelogError):
    """There is no status, or it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStatus:
    name: str
    job: str
    state: str
    """queued (until others have started), starting, running, waiting (to be started again), finished, failed, stopped"""
    queries: tuple[QueryProgress, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0
    error: str | None = None
    """Of the last failure, also after a restart."""
    warning: str | None = None
    """What the flow went on without, because the specification lets it."""
    result: Mapping[str, Any] | None = None
    """What a job with an end wants to say."""
    changed_at: float = 0.0
    """When its state last changed, in seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    name: str
    state: str
    """starting, running, stopping, stopped"""
    file: str | None
    master: str
    brokers: str
    started_at: float
    written_at: float
    process: Mapping[str, Any]
    flows: tuple[FlowStatus, ...] = ()

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, **asdict(self)}, ensure_ascii=False, default=str)


def write_status(directory: str, status: PipelineStatus) -> None:
    """OSError if it cannot be: the pipeline itself goes on without."""
    path = os.path.join(directory, FILE)
    unfinished = f"{path}.{os.getpid()}"
    try:
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(status.to_json())
        os.replace(unfinished, path)
    except OSError:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
        raise


def read_status(directory: str) -> PipelineStatus:
    path = os.path.join(directory, FILE)
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except FileNotFoundError:
        raise StatusError(f"no pipeline has run with the state directory {directory} yet") from None
    except ValueError as error:
        raise StatusError(f"{path} is no status: {error}") from None
    if document.pop("version", None) != VERSION:
        raise StatusError(f"{path} was written by another version of Tidelog")
    flows = tuple(
        FlowStatus(**{**flow, "queries": tuple(QueryProgress(**each) for each in flow["queries"])})
        for flow in document.pop("flows")
    )
    return PipelineStatus(**document, flows=flows)


def life_of(status: PipelineStatus, now: float) -> str:
    """In a few words: running, stopped, died, or silent. `now` in seconds since 1970."""
    if status.state == "stopped":
        return "stopped"
    process = status.process
    if (why := why_gone(process)) is not None:
        return f"died: {why}"
    silent = now - status.written_at
    if silent > SILENT_SECONDS_MAX:
        return f"silent for {silent:.0f} s: process {process['pid']} is there and says nothing"
    return status.state
