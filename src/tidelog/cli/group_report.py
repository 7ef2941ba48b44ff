"""Everything that `group describe` shows: gathered from the coordinator and the partitions' leaders, then printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tidelog.cli.output import print_table
from tidelog.client.cluster import ClusterClient
from tidelog.client.group_description import CLASSIC, CONSUMER, GroupDescription, MemberInfo
from tidelog.client.groups import Committed, GroupMissingError, Groups
from tidelog.client.metadata import ClusterMetadata, TopicPartition
from tidelog.client.offsets import LATEST, list_offsets

# -- gathering ------------------------------------------------------------------------------------------------------


async def describe_group(groups: Groups, name: str, *, offsets: bool = True) -> dict[str, Any]:
    description = await groups.describe(name)
    report = _head(description)
    report["members"] = [_member(member) for member in description.members]
    if offsets:
        committed = await groups.offsets(name)
        assigned = {tp: member for member in description.members for tp in member.partitions}
        partitions = sorted(committed.keys() | assigned.keys())
        ends = await known_ends(groups.cluster, partitions)
        report["partitions"] = [
            _partition(tp, committed.get(tp), ends.get(tp), assigned.get(tp)) for tp in partitions
        ]
    return report


async def describe_all(groups: Groups, *, offsets: bool = True) -> list[dict[str, Any]]:
    """Every group that can be described this way; one that goes away meanwhile is left out."""
    reports: list[dict[str, Any]] = []
    for group in await groups.list_groups():
        if group.type.lower() not in ("", CLASSIC, CONSUMER):
            continue
        try:
            reports.append(await describe_group(groups, group.group_id, offsets=offsets))
        except GroupMissingError:
            continue
    return reports


async def known_ends(
    cluster: ClusterClient, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Where partitions end; those of deleted topics, and those that nobody leads at the moment, are left out."""
    wanted = list(partitions)

    async def ask() -> ClusterMetadata:
        return await cluster.refresh_metadata({tp.topic for tp in wanted})

    metadata = await cluster.retrying(ask)
    led = [tp for tp in wanted if metadata.leader_of(tp) is not None]
    found = await list_offsets(cluster, dict.fromkeys(led, LATEST))
    return {tp: found[tp].offset for tp in led}


def _head(group: GroupDescription) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "type": group.type,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "epoch": group.epoch,
        "coordinator": group.coordinator,
    }


def _member(member: MemberInfo) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "epoch": member.epoch,
        "topics": None if member.topics is None else sorted(member.topics),
        "partitions": _grouped(member.partitions),
        "target": None if member.target is None else _grouped(member.target),
    }


def _grouped(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    return by_topic


def _partition(
    tp: TopicPartition, committed: Committed | None, end: int | None, member: MemberInfo | None
) -> dict[str, Any]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "committed": None if committed is None else committed.offset,
        "end": end,
        "lag": None if committed is None or end is None else end - committed.offset,
        "member_id": None if member is None else member.member_id,
        "host": None if member is None else member.host,
        "client_id": None if member is None else member.client_id,
    }


# -- printing -------------------------------------------------------------------------------------------------------


def warnings_of(report: dict[str, Any]) -> Iterator[str]:
    for p in report.get("partitions", ()):
        if p["lag"] is not None and p["lag"] < 0:
            yield (
                f"group {report['group']} has committed {p['committed']} in {p['topic']}-{p['partition']}, which ends at {p['end']}: "
                "was the topic made anew? `tidelog group reset` moves the group"
            )


def print_states(reports: list[dict[str, Any]]) -> None:
    columns = ("group", "type", "state", "protocol", "epoch", "members", "coordinator")
    rows = [
        (
            r["group"],
            r["type"],
            r["state"],
            r["protocol"] or None,
            r["epoch"],
            len(r["members"]),
            r["coordinator"],
        )
        for r in reports
    ]
    print_table(columns, rows, right=("epoch", "members", "coordinator"))


def print_groups(reports: list[dict[str, Any]], *, members: bool) -> None:
    for number, report in enumerate(reports):
        if number:
            print()
        print(headline(report))
        if members:
            _print_members(report)
        else:
            print_partitions(report)


def headline(report: dict[str, Any]) -> str:
    count = len(report["members"])
    parts = [f"group {report['group']}", report["type"], report["state"]]
    if report["protocol"]:
        parts.append(f"protocol {report['protocol']}")
    if report["epoch"] is not None:
        parts.append(f"epoch {report['epoch']}")
    parts.append("no members" if not count else "1 member" if count == 1 else f"{count} members")
    parts.append(f"coordinator {report['coordinator']}")
    return "  ".join(parts)


def print_partitions(report: dict[str, Any]) -> None:
    if not report["partitions"]:
        print("nothing is committed, and no member has partitions")
        return
    columns = ("topic", "partition", "committed", "end", "lag", "member", "host", "client")
    keys = ("topic", "partition", "committed", "end", "lag", "member_id", "host", "client_id")
    rows = [[p[key] for key in keys] for p in report["partitions"]]
    print_table(columns, rows, right=("partition", "committed", "end", "lag"))
    if idle := [f"{m['client_id']} ({m['host']})" for m in report["members"] if not m["partitions"]]:
        print(f"without partitions: {', '.join(idle)}")


def _print_members(report: dict[str, Any]) -> None:
    columns = ["member", "instance", "client", "host", "epoch", "partitions", "assigned"]
    keys = ["member_id", "instance_id", "client_id", "host", "epoch"]
    if report["type"] == CLASSIC:
        columns.remove("epoch")
        keys.remove("epoch")
    rows = []
    for m in report["members"]:
        assigned = [f"{topic}:{','.join(map(str, ps))}" for topic, ps in m["partitions"].items()]
        count = sum(map(len, m["partitions"].values()))
        rows.append([*(m[key] for key in keys), count, " ".join(assigned) or None])
    if rows:
        print_table(columns, rows, right=("epoch", "partitions"))
