"""A broker as a child process: started, asked whether it is ready, measured, stopped; always by its own pid.

Owns everything the bench and the outside-in tests need to know of a process (start-up seconds, resident memory, CPU
seconds). Never knows which broker it runs: `KafkaPeer` and `TidelogPeer` say what to start. Never signals a process
that it has not started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
API_VERSIONS_KEY = 18


class PeerUnavailableError(Exception):
    """The peer cannot be had on this machine: says which tool or registry is missing."""


class PeerFailedError(Exception):
    """The peer was started and did not come up, or died: carries the end of what it printed."""


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers_api_versions(port: int, timeout_seconds: float = 1.0) -> bool:
    """True when something on the port answers an ApiVersions 0 request, i.e. a broker serves clients there."""
    request = struct.pack(">hhih", API_VERSIONS_KEY, 0, 1, -1)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_seconds) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.recv(10)
    except OSError:
        return False
    return len(answer) == 10 and struct.unpack_from(">h", answer, 8)[0] == 0


class Peer(ABC):
    """One broker process on loopback with a data directory of its own.

    `start()` returns the bootstrap address; `pid`, `cpu_seconds()` and `rss_bytes()` describe the running process;
    `kill()` is kill -9; `stop()` ends it in order. The port stays the same over restarts, so that clients come back.
    """

    name: str

    def __init__(self, *, data_dir: Path | None = None, port: int | None = None) -> None:
        self._own_dir = data_dir is None
        self.data_dir = data_dir or Path(tempfile.mkdtemp(prefix="tidelog-peer-"))
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        self.startup_seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """The command line of the broker itself."""

    def prepare(self) -> None:  # noqa: B027 (most brokers need none)
        """Work before the first start that must not count as start-up time (fetching jars, formatting)."""

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def output_path(self) -> Path:
        return self.data_dir / "broker-output.log"

    @property
    def log_dir(self) -> Path:
        """Where the partition directories are."""
        return self.data_dir / "data"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise PeerFailedError(f"{self.name} has not been started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> str:
        """Launch and wait until clients are served; `startup_seconds` says how long that took."""
        began = self.launch()
        self.wait_until_ready(began)
        self.startup_seconds = time.perf_counter() - began
        return self.bootstrap

    def launch(self) -> float:
        """Start the process without waiting for it; returns when that was."""
        if self.is_running:
            raise PeerFailedError(f"{self.name} is already running as pid {self.pid}")
        self.prepare()
        began = time.perf_counter()
        with self.output_path.open("ab") as output:
            self._process = subprocess.Popen(
                self.command(),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment(),
                start_new_session=True,
            )
        return began

    def wait_until_ready(self, began: float) -> None:
        while not self.is_ready():
            if not self.is_running:
                raise PeerFailedError(f"{self.name} ended while starting:\n{self.output_tail()}")
            if time.perf_counter() - began > READY_SECONDS_MAX:
                self.kill()
                raise PeerFailedError(
                    f"{self.name} not ready after {READY_SECONDS_MAX} s:\n{self.output_tail()}"
                )
            time.sleep(0.01)

    def is_ready(self) -> bool:
        return answers_api_versions(self.port)

    def output_tail(self, lines: int = 30) -> str:
        if not self.output_path.exists():
            return "(no output)"
        return "\n".join(self.output_path.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> None:
        """kill -9: nothing is flushed, nothing said goodbye to."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._reap()

    def pause(self) -> None:
        """Take no processor time until `resume`: even an idle broker's threads cost its neighbours."""
        if self.is_running:
            os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Go on, and wait until clients are served."""
        os.kill(self.pid, signal.SIGCONT)
        self.wait_until_ready(time.perf_counter())

    def ask_to_stop(self) -> None:
        """SIGTERM, and do not wait."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)  # a paused one would not hear it

    def terminate(self) -> int:
        """SIGTERM and wait; returns the exit status."""
        if self._process is None:
            return 0
        self.ask_to_stop()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise PeerFailedError(
                f"{self.name} did not stop within {STOP_SECONDS_MAX} s of SIGTERM:\n{self.output_tail()}"
            ) from None
        return self._process.returncode

    def stop(self) -> None:
        """In-order stop; the data directory goes too when it was a temporary one of ours."""
        try:
            self.terminate()
        finally:
            self._reap()
            if self._own_dir:
                shutil.rmtree(self.data_dir, ignore_errors=True)

    def _reap(self) -> None:
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)

    def cpu_seconds(self) -> float:
        """User and system CPU time of the broker process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _status_bytes(self, field: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
        raise PeerFailedError(f"/proc/{self.pid}/status has no {field}")

    def rss_bytes(self) -> int:
        return self._status_bytes("VmRSS:")

    def rss_peak_bytes(self) -> int:
        """The most that was ever resident, or since `forget_rss_peak`."""
        return self._status_bytes("VmHWM:")

    def forget_rss_peak(self) -> None:
        """Let the kernel count the peak of the resident memory anew (Linux 4.0 and later, one's own processes)."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def disk_read_bytes(self) -> int:
        """Bytes that the process had to fetch from a disk: what the page cache held does not count."""
        for line in Path(f"/proc/{self.pid}/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
        raise PeerFailedError(f"/proc/{self.pid}/io has no read_bytes")

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def __enter__(self) -> Peer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
