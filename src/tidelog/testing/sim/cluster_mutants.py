"""The bug zoo as the whole-cluster simulation hunts it (RELIABILITY §10): the mutants of storage, quorum, controller and replication, collected."""

from __future__ import annotations

from typing import Final

from tidelog.testing import mutants, quorum_mutants
from tidelog.testing.controller_mutants import CONTROLLER_MUTANTS
from tidelog.testing.mutants import Mutant
from tidelog.testing.sim import replication_mutants

WANTED: Final = (
    *(f"M{number}" for number in range(1, 17)),
    "M20",
    "M25",
    "M26",
    "M27",
    "M28",
    "M30",
    "M33",
    "M34",
)


def everything() -> dict[str, Mutant]:
    """By name. M27 stands in two of the lists, as the same mistake."""
    found: dict[str, Mutant] = {}
    for known in (
        *replication_mutants.MUTANTS,
        *CONTROLLER_MUTANTS,
        *quorum_mutants.MUTANTS,
        *mutants.MUTANTS,
    ):
        found.setdefault(known.name, known)
    return found


def zoo() -> list[Mutant]:
    """What the default swarm has to find."""
    known = everything()
    return [known[name] for name in WANTED]


def mutant(name: str) -> Mutant:
    return everything()[name]
