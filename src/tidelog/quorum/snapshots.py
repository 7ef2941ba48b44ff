"""Snapshots between nodes: a follower that is too far behind fetches one in pieces; the leader serves it (FetchSnapshot, KIP-630).

Owns the protocol of both sides. A leader never loads one (I15). Whatever goes wrong on the way, the follower asks the leader anew with an ordinary fetch, and is
told which snapshot is the right one by then.
"""

from __future__ import annotations

from typing import Any

from tidelog.quorum import leading, messages
from tidelog.quorum.effects import InstallSnapshot, LoadSnapshot, WriteSnapshot
from tidelog.quorum.node import Node
from tidelog.quorum.roles import Follower, Leader, SnapshotFetch
from tidelog.quorum.values import SnapshotId
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse

# ---- the leader's side


def on_request(node: Node, token: int, request: FetchSnapshotRequest, now: float) -> None:
    problem = messages.refusal(node.settings, request)
    part = messages.only_partition(request)
    if problem or part is None:
        code = problem or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        node.answer(token, FetchSnapshotResponse(error_code=code))
        return
    snapshot = SnapshotId(part.snapshot_id.end_offset, part.snapshot_id.epoch)
    error = leading.leader_error(node, part.current_leader_epoch)
    size, data = 0, b""
    if not error and isinstance(node.role, Leader):
        leading.heard_from(node, node.role, request.replica_id, now)
        max_bytes = max(1, min(request.max_bytes, node.settings.fetch_snapshot_max_bytes))
        try:
            size, data = node.log.read_snapshot(snapshot, max(0, part.position), max_bytes)
        except (FileNotFoundError, ValueError):
            error = ErrorCode.SNAPSHOT_NOT_FOUND
        else:
            if not 0 <= part.position < size:
                error = ErrorCode.POSITION_OUT_OF_RANGE
    node.answer(
        token,
        messages.snapshot_response(
            node.state, snapshot, error=error, size=size, position=part.position, data=data
        ),
    )


# ---- the follower's side


def begin(node: Node, role: Follower, snapshot: SnapshotId, now: float) -> None:
    if snapshot.end_offset <= node.high_watermark:
        # It would throw away what is committed here: an old answer, or a leader that lost its way.
        node.failed(role.call, now)
        return
    role.snapshot = SnapshotFetch(snapshot)
    role.call.retry_at = now


def ask(node: Node, role: Follower, fetch: SnapshotFetch) -> None:
    request = messages.snapshot_request(
        node.settings, epoch=node.epoch, snapshot=fetch.snapshot, position=fetch.position
    )
    node.call(role.call, role.leader_id, request)


def on_piece(node: Node, role: Follower, fetch: SnapshotFetch, part: Any, now: float) -> None:
    data = messages.as_bytes(part.unaligned_records)
    end = fetch.position + len(data)
    if part.position != fetch.position or not data or end > part.size:
        give_up(role)
        node.failed(role.call, now)
        return
    role.waits_for_disk = True
    node.out.changes.append(WriteSnapshot(fetch.snapshot, fetch.position, data))
    fetch.position = end
    fetch.is_whole = end == part.size
    if fetch.is_whole:
        node.out.changes.append(InstallSnapshot(fetch.snapshot))


def on_written(role: Follower, now: float) -> None:
    if role.snapshot is not None and not role.snapshot.is_whole:
        role.waits_for_disk = False
        role.call.retry_at = now


def on_installed(node: Node, snapshot: SnapshotId, now: float) -> None:
    """Whoever leads by now: the log begins there, and everything before is committed."""
    node.out.news.append(LoadSnapshot(snapshot))
    node.advance_high_watermark(snapshot.end_offset)
    role = node.role
    if isinstance(role, Follower):
        give_up(role)
        role.waits_for_disk = False
        role.call.retry_at = now
        role.deadline = now + node.fetch_wait()


def give_up(role: Follower) -> None:
    role.snapshot = None
