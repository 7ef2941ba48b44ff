"""`tidelog topic`: create, list, describe, alter, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.boundary import CommandError, plain_typer, reported, with_cluster
from tidelog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, parse_assignments
from tidelog.cli.output import human_bytes, note, print_json, print_table, topic_id_text, warn

if TYPE_CHECKING:
    from tidelog.client.cluster import ClusterClient
    from tidelog.client.metadata import TopicInfo

app = plain_typer("Create, list, describe, alter and delete topics.")

Names = Annotated[list[str], typer.Argument(metavar="TOPIC", help="One topic or several.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", "--set", metavar="NAME=VALUE", help="A topic setting; repeatable."),
]


@app.command()
@reported
def create(
    names: Names,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", min=1, show_default="the broker's num.partitions", help="How many."
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            min=1,
            show_default="the broker's default.replication.factor",
            help="Copies of each partition.",
        ),
    ] = None,
    settings: Settings = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that is already there is no error.")
    ] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Create topics."""
    configs = parse_assignments(settings or [], "--config")

    async def work(cluster: ClusterClient) -> list[dict[str, Any]]:
        from tidelog.client.admin import Admin, NewTopic
        from tidelog.client.errors import BrokerError
        from tidelog.wire.error_codes import ErrorCode

        created: list[dict[str, Any]] = []
        for name in names:
            try:
                new = NewTopic(name, partitions or -1, replication_factor or -1, configs)
                (topic,) = await Admin(cluster).create_topics([new])
            except BrokerError as error:
                if error.code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
                    created.append({"topic": name, "created": False})
                    continue
                raise
            await cluster.topic(name, expected=True)
            created.append(
                {
                    "topic": name,
                    "created": True,
                    "topic_id": topic_id_text(topic.topic_id),
                    "partitions": topic.partitions,
                    "replication_factor": topic.replication_factor,
                }
            )
        await _warn(cluster, [result["topic"] for result in created if result["created"]])
        return created

    results = with_cluster(bootstrap_server, work)
    if json:
        print_json(results)
        return
    for result in results:
        if result["created"]:
            count, factor = result["partitions"], result["replication_factor"]
            print(f"created topic {result['topic']} ({_partitions(count)}, replication factor {factor})")
        else:
            print(f"topic {result['topic']} was already there")


@app.command(name="list")
@reported
def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Internal topics too.")] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List topics."""

    async def work(cluster: ClusterClient) -> list[TopicInfo]:
        from tidelog.client.admin import Admin

        topics = (await Admin(cluster).list_topics()).topics.values()
        return sorted((t for t in topics if internal or not t.is_internal), key=lambda t: t.name)

    topics = with_cluster(bootstrap_server, work)
    if json:
        print_json([_summary(topic) for topic in topics])
    elif not topics:
        note("no topics yet; create one with `tidelog topic create NAME`")
    else:
        rows = [(t.name, len(t.partitions), _replication_factor(t), _under_replicated(t)) for t in topics]
        columns = ("topic", "partitions", "replicas", "under-replicated")
        print_table(columns, rows, right=columns[1:])


@app.command()
@reported
def describe(
    names: Names,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show partitions, leaders, offsets, sizes and the settings that differ from the default."""

    async def work(cluster: ClusterClient) -> list[dict[str, Any]]:
        from tidelog.cli.topic_report import describe_topic
        from tidelog.client.admin import Admin

        return [await describe_topic(cluster, info) for info in await Admin(cluster).describe_topics(names)]

    reports = with_cluster(bootstrap_server, work)
    if json:
        print_json(reports)
        return
    for number, report in enumerate(reports):
        if number:
            print()
        _print_report(report)


@app.command()
@reported
def alter(
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Grow to this many.")
    ] = None,
    settings: Settings = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="NAME", help="Back to the default; repeatable.")
    ] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Change a topic's settings or add partitions."""
    configs = parse_assignments(settings or [], "--config")
    if partitions is None and not configs and not unset:
        raise typer.BadParameter("nothing to change: give --partitions, --config or --unset")

    async def work(cluster: ClusterClient) -> dict[str, Any]:
        from tidelog.client.admin import Admin, Resource, ResourceType

        admin = Admin(cluster)
        (info,) = await admin.describe_topics([name])
        before = len(info.partitions)
        if partitions is not None and partitions <= before:
            raise CommandError(
                f"topic {name} has {_partitions(before)} already, and partitions cannot be removed; "
                "ask for more, or create another topic"
            )
        if configs or unset:
            await admin.alter_configs(Resource(ResourceType.TOPIC, name), set_=configs, unset=unset or ())
        if partitions is not None:
            await admin.create_partitions(name, partitions)
        await _warn(cluster, [name], partitions_before=before, partitions_now=partitions)
        return {"topic": name, "partitions": partitions or before, "set": configs, "unset": unset or []}

    result = with_cluster(bootstrap_server, work)
    if json:
        print_json(result)
    else:
        print(f"altered topic {name}")


@app.command()
@reported
def delete(
    names: Names,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="A topic that is not there is no error.")
    ] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Delete topics and all their records."""

    async def work(cluster: ClusterClient) -> list[dict[str, Any]]:
        from tidelog.client.admin import Admin
        from tidelog.client.cluster import TopicMissingError

        results: list[dict[str, Any]] = []
        for name in names:
            try:
                await Admin(cluster).delete_topics([name])
                results.append({"topic": name, "deleted": True})
            except TopicMissingError:
                if not if_exists:
                    raise
                results.append({"topic": name, "deleted": False})
        return results

    results = with_cluster(bootstrap_server, work)
    if json:
        print_json(results)
        return
    for result in results:
        print(
            f"deleted topic {result['topic']}"
            if result["deleted"]
            else f"topic {result['topic']} was not there"
        )


async def _warn(
    cluster: ClusterClient,
    names: list[str],
    *,
    partitions_before: int | None = None,
    partitions_now: int | None = None,
) -> None:
    """What the user has just set may not do what they expect: say so, on stderr."""
    from tidelog.cli.topic_warnings import warnings_for
    from tidelog.client.admin import Admin

    for name in names:
        info = await cluster.topic(name, expected=True, at_least_partitions=partitions_now or 1)
        warn(await warnings_for(Admin(cluster), info, partitions_before=partitions_before))


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


def _replication_factor(topic: TopicInfo) -> int:
    return max((len(p.replicas) for p in topic.partitions.values()), default=0)


def _under_replicated(topic: TopicInfo) -> int:
    return sum(len(p.isr) < len(p.replicas) for p in topic.partitions.values())


def _summary(topic: TopicInfo) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": topic_id_text(topic.topic_id),
        "internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "replication_factor": _replication_factor(topic),
        "under_replicated": _under_replicated(topic),
    }


def _print_report(report: dict[str, Any]) -> None:
    print(f"topic {report['topic']}  id {report['topic_id']}{'  (internal)' if report['internal'] else ''}")
    columns = ("partition", "leader", "epoch", "replicas", "isr", "start", "end", "records", "size")
    rows = [
        (
            p["partition"],
            p["leader"] if p["leader"] >= 0 else "none",
            p["leader_epoch"],
            p["replicas"],
            p["isr"],
            p["start_offset"],
            p["end_offset"],
            None if p["end_offset"] is None else p["end_offset"] - p["start_offset"],
            None if p["size_bytes"] is None else human_bytes(p["size_bytes"]),
        )
        for p in report["partitions"]
    ]
    print_table(columns, rows, right=("partition", "leader", "epoch", "start", "end", "records", "size"))
    for name, value in report["configs"].items():
        print(f"{name}={value}")
