"""`python -m tidelog.testing.sim.cluster_run --seeds 100 [--first 0]`: seeds of the whole-cluster simulation, and what they went through.

With `--seed N` one of them, with its trace. With `--mutant M7` the product has that bug, and the first seed that finds it ends the run; `--mutants` does so for the whole zoo and prints a table. A
violation prints its seed, how to replay it, and the smallest set of faults that still shows it; the status is then 1.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from typing import NamedTuple

from tidelog.testing.sim.cluster_mutants import mutant, zoo
from tidelog.testing.sim.cluster_shrink import shrink
from tidelog.testing.sim.cluster_world import ClusterWorld
from tidelog.testing.sim.silence import no_log_lines

SEEDS_PER_MUTANT = 2000


class Outcome(NamedTuple):
    """What became of one seed."""

    seed: int
    problem: str
    seconds: float
    steps: int
    faults: int
    elections: int
    acked: int
    trace_hash: str
    coverage: Counter[str]

    @property
    def invariant(self) -> str:
        return self.problem.partition(":")[0]


def run_seed(seed: int, mutated: str | None = None, dropped: Iterable[int] = ()) -> Outcome:
    try:
        with no_log_lines(), nullcontext() if mutated is None else mutant(mutated).applied():
            return _run(seed, dropped)
    finally:
        if not gc.isenabled():
            gc.collect()  # a world is a knot of cycles, and in a worker nobody else looks for it


def begin_worker() -> None:
    """What is there before the first seed is no garbage: no collection goes through it, and there is one between two seeds."""
    gc.collect()
    gc.freeze()
    gc.disable()


def _run(seed: int, dropped: Iterable[int]) -> Outcome:
    world = ClusterWorld(seed, dropped=dropped)
    problem = ""
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - whatever breaks, the seed is what is needed
        problem = f"{error}" if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        problem = problem or type(error).__name__
    return Outcome(
        seed,
        problem,
        world.heap.now,
        world.heap.steps,
        sum(world.nemesis.struck.values()),
        world.watch.elections,
        sum(producer.acked for producer in world.producers),
        world.trace_hash,
        world.coverage,
    )


def show(seed: int, mutated: str | None, dropped: Iterable[int]) -> bool:
    """One seed, with its trace."""
    world = ClusterWorld(seed, dropped=dropped)
    problem = ""
    try:
        with no_log_lines(), nullcontext() if mutated is None else mutant(mutated).applied():
            world.run()
    except AssertionError as error:
        problem = str(error)
    finally:
        print("\n".join(world.lines))
    print(world.told(), f"trace {world.trace_hash}", problem, sep="\n")
    return not problem


def run_many(first: int, seeds: int, workers: int, *, shrinks: bool) -> bool:
    begun = time.monotonic()
    done: list[Outcome] = []
    broken: list[Outcome] = []
    with ProcessPoolExecutor(workers, initializer=begin_worker) as pool:
        for outcome in pool.map(run_seed, range(first, first + seeds), chunksize=8):
            (broken if outcome.problem else done).append(outcome)
            if outcome.problem:
                print(f"seed {outcome.seed}: {outcome.problem[:600]}", flush=True)
                print(f"  replay: make sim SEED={outcome.seed}", flush=True)
    _sum_up(done, broken, time.monotonic() - begun)
    if shrinks:
        for outcome in broken[:3]:
            print(shrink(outcome.seed), flush=True)
    return not broken


def _sum_up(done: list[Outcome], broken: list[Outcome], elapsed: float) -> None:
    everything = [*done, *broken]
    simulated = sum(each.seconds for each in everything)
    count = max(1, len(everything))
    print(
        f"{len(done)} seeds clean, {len(broken)} broken; {simulated:.0f} s simulated in {elapsed:.0f} s: {simulated / max(elapsed, 1e-9):.0f} simulated seconds per second"
    )
    for name in ("seconds", "steps", "faults", "elections", "acked"):
        print(f"  {name}: {sum(getattr(each, name) for each in everything) / count:.1f} per seed")
    coverage: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    for each in everything:
        coverage.update(each.coverage)
        reached.update(each.coverage.keys())
    print("  reached, in so many seeds, so many times in all:")
    for name in sorted(coverage):
        print(f"    {name}: {reached[name]}, {coverage[name]}")


class Hunt(NamedTuple):
    name: str
    mistake: str
    seeds: int
    found_by: str


def hunt(name: str, first: int, seeds: int, workers: int) -> Hunt:
    """The default swarm against one mutant: how many seeds until one is broken."""
    found = mutant(name)
    with ProcessPoolExecutor(workers, initializer=begin_worker) as pool:
        for start in range(first, first + seeds, 4 * workers):
            batch = range(start, min(start + 4 * workers, first + seeds))
            for outcome in pool.map(run_seed, batch, [name] * len(batch)):
                if outcome.problem:
                    return Hunt(name, found.mistake, outcome.seed - first + 1, outcome.invariant)
    return Hunt(name, found.mistake, -1, "nobody")


def main() -> None:
    parser = argparse.ArgumentParser(prog="cluster_run", description="The whole-cluster simulation.")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--without", type=int, nargs="*", default=[], help="faults to leave out, by number")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--mutant")
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--no-shrink", action="store_true")
    options = parser.parse_args()
    if options.seed is not None:
        sys.exit(0 if show(options.seed, options.mutant, options.without) else 1)
    if options.mutant or options.mutants:
        names = [options.mutant] if options.mutant else [each.name for each in zoo()]
        missed = 0
        for name in names:
            result = hunt(name, options.first, options.seeds or SEEDS_PER_MUTANT, options.workers)
            missed += result.seeds < 0
            told = f"{result.seeds} seeds" if result.seeds > 0 else "NOT FOUND"
            print(f"| {result.name} | {result.mistake} | {told} | {result.found_by} |", flush=True)
        sys.exit(1 if missed else 0)
    ok = run_many(options.first, options.seeds or 100, options.workers, shrinks=not options.no_shrink)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
