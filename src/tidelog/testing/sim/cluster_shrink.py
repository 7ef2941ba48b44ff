"""A failing seed made smaller: fewer faults, then fewer clients, as long as something still breaks."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from tidelog.testing.sim.cluster_mutants import mutant
from tidelog.testing.sim.cluster_shape import Shape, shape_of
from tidelog.testing.sim.cluster_world import ClusterWorld
from tidelog.testing.sim.silence import no_log_lines

TRIES_MAX = 60


def shrink(seed: int, mutated: str | None = None) -> str:
    """How to replay it with as few faults as were found to be needed, and what else it does not need."""
    with no_log_lines(), nullcontext() if mutated is None else mutant(mutated).applied():
        return _shrink(seed, mutated)


def _shrink(seed: int, mutated: str | None) -> str:
    shape = shape_of(seed)
    numbers = [fault.number for fault in ClusterWorld(seed).plan.faults]
    dropped: set[int] = set()
    problem = _problem(seed, shape, dropped)
    tries = 0
    size = max(1, len(numbers) // 2)
    while size >= 1 and tries < TRIES_MAX:
        for first in range(0, len(numbers), size):
            piece = {number for number in numbers[first : first + size] if number not in dropped}
            if not piece or tries >= TRIES_MAX:
                continue
            tries += 1
            found = _problem(seed, shape, dropped | piece)
            if found:
                dropped |= piece
                problem = found
        size //= 2
    needless = [name for name, smaller in _smaller(shape) if _problem(seed, smaller, dropped)]
    left = len(numbers) - len(dropped)
    without = " ".join(str(number) for number in sorted(dropped))
    broken = "" if mutated is None else f" --mutant {mutated}"
    return (
        f"seed {seed} breaks with {left} of {len(numbers)} faults, also without {', '.join(needless) or 'anything else'}: {problem[:300]}\n"
        f"  python -m tidelog.testing.sim.cluster_run --seed {seed}{broken} --without {without}"
    )


def _smaller(shape: Shape) -> list[tuple[str, Shape]]:
    return [
        ("members", replace(shape, members=0)),
        ("producers of acks=1", replace(shape, weak_producers=0)),
        ("a topic that comes and goes", replace(shape, churn=False)),
        ("the last twenty seconds", replace(shape, seconds=shape.seconds - 20)),
    ]


def _problem(seed: int, shape: Shape, dropped: set[int]) -> str:
    try:
        ClusterWorld(seed, shape=shape, dropped=dropped).run()
    except Exception as error:  # noqa: BLE001 - any will do
        return f"{type(error).__name__}: {error}"
    return ""
