"""kill -9 at random instants of whoever takes part in a stream, until it has caught up all the same. What is in the table afterwards is the caller's to compare.

A pipeline is a command that works until it has caught up and then ends with 0. It says `TIDELOG RUNNING` on standard output when its stream has begun: instants count from there, or most of them would
hit Spark's start. The command is killed with all that it has started (Java, Python workers), found by their parents; so is, on a cluster, an executor. Nobody else is.

`TIDELOG_KILLS` says how many kills a long run has, `TIDELOG_KILLS_SEED` repeats the instants of one.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

RUNNING = "TIDELOG RUNNING"
START_SECONDS_MAX = 300.0
CATCH_UP_SECONDS_MAX = 600.0
KILLS = int(os.environ.get("TIDELOG_KILLS", "20"))
SEED = int(os.environ.get("TIDELOG_KILLS_SEED", "0")) or random.randrange(1, 1 << 32)


@dataclass
class Pipeline:
    """A command, started as often as need be."""

    command: Sequence[str]
    output: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when its stream has begun, or the process has ended."""
        before = self.output.stat().st_size if self.output.exists() else 0
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self.command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environment}, start_new_session=True,
            )  # fmt: skip
        self.starts += 1
        until = time.monotonic() + START_SECONDS_MAX
        while RUNNING.encode() not in self.output.read_bytes()[before:] and self._process.poll() is None:
            if time.monotonic() > until:
                self.kill()
                raise AssertionError(f"not running after {START_SECONDS_MAX:.0f} s:\n{self.tail()}")
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """The driver and everything below it, at once."""
        if self._process is None:
            return
        below = list(descendants(self._process.pid))
        for pid in (self._process.pid, *below):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def kill_driver_alone(self) -> None:
        """Java stays until it notices: for a moment there are two of them."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def finish(self) -> None:
        """Wait until it has caught up. One that fails because its broker was away is started again."""
        assert self._process is not None
        try:
            code = self._process.wait(CATCH_UP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"not caught up after {CATCH_UP_SECONDS_MAX:.0f} s:\n{self.tail()}"
            ) from None
        assert code == 0, f"the pipeline ended with {code}:\n{self.tail()}"

    def tail(self) -> str:
        return self.output.read_bytes()[-6000:].decode(errors="replace")


@contextmanager
def running(pipeline: Pipeline) -> Iterator[Pipeline]:
    try:
        yield pipeline
    finally:
        pipeline.kill()


@contextmanager
def steadily(work: Callable[[], None], every_seconds: float) -> Iterator[None]:
    """Do it again and again meanwhile (send records); what it raises is raised at the end."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def loop() -> None:
        try:
            while not stop.wait(every_seconds):
                work()
        except BaseException as failure:  # noqa: BLE001 - raised by the test's own thread
            failures.append(failure)

    thread = threading.Thread(target=loop, name="load")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


def strike(
    pipeline: Pipeline, chance: random.Random, kills: Sequence[Callable[[], None]], *, within_seconds: float
) -> list[str]:
    """Each kill at a random instant after the stream has begun; a pipeline that is not running is started first. Says what was done when."""
    done: list[str] = []
    for kill in kills:
        if not pipeline.is_running:
            pipeline.start()
        instant = chance.uniform(0, within_seconds)
        time.sleep(instant)
        done.append(f"{getattr(kill, '__name__', kill)} after {instant:.2f} s, start {pipeline.starts}")
        kill()
    return done


def descendants(pid: int) -> Iterator[int]:
    """Children, their children, and so on, as they are now; also those in sessions of their own."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                stat = Path("/proc", name, "stat").read_text()
                parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    waiting = [pid]
    while waiting:
        for child in parents.get(waiting.pop(), ()):
            waiting.append(child)
            yield child


def executors(worker: int) -> list[int]:
    """Executor processes of a standalone worker."""
    found = []
    for pid in descendants(worker):
        with suppress(OSError):
            if b"CoarseGrainedExecutorBackend" in Path("/proc", str(pid), "cmdline").read_bytes():
                found.append(pid)
    return found
