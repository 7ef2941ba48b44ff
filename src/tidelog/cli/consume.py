"""`tidelog consume`: records of a topic to stdout, from where and for how long the options say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.boundary import reported, with_cluster
from tidelog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, parse_timestamp
from tidelog.cli.output import note
from tidelog.cli.record_format import RecordFormat, json_format, template_format, text_format

if TYPE_CHECKING:
    from tidelog.client.cluster import ClusterClient


def register(app: typer.Typer) -> None:
    app.command()(consume)


@reported
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="From the oldest record.")] = False,
    offset: Annotated[
        int | None, typer.Option("--offset", "-o", help="From this offset; -N: the last N of each partition.")
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp", "-T", metavar="TIME", help="From this time: ms, ISO 8601, or an age (30m, 2h)."
        ),
    ] = None,
    end: Annotated[
        bool, typer.Option("--end", help="Only records that come from now on (the default).")
    ] = False,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, show_default="all", help="Repeatable.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", help="As a member of this group: from where it was, committing what is printed."
        ),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--exit-at-end", help="Wait for more, or stop where the log ends now.")
    ] = True,
    key: Annotated[bool, typer.Option("--key", "-k", help="Show the key before the value.")] = False,
    headers: Annotated[
        bool, typer.Option("--headers", "-H", help="Show headers before key and value.")
    ] = False,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="TEXT",
            help=r"%t topic, %p partition, %o offset, %d time (ms), %k key, %v value, %h headers, %%, \n, \t.",
        ),
    ] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Read records of a topic: values, one per line, unless told otherwise.

    Order is kept within each partition. With --json, one JSON object per line; bytes that are not UTF-8 come as
    key_base64 or value_base64. With --group, --from-beginning and --end say where to begin in partitions where the group
    has committed nothing yet.
    """
    if from_beginning + (offset is not None) + (timestamp is not None) + end > 1:
        raise typer.BadParameter("--from-beginning, --offset, --timestamp and --end exclude each other")
    if format_ is not None and (json or key or headers):
        raise typer.BadParameter("--format says it all: leave out --json, --key and --headers")
    if group is not None:
        _check_group(group, offset=offset, timestamp=timestamp, partition=partition)
    write = _format(json, format_, key=key, headers=headers)
    since_ms = None if timestamp is None else parse_timestamp(timestamp, time.time_ns() // 1_000_000)

    async def work(cluster: ClusterClient) -> None:
        if group is not None:
            from tidelog.cli.consume_group import consume_in_group

            await consume_in_group(
                cluster,
                bootstrap_server,
                topic,
                group,
                write,
                from_beginning=from_beginning,
                count=count,
                follow=follow,
            )
            return
        from tidelog.cli.consume_alone import print_records
        from tidelog.cli.start_offsets import end_offsets, partitions_of, start_offsets

        partitions = await partitions_of(cluster, topic, partition)
        ends = None if follow else await end_offsets(cluster, partitions)
        positions = await start_offsets(
            cluster, partitions, from_beginning=from_beginning, offset=offset, timestamp_ms=since_ms
        )
        if follow and not (from_beginning or offset is not None or since_ms is not None):
            note(
                f"waiting for new records in {topic}; --from-beginning shows those already there; Ctrl-C ends"
            )
        await print_records(cluster, bootstrap_server, topic, positions, ends, write, count)

    with_cluster(bootstrap_server, work)


def _check_group(
    group: str, *, offset: int | None, timestamp: str | None, partition: list[int] | None
) -> None:
    if not group:
        raise typer.BadParameter("a group needs a name", param_hint="--group")
    if offset is not None or timestamp is not None:
        raise typer.BadParameter(
            "a group begins where it was: leave out --offset and --timestamp; `tidelog group reset` moves it"
        )
    if partition:
        raise typer.BadParameter("a group deals out its partitions itself: leave out --partition or --group")


def _format(json: bool, template: str | None, *, key: bool, headers: bool) -> RecordFormat:
    if json:
        return json_format
    return text_format(key=key, headers=headers) if template is None else template_format(template)
