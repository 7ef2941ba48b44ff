"""Many worlds of the simulated quorum, one seed after the other: `python -m tidelog.testing.sim.quorum_run --first 1 --seeds 1000`.

Prints the seeds that break a promise, what happened in all of them together, and how fast it went. `--trace SEED` prints one world, event by event.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tidelog.testing.sim.quorum_ledger import Violation
from tidelog.testing.sim.quorum_world import QuorumWorld


def run_seeds(first: int, count: int, *, seconds_max: float) -> int:
    """Returns how many seeds break a promise."""
    faults: Counter[str] = Counter()
    coverage: Counter[str] = Counter()
    broken = done = leaders = 0
    simulated_s = 0.0
    begun = time.monotonic()
    for seed in range(first, first + count):
        world = QuorumWorld(seed)
        try:
            world.run()
        except Violation as violation:
            broken += 1
            print(violation, flush=True)
        done += 1
        faults.update(world.faults)
        coverage.update(world.coverage)
        simulated_s += world.heap.now
        leaders += world.elections
        if time.monotonic() - begun > seconds_max:
            break
    took_s = time.monotonic() - begun
    for title, counts in (("faults", faults), ("coverage", coverage)):
        print(title + ": " + ", ".join(f"{name} {number}" for name, number in sorted(counts.items())))
    print(
        f"{done} seeds from {first} on, {broken} broken; per seed {simulated_s / done:.0f} simulated seconds, {faults.total() / done:.1f} faults,"
        f" {leaders / done:.1f} leaders; {simulated_s / took_s:.0f} simulated seconds per second"
    )
    return broken


def print_trace(seed: int) -> None:
    world = QuorumWorld(seed, keep_trace=True)
    print(world.options)
    try:
        print(f"clean: {world.run()}")
    except Violation as violation:
        print(violation)
    finally:
        print("\n".join(world.trace or ()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="stop after the seed that is at work by then"
    )
    parser.add_argument("--trace", type=int)
    arguments = parser.parse_args()
    if arguments.trace is not None:
        print_trace(arguments.trace)
    else:
        sys.exit(run_seeds(arguments.first, arguments.seeds, seconds_max=arguments.seconds) > 0)


if __name__ == "__main__":
    main()
