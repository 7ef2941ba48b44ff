"""Would these tests notice? M22 to M24 of the bug zoo (RELIABILITY §10), and more of the kind: each is a mistake that somebody could make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.compaction import test_crash_compaction as crashes
from tests.compaction.test_compaction_model import Compaction
from tidelog.records.compaction_kernels import MARKER, RETAIN
from tidelog.storage import cleaner, cleaner_plan, cleaner_transactions
from tidelog.storage.cleaner_transactions import AbortedTransactions, Judge
from tidelog.testing.mutants import Mutant, attribute, function, mutant
from tidelog.testing.sim.crash_explorer import Depth

Search = Callable[[], object]
DEPTH = Depth(subsets_up_to=4, reordered=60, every=40, recover_every=0)


def model() -> None:
    """The model test with more examples; it may stop at the first that fails."""
    run_state_machine_as_test(
        Compaction,
        settings=settings(
            Compaction.TestCase.settings,
            max_examples=400,
            phases=[Phase.generate],
            database=None,
            derandomize=True,
        ),
    )


def crash_of(history: crashes.History) -> Search:
    return lambda: crashes.explore(history, DEPTH)


def _without(flag: int) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def judge(self: Judge, chunk: Any) -> Any:
            judged = original(self, chunk)
            return judged._replace(verdicts=judged.verdicts & np.uint8(255 ^ flag))

        return judge

    return make


def _up_to_the_high_watermark(original: Any) -> Any:
    def hold(log: Any, segment: Any, end: int, unsynced: Any, stable: int, dirty: int, now: int) -> Any:
        return original(log, segment, end, unsynced, log.high_watermark, dirty, now)

    return hold


def _forgets_all_batches_at_an_end(original: Any) -> Any:
    def judge_control(self: Judge, *args: Any, met: bool, **options: Any) -> Any:
        return original(self, *args, met=False, **options)

    return judge_control


MUTANTS: tuple[tuple[Mutant, Search], ...] = (
    (Mutant("M22", "control batches are de-duplicated by their keys", (
        attribute(Judge, "judge", _without(MARKER)),
        function(cleaner_transactions.rows_without_keys, lambda original: lambda chunk, verdicts: verdicts != verdicts),)), model),
    (Mutant("M23", "a tombstone goes as soon as it is clean", (
        function(cleaner.horizon_for, lambda original: lambda now_ms, retention_ms: now_ms - 1),)), model),
    (mutant("M24"), crash_of(crashes.one_becomes_several)),
    (Mutant("C1", "data above the last stable offset is cleaned", (
        function(cleaner_plan._hold, _up_to_the_high_watermark),)), model),
    (Mutant("C2", "aborted records count as values", (
        attribute(AbortedTransactions, "covering", lambda original: lambda *args: None),)), model),
    (Mutant("C3", "batches that producers are known from go", (attribute(Judge, "judge", _without(RETAIN)),)), model),
    (Mutant("C4", "a marker goes although something of its transaction was met", (
        attribute(Judge, "_judge_control", _forgets_all_batches_at_an_end),)), model),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("mistake", "search"), MUTANTS, ids=[known.name for known, _ in MUTANTS])
def test_the_tests_find_the_mutant(mistake: Mutant, search: Search) -> None:
    with mistake.applied(), pytest.raises(AssertionError) as found:
        search()
    print(f"{mistake}: {str(found.value)[:160]}")
