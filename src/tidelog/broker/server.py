"""`tidelog start`: a broker as a process, from its settings to its last signal.

Owns the process: logging, signals, the ready line, exit codes. Everything else is `Broker`, which tests run without a process.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import time

from tidelog.broker.event_loop import run as run_loop
from tidelog.broker.node import Broker
from tidelog.broker.node_shell import StartError
from tidelog.broker.start_checks import raise_open_files_limit, segment_files_limit, start_warnings
from tidelog.config.resolve import BrokerConfig
from tidelog.storage.posix_disk import PosixDisk

logger = logging.getLogger("tidelog")

GC_THRESHOLD = 20_000
"""Objects that outlive their request before the youngest generation is looked at."""


def run(config: BrokerConfig, *, started_at: float | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C; returns the process's exit code."""
    _set_up_logging()
    try:
        return run_loop(_serve(config, started_at if started_at is not None else time.monotonic()))
    except StartError as error:
        print(f"tidelog: {error}", file=sys.stderr)
        return 1


async def _serve(config: BrokerConfig, started_at: float) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    open_files = raise_open_files_limit()
    for warning in start_warnings(config, open_files):
        logger.warning("%s", warning)
    broker = Broker(config, disk=PosixDisk(max_open_files=segment_files_limit(open_files)))
    if not await _started(broker, stop):
        logger.info("stopped before it was ready")
        return 0
    _settle_garbage_collector()
    elapsed_ms = (time.monotonic() - started_at) * 1000
    endpoints = ", ".join(f"{listener.host}:{listener.port}" for listener in broker.listeners)
    print(
        f"tidelog: node {broker.node_id} is ready on {endpoints} "
        f"(data in {', '.join(config.log_dirs)}, durability={config.str('durability')}, {elapsed_ms:.0f} ms)",
        flush=True,
    )
    await _first(stop, broker.failed)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)  # a second Ctrl-C ends the process at once
    logger.info("shutting down")
    await broker.stop()
    return 1 if broker.failed.is_set() else 0


async def _started(broker: Broker, stop: asyncio.Event) -> bool:
    """False: it was to stop before it was ready. A node of a cluster may wait for the others for ever."""
    starting = asyncio.ensure_future(broker.start())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()  # it lets go of what it has
    try:
        await starting
    except asyncio.CancelledError:
        return False
    return True


def _settle_garbage_collector() -> None:
    """What the start has made stays for good: it is never looked at again. Requests leave no cycles, so looks may be rare.

    A full collection over ten thousand partitions would hold the loop for a tenth of a second, again and again.
    """
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


async def _first(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


def _set_up_logging() -> None:
    level = os.environ.get("TIDELOG_LOG_LEVEL", "INFO").upper()
    logging.basicConfig(
        stream=sys.stderr,
        level=level,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
