"""`tidelog partition`: leaders elected by hand, with what came of it for each partition and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tidelog.cli.boundary import CommandError, plain_typer, reported, with_cluster
from tidelog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, parse_partition
from tidelog.cli.output import print_json, print_table, warn

if TYPE_CHECKING:
    from tidelog.client.cluster import ClusterClient
    from tidelog.client.cluster_admin import ElectionOutcome, PartitionDescription
    from tidelog.client.metadata import TopicPartition

app = plain_typer("Elect leaders of partitions.")

LOOKS_MAX = 20
LOOK_AGAIN_SECONDS = 0.05
LOSES = "an unclean election takes a leader that is not in sync: records that were acknowledged and that it does not have are lost"
NOTHING_TO_DO = "no partition needs such an election"


class Elected(NamedTuple):
    tp: TopicPartition
    before: int | None
    after: int | None
    result: str
    why: str


@app.callback()
def _group() -> None:
    """Keeps `elect` a command of its own while it is the only one."""


@app.command()
@reported
def elect(
    partitions: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC-PARTITION", help="orders-0, or a topic's name for all of it."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every partition of the cluster.")] = False,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Where nobody leads: take any replica that is there. Loses what it does not have.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before an unclean election.")] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Give partitions back to their preferred leaders (their first replicas), or with --unclean a leader at any price."""
    if every == bool(partitions):
        raise typer.BadParameter("name partitions (orders-0) or topics, or say --all")
    if unclean and not yes:
        if json:
            raise CommandError(f"{LOSES}; say --yes if that is what you want")
        typer.confirm(f"{LOSES}. Go on?", abort=True, err=True)

    async def work(cluster: ClusterClient) -> list[Elected]:
        import asyncio

        from tidelog.client.cluster_admin import Election, describe_partitions, elect_leaders

        before = await describe_partitions(cluster)
        wanted = None if every else _wanted(partitions or [], before)
        outcomes = await elect_leaders(cluster, Election.UNCLEAN if unclean else Election.PREFERRED, wanted)
        topics = sorted({outcome.tp.topic for outcome in outcomes})
        for _ in range(LOOKS_MAX):
            after = await describe_partitions(cluster, topics)
            found = [_elected(outcome, before, after) for outcome in outcomes]
            if not any(each.result == "elected" and each.after == each.before for each in found):
                break
            # Whoever was asked has not heard of the election yet.
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
        return found

    found = sorted(with_cluster(bootstrap_server, work))
    if json:
        print_json([_document(each) for each in found])
    elif not found:
        print(NOTHING_TO_DO)
    else:
        columns = ("partition", "before", "leader", "result", "why")
        rows = [(each.tp, _name(each.before), _name(each.after), each.result, each.why) for each in found]
        print_table(columns, rows, right=("before", "leader"))
    if unclean and any(each.result == "elected" for each in found):
        warn(
            [
                "elected uncleanly: consumers may find that records they have read are gone, and others in their place"
            ]
        )
    if any(each.result == "failed" for each in found):
        raise typer.Exit(1)


def _wanted(names: list[str], known: list[PartitionDescription]) -> list[TopicPartition]:
    """What is named may be a topic whose name looks like a partition: topics go first."""
    from tidelog.client.cluster import TopicMissingError
    from tidelog.client.metadata import TopicPartition

    topics = {described.topic for described in known}
    wanted: dict[TopicPartition, None] = {}
    for name in names:
        if name in topics:
            of_topic = (d for d in known if d.topic == name)
            wanted |= dict.fromkeys(TopicPartition(name, d.partition) for d in of_topic)
            continue
        parsed = parse_partition(name)
        if parsed is None or parsed[0] not in topics:
            raise TopicMissingError(name if parsed is None else parsed[0])
        wanted[TopicPartition(*parsed)] = None
    return list(wanted)


def _elected(
    outcome: ElectionOutcome, before: list[PartitionDescription], after: list[PartitionDescription]
) -> Elected:
    from tidelog.wire.error_codes import ErrorCode

    was, now = _find(outcome.tp, before), _find(outcome.tp, after)
    if outcome.error == ErrorCode.NONE:
        result, why = "elected", ""
    elif outcome.error == ErrorCode.ELECTION_NOT_NEEDED:
        result, why = "not needed", outcome.message or "it has that leader already"
    else:
        result, why = "failed", f"{outcome.message or ''} ({outcome.error.name})".strip()
        if outcome.error == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE and now is not None:
            why += f"; in sync: {', '.join(map(str, now.isr)) or 'nobody'}"
    return Elected(
        outcome.tp, None if was is None else was.leader, None if now is None else now.leader, result, why
    )


def _find(tp: TopicPartition, known: list[PartitionDescription]) -> PartitionDescription | None:
    return next((d for d in known if (d.topic, d.partition) == tp), None)


def _name(leader: int | None) -> object:
    return "none" if leader is not None and leader < 0 else leader


def _document(each: Elected) -> dict[str, Any]:
    return {
        "topic": each.tp.topic,
        "partition": each.tp.partition,
        "leader_before": each.before,
        "leader": each.after,
        "result": each.result,
        "why": each.why or None,
    }
