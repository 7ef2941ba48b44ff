"""`python -m tidelog.testing.sim.replication_run --seeds 100 [--first 0]`: seeds of the replication simulation, and what they went through.

With `--seed N` one of them, with its trace. A violation prints the seed and ends with status 1.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tidelog.testing.sim.replication_world import Coverage, ReplicationWorld


def run_seed(seed: int) -> tuple[int, Coverage | None, str]:
    """(seed, what it went through, what broke)."""
    logging.getLogger("tidelog.replication").setLevel(logging.CRITICAL)
    world = ReplicationWorld(seed)
    try:
        return seed, world.run(), ""
    except Exception as error:  # noqa: BLE001 - whatever breaks, the seed is what is needed
        return seed, None, f"{type(error).__name__}: {error}; {world.options}"


def show(seed: int) -> bool:
    logging.getLogger("tidelog.replication").setLevel(logging.CRITICAL)
    world = ReplicationWorld(seed)
    problem = ""
    try:
        print(world.run())
    except AssertionError as error:
        problem = str(error)
    print("\n".join(world.lines))
    print(f"seed {seed}, trace {world.trace_hash}, {world.options}", problem, sep="\n")
    return not problem


def main() -> None:
    parser = argparse.ArgumentParser(prog="replication_run", description="The replication simulation.")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.seed is not None:
        sys.exit(0 if show(options.seed) else 1)
    begun = time.monotonic()
    done: list[Coverage] = []
    broken = 0
    with ProcessPoolExecutor(options.workers) as pool:
        seeds = range(options.first, options.first + options.seeds)
        for seed, coverage, problem in pool.map(run_seed, seeds, chunksize=4):
            if coverage is None:
                broken += 1
                print(f"seed {seed}: {problem}", flush=True)
            else:
                done.append(coverage)
    elapsed = time.monotonic() - begun
    simulated = sum(coverage.seconds for coverage in done)
    print(f"{len(done)} seeds clean, {broken} broken; {simulated:.0f} s simulated in {elapsed:.0f} s")
    for name in Coverage._fields:
        print(
            f"  {name}: {sum(getattr(coverage, name) for coverage in done) / max(1, len(done)):.1f} per seed"
        )
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
