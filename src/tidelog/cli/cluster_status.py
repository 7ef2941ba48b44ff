"""What `cluster status` says: a line for the cluster, a row for each broker, and the partitions that are not well. Pure: the cluster was asked elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tidelog.cli.cluster_facts import Facts
from tidelog.cli.explain_topic import moment
from tidelog.cli.output import human_bytes
from tidelog.client.cluster_admin import ClusterBroker, PartitionDescription, QuorumDescription
from tidelog.client.errors import ClientError
from tidelog.client.metadata import TopicPartition
from tidelog.client.replica_states import ReplicaState, Since

BROKER_COLUMNS = (
    "broker", "address", "rack", "state", "controller", "leads", "follows", "under-replicated", "offline", "log", "disk used",
)  # fmt: skip
BROKER_NUMBERS = ("broker", "leads", "follows", "under-replicated", "offline", "log", "disk used")
PARTITION_COLUMNS = (
    "partition", "leader", "epoch", "isr", "out", "end", "high watermark", "uncommitted", "behind", "trouble",
)  # fmt: skip
PARTITION_NUMBERS = ("epoch", "end", "high watermark", "uncommitted")


class BrokerStatus(NamedTuple):
    broker: ClusterBroker
    state: str
    since: Since | None
    problem: str | None
    """Why it could not be asked."""
    controller: str
    leads: int
    follows: int
    under_replicated: int
    offline: int
    log_bytes: int | None
    disk_used_bytes: int | None
    disk_total_bytes: int | None
    failed_dirs: tuple[str, ...]


class PartitionStatus(NamedTuple):
    tp: TopicPartition
    described: PartitionDescription
    trouble: str
    """Empty: it is well."""
    log_end_offset: int | None
    high_watermark: int | None
    behind: dict[int, int]
    """By follower: how many records, of those its leader has heard from."""

    @property
    def out(self) -> list[int]:
        return [broker for broker in self.described.replicas if broker not in self.described.isr]

    @property
    def uncommitted(self) -> int | None:
        if self.log_end_offset is None or self.high_watermark is None:
            return None
        return self.log_end_offset - self.high_watermark


# -- what is so -----------------------------------------------------------------------------------------------------


def brokers(facts: Facts) -> list[BrokerStatus]:
    return [_broker(facts, broker) for broker in facts.cluster.brokers]


def _broker(facts: Facts, broker: ClusterBroker) -> BrokerStatus:
    number = broker.broker_id
    told = facts.state_of(number)
    state = told.state if told is not None else "fenced" if broker.is_fenced else "active"
    silence = facts.silence_of(number)
    hosted = [p for p in facts.partitions if number in p.replicas]
    led = [p for p in hosted if p.leader == number]
    dirs = facts.log_dirs.get(number, ())
    found = () if isinstance(dirs, ClientError) else dirs
    working = [each for each in found if each.error_code == 0]
    has_volume = [each for each in working if each.total_bytes > 0]
    return BrokerStatus(
        broker,
        state,
        told.since if told is not None else None,
        None if silence is None else str(silence),
        _role(facts, number),
        len(led),
        len(hosted) - len(led),
        sum(len(p.isr) < len(p.replicas) for p in led),
        sum(number in p.offline_replicas for p in hosted),
        sum(replica.size_bytes for each in working for replica in each.replicas) if working else None,
        sum(each.total_bytes - each.usable_bytes for each in has_volume) if has_volume else None,
        sum(each.total_bytes for each in has_volume) if has_volume else None,
        tuple(each.path for each in found if each.error_code),
    )


def _role(facts: Facts, broker_id: int) -> str:
    quorum = facts.quorum
    if not isinstance(quorum, QuorumDescription):
        return "?"
    if quorum.leader_id == broker_id:
        return "active"
    return "voter" if any(voter.replica_id == broker_id for voter in quorum.voters) else "-"


def partitions(facts: Facts) -> list[PartitionStatus]:
    """Those in trouble first, then by name."""
    found = [_partition(facts, described) for described in facts.partitions]
    return sorted(found, key=lambda status: (not status.trouble, status.tp))


def _partition(facts: Facts, described: PartitionDescription) -> PartitionStatus:
    tp = TopicPartition(described.topic, described.partition)
    leader = facts.leader_of(described)
    end = None if leader is None else leader.log_end_offset
    behind = {
        standing.broker_id: max(0, end - standing.log_end_offset)
        for standing in (leader.standings if leader is not None else ())
        if standing.broker_id != described.leader and standing.log_end_offset is not None and end is not None
    }
    trouble = _trouble(facts, described, leader)
    return PartitionStatus(
        tp, described, trouble, end, None if leader is None else leader.high_watermark, behind
    )


def _trouble(facts: Facts, described: PartitionDescription, leader: ReplicaState | None) -> str:
    if described.leader < 0:
        return "no leader"
    if facts.silence_of(described.leader) is not None:
        return "its leader does not answer"
    if leader is not None and leader.below_min:
        return "below min.insync.replicas"
    if len(described.isr) < len(described.replicas):
        return "under-replicated"
    return ""


# -- for people -----------------------------------------------------------------------------------------------------


def headline(facts: Facts) -> list[str]:
    every, troubled = partitions(facts), [status for status in partitions(facts) if status.trouble]
    fenced = sum(broker.is_fenced for broker in facts.cluster.brokers)
    parts = [
        f"cluster {facts.cluster.cluster_id}",
        _counted(len(facts.cluster.brokers), "broker") + (f" ({fenced} fenced)" if fenced else ""),
        _counted(len({status.tp.topic for status in every}), "topic"),
        _counted(len(every), "partition"),
    ]
    lines = ["  ".join(parts), _controller(facts)]
    counts: dict[str, int] = {}
    for status in troubled:
        counts[status.trouble] = counts.get(status.trouble, 0) + 1
    if counts:
        lines.append(
            "partitions not well: " + ", ".join(f"{count} {trouble}" for trouble, count in counts.items())
        )
    else:
        lines.append("every partition has a leader and all of its replicas in sync")
    return lines


def _controller(facts: Facts) -> str:
    quorum = facts.quorum
    if isinstance(quorum, QuorumDescription):
        return f"controller: node {quorum.leader_id} is active, in epoch {quorum.leader_epoch}, of {_counted(len(quorum.voters), 'voter')}"
    return f"controller: nobody tells who is active ({quorum}); without one no leader is elected and nothing can be changed"


def broker_rows(statuses: Iterable[BrokerStatus]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for status in statuses:
        used, total = status.disk_used_bytes, status.disk_total_bytes
        rows.append(
            (
                status.broker.broker_id,
                status.broker.address,
                status.broker.rack,
                _state(status),
                status.controller,
                status.leads,
                status.follows,
                status.under_replicated,
                status.offline,
                None if status.log_bytes is None else human_bytes(status.log_bytes),
                None if used is None or not total else f"{100 * used / total:.0f} %",
            )
        )
    return rows


def _state(status: BrokerStatus) -> str:
    text = status.state
    if status.since is not None and status.state != "active":
        text += f" {since_text(status.since)}"
    if status.problem is not None:
        text += ", does not answer"
    if status.failed_dirs:
        text += f", failed: {', '.join(status.failed_dirs)}"
    return text


def since_text(since: Since) -> str:
    return f"since {moment(since.at_ms)}" if since.is_exact else f"since before {moment(since.at_ms)}"


def partition_rows(statuses: Iterable[PartitionStatus]) -> list[tuple[object, ...]]:
    return [
        (
            status.tp,
            status.described.leader if status.described.leader >= 0 else "none",
            status.described.leader_epoch,
            status.described.isr,
            status.out,
            status.log_end_offset,
            status.high_watermark,
            status.uncommitted,
            " ".join(f"{broker}:{count}" for broker, count in status.behind.items()) or None,
            status.trouble or None,
        )
        for status in statuses
    ]


def problems(statuses: Sequence[BrokerStatus]) -> list[str]:
    return [
        f"broker {status.broker.broker_id} could not be asked: {status.problem}"
        for status in statuses
        if status.problem is not None
    ]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


# -- for scripts ----------------------------------------------------------------------------------------------------


def document(facts: Facts, shown: Iterable[PartitionStatus]) -> dict[str, Any]:
    quorum = facts.quorum
    return {
        "cluster_id": facts.cluster.cluster_id,
        "controller": quorum.leader_id if isinstance(quorum, QuorumDescription) else None,
        "controller_epoch": quorum.leader_epoch if isinstance(quorum, QuorumDescription) else None,
        "brokers": [_broker_document(status) for status in brokers(facts)],
        "partitions": [_partition_document(status) for status in shown],
    }


def _broker_document(status: BrokerStatus) -> dict[str, Any]:
    return {
        "broker": status.broker.broker_id,
        "address": str(status.broker.address),
        "rack": status.broker.rack,
        "fenced": status.broker.is_fenced,
        "state": status.state,
        "since_ms": None if status.since is None else status.since.at_ms,
        "since_is_exact": None if status.since is None else status.since.is_exact,
        "answers": status.problem is None,
        "problem": status.problem,
        "controller": status.controller,
        "leads": status.leads,
        "follows": status.follows,
        "under_replicated": status.under_replicated,
        "offline": status.offline,
        "log_bytes": status.log_bytes,
        "disk_used_bytes": status.disk_used_bytes,
        "disk_total_bytes": status.disk_total_bytes,
        "failed_dirs": list(status.failed_dirs),
    }


def _partition_document(status: PartitionStatus) -> dict[str, Any]:
    described = status.described
    return {
        "topic": status.tp.topic,
        "partition": status.tp.partition,
        "leader": described.leader,
        "leader_epoch": described.leader_epoch,
        "replicas": list(described.replicas),
        "isr": list(described.isr),
        "eligible_leader_replicas": list(described.elr),
        "last_known_elr": list(described.last_known_elr),
        "offline_replicas": list(described.offline_replicas),
        "log_end_offset": status.log_end_offset,
        "high_watermark": status.high_watermark,
        "behind": status.behind,
        "trouble": status.trouble or None,
    }
