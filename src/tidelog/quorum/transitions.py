"""Becoming something else: every change of role goes through here.

Owns what leaving a role means (a leader's waiting fetches are answered) and what entering one begins with. The table in `roles` says when; this
file never asks why.
"""

from __future__ import annotations

from tidelog.quorum import leading, messages
from tidelog.quorum.effects import AppendLeaderChange
from tidelog.quorum.node import Node
from tidelog.quorum.roles import (
    NEVER,
    Call,
    Candidate,
    Follower,
    Leader,
    Prospective,
    Replica,
    Resigned,
    Role,
    Unattached,
)


def _become(node: Node, role: Role) -> None:
    before, node.role = node.role, role
    if isinstance(before, Leader):
        leading.release_parked(node, before)


def unattached(node: Node, *, epoch: int, deadline: float) -> None:
    """Nobody leads, as far as this node knows. An observer's deadline is when it asks around."""
    if epoch > node.epoch:
        node.enter_epoch(epoch)
    node.set_leader(None)
    _become(node, Unattached(deadline))


def follower(node: Node, now: float, *, epoch: int, leader_id: int, deadline: float | None = None) -> None:
    if epoch > node.epoch:
        node.enter_epoch(epoch)
    node.set_leader(leader_id)
    role = Follower(leader_id, now + node.fetch_wait() if deadline is None else deadline)
    _become(node, role)
    role.waits_for_disk = node.log.synced_offset < node.log.end.offset
    if role.waits_for_disk:
        node.sync_log()
    else:
        role.call.retry_at = now


def prospective(node: Node, now: float) -> None:
    if node.settings.is_alone:
        candidate(node, now)
        return
    calls = {voter: Call(retry_at=now) for voter in node.voters.others(node.id)}
    _become(node, Prospective(now + node.election_wait(), calls, [node.id]))


def candidate(node: Node, now: float) -> None:
    node.enter_epoch(node.epoch + 1)
    node.vote_for(node.id)
    calls = {voter: Call(retry_at=now) for voter in node.voters.others(node.id)}
    _become(node, Candidate(now + node.election_wait(), calls, [node.id]))
    if node.settings.is_alone:
        leader(node, now, granted=[node.id])


def leader(node: Node, now: float, *, granted: list[int]) -> None:
    node.set_leader(node.id)
    others = node.voters.others(node.id)
    role = Leader(
        epoch_start_offset=node.log.end.offset,
        began_at=now,
        replicas={voter: Replica(fetched_at=now) for voter in others},
        calls={voter: Call(retry_at=now) for voter in others},
        granted=sorted(granted),
        announce_at=now + node.settings.fetch_timeout_s / 2 if others else NEVER,
    )
    _become(node, role)
    node.out.changes.append(AppendLeaderChange(node.epoch, node.voters.ids, tuple(role.granted)))


def resigned(node: Node, now: float, role: Leader) -> None:
    """The longest log is the best successor; all of them may have to try."""
    ranked = sorted(role.replicas, key=lambda voter: (-role.replicas[voter].end_offset, voter))
    node.set_leader(None)
    calls = {voter: Call() for voter in ranked}
    _become(node, Resigned(now + node.election_wait(), calls, tuple(ranked)))
    for voter, call in calls.items():
        node.call(call, voter, messages.end_request(node.settings, epoch=node.epoch, successors=ranked))


def learn(node: Node, now: float, *, epoch: int, leader_id: int | None) -> bool:
    """What somebody says of epoch and leader. True if that changed this node's role."""
    if epoch < node.epoch:
        return False
    if leader_id == node.id or leader_id not in node.voters.ids:
        leader_id = None
    if leader_id is not None and (epoch > node.epoch or (node.leader_id is None and not _led_it(node))):
        follower(node, now, epoch=epoch, leader_id=leader_id)
        return True
    if epoch > node.epoch:
        unattached(node, epoch=epoch, deadline=unattached_deadline(node, now))
        return True
    return False


def _led_it(node: Node) -> bool:
    """Whoever led an epoch knows better than others who leads it."""
    return isinstance(node.role, Resigned)


def unattached_deadline(node: Node, now: float) -> float:
    return now + node.election_wait() if node.settings.is_voter else now
