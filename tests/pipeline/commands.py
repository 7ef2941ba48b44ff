"""`tidelog` as a person runs it: a process of its own, whose words are read as they come, in a process group that Ctrl-C reaches as a whole."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
"""What a command imports is what this checkout holds, wherever the package is installed from."""
SECONDS_MAX = 240.0  # on a machine that is busy with much else; on a free one it is a few


class Command:
    def __init__(self, *arguments: object, prefix: Sequence[str] = (), cwd: Path | None = None) -> None:
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tidelog.cli.main", *map(str, arguments)],
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.said: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    @property
    def text(self) -> str:
        return "\n".join(self.said)

    def wait_for(self, wanted: Callable[[str], bool], seconds: float = SECONDS_MAX) -> str:
        """The first line that is wanted, said before or to come; fails with all that was said if there is none."""
        for line in self.said:
            if wanted(line):
                return line
        deadline = time.monotonic() + seconds
        while True:
            try:
                new = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not said within {seconds:.0f} s; but\n{self.text}") from None
            if new is None:
                raise AssertionError(f"not said, and the command has ended; but\n{self.text}")
            self.said.append(new)
            if wanted(new):
                return new

    def interrupt(self) -> None:
        """Ctrl-C at a terminal: every process of the group hears it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self, seconds: float = SECONDS_MAX) -> int:
        code = self.process.wait(seconds)
        while (line := self._lines.get(timeout=60)) is not None:
            self.said.append(line)
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def said_by(*arguments: object) -> tuple[int, str]:
    command = Command(*arguments)
    return command.ended(), command.text


def status_of(spec: Path) -> dict[str, Any]:
    code, text = said_by("pipeline", "status", spec, "--json")
    assert code == 0, text
    return dict(json.loads(text))


def wait_until(is_true: Callable[[], bool], what: str, seconds: float = SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.1)
