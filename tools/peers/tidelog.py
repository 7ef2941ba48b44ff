"""Tidelog itself as a peer: the command a user types, in a process of its own.

Owns the command line and nothing else; the broker is reached through its socket only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools.peers.process import Peer

FOR_TESTS = ("TIDELOG_TEST_", "TIDELOG_CRASH_", "TIDELOG_FUZZ_", "TIDELOG_KILLS")
"""Variables with our prefix that speak to a test run; to a broker they would be settings that it does not know."""


def environment() -> dict[str, str]:
    """What a broker inherits from a test run."""
    return {name: value for name, value in os.environ.items() if not name.startswith(FOR_TESTS)}


class TidelogPeer(Peer):
    """`tidelog start` on loopback."""

    def __init__(
        self,
        *,
        durability: str = "fsync",
        settings: dict[str, str] | None = None,
        name: str | None = None,
        data_dir: Path | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__(data_dir=data_dir, port=port)
        self.name = name or f"tidelog-{durability}"
        self._settings = {"durability": durability} | (settings or {})

    def environment(self) -> dict[str, str]:
        return environment()

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "tidelog", "start"]
        command += ["--port", str(self.port), "--data-dir", str(self.log_dir)]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        return command
