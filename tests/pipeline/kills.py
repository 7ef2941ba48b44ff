"""kill -9 at random instants of whoever takes part in a pipeline. What is in its tables afterwards is the caller's to compare.

A pipeline is `tidelog pipeline run` over a specification; it goes on until it is killed, and one that ends by itself has failed. Instants count from when every flow has begun, or most of them would hit
Spark's start. The command is killed with all that it has started (Java, Python workers), found by their parents; so is, on a cluster, an executor. Nobody else is.

`TIDELOG_KILLS` says how many kills a long run has, `TIDELOG_KILLS_SEED` repeats the instants of one.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.pipeline.commands import PYTHONPATH
from tidelog.pipeline.status import FlowStatus, StatusError, read_status
from tidelog.process_identity import identity

START_SECONDS_MAX = 300.0
BATCH_SECONDS_MAX = 300.0
CATCH_UP_SECONDS_MAX = 1200.0
EXECUTOR_SECONDS_MAX = 120.0
KILLS = int(os.environ.get("TIDELOG_KILLS", "20"))
SEED = int(os.environ.get("TIDELOG_KILLS_SEED", "0")) or random.randrange(1, 1 << 32)

Kill = Callable[[], None]
"""Its name is how it is counted."""


@dataclass
class Pipeline:
    """A specification, run as often as need be. `state` is its state directory."""

    spec: Path
    state: Path
    output: Path
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        """Returns when every flow has begun, or the process has ended."""
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidelog.cli.main", "pipeline", "run", str(self.spec), *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": PYTHONPATH, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        self.starts += 1
        until = time.monotonic() + START_SECONDS_MAX
        while self.is_running and not self._has_begun():
            if time.monotonic() > until:
                self.kill_driver()
                raise AssertionError(f"not running after {START_SECONDS_MAX:.0f} s:\n{self.tail()}")
            time.sleep(0.02)

    def _has_begun(self) -> bool:
        flows = self.flows()
        return bool(flows) and all(flow.state in ("running", "finished") for flow in flows)

    def flows(self) -> tuple[FlowStatus, ...]:
        """As the process that was started last tells it; nothing if it has told nothing yet."""
        with suppress(StatusError):
            status = read_status(str(self.state))
            if self._process is not None and status.process["pid"] == self._process.pid:
                return status.flows
        return ()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_for_batches(self) -> None:
        """Until every flow has finished one more: so that what was begun is killed, or whoever has died was got over."""
        before = self._batches()
        until = time.monotonic() + BATCH_SECONDS_MAX
        while not (now := self._batches()) or any(now[name] <= before.get(name, -1) for name in now):
            self.check_running()
            assert time.monotonic() < until, f"no batch in {BATCH_SECONDS_MAX:.0f} s:\n{self.tail()}"
            time.sleep(0.05)

    def _batches(self) -> dict[str, int]:
        return {
            flow.name: max((query.batch for query in flow.queries if query.batch is not None), default=-1)
            for flow in self.flows()
        }

    def is_older_than(self, pid: int) -> bool:
        assert self._process is not None
        own, other = identity(self._process.pid)["started"], identity(pid)["started"]
        return bool(own) and bool(other) and int(own) < int(other)

    def check_running(self) -> None:
        assert self.is_running, f"the pipeline has ended by itself:\n{self.tail()}"

    def kill_driver(self) -> None:
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

    def catch_up(self) -> None:
        """Go on where it was, with what is there now, to the end."""
        self.start("--once")
        assert self._process is not None
        try:
            code = self._process.wait(CATCH_UP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill_driver()
            raise AssertionError(
                f"not caught up after {CATCH_UP_SECONDS_MAX:.0f} s:\n{self.tail()}"
            ) from None
        assert code == 0, f"the pipeline ended with {code}:\n{self.tail()}"

    def tail(self) -> str:
        return self.output.read_bytes()[-6000:].decode(errors="replace")


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
    pipeline: Pipeline,
    chance: random.Random,
    kills: Sequence[Kill],
    *,
    within_seconds: float,
    after_batch: float,
) -> Iterator[str]:
    """Each kill at a random instant after all flows have begun, or after the kill before; a share of them, `after_batch`, after all flows have got something done since.

    A pipeline that was killed is started first. Says who died when.
    """
    for kill in kills:
        if not pipeline.is_running:
            pipeline.start()
        is_after_batch = chance.random() < after_batch
        if is_after_batch:
            pipeline.wait_for_batches()
        instant = chance.uniform(0, within_seconds)
        time.sleep(instant)
        pipeline.check_running()
        kill()
        since = "a batch" if is_after_batch else "the start or the kill before"
        yield f"start {pipeline.starts}: {kill.__name__} {instant:.2f} s after {since}"


def kill_one_executor(pipeline: Pipeline, workers: Sequence[int], chance: random.Random) -> None:
    """One that there is: a driver that has just begun has none yet, and those of the driver before it go by themselves."""
    until = time.monotonic() + EXECUTOR_SECONDS_MAX
    while time.monotonic() < until:
        pipeline.check_running()
        alive = [pid for worker in workers for pid in executors(worker) if pipeline.is_older_than(pid)]
        if alive:
            with suppress(ProcessLookupError):
                os.kill(alive[chance.randrange(len(alive))], signal.SIGKILL)
                return
        time.sleep(0.05)
    raise AssertionError(f"no executor was there within {EXECUTOR_SECONDS_MAX:.0f} s:\n{pipeline.tail()}")


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
