"""What a follower does: fetches, appends, syncs, fetches again. And what a node without a leader does to find one.

Owns the follower's half of I14: a fetch is sent when everything before it is durable, because it claims that. Truncation only where the leader of this epoch says that
the logs part (never by a high watermark), and never below what is committed (I25 for the metadata log).
"""

from __future__ import annotations

from typing import Any

from tidelog.quorum import election, messages, snapshots, transitions
from tidelog.quorum.effects import AppendFetched, Truncate
from tidelog.quorum.node import Node
from tidelog.quorum.roles import NEVER, Candidate, Follower, Leader, Prospective, Resigned, Unattached
from tidelog.quorum.values import ElectionState, LogEnd, SnapshotId
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from tidelog.wire.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from tidelog.wire.messages.fetch import PartitionData

# ---- fetching


def on_tick(node: Node, role: Follower, now: float) -> None:
    if now >= role.deadline:
        _give_up(node, role, now)
    elif now >= role.call.retry_at and not role.waits_for_disk:
        if role.snapshot is not None:
            snapshots.ask(node, role, role.snapshot)
        else:
            node.call(role.call, role.leader_id, _fetch(node))


def overslept(node: Node, role: Follower, late_s: float, now: float) -> None:
    """The leader may have answered long ago. It gets half of its time again."""
    if role.is_forgiving:
        return
    role.is_forgiving = True
    role.deadline = max(role.deadline, now + node.settings.fetch_timeout_s / 2)
    if node.heard_at is not None:
        node.heard_at = min(now, node.heard_at + late_s)


def _give_up(node: Node, role: Follower, now: float) -> None:
    if node.settings.is_voter:
        transitions.prospective(node, now)
    else:
        transitions.unattached(node, epoch=node.epoch, deadline=now)


def _fetch(node: Node) -> Any:
    return messages.fetch_request(
        node.settings,
        epoch=node.epoch,
        end=node.log.end,
        high_watermark=node.high_watermark,
        log_start=node.log.start_offset,
    )


def on_response(node: Node, role: Follower, request_id: int, response: Any | None, now: float) -> None:
    call = role.call
    if call.request_id != request_id:
        return
    call.request_id = None
    part = None if response is None or response.error_code else messages.only_partition(response)
    if part is None:
        node.failed(call, now)
        return
    if part.error_code:
        _refused(node, role, part, now)
        return
    call.failures = 0
    role.is_forgiving = False
    node.hear_leader(now)
    role.deadline = now + node.fetch_wait()
    if role.snapshot is not None:
        snapshots.on_piece(node, role, role.snapshot, part, now)
    else:
        _take(node, role, part, now)


def _take(node: Node, role: Follower, part: PartitionData, now: float) -> None:
    role.leader_high_watermark = part.high_watermark
    if part.diverging_epoch.end_offset >= 0:
        role.waits_for_disk = True
        diverging = LogEnd(part.diverging_epoch.epoch, part.diverging_epoch.end_offset)
        node.out.changes.append(Truncate(truncation_point(node, diverging)))
    elif part.snapshot_id.end_offset >= 0:
        snapshots.begin(node, role, SnapshotId(part.snapshot_id.end_offset, part.snapshot_id.epoch), now)
    elif part.records:
        role.waits_for_disk = True
        node.out.changes.append(AppendFetched(messages.as_bytes(part.records)))
    else:
        _follow_high_watermark(node, role)
        role.call.retry_at = now


def truncation_point(node: Node, diverging: LogEnd) -> int:
    """Where this log and the leader's may part. The leader says the greatest epoch it has that is not above this log's last one, and where that ends."""
    here = node.log.end_of_epoch(diverging.epoch)
    if here.offset < 0:
        return min(node.log.end_offset, diverging.offset)
    return min(here.offset, diverging.offset) if here.epoch == diverging.epoch else here.offset


def _follow_high_watermark(node: Node, role: Follower) -> None:
    node.advance_high_watermark(min(role.leader_high_watermark, node.log.end_offset))


def _refused(node: Node, role: Follower, part: Any, now: float) -> None:
    told = part.current_leader
    leader_id = None if told.leader_id < 0 else told.leader_id
    if transitions.learn(node, now, epoch=told.leader_epoch, leader_id=leader_id):
        return
    if told.leader_epoch == node.epoch and part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        # The leader itself says that it is none any more: it has resigned, or was started anew.
        wait_s = node.between(0, node.settings.suspicion_s) if node.settings.is_voter else 0
        transitions.unattached(node, epoch=node.epoch, deadline=now + wait_s)
        return
    if role.snapshot is not None:
        snapshots.give_up(role)
    node.failed(role.call, now)


