"""`python -m bench.consume_modes`: the same topic consumed again and again, with what each run cost the broker.

A run is in one of two modes, fast or slow, and which one is the scheduler's choice: this shows both, and how often the broker was switched out
against its will in each.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import children, load, memory_at_hand
from bench.payload import CALL_RECORDS
from bench.scenarios import come_to_rest
from bench.topics import topic_of
from tools.peers.tidelog import TidelogPeer

VOLUME = 600_000_000


def involuntary_switches(pid: int) -> int:
    """Of the broker's first thread, which is its event loop."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("nonvoluntary_ctxt_switches:"):
            return int(line.split()[1])
    raise LookupError(f"/proc/{pid}/status does not count context switches")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.consume_modes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--record-bytes", type=int, default=10240)
    options = parser.parse_args()
    records = VOLUME // options.record_bytes // CALL_RECORDS * CALL_RECORDS
    size = records * options.record_bytes
    with (
        TidelogPeer(durability="replicated") as peer,
        topic_of(peer, "modes", large=True) as topic,
    ):
        with memory_at_hand.at_hand(size):
            children.run(
                load.produce, peer.bootstrap, topic, record_bytes=options.record_bytes, records=records
            )
        come_to_rest(peer)
        for _ in range(options.runs):
            cpu, switches = peer.cpu_seconds(), involuntary_switches(peer.pid)
            seconds = children.run(load.consume, peer.bootstrap, topic, records=records)
            cpu, switches = peer.cpu_seconds() - cpu, involuntary_switches(peer.pid) - switches
            print(
                f"{size / 1e6 / seconds:6.0f} MB/s, {cpu / (size / 1e9):.2f} s of broker CPU per GB, switched out {switches} times"
            )


if __name__ == "__main__":
    main()
