"""A broker process under strace: the same `tidelog start`, with every process's system calls in a file of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path

from tidelog.testing.syscalls import strace
from tidelog.testing.syscalls.crash_states import Recording, left_by
from tools.peers.process import PeerFailedError
from tools.peers.tidelog import TidelogPeer

MUTANTS = Path(__file__).with_name("mutants.py")


class TracedBroker(TidelogPeer):
    """`mutant` names a fault of `mutants.py` that the broker is started with."""

    def __init__(
        self, data_dir: Path, *, settings: dict[str, str] | None = None, mutant: str | None = None
    ) -> None:
        super().__init__(durability="fsync", data_dir=data_dir, settings=settings)
        self.traces: list[Path] = []
        self._mutant = mutant

    def command(self) -> list[str]:
        broker = super().command()
        if self._mutant is not None:
            broker[1:3] = [str(MUTANTS), self._mutant]
        self.traces.append(self.data_dir / f"trace-{len(self.traces)}")
        assert broker[0] == sys.executable
        return strace.command(self.traces[-1], broker)

    @property
    def broker_pid(self) -> int:
        """The traced process: strace's only child."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        if len(children) != 1:
            raise PeerFailedError(f"strace has the children {children}")
        return int(children[0])

    def kill(self) -> None:
        """The broker is killed, not strace: that one writes down how it ended, and ends too."""
        if self.is_running:
            with contextlib.suppress(PeerFailedError, FileNotFoundError, ProcessLookupError):
                os.kill(self.broker_pid, signal.SIGKILL)
        self._reap()
        super().kill()
        self._keep()

    def terminate(self) -> int:
        if self.is_running:
            os.kill(self.broker_pid, signal.SIGTERM)
            assert self._process is not None
            code = self._process.wait(30)
            self._keep()
            return code
        return 0

    def _keep(self) -> None:
        """The directory as this process left it: what became of the calls that it died within is not in its trace."""
        if self.traces and not left_by(self.traces[-1]).exists():
            shutil.copytree(self.log_dir, left_by(self.traces[-1]))

    def recording(self) -> Recording:
        return Recording(str(self.log_dir), self.traces)
