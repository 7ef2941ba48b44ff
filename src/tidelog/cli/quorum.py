"""`tidelog quorum`: the nodes that hold the cluster's metadata, who leads them, and how far each of them is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tidelog.cli.boundary import plain_typer, reported, with_cluster
from tidelog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog.cli.output import print_json, print_table, warn

if TYPE_CHECKING:
    from tidelog.client.cluster import ClusterClient
    from tidelog.client.cluster_admin import QuorumDescription, QuorumReplica

app = plain_typer("Look at the quorum of controllers, which holds the cluster's metadata.")

ANSWER_MS = 10_000
SLOW_MS = 5_000
"""A voter that has not caught up for so long is no help when the leader dies."""


@app.callback()
def _group() -> None:
    """Keeps `describe` a command of its own while it is the only one."""


@app.command()
@reported
def describe(bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Show the leader, its epoch, and voters and observers with how far behind they are and when they had last caught up."""
    from tidelog.cli.cluster_facts import PATIENCE
    from tidelog.client.errors import ClientError

    async def work(cluster: ClusterClient) -> QuorumDescription:
        from tidelog.client.cluster_admin import describe_quorum

        return await describe_quorum(cluster, timeout_ms=ANSWER_MS)

    try:
        found = with_cluster(bootstrap_server, work, **PATIENCE)
    except ClientError as error:
        error.add_note(
            "the quorum has no leader if the majority of its voters is away: start them, `tidelog cluster status` shows which brokers are there"
        )
        raise
    now_ms = time.time_ns() // 1_000_000
    if json:
        print_json(_document(found))
        return
    print(f"leader {found.leader_id}  epoch {found.leader_epoch}  high watermark {found.high_watermark}")
    columns = ("node", "role", "address", "end", "lag", "caught up", "last fetch")
    rows = [
        *(_row(found, voter, "voter", now_ms) for voter in found.voters),
        *(_row(found, observer, "observer", now_ms) for observer in found.observers),
    ]
    print_table(columns, rows, right=("node", "end", "lag"))
    warn(_warnings(found, now_ms))


def _row(found: QuorumDescription, replica: QuorumReplica, role: str, now_ms: int) -> tuple[object, ...]:
    leads = replica.replica_id == found.leader_id
    return (
        replica.replica_id,
        "leader" if leads else role,
        replica.address,
        replica.log_end_offset if replica.log_end_offset >= 0 else None,
        _lag(found, replica),
        None if leads else _ago(replica.last_caught_up_ms, now_ms),
        None if leads else _ago(replica.last_fetch_ms, now_ms),
    )


def _lag(found: QuorumDescription, replica: QuorumReplica) -> int | None:
    end = next(
        (voter.log_end_offset for voter in found.voters if voter.replica_id == found.leader_id),
        found.high_watermark,
    )
    return max(0, end - replica.log_end_offset) if replica.log_end_offset >= 0 else None


def _ago(at_ms: int | None, now_ms: int) -> str:
    from tidelog.cli.group_timeline import span

    return "never" if at_ms is None else f"{span(max(0, now_ms - at_ms))} ago"


def _away(found: QuorumDescription, now_ms: int) -> list[int]:
    return [
        voter.replica_id
        for voter in found.voters
        if voter.replica_id != found.leader_id
        and (voter.last_caught_up_ms is None or now_ms - voter.last_caught_up_ms > SLOW_MS)
    ]


def _warnings(found: QuorumDescription, now_ms: int) -> list[str]:
    away = _away(found, now_ms)
    if not away:
        return []
    left = len(found.voters) - len(away)
    spare = left - (len(found.voters) // 2 + 1)
    named = ", ".join(map(str, away))
    meaning = (
        f"{spare} more may fail before nothing can be changed and no leader be elected"
        if spare > 0
        else "if one more fails, nothing can be changed and no leader be elected"
    )
    return [
        f"of {len(found.voters)} voters {left} have the newest metadata; not {named}: start them, or look at their logs; {meaning}"
    ]


def _document(found: QuorumDescription) -> dict[str, Any]:
    def told(replica: QuorumReplica) -> dict[str, Any]:
        return {
            "node": replica.replica_id,
            "address": None if replica.address is None else str(replica.address),
            "log_end_offset": replica.log_end_offset,
            "lag": _lag(found, replica),
            "last_fetch_ms": replica.last_fetch_ms,
            "last_caught_up_ms": replica.last_caught_up_ms,
        }

    return {
        "leader": found.leader_id,
        "leader_epoch": found.leader_epoch,
        "high_watermark": found.high_watermark,
        "voters": [told(voter) for voter in found.voters],
        "observers": [told(observer) for observer in found.observers],
    }
