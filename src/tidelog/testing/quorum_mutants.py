"""The quorum's part of the bug zoo (RELIABILITY §10): M12 to M16, and Q-numbers for more of the kind.

As in `mutants`: product functions are replaced from outside while a mutant is applied. All of them are looked for by the same swarm of seeds
(`tidelog.testing.sim.quorum_world`); no world is made for one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidelog.quorum import election, following, leading, state_file, transitions
from tidelog.quorum.effects import Effect, Outbox
from tidelog.quorum.node import Node
from tidelog.quorum.roles import NEVER, Follower, Leader
from tidelog.quorum.snapshot_store import SnapshotStore
from tidelog.quorum.values import ElectionState, SnapshotId, Voters
from tidelog.storage import files
from tidelog.storage.disk import Disk
from tidelog.testing.mutants import Mutant, attribute, function


def _always(value: object) -> Callable[[Any], Any]:
    return lambda original: lambda *args, **options: value


def _without_sync(original: Any) -> Any:
    def write(disk: Disk, directory: str, state: ElectionState, voters: Voters) -> None:
        path = state_file.path_in(directory)
        disk.remove(path + ".tmp")
        file = disk.open(path + ".tmp", create=True)
        file.write_at([state_file.encode(state, voters)], 0)
        file.close()
        disk.rename(path + ".tmp", path)

    return write


def _messages_first(original: Callable[[Outbox], list[Effect]]) -> Callable[[Outbox], list[Effect]]:
    def in_order(self: Outbox) -> list[Effect]:
        ordered = original(self)
        return [*self.messages, *(effect for effect in ordered if effect not in self.messages)]

    return in_order


def _candidate_at_once(original: Any) -> Any:
    return lambda node, now: transitions.candidate(node, now)


def _install_without_sync(original: Any) -> Any:
    def install(self: SnapshotStore, snapshot: SnapshotId) -> None:
        self._disk.rename(self.path(snapshot) + files.PART, self.path(snapshot))

    return install


def _claims_what_is_not_synced(original: Any) -> Any:
    def settled(node: Node, role: Follower, now: float) -> None:
        if role.waits_for_disk:
            node.sync_log()
            role.waits_for_disk = False
            role.call.retry_at = now

    return settled


def _counts_its_own_end(original: Any) -> Any:
    def advance(node: Node, role: Leader) -> None:
        ends = [replica.end_offset for replica in role.replicas.values()]
        offset = int(node.voters.reached([node.log.end.offset, *ends]))
        if offset > role.epoch_start_offset:
            node.advance_high_watermark(offset)

    return advance


def _believes_what_it_read(original: Any) -> Any:
    def init(self: Node, settings: Any, view: Any, rng: Any, stored: ElectionState | None) -> None:
        original(self, settings, view, rng, stored)
        self.persisted = stored

    return init


MUTANTS: tuple[Mutant, ...] = (
    Mutant("M12", "a vote is not synced", (function(state_file.write, _without_sync),)),
    Mutant("M13", "messages leave before the vote is durable", (attribute(Outbox, "in_order", _messages_first),)),
    Mutant("M14", "no pre-vote", (function(transitions.prospective, _candidate_at_once),)),
    Mutant("M15", "no check-quorum", (function(leading.abandoned_at, _always(NEVER)),)),
    Mutant("M16", "the log begins anew before its snapshot is durable", (
        attribute(SnapshotStore, "install", _install_without_sync),)),
    Mutant("Q1", "a follower claims what it has not synced", (function(following.on_disk_settled, _claims_what_is_not_synced),)),
    Mutant("Q2", "a leader counts what it has not synced", (function(leading.advance, _counts_its_own_end),)),
    Mutant("Q3", "a vote for a shorter log", (function(election._has_enough, _always(True)),)),
    Mutant("Q4", "a state that was read is taken for durable", (attribute(Node, "__init__", _believes_what_it_read),)),
)  # fmt: skip


def mutant(name: str) -> Mutant:
    return next(known for known in MUTANTS if known.name == name)
