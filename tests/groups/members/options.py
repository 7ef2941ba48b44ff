"""The command line that all members share, and when a member has to end."""

from __future__ import annotations

import argparse
import os
import signal
from dataclasses import dataclass
from types import FrameType

from tests.groups.members.pen import Pen, Progress


@dataclass(frozen=True, slots=True)
class Options:
    bootstrap: str
    group: str
    topic: str
    output: str
    protocol: str
    assignor: str
    instance_id: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    commit: str
    commit_every: int
    commit_seconds: float
    auto_commit_interval_ms: int
    work_seconds: float

    @property
    def commits_by_hand(self) -> bool:
        return self.commit == "manual"

    def progress(self, pen: Pen) -> Progress:
        return Progress(
            pen,
            work_seconds=self.work_seconds,
            commit_every=self.commit_every,
            commit_seconds=self.commit_seconds,
        )


def parse() -> Options:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "group", "topic", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic")
    parser.add_argument("--assignor", default="range", help="names, separated by commas")
    parser.add_argument("--instance-id")
    parser.add_argument("--session-timeout-ms", type=int, default=6000)
    parser.add_argument("--heartbeat-interval-ms", type=int, default=1000)
    parser.add_argument("--commit", choices=("manual", "auto"), default="manual")
    parser.add_argument("--commit-every", type=int, default=100, help="records that were processed")
    parser.add_argument(
        "--commit-seconds", type=float, default=0.25, help="the longest time between two commits"
    )
    parser.add_argument("--auto-commit-interval-ms", type=int, default=5000)
    parser.add_argument("--work-seconds", type=float, default=0.0, help="of a slow worker, for each record")
    return Options(**vars(parser.parse_args()))


class Stop:
    """True from SIGTERM on, and when the parent is gone: no member outlives its test."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._asked = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True

    def __bool__(self) -> bool:
        return self._asked or os.getppid() != self._parent
