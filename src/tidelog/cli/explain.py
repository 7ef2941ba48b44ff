"""`tidelog explain`: why something is as it is, and what to change."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.boundary import CommandError, plain_typer, reported, with_cluster
from tidelog.cli.group import with_groups
from tidelog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, parse_partition
from tidelog.cli.output import print_json, print_table, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidelog.cli.explain_group import Explanation as GroupExplanation
    from tidelog.cli.explain_group import Finding
    from tidelog.cli.explain_partition import Explanation
    from tidelog.cli.explain_partition import Finding as PartitionFinding
    from tidelog.cli.group_timeline import Rebalance
    from tidelog.client.cluster import ClusterClient
    from tidelog.client.group_description import GroupDescription
    from tidelog.client.group_history import ToldHistory
    from tidelog.client.groups import Groups
    from tidelog.client.segments import PartitionSegments

app = plain_typer("Say why something is as it is, and what to change.")

NO_SEGMENTS = "this broker tells nothing of its segments, only Tidelog does; `tidelog topic describe {topic}` shows offsets and sizes"
NO_REPLICAS = "these brokers tell nothing of how far their replicas are, only Tidelog does; here is what the metadata says"
NO_HISTORY = "this broker keeps no history of its groups; here is what Kafka's own description tells"


@app.command()
@reported
def group(
    name: Annotated[str, typer.Argument(metavar="GROUP")],
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, help="Show the last so many rebalances.")
    ] = 10,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Say why a group rebalances: who joined, left, timed out or flaps, how long it took, and what to change.

    The history is in the broker's memory and begins with its start; only Tidelog keeps one.
    """

    async def work(
        groups: Groups,
    ) -> tuple[ToldHistory | None, GroupDescription | None, dict[str, Any] | None]:
        from tidelog.cli.group_report import describe_group
        from tidelog.client.group_history import ask_history
        from tidelog.client.groups import GroupMissingError

        told = await ask_history(groups, name)
        if told is None:
            return None, await groups.describe(name), await describe_group(groups, name)
        try:
            return told, await groups.describe(name), None
        except GroupMissingError:
            if not told.entries:
                raise
            return told, None, None

    told, description, report = with_groups(bootstrap_server, work)
    from tidelog.cli.explain_group import explain

    entries = () if told is None else told.entries
    protocol = "" if told is None else told.protocol
    found = explain(entries, description, time.time_ns() // 1_000_000, protocol=protocol)
    if told is None:
        warn([NO_HISTORY])
    if json:
        print_json(_document(name, told, description, report, found))
    elif report is not None:
        from tidelog.cli.group_report import headline, print_partitions

        print(headline(report))
        print_partitions(report)
        _print_findings(found.findings, nothing="")
    elif told is not None:
        _print_history(name, told, description, found, count)


@app.command()
@reported
def topic(
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="This partition only.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every segment, however many there are.")] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Say why each segment of a topic is still there, and when it will go.

    Only Tidelog tells: segments are files of the broker, and Kafka's protocol has no word for them.
    """

    async def work(cluster: ClusterClient) -> list[PartitionSegments]:
        from tidelog.client.cluster import PartitionMissingError
        from tidelog.client.metadata import TopicPartition
        from tidelog.client.segments import ask_segments

        info = await cluster.topic(name)
        if partition is not None and partition not in info.partitions:
            raise PartitionMissingError(TopicPartition(name, partition), len(info.partitions))
        found: list[PartitionSegments] = []
        for number in sorted(info.partitions) if partition is None else [partition]:
            told = await ask_segments(cluster, TopicPartition(name, number))
            if told is None:
                raise CommandError(NO_SEGMENTS.format(topic=name))
            found.append(told)
        return found

    found = with_cluster(bootstrap_server, work)
    from tidelog.cli import explain_topic

    if json:
        print_json(explain_topic.document(name, found))
        return
    print(explain_topic.headline(name, found))
    for each in found:
        print(f"\n{explain_topic.partition_line(each)}")
        print_table(explain_topic.COLUMNS, explain_topic.rows(each, every=every), right=explain_topic.NUMBERS)
    print()
    for reason in explain_topic.reasons(found):
        print(reason)


@app.command()
@reported
def partition(
    name: Annotated[str, typer.Argument(metavar="TOPIC-PARTITION", help="As in logs: orders-0.")],
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Say who is in sync and who is not, since when and why, what holds the high watermark, and what to do.

    How far replicas are and since when something is so, only Tidelog tells, from its brokers' memory; of any other cluster there is what its metadata says.
    """
    parsed = parse_partition(name)
    if parsed is None:
        raise typer.BadParameter(
            f"{name!r} names no partition: write the topic, a hyphen and the number, as in orders-0"
        )
    from tidelog.cli.cluster_facts import PATIENCE

    async def work(cluster: ClusterClient) -> Explanation:
        from tidelog.cli.cluster_facts import gather_facts, topic_rules
        from tidelog.cli.explain_partition import explain
        from tidelog.client.cluster import PartitionMissingError, TopicMissingError
        from tidelog.client.metadata import TopicPartition

        tp = TopicPartition(*parsed)
        facts = await gather_facts(cluster, topics=[tp.topic], partitions=[tp], with_log_dirs=False)
        if not facts.partitions:
            raise TopicMissingError(tp.topic)
        described = next((p for p in facts.partitions if p.partition == tp.partition), None)
        if described is None:
            raise PartitionMissingError(tp, len(facts.partitions))
        return explain(facts, tp, described, await topic_rules(cluster, tp.topic, described.leader))

    found = with_cluster(bootstrap_server, work, **PATIENCE)
    from tidelog.cli import partition_report

    if not found.facts.answers:
        warn([NO_REPLICAS])
    if json:
        print_json(partition_report.document(found))
        return
    print(partition_report.headline(found))
    print()
    print_table(partition_report.COLUMNS, partition_report.rows(found), right=partition_report.NUMBERS)
    print(f"\n{partition_report.watermark_line(found)}")
    _print_findings(found.findings, nothing="\nall replicas are in sync, nothing here looks like a problem")


