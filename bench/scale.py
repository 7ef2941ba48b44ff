"""Many partitions, many segments, many creations: do times stay in proportion, and descriptors and waits within bounds?

    python -m bench.scale --partitions 1000,3000,10000
    python -m bench.scale --segments 1000,3000,10000
    python -m bench.scale --create 2000 --peer kafka

The first two show one broker at several sizes, so that a cost which grows faster than the number of things shows as a
rising figure per thing. The third asks Tidelog and another broker in turn, as `bench.run` does.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import report, scale_create, scale_partitions, scale_segments
from bench.run import PEERS, machine, usable_peers
from tools.peers.process import Peer
from tools.peers.tidelog import TidelogPeer

Rows = dict[int, dict[str, float]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale", description=(__doc__ or "").splitlines()[0]
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--partitions", help="partition counts, for example 1000,3000,10000")
    what.add_argument("--segments", help="counts of segments of one partition")
    what.add_argument("--create", type=int, help="create this many partitions, beside --peer")
    parser.add_argument("--peer", default="kafka", help=f"with --create: of {', '.join(PEERS)}")
    parser.add_argument("--of", default="tidelog-fsync", help=f"with the other two: of {', '.join(PEERS)}")
    parser.add_argument("--rounds", type=int, default=5, help="with --create: alternating rounds")
    parser.add_argument("--restarts", type=int, default=0, help="with --partitions: restart this often, too")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    return parser.parse_args()


def counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def table(rows: Rows, things: str) -> Table:
    """A column for each size; in brackets seconds become milliseconds for each thing, which stay level if the cost is linear."""
    shown = Table(title=f"{', '.join(map(str, rows))} {things}")
    shown.add_column("")
    for count in rows:
        shown.add_column(f"{count:,}", justify="right")
    names = dict.fromkeys(name for row in rows.values() for name in row)
    for name in names:
        cells = []
        for count, row in rows.items():
            value = row.get(name)
            cell = report.figure(value)
            if value is not None and name.endswith("[s]"):
                cell += f"  ({value * 1000 / count:.3f} ms each)"
            cells.append(cell)
        shown.add_row(name, *cells)
    return shown


def make_peer(name: str, settings: dict[str, str]) -> Peer:
    if not name.startswith("tidelog"):
        return PEERS[name]()
    return TidelogPeer(durability=name.removeprefix("tidelog-"), settings=settings)


def measure_sizes(options: argparse.Namespace, console: Console) -> Rows:
    def say(line: str) -> None:
        console.print(line, highlight=False)

    if options.partitions:
        return {
            count: scale_partitions.measure(make_peer(options.of, {}), count, say, restarts=options.restarts)
            for count in counts(options.partitions)
        }
    return {
        count: scale_segments.measure(make_peer(options.of, scale_segments.BROKER_SETTINGS), count, say)
        for count in counts(options.segments)
    }


def main() -> None:
    options = arguments()
    console = Console(width=max(Console().width, 140), markup=False)
    began = time.perf_counter()
    if options.create:
        names = usable_peers([options.peer, "tidelog-replicated", "tidelog-fsync"], console)
        if options.peer not in names:
            sys.exit(1)
        results = scale_create.measure(names, options.create, options.rounds, console)
        report.print_table(results, names, console)
        content: dict[str, object] = {"metrics": results.as_json(names)}
    else:
        rows = measure_sizes(options, console)
        console.print(table(rows, "partitions" if options.partitions else "segments"))
        content = {str(count): row for count, row in rows.items()}
    if options.json:
        options.json.write_text(json.dumps({"machine": machine()} | content, indent=2))
    console.print(f"{machine()}; {time.perf_counter() - began:.0f} s", highlight=False)


if __name__ == "__main__":
    main()
