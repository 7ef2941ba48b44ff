"""Runs a command under strace, and reads what strace wrote: every call with its exact bytes, and the order of begins and ends.

The order is what counts. strace sees a call before the kernel does and its result after the kernel is done, so "ended before that one
began" is true of the kernel as well. Calls of several threads overlap; nothing here pretends that they do not.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

CALLS: Final = (
    # Names and descriptors.
    "open", "openat", "openat2", "creat", "close", "dup", "dup2", "dup3",
    "rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir",
    # Bytes of files. A call that the replay does not understand makes it fail; one missing here shows in the final comparison.
    "write", "writev", "pwrite64", "pwritev", "pwritev2", "truncate", "ftruncate", "fallocate", "copy_file_range",
    "fsync", "fdatasync", "sync", "syncfs", "sync_file_range",
    # Bytes of sockets. Not `read`: it would record every module that Python loads.
    "accept", "accept4", "recvfrom", "recvmsg", "sendto", "sendmsg", "sendfile",
)  # fmt: skip
STRING_BYTES_MAX: Final = 1 << 24

_LINE: Final = re.compile(r"(\d+) +(\d+\.\d+) (.*)", re.DOTALL)
_WHOLE: Final = re.compile(r"(\w+)\((.*)\) += (-?\d+|\?)(?: (.*))?", re.DOTALL)
# "detached": the process was killed within the call, and strace was the last to see it.
_UNFINISHED: Final = re.compile(r"(\w+)\((.*?),? *<(?:unfinished|detached) \.\.\.>", re.DOTALL)
_NEVER_RESUMED: Final = re.compile(
    r"<\.\.\. \w+ resumed>.*<(?:unfinished|detached) \.\.\.>(?:\) += \?.*)?", re.DOTALL
)
# Killed at the door of a call, before strace could read which: it was not let in.
_NEVER_BEGUN: Final = re.compile(r"(?:\?\?\?\(|<\.\.\. \?\?\? resumed>).*", re.DOTALL)
_RESUMED: Final = re.compile(r"<\.\.\. (\w+) resumed>(.*)\) += (-?\d+|\?)(?: (.*))?", re.DOTALL)
_STRING: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_BUFFER: Final = re.compile(r'iov_base="((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')


class TraceError(Exception):
    """The trace holds something that the replay does not understand: the model, not the broker, must be mended."""


@dataclass(eq=False, slots=True)
class Call:
    """One system call. `result` is None when it never returned: the process was killed within it."""

    thread: int
    name: str
    arguments: str
    result: int | None = None
    error: str = ""

    @property
    def failed(self) -> bool:
        return self.result is not None and self.result < 0

    def descriptor(self, number: int = 0) -> int:
        """The argument with this number, which must be a descriptor."""
        return int(self.arguments.split(", ")[number])

    def strings(self) -> list[bytes]:
        return [_bytes(*found) for found in _STRING.findall(self.arguments)]

    def buffers(self) -> bytes:
        """What a gathered write was given."""
        return b"".join(_bytes(*found) for found in _BUFFER.findall(self.arguments))

    def last_numbers(self, count: int) -> list[int]:
        return [int(text, 0) for text in self.arguments.rsplit(", ", count)[1:]]

    def __str__(self) -> str:
        arguments = self.arguments if len(self.arguments) < 200 else self.arguments[:200] + "…"
        return f"{self.name}({arguments}) = {self.result} {self.error}"


class Event(NamedTuple):
    """A call begins, or it has ended."""

    call: Call
    ended: bool


def _bytes(text: str, cut: str) -> bytes:
    if cut:
        raise TraceError(f"strace cut a string short after {len(text) // 4} bytes")
    return bytes.fromhex(text.replace("\\x", ""))


def command(output: Path, traced: Sequence[str]) -> list[str]:
    """The command line that runs `traced` and records it. The traced process is the child of strace's."""
    return [
        "strace", "--follow-forks", "--seccomp-bpf", "-ttt", "-xx", "-qq", "-s", str(STRING_BYTES_MAX), "-e", "signal=none",
        "-e", "trace=" + ",".join("?" + name for name in CALLS), "-o", str(output), *traced,
    ]  # fmt: skip


@cache
def unavailable() -> str | None:
    """Why nothing can be recorded on this machine and what to do about it; None when it can."""
    if shutil.which("strace") is None:
        return (
            "strace is not installed (apt install strace, dnf install strace): no system call can be recorded"
        )
    attempt = subprocess.run(
        command(Path("/dev/null"), ["true"]), capture_output=True, text=True, check=False
    )
    if attempt.returncode != 0:
        return (
            "strace is installed but may not trace here (in a container it needs the SYS_PTRACE capability; strace 5.3 or newer): "
            + attempt.stderr.strip()
        )
    return None


def read_trace(path: Path) -> list[Event]:
    with path.open(encoding="ascii", newline="\n") as file:
        return parse(file)


def parse(lines: Iterable[str]) -> list[Event]:
    """The events in the order in which they happened."""
    events: list[Event] = []
    unfinished: dict[int, Call] = {}
    for line in lines:
        parts = _LINE.fullmatch(line.rstrip("\n"))
        if parts is None:
            raise TraceError(f"strace wrote a line of no known form: {line[:200]!r}")
        thread, text = int(parts[1]), parts[3]
        if text.startswith(("+++", "---")) or _NEVER_BEGUN.fullmatch(text):
            continue
        if _NEVER_RESUMED.fullmatch(text):
            unfinished.pop(thread)  # begun, and that is all there is to say
        elif found := _RESUMED.fullmatch(text):
            call = unfinished.pop(thread)
            joint = ", " if call.arguments and found[2].strip() else ""
            call.arguments += joint + found[2].lstrip(", ")
            _set_result(call, found[3], found[4])
            events.append(Event(call, True))
        elif found := _WHOLE.fullmatch(text):
            call = Call(thread, found[1], found[2])
            _set_result(call, found[3], found[4])
            events += (Event(call, False), Event(call, True))
        elif found := _UNFINISHED.fullmatch(text):
            call = unfinished[thread] = Call(thread, found[1], found[2])
            events.append(Event(call, False))
        else:
            raise TraceError(f"strace wrote a line of no known form: {line[:200]!r}")
    return [event for event in events if not (event.ended and event.call.result is None)]


def _set_result(call: Call, result: str, error: str | None) -> None:
    call.result = None if result == "?" else int(result)
    call.error = error or ""
