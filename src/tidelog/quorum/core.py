"""One step of a node of the quorum: an event and the time go in, effects come out. No I/O, no clock, no chance but the one it is given.

Owns nothing but the way from an event to the file that knows what it means for the present role. After every event, whatever is due by now is done, so
that no transition has to remember to begin what it announces. The deadline says when the next `Ticked` is wanted. A node that is called much later than that did not run meanwhile (a
pause, a machine without processors, its own disk): what others have sent is still to be read, and nobody is blamed for having been silent, once.
"""

from __future__ import annotations

from typing import Final

from tidelog.ports import Rng
from tidelog.quorum import election, events, following, leading, snapshots, transitions
from tidelog.quorum.effects import Effect
from tidelog.quorum.events import Event
from tidelog.quorum.log import LogView
from tidelog.quorum.node import Node
from tidelog.quorum.roles import NEVER, Candidate, Follower, Leader, Prospective, Resigned, Unattached
from tidelog.quorum.values import ElectionState, QuorumSettings
from tidelog.wire.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from tidelog.wire.messages.end_quorum_epoch import EndQuorumEpochRequest
from tidelog.wire.messages.fetch import FetchRequest
from tidelog.wire.messages.fetch_snapshot import FetchSnapshotRequest
from tidelog.wire.messages.vote import VoteRequest

_REQUESTS = {
    VoteRequest: election.on_request,
    BeginQuorumEpochRequest: following.on_begin,
    EndQuorumEpochRequest: following.on_end,
    FetchRequest: leading.on_fetch,
    FetchSnapshotRequest: snapshots.on_request,
}


LATE_S: Final = 0.2
"""So much later than it wanted a node may be called before it concludes that it was stopped."""


class QuorumCore:
    def __init__(
        self, settings: QuorumSettings, log: LogView, rng: Rng, stored: ElectionState | None
    ) -> None:
        """`stored` is what the quorum state file says, None without one."""
        self.node = Node(settings, log, rng, stored)
        self.deadline = NEVER
        """When something will be due, infinity if nothing will."""

    def step(self, event: Event, now: float) -> list[Effect]:
        late_s = now - self.deadline
        if late_s > LATE_S:
            self._overslept(late_s, now)
        self._handle(event, now)
        while True:
            role = self.node.role
            self._do_what_is_due(now)
            if self.node.role is role:
                self.deadline = self._next_deadline()
                return self.node.take_effects()

    def _next_deadline(self) -> float:
        node, role = self.node, self.node.role
        match role:
            case Unattached():
                return min(role.deadline, role.call.retry_at)
            case Follower():
                return role.deadline if role.waits_for_disk else min(role.deadline, role.call.retry_at)
            case Leader():
                return leading.deadline(node, role)
            case Prospective() | Candidate() | Resigned():
                return min([role.deadline, *(call.retry_at for call in role.calls.values())])

    # ---- events

    def _handle(self, event: Event, now: float) -> None:
        node, role = self.node, self.node.role
        match event:
            case events.Received(token, request):
                _REQUESTS[type(request)](node, token, request, now)  # type: ignore[operator]
            case events.Answered():
                self._on_answer(event, now)
            case events.Started():
                self._start(now)
            case events.Ticked():
                pass
            case events.Disconnected(node_id):
                if isinstance(role, Follower):
                    following.on_disconnected(node, role, node_id, now)
            case events.Resign():
                if isinstance(role, Leader):
                    transitions.resigned(node, now, role)
            case events.SnapshotInstalled(snapshot):
                snapshots.on_installed(node, snapshot, now)
            case _:
                self._on_disk(event, now)

    def _on_answer(self, event: events.Answered, now: float) -> None:
        node, role = self.node, self.node.role
        match role:
            case Follower():
                following.on_response(node, role, event.request_id, event.response, now)
            case Unattached():
                following.on_response_unattached(node, role, event.request_id, event.response, now)
            case Prospective() | Candidate():
                election.on_response(node, role, event.request_id, event.response, now)
            case Leader() | Resigned():
                leading.on_response(node, role, event.request_id, event.response, now)

    def _on_disk(self, event: Event, now: float) -> None:
        node, role = self.node, self.node.role
        if isinstance(role, Leader) and isinstance(event, events.Appended | events.Synced):
            leading.on_log_changed(node, role, now)
        if not isinstance(role, Follower):
            return
        match event:
            case events.Appended():
                following.on_appended(node, role, now)
            case events.Synced() | events.Truncated():
                following.on_disk_settled(node, role, now)
            case events.AppendRefused():
                following.on_refused(node, role, now)
            case events.SnapshotWritten():
                snapshots.on_written(role, now)
            case events.SnapshotRefused():
                snapshots.give_up(role)
                following.on_refused(node, role, now)

    # ---- time

    def _overslept(self, late_s: float, now: float) -> None:
        match self.node.role:
            case Follower() as role:
                following.overslept(self.node, role, late_s, now)
            case Leader() as role:
                leading.overslept(role, late_s, now)

    def _start(self, now: float) -> None:
        """Whom it followed before may still lead. Who led before does not: records may be missing that others have got from it."""
        node = self.node
        leader_id = node.leader_id
        if leader_id is not None and leader_id != node.id and leader_id in node.voters:
            deadline = now + node.election_wait()
            transitions.follower(node, now, epoch=node.epoch, leader_id=leader_id, deadline=deadline)
            return
        is_patient = node.settings.is_voter and not node.settings.is_alone
        wait_s = node.between(0, node.settings.election_timeout_s) if is_patient else 0.0
        transitions.unattached(node, epoch=node.epoch, deadline=now + wait_s)

    def _do_what_is_due(self, now: float) -> None:
        node, role = self.node, self.node.role
        match role:
            case Unattached():
                following.on_tick_unattached(node, role, now)
            case Follower():
                following.on_tick(node, role, now)
            case Prospective() | Candidate():
                election.on_tick(node, role, now)
            case Leader():
                leading.on_tick(node, role, now)
            case Resigned():
                leading.on_tick_resigned(node, role, now)

    @property
    def has_settled(self) -> bool:
        """Nobody waits to be told that this node leads no more."""
        role = self.node.role
        if isinstance(role, Resigned):
            return all(call.ended for call in role.calls.values())
        return not isinstance(role, Leader)
