"""`tidelog bench`: a simple load, to see what a broker does on this machine. Measures the broker more than the client.

Produce sends batches that were built beforehand; consume counts records by batch headers and decodes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.boundary import plain_typer, reported, with_cluster
from tidelog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog.cli.output import print_json, print_table
from tidelog.cli.produce import ACKS, Acks, Compression

if TYPE_CHECKING:
    from tidelog.client.cluster import ClusterClient

app = plain_typer("Measure what a broker does on this machine.")

Topic = Annotated[str, typer.Option("--topic", "-t", help="Made if it is not there; kept.")]
DEFAULT_TOPIC = "tidelog-bench"


@app.command()
@reported
def produce(
    topic: Topic = DEFAULT_TOPIC,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Records to write.")] = 1_000_000,
    size: Annotated[int, typer.Option("--size", "-s", min=0, metavar="BYTES", help="Of each value.")] = 100,
    batch_bytes: Annotated[
        int, typer.Option("--batch-bytes", min=1, help="Of each batch, uncompressed.")
    ] = 65_536,
    in_flight: Annotated[int, typer.Option("--in-flight", min=1, help="Requests on their way at once.")] = 5,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, help="If the topic must be made.")
    ] = 1,
    compression: Compression = "none",
    acks: Acks = "all",
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Write records as fast as the broker takes them."""

    async def work(cluster: ClusterClient) -> dict[str, Any]:
        from tidelog.cli.bench_load import ensure_topic, measure_produce
        from tidelog.records.compression import Codec

        info = await ensure_topic(cluster, topic, partitions)
        return await measure_produce(
            bootstrap_server,
            info,
            count=count,
            size=size,
            batch_bytes=batch_bytes,
            in_flight=in_flight,
            codec=Codec[compression.upper()],
            acks=ACKS[acks],
        )

    _show({"bench": "produce", "topic": topic, **with_cluster(bootstrap_server, work)}, json)


@app.command()
@reported
def consume(
    topic: Topic = DEFAULT_TOPIC,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, show_default="all", help="Stop after this many records."),
    ] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Read a topic from its beginning to its end."""

    async def work(cluster: ClusterClient) -> dict[str, Any]:
        from tidelog.cli.bench_load import measure_consume

        return await measure_consume(cluster, bootstrap_server, topic, count)

    _show({"bench": "consume", "topic": topic, **with_cluster(bootstrap_server, work)}, json)


def _show(result: dict[str, Any], json: bool) -> None:
    if json:
        print_json(result)
        return
    row = (
        f"{result['records']:,}",
        f"{result['seconds']:.2f}",
        f"{result['records_per_second']:,.0f}",
        f"{result['mb_per_second']:,.1f}",
        f"{result['p50_ms']:.2f}",
        f"{result['p99_ms']:.2f}",
    )
    columns = ("records", "seconds", "records/s", "MB/s", "p50 ms", "p99 ms")
    print_table(columns, [row], right=columns)
