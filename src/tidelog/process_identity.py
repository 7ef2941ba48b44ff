"""Which process it was: numbers of processes are given out again, so a number alone names nobody for long. With its start and the machine's boot it does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


def this_process() -> dict[str, Any]:
    return identity(os.getpid())


def identity(pid: int) -> dict[str, Any]:
    """For a file that outlives the process."""
    return {"pid": pid, "started": _started(pid), "boot": _boot()}


def why_gone(process: Mapping[str, Any]) -> str | None:
    """None if it lives."""
    if process["boot"] != _boot():
        return "the machine has been started anew since"
    started = _started(process["pid"])
    if not started or process["started"] != started:
        return f"process {process['pid']} is gone"
    return None


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:  # no Linux: the process's number has to do
        return ""


def _started(pid: int) -> str:
    """When a process was started, in the kernel's own count; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return "" if os.path.isdir("/proc/self") else _lives(pid)
    return "" if fields[0] in "ZX" else fields[19]


def _lives(pid: int) -> str:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "alive"
