"""`python -m bench.consume_modes`: the same topic consumed again and again from brokers that differ in one thing, in turns.

A run is in one of two modes, fast or slow, and which one is the scheduler's choice. In the slow one the reader is as fast as the sender, sleeps
after each packet and has to be woken for the next, at the sender's cost. A send buffer that fills (the default for clients on one machine)
makes the sender wait for the reader instead. This compares it with one that never fills, run by run; medians and quartiles.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from statistics import quantiles

from bench import children, load, memory_at_hand
from bench.payload import CALL_RECORDS
from bench.scenarios import come_to_rest
from bench.topics import topic_of
from tools.peers.process import Peer
from tools.peers.tidelog import TidelogPeer

VOLUME = 400_000_000
VARIANTS = {
    "send buffer that paces": {},
    "send buffer of 4 MiB": {"socket.send.buffer.bytes": str(4 << 20)},
}


def consumed(peer: Peer, topic: str, *, records: int, size: int, partitions: int) -> tuple[float, float]:
    """MB/s, and seconds of the broker's CPU per GB."""
    cpu = peer.cpu_seconds()
    seconds = children.run(load.consume, peer.bootstrap, topic, records=records, partitions=partitions)
    return size / 1e6 / seconds, (peer.cpu_seconds() - cpu) / (size / 1e9)


def filled(
    stack: ExitStack, settings: dict[str, str], *, record_bytes: int, records: int, partitions: int
) -> tuple[Peer, str]:
    """A broker and its topic, with the disk at rest."""
    peer = stack.enter_context(TidelogPeer(durability="replicated", settings=settings))
    topic = stack.enter_context(topic_of(peer, "modes", partitions=partitions, large=True))
    with memory_at_hand.at_hand(records * record_bytes):
        children.run(
            load.produce,
            peer.bootstrap,
            topic,
            record_bytes=record_bytes,
            records=records,
            partitions=partitions,
        )
    come_to_rest(peer)
    return peer, topic


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.consume_modes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--record-bytes", type=int, default=10240)
    parser.add_argument("--partitions", type=int, default=1)
    options = parser.parse_args()
    record_bytes, partitions = options.record_bytes, options.partitions
    records = VOLUME // record_bytes // CALL_RECORDS * CALL_RECORDS
    size = records * record_bytes
    with ExitStack() as stack:
        brokers = {
            name: filled(stack, settings, record_bytes=record_bytes, records=records, partitions=partitions)
            for name, settings in VARIANTS.items()
        }
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in brokers}
        for _ in range(options.runs):
            for name, (peer, topic) in brokers.items():
                runs[name].append(consumed(peer, topic, records=records, size=size, partitions=partitions))
    print(
        f"{options.runs} runs of {size / 1e6:.0f} MB in records of {record_bytes} bytes, {partitions} partitions"
    )
    for name, results in runs.items():
        low, middle, high = quantiles([speed for speed, _ in results], n=4)
        print(f"{name:24} {middle:6.0f} MB/s ({low:.0f} to {high:.0f})", end=", ")
        low, middle, high = quantiles([cpu for _, cpu in results], n=4)
        print(f"{middle:.2f} s of broker CPU per GB ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
