"""Opens every disk that a crash of a recorded history may leave, and has it checked.

Owns which crash states are tried and how deep: each state is opened once and checked; on a sample of them derived files are deleted,
appends go on, and the recovery itself is recorded and crashed at every one of its own operations. Counts what it has checked, so that a
test can say that it was not nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tidelog.storage.log_manager import LogManager
from tidelog.testing.sim.disk import CrashState, SimDisk
from tidelog.testing.sim.storage_checks import (
    Found,
    Violation,
    check_all,
    i7_a_failed_sync_is_never_tried_again,
)
from tidelog.testing.sim.storage_restarts import (
    Answers,
    Reopen,
    all_answers,
    goes_on,
    i4_derived_files_may_go,
    same_answers,
)
from tidelog.testing.sim.storage_world import StorageWorld

_DEEPER_EVERY: Final = 30


@dataclass(frozen=True, slots=True)
class Depth:
    """How much to try. `reordered` is about how many power losses with reordered survivors are opened, None for all of them; every so many
    states the dearer checks are made; `nested` as `reordered`, for crashes of one recovery, `levels` of them within each other. Recovery is
    crashed for every so many states, or never (0). The recovery of each killed process, which works on a page cache that is not durable, is cut off
    by a power loss `cuts` times, at operations chosen by chance (None: at each of them).
    """

    subsets_up_to: int = 4
    reordered: int | None = 300
    every: int = 8
    recover_every: int = 40
    nested: int = 20
    levels: int = 1
    cuts: int | None = 1


@dataclass(slots=True)
class Explored:
    states: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return sum(self.states.values())

    def __str__(self) -> str:
        return f"{self.total} crash states: " + ", ".join(
            f"{count} {kind}" for kind, count in self.states.items()
        )


class Explorer:
    def __init__(self, world: StorageWorld, depth: Depth | None = None) -> None:
        self._world = world
        self._depth = depth or Depth()
        self._rng = Random(len(world.disk.attempts))
        self.explored = Explored()
        # After a failed sync the page cache holds bytes that no later sync will write: a process that is started on it without a reboot
        # cannot know, so nothing more is asked of it than that it opens.
        self._cache_is_sound = not any(
            attempt.failed and attempt.operation.startswith("sync") for attempt in world.disk.attempts
        )

    def run(self, *, since: int = 0) -> Explored:
        """Raises Violation, with a note that says which crash led to it."""
        i7_a_failed_sync_is_never_tried_again(self._world.disk)
        depth = self._depth
        states = self._world.disk.crash_states(
            subsets_up_to=depth.subsets_up_to,
            limit=depth.reordered,
            since=since,
            judged_by=self._world.ledger.judged_by,
        )
        for number, state in enumerate(states):
            try:
                self._try(number, state)
            except Exception as error:
                error.add_note(f"after {state.operations} operations, {state.label}")
                raise
        return self.explored

    def _try(self, number: int, state: CrashState) -> None:
        depth = self._depth
        deeper = self._cache_is_sound or not state.killed
        pristine = state.disk.crash("keep_all") if deeper and number % depth.every == 0 else None
        nested = deeper and depth.recover_every > 0 and number % depth.recover_every == 0
        cut = deeper and state.killed and depth.cuts != 0
        if nested or cut:
            state.disk.start_recording()
        self._open_and_check(state.disk, state.operations, killed=state.killed)
        self.explored.states["killed" if state.killed else "power lost"] += 1
        if nested:
            self._crash_the_recovery(
                state.disk, state.operations, depth.levels, after_power_loss=not state.killed
            )
        if cut:
            self._cut_the_power(state.disk, state.operations)
        if pristine is not None:
            reopen = self._reopener(state.operations)
            i4_derived_files_may_go(pristine.crash("keep_all"), reopen)
            goes_on(pristine, reopen)
            self.explored.states["asked again"] += 1

    def _open_and_check(self, disk: SimDisk, operations: int, *, killed: bool) -> LogManager:
        manager = self._reopener(operations)(disk)
        check_all(Found(manager, disk, self._world.ledger, operations, killed))
        return manager

    def _reopener(self, operations: int) -> Reopen:
        ledger = self._world.ledger

        def reopen(disk: SimDisk) -> LogManager:
            manager = self._world.manager_on(disk, operations)
            try:
                manager.open_directories()
                manager.load(topic_id_of=lambda topic: ledger.topic_id_at(topic, operations))
            except Exception as error:
                raise Violation("I6", f"storage does not open after a crash: {error!r}") from error
            return manager

        return reopen

    def _cut_the_power(self, recovered: SimDisk, operations: int) -> None:
        """Recovery after a kill has believed files and names that were not durable: it must not have acted on them before they were."""
        cuts: Sequence[int] = range(recovered.operations + 1)
        if self._depth.cuts is not None:
            cuts = self._rng.choices(cuts, k=self._depth.cuts)
        for cut in cuts:
            try:
                self._open_and_check(recovered.crash_after(cut, "lose_unsynced"), operations, killed=False)
            except Exception as error:
                error.add_note(
                    f"then during recovery after {cut} operations, power lost with all that was not synced"
                )
                raise
            self.explored.states["recovery cut off"] += 1

    def _crash_the_recovery(
        self, recovered: SimDisk, operations: int, levels: int, *, after_power_loss: bool
    ) -> None:
        """F20: recovery itself writes; whatever of that survives, the next recovery finds the same."""
        expected = self._answers(recovered.crash("keep_all"), operations)
        states = recovered.crash_states(subsets_up_to=2, limit=self._depth.nested, judged_by=lambda _: 0)
        for number, state in enumerate(states):
            deeper = levels > 1 and number % _DEEPER_EVERY == _DEEPER_EVERY // 2
            if deeper:
                state.disk.start_recording()
            try:
                manager = self._open_and_check(
                    state.disk, operations, killed=state.killed and not after_power_loss
                )
                if after_power_loss:
                    same_answers("I3", "a crash during recovery", expected, manager)
                self.explored.states["recovery crashed"] += 1
                if deeper:
                    lost = after_power_loss or not state.killed
                    self._crash_the_recovery(state.disk, operations, levels - 1, after_power_loss=lost)
            except Exception as error:
                error.add_note(f"then during recovery after {state.operations} operations, {state.label}")
                raise

    def _answers(self, disk: SimDisk, operations: int) -> Answers:
        return all_answers(self._reopener(operations)(disk))
