"""The directory in which a pipeline keeps what must outlive its process: one runner at a time, one job for each name of a flow."""

from __future__ import annotations

import fcntl
import json
import os
from types import TracebackType
from typing import Final, Self

from tidelog.errors import TidelogError
from tidelog.pipeline.values import Flow, Pipeline

LOCK: Final = "lock"
OWNER: Final = "flow.json"


class StateInUseError(TidelogError):
    """Another runner has this directory, or a checkpoint in it belongs to something else."""


class StateDirectory:
    """Locked for this process as long as it is open. The lock goes with the process, however that ends."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock: int | None = None

    def __enter__(self) -> Self:
        os.makedirs(self.path, exist_ok=True)
        lock = os.open(os.path.join(self.path, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
            os.close(lock)
            raise StateInUseError(
                f"{self.path} is in use by a running pipeline{f' (process {holder})' if holder else ''}: "
                "stop that one, or give this one another state directory"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def claim(self, pipeline: Pipeline) -> None:
        """A directory for each flow. StateInUseError if one of them holds what another job has left."""
        for flow in pipeline.flows:
            self._claim(pipeline, flow)

    def _claim(self, pipeline: Pipeline, flow: Flow) -> None:
        directory = pipeline.state_of(flow.name)
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, OWNER)
        try:
            with open(path, encoding="utf-8") as file:
                owner = json.load(file)
        except FileNotFoundError:
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"job": flow.job}, file)
            return
        except ValueError:
            raise StateInUseError(
                f"{path} is damaged: remove it if {directory} belongs to flow {flow.name}"
            ) from None
        if owner.get("job") != flow.job:
            raise StateInUseError(
                f"the checkpoint in {directory} is of job {owner.get('job')}, and flow {flow.name} is of job {flow.job}: "
                "give the flow another name, or remove that directory to begin anew"
            )
