"""`tidelog cluster`: who is there, who leads what, and what is not well; once, or as a live view."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.boundary import CommandError, plain_typer, reported, with_cluster
from tidelog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog.cli.output import note, print_json, print_table, warn

if TYPE_CHECKING:
    from tidelog.cli.cluster_facts import Facts
    from tidelog.cli.cluster_status import PartitionStatus
    from tidelog.client.cluster import ClusterClient

app = plain_typer("Look at a cluster: its brokers, its controller, its partitions.")


@app.callback()
def _group() -> None:
    """Keeps `status` a command of its own while it is the only one."""


@app.command()
@reported
def status(
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC", help="Partitions of these topics only; repeatable."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="Every partition, those that are well too.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Every partition, again and again, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, metavar="SECONDS", help="Between two looks of --watch.")
    ] = 1.0,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show brokers, the active controller, and partitions with their leaders, in-sync replicas, ends and high watermarks.

    Without --all, --topic or --watch only partitions that are not well are listed. Ends, watermarks and since when a broker is away are told by Tidelog only.
    """
    from tidelog.cli.cluster_facts import PATIENCE

    async def work(cluster: ClusterClient) -> None:
        from tidelog.cli.cluster_facts import gather_facts

        shows_all = every or watch or bool(topics)
        if not watch:
            _show(await gather_facts(cluster), topics, shows_all=shows_all, json=json)
            return
        from tidelog.cli.cluster_watch import Watch
        from tidelog.client.errors import ClientError

        with Watch(topics, json=json) as view:
            while True:
                try:
                    view.show(await gather_facts(cluster, with_log_dirs=False))
                except ClientError as error:  # nobody answers: that is what is to be seen, and it may change
                    view.show_trouble(error)
                await pause(interval)

    with_cluster(bootstrap_server, work, **PATIENCE)


async def pause(seconds: float) -> None:
    from asyncio import sleep

    await sleep(seconds)


def _show(facts: Facts, topics: list[str] | None, *, shows_all: bool, json: bool) -> None:
    from tidelog.cli import cluster_status as report

    found = [status for status in report.partitions(facts) if not topics or status.tp.topic in topics]
    if missing := set(topics or ()) - {status.tp.topic for status in found}:
        raise CommandError(
            f"there is no topic {', '.join(sorted(missing))}; `tidelog topic list` shows those that are"
        )
    shown = found if shows_all else [status for status in found if status.trouble]
    if json:
        print_json(report.document(facts, found if topics or shows_all else shown))
        return
    for line in report.headline(facts):
        print(line)
    print()
    rows = report.brokers(facts)
    print_table(report.BROKER_COLUMNS, report.broker_rows(rows), right=report.BROKER_NUMBERS)
    if shown:
        print()
        print_table(report.PARTITION_COLUMNS, report.partition_rows(shown), right=report.PARTITION_NUMBERS)
    sys.stdout.flush()
    warn(report.problems(rows))
    if troubled := next((status for status in shown if status.trouble), None):
        note(f"`tidelog explain partition {troubled.tp}` says why, and what to do")


def shown_partitions(facts: Facts, topics: list[str] | None) -> list[PartitionStatus]:
    """Internal topics only if they are not well, or named."""
    from tidelog.cli import cluster_status as report

    return [
        status
        for status in report.partitions(facts)
        if (status.tp.topic in topics if topics else status.trouble or not status.tp.topic.startswith("__"))
    ]