# ---- what the disk says


def on_appended(node: Node, role: Follower, now: float) -> None:
    _follow_high_watermark(node, role)
    on_disk_settled(node, role, now)


def on_refused(node: Node, role: Follower, now: float) -> None:
    """What was fetched makes no sense. Again after a while: bytes are damaged on the way, or on the leader's disk."""
    role.waits_for_disk = False
    node.failed(role.call, now)


def on_disk_settled(node: Node, role: Follower, now: float) -> None:
    """The log was changed or synced: go on when all of it is durable."""
    if not role.waits_for_disk:
        return
    if node.log.synced_offset < node.log.end_offset:
        node.sync_log()
        return
    role.waits_for_disk = False
    role.call.retry_at = now
    # The time that the disk took was not the leader's.
    role.deadline = max(role.deadline, now + node.settings.fetch_timeout_s / 2)


# ---- looking for a leader (observers; a voter is told by whoever is elected)


def on_tick_unattached(node: Node, role: Unattached, now: float) -> None:
    if node.settings.is_voter:
        election.on_tick(node, role, now)
        return
    if now < min(role.deadline, role.call.retry_at) or role.call.under_way:
        return
    if role.asked == 0:
        role.asked = node.rng.randrange(len(node.voters))
    role.deadline = NEVER
    role.asked += 1
    node.call(role.call, node.voters.ids[role.asked % len(node.voters)], _fetch(node))


def on_response_unattached(
    node: Node, role: Unattached, request_id: int, response: Any | None, now: float
) -> None:
    if role.call.request_id != request_id:
        return
    role.call.request_id = None
    told: ElectionState | None = None
    if response is not None and not response.error_code:
        told = messages.told_leader(response)
    if told is None or not transitions.learn(node, now, epoch=told.epoch, leader_id=told.leader_id):
        node.failed(role.call, now)


# ---- what leaders say


def on_begin(node: Node, token: int, request: BeginQuorumEpochRequest, now: float) -> None:
    problem = messages.refusal(node.settings, request)
    part = messages.only_partition(request)
    if problem or part is None:
        code = problem or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        node.answer(token, BeginQuorumEpochResponse(error_code=code))
        return
    error = _invalid(node, part.leader_id, part.leader_epoch)
    if not error and request.voter_id not in (-1, node.id):
        error = ErrorCode.INVALID_VOTER_KEY
    if not error:
        transitions.learn(node, now, epoch=part.leader_epoch, leader_id=part.leader_id)
    node.answer(token, messages.begin_response(node.state, error))


def on_end(node: Node, token: int, request: EndQuorumEpochRequest, now: float) -> None:
    problem = messages.refusal(node.settings, request)
    part = messages.only_partition(request)
    if problem or part is None:
        code = problem or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        node.answer(token, EndQuorumEpochResponse(error_code=code))
        return
    error = _invalid(node, part.leader_id, part.leader_epoch)
    if not error:
        is_waiting = isinstance(node.role, Follower | Unattached | Prospective | Candidate)
        if part.leader_epoch > node.epoch or is_waiting:
            deadline = now + _succession_wait(node, messages.successors(part))
            transitions.unattached(node, epoch=part.leader_epoch, deadline=deadline)
    node.answer(token, messages.end_response(node.state, error))


def _invalid(node: Node, leader_id: int, epoch: int) -> ErrorCode:
    if epoch < node.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    is_other = node.leader_id not in (None, leader_id) or isinstance(node.role, Leader | Resigned)
    if leader_id == node.id or leader_id not in node.voters or (epoch == node.epoch and is_other):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _succession_wait(node: Node, ranked: list[int]) -> float:
    """The first in line begins at once; the next give it time."""
    if not node.settings.is_voter:
        return 0.0
    if node.id not in ranked:
        return node.election_wait()
    return ranked.index(node.id) * node.settings.election_timeout_s / 2


def on_disconnected(node: Node, role: Follower, node_id: int, now: float) -> None:
    """A dead process closes its connections: that is known long before the fetch timeout. Pre-vote makes it safe to act on it."""
    if node_id == role.leader_id and node.settings.is_voter:
        node.suspects_leader = True
        role.deadline = min(role.deadline, now + node.between(0, node.settings.suspicion_s))
