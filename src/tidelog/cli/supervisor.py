"""`tidelog start --brokers N`: a process for each node of a cluster on this machine, started, watched, started again when one dies, stopped together."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tidelog.cli.local_cluster import LocalNode, plan, properties, require_free, write_properties
from tidelog.config import BrokerConfig

READY_SECONDS: Final = 60.0
AGAIN_SECONDS: Final = 0.5
"""Before a node that died is started again; longer each time it dies soon after."""
AGAIN_SECONDS_MAX: Final = 10.0
STOP_SECONDS: Final = 40.0
LAST_LINES: Final = 8
LAST_BYTES: Final = 16 * 1024
_READY: Final = "is ready on"
_PR_SET_PDEATHSIG: Final = 1


class NodeFailedError(Exception):
    """A node cannot start, for a reason that starting it again would not change."""


class Supervisor:
    def __init__(self, nodes: Sequence[LocalNode], host: str) -> None:
        self._nodes = nodes
        self._host = host
        self._stopping = asyncio.Event()
        self._asked_to_stop = 0
        self._failure: NodeFailedError | None = None
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ready = {node.node_id: asyncio.Event() for node in nodes}

    async def run(self) -> int:
        """Until Ctrl-C or SIGTERM, or until a node turns out to be unable to start; returns the exit code."""
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop)
        watching = [loop.create_task(self._keep_running(node)) for node in self._nodes]
        ready = loop.create_task(self._announce(began))
        await self._stopping.wait()
        ready.cancel()
        stopped_at = time.monotonic()
        if self._failure is not None:
            _say(str(self._failure))
        _say("stopping; Ctrl-C once more ends it at once" if self._asked_to_stop == 1 else "stopping")
        self._send(signal.SIGTERM)
        _, late = await asyncio.wait(watching, timeout=STOP_SECONDS)
        if late:
            slow = [number for number, process in self._processes.items() if process.returncode is None]
            _say(f"not stopped within {STOP_SECONDS:.0f} s, killed: {', '.join(map(str, slow))}")
            self._send(signal.SIGKILL)
            await asyncio.wait(late)
        _say(f"stopped in {time.monotonic() - stopped_at:.1f} s")
        return 0 if self._failure is None else 1

    def _stop(self) -> None:
        """The first time in good order, the second time at once: logs are recovered by the next start."""
        self._asked_to_stop += 1
        self._stopping.set()
        if self._asked_to_stop > 1:
            self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.send_signal(number)

    async def _announce(self, began: float) -> None:
        for node in self._nodes:
            _say(
                f"node {node.node_id}: {self._host}:{node.port}, data in {node.directory / 'data'}, log in {node.log_file}"
            )
        try:
            async with asyncio.timeout(READY_SECONDS):
                for event in self._ready.values():
                    await event.wait()
        except TimeoutError:
            silent = ", ".join(str(number) for number, event in self._ready.items() if not event.is_set())
            _say(f"after {READY_SECONDS:.0f} s these nodes are not ready: {silent}; their logs say why")
            return
        servers = ",".join(f"{self._host}:{node.port}" for node in self._nodes)
        pids = ", ".join(str(self._processes[node.node_id].pid) for node in self._nodes)
        _say(
            f"{len(self._nodes)} brokers are ready on {servers} ({(time.monotonic() - began) * 1000:.0f} ms), processes {pids}"
        )

    async def _keep_running(self, node: LocalNode) -> None:
        pause = AGAIN_SECONDS
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._run_once(node)
            if self._stopping.is_set():
                return
            if code > 0 and not self._ready[node.node_id].is_set():
                last = "\n".join(f"  | {line}" for line in last_lines(node.log_file))
                self._failure = NodeFailedError(
                    f"node {node.node_id} cannot start (exit code {code}); the last lines of {node.log_file}:\n{last}"
                )
                self._stopping.set()
                return
            if time.monotonic() - began > AGAIN_SECONDS_MAX:
                pause = AGAIN_SECONDS
            _say(
                f"node {node.node_id} {_ended(code)}; it is started again in {pause:g} s (its log: {node.log_file})"
            )
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
            except TimeoutError:
                pause = min(2 * pause, AGAIN_SECONDS_MAX)

    async def _run_once(self, node: LocalNode) -> int:
        with node.log_file.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tidelog",
                "start",
                "--config",
                str(node.properties_file),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for this process, which stops them in order
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
                env=_environment(),
            )
            self._processes[node.node_id] = process
            if self._stopping.is_set():
                process.terminate()  # it came into being just behind the signal to all
            assert process.stdout is not None
            async for line in process.stdout:
                log.write(line)
                log.flush()
                if _READY.encode() in line:
                    if self._ready[node.node_id].is_set():
                        _say(f"node {node.node_id} is ready again, process {process.pid}")
                    self._ready[node.node_id].set()
        return await process.wait()


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """Between fork and exec: SIGTERM when the supervisor is gone, however that happened. Nobody would look after the node then."""
    assert _libc is not None
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def last_lines(log_file: Path, count: int = LAST_LINES) -> list[str]:
    with log_file.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - LAST_BYTES))
        text = log.read().decode("utf-8", "replace")
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def _environment() -> Mapping[str, str]:
    """Settings of the environment are in the files already: each node reads its own file and nothing else."""
    kept = ("TIDELOG_LOG_LEVEL",)
    return {
        name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_") or name in kept
    }


def _ended(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _say(text: str) -> None:
    print(f"tidelog: {text}", flush=True)


def supervise(
    root: Path,
    *,
    brokers: int,
    host: str,
    port: int,
    settings: Mapping[str, str],
    origins: Mapping[str, str],
) -> int:
    """Run a cluster of `brokers` nodes until Ctrl-C or SIGTERM. LocalClusterError if there is another one in `root`, or a port is taken;
    ConfigError if `settings` make no sense: then nothing is started."""
    nodes = plan(root, brokers=brokers, host=host, port=port)
    require_free(nodes, host)
    for node in nodes:
        BrokerConfig.load(properties(nodes, node, host, settings), source=origins)
        write_properties(nodes, node, host, settings)
    return asyncio.run(_run(nodes, host))


async def _run(nodes: Sequence[LocalNode], host: str) -> int:
    return await Supervisor(nodes, host).run()
