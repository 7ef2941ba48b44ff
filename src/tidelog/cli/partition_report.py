"""What `explain partition` shows: a line, a row for each replica, what the high watermark waits for; or the same as a document. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidelog.cli.cluster_facts import Facts
from tidelog.cli.cluster_status import since_text
from tidelog.cli.explain_partition import Explanation, listed, records_text
from tidelog.cli.explain_topic import long_span
from tidelog.client.replica_states import Since, Standing

COLUMNS = ("broker", "role", "in sync", "end", "behind", "caught up", "broker is", "out of sync because")
NUMBERS = ("broker", "end", "behind")


# -- for people -----------------------------------------------------------------------------------------------------


def headline(found: Explanation) -> str:
    described, rules = found.described, found.rules
    parts = [
        f"partition {found.tp}",
        f"leader {described.leader if described.leader >= 0 else 'none'} (epoch {described.leader_epoch})",
        f"replicas {listed(list(described.replicas))}",
        f"in sync {listed(list(described.isr)) or 'nobody'}",
    ]
    if rules.min_insync_replicas is not None:
        parts.append(f"min.insync.replicas {rules.min_insync_replicas}")
    if described.elr:
        parts.append(f"eligible leaders {listed(list(described.elr))}")
    if described.last_known_elr:
        parts.append(f"last known eligible {listed(list(described.last_known_elr))}")
    return "  ".join(parts)


def watermark_line(found: Explanation) -> str:
    """What is committed, and what the rest waits for."""
    leader = found.leader
    if leader is None or leader.high_watermark is None or leader.log_end_offset is None:
        return "high watermark: nobody who leads tells"
    watermark, end = leader.high_watermark, leader.log_end_offset
    if watermark >= end:
        return f"high watermark {watermark}, the end of the log: everything is committed"
    line = f"high watermark {watermark} of {end}, {records_text(end - watermark)} not committed: "
    if leader.below_min:
        return line + "fewer replicas are in sync than min.insync.replicas asks for"
    holding = [standing for standing in leader.standings if standing.holds_watermark]
    if not holding:
        return line + "the next fetch of its followers moves it"
    return line + "held by " + ", ".join(_holder(found, standing) for standing in holding)


def _holder(found: Explanation, standing: Standing) -> str:
    if standing.broker_id == found.described.leader:
        return f"broker {standing.broker_id}, the leader, whose disk has {standing.log_end_offset} so far"
    joining = ", which is about to join" if standing.is_joining else ""
    end = "nothing in this epoch" if standing.log_end_offset is None else f"{standing.log_end_offset}"
    return f"broker {standing.broker_id}{joining}, which has {end}"


def rows(found: Explanation) -> Iterator[tuple[object, ...]]:
    facts, described, leader = found.facts, found.described, found.leader
    standings = {s.broker_id: s for s in leader.standings} if leader is not None else {}
    for broker_id in described.replicas:
        absence = facts.absence_of(found.tp, broker_id)
        end, behind = _end(found, standings.get(broker_id), broker_id)
        yield (
            broker_id,
            _role(found, broker_id),
            "yes"
            if broker_id in described.isr
            else "no"
            if absence is None
            else f"no, {since_text(absence.since)}",
            end,
            behind,
            _caught_up(standings.get(broker_id), is_leader=broker_id == described.leader),
            _broker_is(facts, broker_id),
            None if absence is None else absence.why,
        )


def _end(found: Explanation, standing: Standing | None, broker_id: int) -> tuple[int | None, int | None]:
    """Its own word, if it gives it: a leader may have heard nothing of it yet."""
    own = found.facts.replica(found.tp, broker_id)
    end = own.log_end_offset if own is not None else None
    if end is None and standing is not None:
        end = standing.log_end_offset
    leader_end = found.leader.log_end_offset if found.leader is not None else None
    return end, None if end is None or leader_end is None else max(0, leader_end - end)


def _role(found: Explanation, broker_id: int) -> str:
    if broker_id == found.described.leader:
        return "leader"
    if broker_id in found.described.elr:
        return "eligible"
    own = found.facts.replica(found.tp, broker_id)
    return "offline" if own is not None and own.role == "offline" else "follower"


def _caught_up(standing: Standing | None, *, is_leader: bool) -> str | None:
    if standing is None or is_leader:
        return None
    if standing.caught_up_ms_ago is None:
        return "not in this epoch"
    return f"{long_span(standing.caught_up_ms_ago)} ago"


def _broker_is(facts: Facts, broker_id: int) -> str:
    state = facts.state_of(broker_id)
    if state is None:
        text = "unknown"
    elif state.state == "active":
        text = "active"
    else:
        text = f"{state.state} {since_text(state.since)}"
    return text if facts.silence_of(broker_id) is None else f"{text}, does not answer"


# -- for scripts ----------------------------------------------------------------------------------------------------


def document(found: Explanation) -> dict[str, Any]:
    described, leader, facts = found.described, found.leader, found.facts
    standings = {s.broker_id: s for s in leader.standings} if leader is not None else {}
    replicas = []
    for broker_id in described.replicas:
        standing, own = standings.get(broker_id), facts.replica(found.tp, broker_id)
        absence, state = facts.absence_of(found.tp, broker_id), facts.state_of(broker_id)
        end, behind = _end(found, standing, broker_id)
        replicas.append(
            {
                "broker": broker_id,
                "role": _role(found, broker_id),
                "in_sync": broker_id in described.isr,
                "log_end_offset": end,
                "behind": behind,
                "joining": standing.is_joining if standing is not None else None,
                "holds_watermark": standing.holds_watermark if standing is not None else None,
                "caught_up_ms_ago": standing.caught_up_ms_ago if standing is not None else None,
                "fetched_ms_ago": standing.fetched_ms_ago if standing is not None else None,
                "out_because": None if absence is None else absence.why,
                "out_since": _since(None if absence is None else absence.since),
                "broker_state": None if state is None else state.state,
                "broker_since": _since(None if state is None else state.since),
                "answers": facts.silence_of(broker_id) is None,
                "problem": own.problem or None if own is not None else None,
            }
        )
    return {
        "topic": found.tp.topic,
        "partition": found.tp.partition,
        "leader": described.leader,
        "leader_epoch": described.leader_epoch,
        "leaderless_since": _since(facts.leaderless_since(found.tp)),
        "isr": list(described.isr),
        "eligible_leader_replicas": list(described.elr),
        "last_known_elr": list(described.last_known_elr),
        "min_insync_replicas": found.rules.min_insync_replicas,
        "below_min": leader.below_min if leader is not None else None,
        "high_watermark": leader.high_watermark if leader is not None else None,
        "log_end_offset": leader.log_end_offset if leader is not None else None,
        "replicas": replicas,
        "findings": [finding._asdict() for finding in found.findings],
    }


def _since(since: Since | None) -> dict[str, Any] | None:
    return None if since is None else {"at_ms": since.at_ms, "is_exact": since.is_exact}
