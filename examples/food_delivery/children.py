"""Processes that belong to one run: each with its output in a file, ended one after the other, none left behind.

Each is the leader of a session of its own, so that Ctrl-C reaches only the process that knows in which order to stop them, and what a child has started is found
by its process group. On Linux a child is told when its parent is gone, however that happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

POLL_SECONDS: Final = 0.05
LAST_LINES: Final = 12
LAST_BYTES: Final = 64 * 1024
_PR_SET_PDEATHSIG: Final = 1


class Child:
    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        *,
        directory: Path | None = None,
    ) -> None:
        """Starts it, in `directory`; its output goes to `log`, from the beginning."""
        self.name, self.log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=directory,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def last_lines(self, count: int = LAST_LINES) -> list[str]:
        with open(self.log, "rb") as output:
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - LAST_BYTES))
            text = output.read().decode("utf-8", "replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]

    async def stop(self, how: signal.Signals, patience_seconds: float) -> bool:
        """Ask it to end; False if it had to be killed because it did not within `patience_seconds`."""
        if self.exit_code is None:
            self._process.send_signal(how)
        is_over = await self._over_within(patience_seconds)
        self.kill()  # the process, or what it has left behind in its group
        await self._over_within(patience_seconds)
        return is_over

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _over_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.exit_code is None:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """Between fork and exec: SIGTERM when the parent dies."""
    assert _libc is not None
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
