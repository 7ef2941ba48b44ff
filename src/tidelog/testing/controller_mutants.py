"""The bug zoo's controllers (RELIABILITY §10): one rule of the controller broken, to see whether the random model notices.

M-numbers are those of the zoo, C-numbers are more of the kind. See `mutants` for how they are applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tidelog.controller import alter_partition, elections, min_insync
from tidelog.testing.mutants import Mutant, attribute, function


def _always(value: object) -> Callable[[Any], Any]:
    return lambda original: lambda *args, **options: value


def _forgives_lost_data(original: Any) -> Any:
    return lambda before, isr, rules, lossy: original(before, isr, rules, elections.NOBODY)


def _takes_any_partition_epoch(original: Any) -> Any:
    def problem(image: Any, sender: int, partition: Any, proposal: Any) -> Any:
        if partition is not None:
            proposal = replace(proposal, partition_epoch=partition.partition_epoch)
        return original(image, sender, partition, proposal)

    return problem


def _elects_whoever_is_there(original: Any) -> Any:
    def elect(partition: Any, isr: Any, elr: Any, rules: Any, election: Any, survivor: Any) -> Any:
        return original(partition, isr, partition.replicas, rules, election, survivor)

    return elect


CONTROLLER_MUTANTS: tuple[Mutant, ...] = (
    Mutant("M8", "a fenced broker is accepted into an ISR", (
        function(alter_partition.is_out_of_service, _always(False)),)),
    Mutant("M9", "the epochs of brokers are not compared", (function(alter_partition.is_another_run, _always(False)),)),
    Mutant("M11", "a broker that lost data stays eligible", (attribute(elections, "_next_elr", _forgives_lost_data),)),
    Mutant("C1", "a proposal is accepted whatever has changed since it was made", (
        attribute(alter_partition, "_problem", _takes_any_partition_epoch),)),
    Mutant("C2", "a smaller min.insync.replicas leaves the ELR alone", (function(min_insync.void_elr_records, _always([])),)),
    Mutant("C3", "any replica is as good as an eligible one", (attribute(elections, "_elect", _elects_whoever_is_there),)),
)  # fmt: skip