# -- for people -----------------------------------------------------------------------------------------------------


def _print_history(
    name: str, told: ToldHistory, description: GroupDescription | None, found: GroupExplanation, count: int
) -> None:
    from tidelog.cli.explain_group import SETTLED
    from tidelog.cli.group_timeline import since_then, span

    head = [f"group {name}", *_facts(told, description).values()]
    if description is not None:
        members = len(description.members)
        head.append("1 member" if members == 1 else f"{members or 'no'} members")
    print("  ".join(part for part in head if part))
    if not told.entries:
        print("the broker has nothing to tell about this group since it started")
        return
    lost_ms = sum(r.took_ms or 0 for r in found.rebalances)
    print(
        f"since {_moment(told.entries[0].wall_ms)}: {_rebalances(len(found.rebalances))}"
        + (f", {span(lost_ms)} in all" if found.rebalances else "")
    )
    if found.rebalances:
        print()
        columns = ("began", "took", "generation", "why")
        # A coordinator may not have noted the end: the state has the last word.
        settled = description is None or description.state in SETTLED
        rows = [_row(r, "-" if settled else "under way") for r in found.rebalances[-count:]]
        print_table(columns, rows, right=("took", "generation"))
    if later := since_then(told.entries):
        print(f"since then: {later}")
    _print_findings(found.findings, nothing="\nnothing here looks like a problem")


def _row(rebalance: Rebalance, unfinished: str) -> tuple[object, ...]:
    from tidelog.cli.group_timeline import span

    took = unfinished if rebalance.took_ms is None else span(rebalance.took_ms)
    return _moment(rebalance.began_ms), took, rebalance.generation, rebalance.why


def _print_findings(findings: Sequence[Finding | PartitionFinding], *, nothing: str) -> None:
    for finding in findings:
        print(f"\n{finding.kind}: {finding.what}")
        print(f"  → {finding.advice}")
    if not findings and nothing:
        print(nothing)


def _rebalances(count: int) -> str:
    return "no rebalance" if not count else "1 rebalance" if count == 1 else f"{count} rebalances"


def _moment(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _facts(told: ToldHistory | None, description: GroupDescription | None) -> dict[str, str]:
    """The description is the fresher one; a group that is gone has only its history."""
    if description is not None:
        return {"type": description.type, "state": description.state, "protocol": description.protocol}
    if told is not None:
        return {"type": told.group_type, "state": told.state, "protocol": told.protocol}
    return {}


# -- for scripts ----------------------------------------------------------------------------------------------------


def _document(
    name: str,
    told: ToldHistory | None,
    description: GroupDescription | None,
    report: dict[str, Any] | None,
    found: GroupExplanation,
) -> dict[str, Any]:
    return {
        "group": name,
        **_facts(told, description),
        "history": told is not None,
        "rebalances": [
            {
                "began_ms": r.began_ms,
                "ended_ms": r.ended_ms,
                "took_ms": r.took_ms,
                "generation": r.generation,
                "why": r.why,
                "reason": r.reason,
            }
            for r in found.rebalances
        ],
        "findings": [finding._asdict() for finding in found.findings],
        "entries": [entry._asdict() for entry in (told.entries if told is not None else ())],
        "description": report,
    }
