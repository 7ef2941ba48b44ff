"""All commands, put together. Importing this must stay cheap: no client, no rich, no broker."""

from __future__ import annotations

from typing import Annotated

import typer

from tidelog import __version__
from tidelog.cli import (
    bench,
    cluster,
    config,
    consume,
    dlq,
    explain,
    group,
    log,
    partition,
    pipeline,
    produce,
    quorum,
    spark,
    start,
    topic,
)
from tidelog.cli.boundary import plain_typer

app = plain_typer(
    "A Kafka-compatible log: start a broker, and look after topics, records and groups on any Kafka cluster."
)

start.register(app)
app.add_typer(cluster.app, name="cluster")
app.add_typer(quorum.app, name="quorum")
app.add_typer(topic.app, name="topic")
app.add_typer(partition.app, name="partition")
produce.register(app)
consume.register(app)
app.add_typer(group.app, name="group")
app.add_typer(dlq.app, name="dlq")
app.add_typer(explain.app, name="explain")
app.add_typer(config.app, name="config")
app.add_typer(log.app, name="log")
app.add_typer(bench.app, name="bench")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(spark.app, name="spark")


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        print(f"tidelog {__version__}")
        raise typer.Exit
