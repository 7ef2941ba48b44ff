"""Elections: who asks for votes and when, who gets them.

Owns the rules of voting. A vote goes to one node per epoch, whose log is at least as far as the voter's (I13), and is durable before it is told (I11). A pre-vote
binds nobody; it is refused by whoever still hears from a leader (I16).
"""

from __future__ import annotations

from typing import Any

from tidelog.quorum import messages, transitions
from tidelog.quorum.node import Node, answered_call
from tidelog.quorum.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from tidelog.quorum.values import LogEnd
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.vote import RequestPartitionData, VoteRequest, VoteResponse

# ---- asked for a vote


def on_request(node: Node, token: int, request: VoteRequest, now: float) -> None:
    problem = messages.refusal(node.settings, request)
    part = messages.only_partition(request)
    if problem or part is None:
        code = problem or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        node.answer(token, VoteResponse(error_code=code))
        return
    error = _invalid(node, request, part)
    if error:
        node.answer(token, messages.vote_response(node.state, error=error))
        return
    if part.replica_epoch > node.epoch:
        transitions.unattached(
            node, epoch=part.replica_epoch, deadline=transitions.unattached_deadline(node, now)
        )
    if part.pre_vote and part.replica_id == node.leader_id:
        # Nobody asks this in an epoch before leading it: that leader has been started anew, or has resigned.
        transitions.unattached(node, epoch=node.epoch, deadline=now + node.election_wait())
    if part.pre_vote:
        granted = _would_vote(node, part, now)
        if granted and isinstance(node.role, Follower | Unattached):
            # Whoever asked first is likely to win, if it is left the time.
            node.role.deadline = max(node.role.deadline, now + node.settings.suspicion_s)
    else:
        granted = _may_vote(node, part)
        if granted:
            node.vote_for(part.replica_id)
            transitions.unattached(node, epoch=node.epoch, deadline=now + node.election_wait())
    node.answer(token, messages.vote_response(node.state, granted=granted))


def _invalid(node: Node, request: VoteRequest, part: RequestPartitionData) -> ErrorCode:
    if part.replica_epoch < node.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if request.voter_id not in (-1, node.id):
        return ErrorCode.INVALID_VOTER_KEY
    if part.replica_id not in node.voters or part.replica_id == node.id or not node.settings.is_voter:
        return ErrorCode.INCONSISTENT_VOTER_SET
    if part.last_offset < 0 or part.last_offset_epoch < 0 or part.last_offset_epoch > part.replica_epoch:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _has_enough(node: Node, part: RequestPartitionData) -> bool:
    return LogEnd(part.last_offset_epoch, part.last_offset) >= node.log.end


def _may_vote(node: Node, part: RequestPartitionData) -> bool:
    is_free = node.leader_id is None and node.state.voted_id in (None, part.replica_id)
    is_asking = isinstance(node.role, Leader | Candidate | Resigned)
    return is_free and not is_asking and _has_enough(node, part)


def _would_vote(node: Node, part: RequestPartitionData, now: float) -> bool:
    role = node.role
    if isinstance(role, Leader):
        return False
    if isinstance(role, Follower) and node.hears_leader(now):
        return False
    return _has_enough(node, part)


# ---- asking for votes


def on_tick(node: Node, role: Unattached | Prospective | Candidate, now: float) -> None:
    if isinstance(role, Unattached):
        if now >= role.deadline:
            transitions.prospective(node, now)
    elif now >= role.deadline:
        lost(node, role, now)
    else:
        _ask(node, role, now)


def _ask(node: Node, role: Prospective | Candidate, now: float) -> None:
    for voter, call in role.calls.items():
        if now >= call.retry_at:
            request = messages.vote_request(
                node.settings,
                voter,
                epoch=node.epoch,
                end=node.log.end,
                pre_vote=isinstance(role, Prospective),
            )
            node.call(call, voter, request)


def on_response(
    node: Node, role: Prospective | Candidate, request_id: int, response: Any | None, now: float
) -> None:
    found = answered_call(role.calls, request_id)
    if found is None:
        return
    voter, call = found
    part = None if response is None or response.error_code else messages.only_partition(response)
    if part is None:
        node.failed(call, now)
        if not _can_win(node, role):
            lost(node, role, now)
        return
    call.request_id, call.ended = None, True
    leader_id = None if part.leader_id < 0 else part.leader_id
    if transitions.learn(node, now, epoch=part.leader_epoch, leader_id=leader_id):
        return
    is_granted = part.vote_granted and not part.error_code and part.leader_epoch == node.epoch
    (role.granted if is_granted else role.refused).append(voter)
    if len(role.granted) >= node.voters.majority:
        _won(node, role, now)
    elif not _can_win(node, role):
        lost(node, role, now)


def _can_win(node: Node, role: Prospective | Candidate) -> bool:
    """Not without the votes of nodes that have refused, nor of nodes that do not answer: better to begin anew soon than to wait for them."""
    undecided = sum(call.under_way and not call.failures for call in role.calls.values())
    return len(role.granted) + undecided >= node.voters.majority


def _won(node: Node, role: Prospective | Candidate, now: float) -> None:
    if isinstance(role, Prospective):
        transitions.candidate(node, now)
    else:
        transitions.leader(node, now, granted=role.granted)


def lost(node: Node, role: Prospective | Candidate, now: float) -> None:
    """After a pre-vote it follows whom it followed, since others still do; it has time for one more fetch, and not for a whole fetch timeout."""
    if isinstance(role, Prospective) and node.leader_id is not None:
        deadline = now + node.election_wait()
        transitions.follower(node, now, epoch=node.epoch, leader_id=node.leader_id, deadline=deadline)
        return
    longest_s = node.settings.election_backoff_max_s
    pause = node.between(longest_s / 5, longest_s)
    transitions.unattached(node, epoch=node.epoch, deadline=now + pause)
