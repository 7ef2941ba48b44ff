"""What a leader does: serves fetches, counts who has what, commits, and makes sure that it is still wanted.

Owns the high watermark of the quorum (I14): what a majority of voters has made durable, itself included only as far as its own log is synced; and only once
that reaches into this leader's epoch (a record of an earlier epoch may still be replaced). And check-quorum (I16): a leader that a majority has not fetched from
within the fetch timeout resigns. Followers tell by their fetches what they have: a fetch claims durable records only.
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.quorum import messages, transitions
from tidelog.quorum.node import Node, answered_call
from tidelog.quorum.roles import NEVER, Leader, ParkedFetch, Replica, Resigned
from tidelog.quorum.values import LogEnd, SnapshotId
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse

OBSERVERS_MAX: Final = 1000
OBSERVER_SESSION_S: Final = 300.0

# ---- fetches


def on_fetch(node: Node, token: int, request: FetchRequest, now: float) -> None:
    """Also for those who do not lead: they say who does."""
    problem = messages.refusal(node.settings, request)
    part = messages.only_partition(request)
    if problem or part is None:
        code = problem or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        node.answer(token, FetchResponse(error_code=code))
        return
    error = leader_error(node, part.current_leader_epoch)
    if error or not isinstance(node.role, Leader):
        node.answer(token, messages.fetch_response(node.state, error=error))
        return
    _serve(node, node.role, token, request, part, now)


def leader_error(node: Node, epoch: int) -> ErrorCode:
    """Why this node is not the leader that a request of this epoch is meant for."""
    if epoch < node.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > node.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if isinstance(node.role, Leader) else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _serve(
    node: Node, role: Leader, token: int, request: FetchRequest, part: FetchPartition, now: float
) -> None:
    replica_id = messages.fetching_replica(request)
    replica = heard_from(node, role, replica_id, now)
    claimed = LogEnd(part.last_fetched_epoch, part.fetch_offset)
    answer = _correction(node, claimed)
    if answer is not None:
        node.answer(token, answer)
        return
    if replica is not None:
        _count(node, replica, claimed.offset, now)
        if advance(node, role):
            # The others may have claimed theirs before: a leader whose own sync is slow commits by a fetch, and no sync will tell them.
            answer_parked(node, role, now, news=True)
    max_bytes = min(part.partition_max_bytes, node.settings.fetch_max_bytes)
    has_news = claimed.offset < _readable_end(node, replica_id) or part.high_watermark < node.high_watermark
    if has_news or replica is None or request.max_wait_ms <= 0:
        node.answer(token, _records(node, claimed.offset, max_bytes, replica_id))
        return
    deadline = now + min(request.max_wait_ms / 1000, node.settings.fetch_wait_s)
    before = role.parked.pop(replica_id, None)
    if before is not None:  # whoever asks again does not wait for the first answer any more
        node.answer(before.token, _records(node, before.offset, before.max_bytes, replica_id))
    role.parked[replica_id] = ParkedFetch(token, claimed.offset, max_bytes, deadline)


def heard_from(node: Node, role: Leader, replica_id: int, now: float) -> Replica | None:
    """Note that a node fetches here. None for one without a number, and for observers beyond counting."""
    replica = role.replicas.get(replica_id) or role.observers.get(replica_id)
    if replica is None:
        if replica_id < 0 or replica_id == node.id or len(role.observers) >= OBSERVERS_MAX:
            return None
        replica = role.observers[replica_id] = Replica()
    replica.fetched_before_at, replica.fetched_at = replica.fetched_at, now
    role.is_forgiving = False
    return replica


def _correction(node: Node, claimed: LogEnd) -> FetchResponse | None:
    """What to answer a node whose log is not the beginning of this one. None: it is.

    A log ends with an epoch and an offset; it is a part of this one if that epoch reaches that offset here. What is compared with records that are not here any
    more cannot be told, and begins with a snapshot.
    """
    log = node.log
    start = log.start_offset
    if claimed.offset < 0 or claimed.epoch < 0:
        return messages.fetch_response(node.state, error=ErrorCode.INVALID_REQUEST)
    if claimed.offset < start or (
        claimed.offset == start > 0 and not _is_epoch_at_start(node, claimed.epoch)
    ):
        return _with_snapshot(node)
    if claimed.offset == start:
        return None
    end = log.end
    here = log.end_of_epoch(claimed.epoch) if claimed.epoch <= end.epoch else end
    if here.epoch == claimed.epoch and claimed.offset <= here.offset:
        return None
    if here.offset < start:
        return _with_snapshot(node)
    return messages.fetch_response(
        node.state, high_watermark=node.high_watermark, log_start=start, diverging=here
    )


def _is_epoch_at_start(node: Node, epoch: int) -> bool:
    """Whether the record before the log's first one has this epoch. It does if the first one has: an epoch has one leader, who appends without a gap."""
    log = node.log
    return epoch in (log.epoch_before_start(), log.epoch_at(log.start_offset))


def _with_snapshot(node: Node) -> FetchResponse:
    snapshot = node.log.latest_snapshot
    if snapshot is None:
        raise AssertionError(f"the log begins at offset {node.log.start_offset}, and there is no snapshot")
    return messages.fetch_response(
        node.state,
        high_watermark=node.high_watermark,
        log_start=node.log.start_offset,
        snapshot=SnapshotId(*snapshot),
    )


