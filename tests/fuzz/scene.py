"""A broker process under attack, with a bystander beside it: started, watched, and held to its promises at the end.

    with Scene(tmp_path) as scene:
        …attack scene.port…
    scene.verdict tells what the bystander saw, how much memory the broker took, and what it logged.

Leaving the block checks what must hold whatever was thrown at it: the broker lives, nobody waited for longer than a second, every
record of the bystander arrived once and in order, memory stayed below the limit, the log speaks of no bug, SIGTERM ends the
process with 0 and `tidelog log verify` finds nothing wrong with its files (I53).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.fuzz.wire import Wire
from tools.peers.tidelog import TidelogPeer

HANG_SECONDS_MAX = 1.0
RSS_BYTES_MAX = 150_000_000
BYSTANDER_TOPIC = "bystander"
BYSTANDER_RECORDS_MIN = 20
OPEN_BUGS = ("bug:", "Traceback", "never awaited", "never retrieved", "Exception in callback")


class Broker(TidelogPeer):
    """Without the tests' own variables, which are no settings of a broker."""

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_")}


class Scene:
    def __init__(
        self,
        directory: Path,
        *,
        settings: dict[str, str] | None = None,
        broker: type[Broker] = Broker,
        rss_bytes_max: int = RSS_BYTES_MAX,
        hang_seconds_max: float = HANG_SECONDS_MAX,
        verify: bool = True,
    ) -> None:
        self._directory = directory
        self.broker = broker(data_dir=directory / "broker", settings=settings)
        self._rss_bytes_max = rss_bytes_max
        self._hang_seconds_max = hang_seconds_max
        self._verify = verify
        self._done = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._bystander: subprocess.Popen[str] | None = None
        self.rss_start_bytes = 0
        self.rss_peak_bytes = 0
        self.seen: dict[str, Any] = {}

    @property
    def port(self) -> int:
        return self.broker.port

    def connect(self, **options: Any) -> Wire:
        return Wire(self.port, **options)

    def rss_bytes(self) -> int:
        return self.broker.rss_bytes()

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.broker.pid}/fd").iterdir()))

    def __enter__(self) -> Self:
        self.broker.start()
        try:
            with self.connect() as wire:
                wire.create(BYSTANDER_TOPIC)
            self._bystander = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.fuzz.bystander",
                    self.broker.bootstrap,
                    BYSTANDER_TOPIC,
                    str(self._directory),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[2],
            )
            assert self._bystander.stdout is not None
            assert self._bystander.stdout.readline().strip() == "running"
            self.rss_start_bytes = self.rss_bytes()
            self._sampler.start()
        except BaseException:
            self._clear_away()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._check()
            else:
                print(self.broker.output_tail(60))
        finally:
            self._clear_away()

    # ---- at the end

    def _check(self) -> None:
        assert self.broker.is_running, f"the broker died:\n{self.broker.output_tail(60)}"
        self._done.set()
        self._sampler.join()
        self.seen = self._dismiss_bystander()
        seen, log = self.seen, self.broker.output_path.read_text(errors="replace")
        where = f"\n{seen}\n{self.broker.output_tail(40)}"
        assert self.broker.terminate() == 0, f"SIGTERM did not end it in order{where}"
        assert not [word for word in OPEN_BUGS if word in log], _around(log)
        assert seen["ping_error"] is None and not seen["read_errors"] and not seen["failures"], where
        assert seen["sent"] >= BYSTANDER_RECORDS_MIN and seen["acknowledged"] == seen["sent"], where
        assert seen["in_order_once"], f"records lost, repeated or out of order{where}"
        # This machine's own: how late it wakes anybody, how much of its processors others take, how long its disk takes to sync.
        answer = seen["noise_seconds_max"] + self._hang_seconds_max * seen["slowdown"]
        synced = answer + seen["sync_seconds_max"]
        limits = {
            "ping_seconds_max": answer,
            "acknowledge_seconds_max": synced,
            "end_to_end_seconds_max": synced + answer,  # two requests: to bring it, to fetch it
        }
        for name, allowed in limits.items():
            assert seen[name] < allowed, f"{name}: {seen[name]:.2f} s, {allowed:.2f} allowed{where}"
        assert self.rss_peak_bytes < self._rss_bytes_max, (
            f"RSS reached {self.rss_peak_bytes / 1e6:.0f} MB{where}"
        )
        if self._verify:
            self._verify_files()

    def _dismiss_bystander(self) -> dict[str, Any]:
        assert self._bystander is not None
        output, _ = self._bystander.communicate("", timeout=90)
        found: dict[str, Any] = json.loads(output)
        return found

    def _verify_files(self) -> None:
        result = subprocess.run(
            [sys.executable, "-m", "tidelog", "log", "verify", str(self.broker.log_dir)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]

    def _clear_away(self) -> None:
        self._done.set()
        if self._bystander is not None and self._bystander.poll() is None:
            self._bystander.kill()
            self._bystander.communicate()
        self.broker.kill()

    def _sample(self) -> None:
        while not self._done.wait(0.05):
            try:
                self.rss_peak_bytes = max(self.rss_peak_bytes, self.rss_bytes())
            except OSError:
                return  # it died; the check says so

    def summary(self) -> str:
        seen = self.seen
        return (
            f"bystander {seen['acknowledged']} records, longest wait {seen['acknowledge_seconds_max'] * 1000:.0f} ms for an answer, "
            f"{seen['end_to_end_seconds_max'] * 1000:.0f} ms for a record; "
            f"{seen['pings']} pings, longest {seen['ping_seconds_max'] * 1000:.0f} ms "
            f"(machine's own {seen['noise_seconds_max'] * 1000:.0f} ms, × {seen['slowdown']:.1f}, "
            f"sync {seen['sync_seconds_max'] * 1000:.0f} ms); "
            f"RSS {self.rss_start_bytes / 1e6:.0f} → at most {self.rss_peak_bytes / 1e6:.0f} MB"
        )


def _around(log: str) -> str:
    """The first trace of a bug in the log, with its traceback."""
    lines = log.splitlines()
    for number, line in enumerate(lines):
        if any(word in line for word in OPEN_BUGS):
            return "\n".join(lines[max(0, number - 2) : number + 40])
    return ""
