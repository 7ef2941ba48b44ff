"""`python -m bench.profile`: where a broker's processor time goes while it is produced to and consumed from.

Samples a broker process with Linux `perf` under the load of `bench.run`, and sorts the samples by what they are: copying bytes, the
network, the file system and its cache, checksums, the interpreter. Needs `perf` and the right to use it; says so where it is missing.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import children, load, memory_at_hand
from bench.payload import CALL_RECORDS
from bench.topics import topic_of
from tools.peers.process import Peer
from tools.peers.tidelog import TidelogPeer

VOLUME = 1 << 30
SAMPLES_PER_SECOND = 997
LOADS = ((100, "none"), (1 << 10, "none"), (10 << 10, "none"), (1 << 10, "lz4"))

COPY, NETWORK, FILES, KERNEL = "kernel: copies", "kernel: network", "kernel: files", "kernel: other"
CHECKSUM, PYTHON, LIBRARIES = "checksums", "interpreter", "other libraries"
KINDS = (COPY, NETWORK, FILES, KERNEL, CHECKSUM, PYTHON, LIBRARIES)
_KERNEL_KINDS = (
    (COPY, re.compile(r"copy|rep_movs|memcpy|clear_page|memset")),
    (NETWORK, re.compile(r"tcp|skb|sock|inet|\bip_|net_|napi|loopback|dev_|epoll|sendfile|splice")),
    (FILES, re.compile(r"ext4|jbd2|folio|filemap|page|xas?_|iomap|write|bio|blk|lru|fdatasync|inode")),
)


def kind_of(binary: str, symbol: str) -> str:
    if binary.startswith("[kernel") or symbol.startswith("[k]"):
        return next((kind for kind, pattern in _KERNEL_KINDS if pattern.search(symbol)), KERNEL)
    if "crc32" in binary or "crc32" in symbol:
        return CHECKSUM
    return PYTHON if "python" in binary else LIBRARIES


@contextmanager
def sampled(pid: int, into: Path) -> Iterator[None]:
    """`perf record` of a process, as long as the block runs."""
    command = ["perf", "record", "-q", "-F", str(SAMPLES_PER_SECOND), "-p", str(pid), "-o", str(into)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    if not into.exists():
        sys.exit(f"perf took no samples: {complaint.strip() or 'no reason given'}")


def shares(samples: Path) -> tuple[dict[str, float], list[tuple[float, str]]]:
    """Percent of each kind, and the single functions that took most."""
    report = subprocess.run(
        ["perf", "report", "-i", str(samples), "--stdio", "-t", "|", "--sort", "dso,symbol", "--percent-limit", "0"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    kinds: dict[str, float] = defaultdict(float)
    functions: list[tuple[float, str]] = []
    for line in report.splitlines():
        if line.startswith("#") or line.count("|") < 2:
            continue
        overhead, binary, symbol = (part.strip() for part in line.split("|", 2))
        percent = float(overhead.rstrip("%"))
        kinds[kind_of(binary, symbol)] += percent
        functions.append((percent, f"{symbol[4:].partition('|')[0].strip()} ({binary})"))
    return kinds, sorted(functions, reverse=True)


def measure(peer: Peer, folder: Path) -> Iterator[tuple[str, Path, float]]:
    """What was done, the samples, and the broker's processor seconds per GB."""
    for record_bytes, codec in LOADS:
        records = VOLUME // record_bytes // CALL_RECORDS * CALL_RECORDS
        label = f"{record_bytes} B {codec}"
        with topic_of(peer, "profile", large=True) as topic:

            def produce(
                topic: str = topic, size: int = record_bytes, codec: str = codec, count: int = records
            ) -> None:
                children.run(
                    load.produce, peer.bootstrap, topic, record_bytes=size, records=count, codec=codec
                )

            def consume(topic: str = topic, count: int = records) -> None:
                children.run(load.consume, peer.bootstrap, topic, records=count)

            works: tuple[tuple[str, Callable[[], None]], ...] = (("produce", produce), ("consume", consume))
            for name, work in works:
                samples = folder / f"{name}-{record_bytes}-{codec}.perf"
                with memory_at_hand.at_hand(VOLUME if name == "produce" else 0):
                    cpu = peer.cpu_seconds()
                    with sampled(peer.pid, samples):
                        work()
                yield f"{name} {label}", samples, (peer.cpu_seconds() - cpu) / (records * record_bytes / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.profile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--durability", default="replicated", choices=("replicated", "fsync"))
    parser.add_argument(
        "--functions", type=int, default=0, help="also name this many functions that took most"
    )
    options = parser.parse_args()
    if shutil.which("perf") is None:
        sys.exit("perf is not installed (Debian: linux-perf); bench.profile can do nothing without it")
    console = Console(width=160, markup=False)
    table = Table(
        "load", "CPU s/GB", title=f"durability={options.durability}: percent of the broker's processor time"
    )
    for kind in KINDS:
        table.add_column(kind, justify="right")
    named = []
    with tempfile.TemporaryDirectory() as folder, TidelogPeer(durability=options.durability) as peer:
        for label, samples, cpu in measure(peer, Path(folder)):
            kinds, functions = shares(samples)
            table.add_row(label, f"{cpu:.2f}", *(f"{kinds[kind]:.0f}" for kind in KINDS))
            named.append((label, functions[: options.functions]))
            console.print(f"{label} done")
    console.print(table)
    for label, functions in named:
        for percent, function in functions:
            console.print(f"{label}: {percent:5.1f} % {function}")


if __name__ == "__main__":
    main()
