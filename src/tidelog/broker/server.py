"""`tidelog start`: a broker as a process, from its settings to its last signal.

Owns the process: logging, signals, the ready line, exit codes. Everything else is `Broker`, which tests run without a process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping

from tidelog.broker.node import Broker, StartError
from tidelog.config.resolve import BrokerConfig

logger = logging.getLogger("tidelog")


def run(config: BrokerConfig, *, started_at: float | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C; returns the process's exit code."""
    _set_up_logging()
    try:
        return asyncio.run(_serve(config, started_at if started_at is not None else time.monotonic()))
    except StartError as error:
        print(f"tidelog: {error}", file=sys.stderr)
        return 1


async def _serve(config: BrokerConfig, started_at: float) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    broker = Broker(config)
    await broker.start()
    elapsed_ms = (time.monotonic() - started_at) * 1000
    endpoints = ", ".join(f"{listener.host}:{listener.port}" for listener in broker.listeners)
    print(
        f"tidelog: node {broker.node_id} is ready on {endpoints} "
        f"(data in {', '.join(config.log_dirs)}, durability={config.str('durability')}, {elapsed_ms:.0f} ms)",
        flush=True,
    )
    await stop.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)  # a second Ctrl-C ends the process at once
    logger.info("shutting down")
    await broker.stop()
    return 0


def _set_up_logging() -> None:
    level = os.environ.get("TIDELOG_LOG_LEVEL", "INFO").upper()
    logging.basicConfig(
        stream=sys.stderr,
        level=level,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


def describe_environment(environment: Mapping[str, str]) -> list[str]:
    """The TIDELOG_ variables that took effect, for the start-up log."""
    return sorted(name for name in environment if name.startswith("TIDELOG_"))
