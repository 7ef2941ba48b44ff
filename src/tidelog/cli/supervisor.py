"""`tidelog start --brokers N`: a process for each node of a cluster on this machine, started, watched, started again when one dies, stopped together."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tidelog.cli.local_cluster import LocalNode, plan, write_properties

READY_SECONDS: Final = 60.0
AGAIN_SECONDS: Final = 0.5
"""Before a node that died is started again; longer each time it dies soon after."""
AGAIN_SECONDS_MAX: Final = 10.0
STOP_SECONDS: Final = 40.0
_READY: Final = "is ready on"


class Supervisor:
    def __init__(self, nodes: Sequence[LocalNode], host: str) -> None:
        self._nodes = nodes
        self._host = host
        self._stopping = asyncio.Event()
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ready = {node.node_id: asyncio.Event() for node in nodes}

    async def run(self) -> int:
        """Until Ctrl-C or SIGTERM; returns the exit code."""
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        watching = [loop.create_task(self._keep_running(node)) for node in self._nodes]
        ready = loop.create_task(self._announce(began))
        await self._stopping.wait()
        ready.cancel()
        _say("stopping")
        for process in self._processes.values():
            if process.returncode is None:
                process.terminate()
        _, late = await asyncio.wait(watching, timeout=STOP_SECONDS)
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
        if late:
            await asyncio.wait(late)
        return 0

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
        _say(
            f"{len(self._nodes)} brokers are ready on {servers} ({(time.monotonic() - began) * 1000:.0f} ms)"
        )

    async def _keep_running(self, node: LocalNode) -> None:
        pause = AGAIN_SECONDS
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._run_once(node)
            if self._stopping.is_set():
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
                env=_environment(),
            )
            self._processes[node.node_id] = process
            assert process.stdout is not None
            async for line in process.stdout:
                log.write(line)
                log.flush()
                if _READY.encode() in line:
                    if self._ready[node.node_id].is_set():
                        _say(f"node {node.node_id} is ready again")
                    self._ready[node.node_id].set()
        return await process.wait()


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


def supervise(root: Path, *, brokers: int, host: str, port: int, settings: Mapping[str, str]) -> int:
    """Run a cluster of `brokers` nodes until Ctrl-C or SIGTERM. LocalClusterError if there is another one in `root`."""
    nodes = plan(root, brokers=brokers, host=host, port=port)
    for node in nodes:
        write_properties(nodes, node, host, settings)
    return asyncio.run(_run(nodes, host))


async def _run(nodes: Sequence[LocalNode], host: str) -> int:
    return await Supervisor(nodes, host).run()
