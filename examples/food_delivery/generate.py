"""Sends what happens in the city to the log: `python -m examples.food_delivery.generate`.

In real time and without end by default; with `--orders N --fast` as quickly as the brokers take it, and then it is done. Every record is acknowledged by all
in-sync replicas (acks=all, idempotent), and Ctrl-C or SIGTERM lets those on their way arrive first.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Iterable
from typing import Final

from examples.food_delivery.events import Event, events
from tidelog.client import Producer
from tidelog.errors import TidelogError

RATE: Final = 10.0
REPORT_SECONDS: Final = 10.0
AHEAD_MS: Final = 20
"""Events this close together are sent together: a timer for each would cost more than it tells."""


async def send(
    brokers: str, happened: Iterable[Event], *, stop: asyncio.Event | None = None, is_paced: bool = False
) -> int:
    """Send them, each with the time it happened as its timestamp; returns how many were acknowledged. Paced: not before that time has come."""
    sent, reported_at = 0, time.monotonic()
    async with Producer(
        brokers, acks="all", linger_ms=20, compression_type="lz4", client_id="food-delivery"
    ) as producer:
        for event in happened:
            if is_paced and not await _come(event.at_ms, stop):
                break
            if stop is not None and stop.is_set():
                break
            await producer.send(event.topic, event.value, key=event.key, timestamp_ms=event.at_ms)
            sent += 1
            if is_paced and time.monotonic() - reported_at >= REPORT_SECONDS:
                reported_at = time.monotonic()
                print(f"generator: {sent} records sent", flush=True)
    return sent


async def _come(at_ms: int, stop: asyncio.Event | None) -> bool:
    """Wait until it is that time; False if `stop` came first."""
    ahead_ms = at_ms - time.time() * 1000
    if ahead_ms <= AHEAD_MS:
        return True
    if stop is None:
        await asyncio.sleep(ahead_ms / 1000)
        return True
    try:
        await asyncio.wait_for(stop.wait(), ahead_ms / 1000)
    except TimeoutError:
        return True
    return False


async def _main(arguments: argparse.Namespace) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    start_ms = arguments.start_ms or int(time.time() * 1000)
    happened = events(arguments.seed, arguments.rate, start_ms, orders=arguments.orders)
    sent = await send(arguments.brokers, happened, stop=stop, is_paced=not arguments.fast)
    print(f"generator: done, {sent} records acknowledged", flush=True)


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="generate", description="Orders of a food-delivery service.")
    parser.add_argument("--brokers", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--seed", type=int, default=1, help="the same seed and start give the same records")
    parser.add_argument(
        "--rate", type=float, default=RATE, help="orders a second on average (default %(default)g)"
    )
    parser.add_argument("--orders", type=int, help="stop after so many orders and what follows from them")
    parser.add_argument("--start-ms", type=int, help="when the first happens (default: now)")
    parser.add_argument("--fast", action="store_true", help="do not wait for their time; needs --orders")
    arguments = parser.parse_args(given)
    if arguments.fast and arguments.orders is None:
        parser.error("--fast without --orders would fill the disk: say how many orders")
    if arguments.rate <= 0:
        parser.error(f"--rate is in orders a second and must be above 0, not {arguments.rate:g}")
    try:
        asyncio.run(_main(arguments))
    except TidelogError as error:
        print(f"generator: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