def _readable_end(node: Node, replica_id: int) -> int:
    """Replicas see all there is. Whoever is none sees what is committed."""
    return node.log.end_offset if replica_id >= 0 else node.high_watermark


def _records(node: Node, offset: int, max_bytes: int, replica_id: int) -> FetchResponse:
    end = _readable_end(node, replica_id)
    records = node.log.read(offset, max_bytes, end_offset=end) if offset < end else b""
    return messages.fetch_response(
        node.state, high_watermark=node.high_watermark, log_start=node.log.start_offset, records=records
    )


def answer_parked(node: Node, role: Leader, now: float, *, news: bool) -> None:
    """There are new records or there is a new high watermark, or time is up."""
    due = [replica_id for replica_id, parked in role.parked.items() if news or now >= parked.deadline]
    for replica_id in due:
        parked = role.parked.pop(replica_id)
        node.answer(parked.token, _records(node, parked.offset, parked.max_bytes, replica_id))


def release_parked(node: Node, role: Leader) -> None:
    """It leads no more. The answers say who does, as far as that is known."""
    for parked in role.parked.values():
        node.answer(parked.token, messages.fetch_response(node.state, error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    role.parked.clear()


# ---- counting


def _count(node: Node, replica: Replica, offset: int, now: float) -> None:
    """Kafka's rule: caught up is who is at the end, or at what was the end when it fetched before."""
    end = node.log.end_offset
    if offset >= end:
        replica.caught_up_at = now
    elif 0 <= replica.leader_end_then <= offset:
        replica.caught_up_at = max(replica.caught_up_at, replica.fetched_before_at)
    replica.leader_end_then = end
    replica.end_offset = offset


def advance(node: Node, role: Leader) -> bool:
    """Commit what a majority has made durable. Whether that is more than before."""
    ends = [replica.end_offset for replica in role.replicas.values()]
    offset = int(node.voters.reached([node.log.synced_offset, *ends]))
    return offset > role.epoch_start_offset and node.advance_high_watermark(offset)


def on_log_changed(node: Node, role: Leader, now: float) -> None:
    """Records were appended, or synced."""
    end = node.log.end_offset
    if node.log.synced_offset < end:
        node.sync_log()
    has_committed = advance(node, role)
    if has_committed or any(parked.offset < end for parked in role.parked.values()):
        answer_parked(node, role, now, news=True)


# ---- time


def abandoned_at(node: Node, role: Leader) -> float:
    """Check-quorum: when the fetch timeout is over for so many voters that the others, the leader among them, are no majority."""
    fetched = [replica.fetched_at for replica in role.replicas.values()]
    return node.voters.reached([NEVER, *fetched]) + node.settings.fetch_timeout_s


def deadline(node: Node, role: Leader) -> float:
    due = [role.announce_at, abandoned_at(node, role)]
    due += [parked.deadline for parked in role.parked.values()]
    due += [call.retry_at for call in role.calls.values()]
    return min(due)


def overslept(role: Leader, late_s: float, now: float) -> None:
    """Fetches that came meanwhile have not been read yet."""
    if role.is_forgiving:
        return
    role.is_forgiving = True
    for replica in role.replicas.values():
        replica.fetched_at = min(now, replica.fetched_at + late_s)


def on_tick(node: Node, role: Leader, now: float) -> None:
    if now >= abandoned_at(node, role):
        transitions.resigned(node, now, role)
        return
    answer_parked(node, role, now, news=False)
    if now >= role.announce_at:
        _announce_again(node, role, now)
    for voter, call in role.calls.items():
        if now >= call.retry_at:
            node.call(call, voter, messages.begin_request(node.settings, voter, epoch=node.epoch))


def _announce_again(node: Node, role: Leader, now: float) -> None:
    """Voters that do not fetch may not know who leads."""
    quiet_s = node.settings.fetch_timeout_s / 2
    role.announce_at = now + quiet_s
    for voter, replica in role.replicas.items():
        call = role.calls[voter]
        if now - replica.fetched_at >= quiet_s and not call.under_way:
            call.retry_at = now
    gone = [k for k, replica in role.observers.items() if now - replica.fetched_at > OBSERVER_SESSION_S]
    for replica_id in gone:
        del role.observers[replica_id]


def on_response(
    node: Node, role: Leader | Resigned, request_id: int, response: Any | None, now: float
) -> None:
    """To BeginQuorumEpoch or EndQuorumEpoch."""
    found = answered_call(role.calls, request_id)
    if found is None:
        return
    _, call = found
    told = None if response is None or response.error_code else messages.told_leader(response)
    if told is None:
        node.failed(call, now)
        return
    call.request_id, call.ended, call.failures = None, True, 0
    if told.epoch > node.epoch:
        transitions.learn(node, now, epoch=told.epoch, leader_id=told.leader_id)


def on_tick_resigned(node: Node, role: Resigned, now: float) -> None:
    if now >= role.deadline:
        transitions.unattached(node, epoch=node.epoch, deadline=now)
        return
    for voter, call in role.calls.items():
        if now >= call.retry_at:
            request = messages.end_request(node.settings, epoch=node.epoch, successors=role.successors)
            node.call(call, voter, request)
