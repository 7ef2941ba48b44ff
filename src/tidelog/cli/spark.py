"""`tidelog spark`: a cluster on this machine to try things on, and checkpoints of Spark's own Kafka connector carried over."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.boundary import CommandError, plain_typer, reported
from tidelog.cli.options import Json
from tidelog.cli.output import print_json, print_table, warn

if TYPE_CHECKING:
    from tidelog.spark.standalone import StandaloneCluster

app = plain_typer("Spark: a cluster on this machine, and checkpoints of Spark's Kafka connector.")
cluster = plain_typer("A standalone master and workers on this machine, from PySpark's own files.")
app.add_typer(cluster, name="cluster")

Directory = Annotated[
    Path,
    typer.Option("--directory", "-d", metavar="DIR", help="Where its logs and process numbers are kept."),
]
DEFAULT_DIRECTORY = Path("spark-cluster")


@app.command("import-checkpoint")
@reported
def import_checkpoint(
    old: Annotated[
        str, typer.Argument(metavar="OLD", help='The checkpoint of a query that read with format("kafka").')
    ],
    new: Annotated[
        str,
        typer.Argument(
            metavar="NEW",
            help='Where the checkpoint for format("tidelog") goes: must not exist, or be OLD itself.',
        ),
    ],
) -> None:
    """Carry a checkpoint of Spark's JVM Kafka connector over, so that format("tidelog") goes on where that one stopped.

    OLD is read and left as it is, unless NEW is the same directory. The query must not run meanwhile.
    """
    from tidelog.spark.checkpoints import import_jvm_checkpoint

    print(f"{new} goes on where {old} stopped: {import_jvm_checkpoint(old, new)}")


@cluster.command()
@reported
def up(
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, max=64, help="How many.")] = 2,
    cores: Annotated[
        int | None,
        typer.Option(
            "--cores", min=1, show_default="the machine's, divided by the workers", help="Of each worker."
        ),
    ] = None,
    memory: Annotated[
        str,
        typer.Option("--memory", metavar="SIZE", help="That executors of each worker may take: 512m, 2g."),
    ] = "1g",
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="Of the master; 0 takes a free one. One that is taken is passed over for the next.",
        ),
    ] = 7077,
    directory: Directory = DEFAULT_DIRECTORY,
    detach: Annotated[
        bool, typer.Option("--detach", help="Leave it running in the background; `down` ends it.")
    ] = False,
) -> None:
    """Start a cluster and run it until Ctrl-C or SIGTERM."""
    from tidelog.spark.standalone import bring_down, bring_up

    each = cores or max(1, (os.cpu_count() or 1) // workers)
    running = bring_up(directory.absolute(), workers=workers, cores=each, memory=memory, port=port)
    print(
        f"Spark is up: {running.master} ({workers} workers with {each} cores and {memory} each), in a browser {running.web}"
    )
    print(f"run a pipeline on it: tidelog pipeline run --master {running.master}")
    if detach:
        print(f"end it: tidelog spark cluster down --directory {directory}", flush=True)
        return
    sys.stdout.flush()
    try:
        failed = _supervise(running)
    finally:
        bring_down(directory.absolute())
    if failed:
        raise CommandError(failed)


@cluster.command()
@reported
def down(directory: Directory = DEFAULT_DIRECTORY) -> None:
    """End the cluster that `up --detach` has started."""
    from tidelog.spark.standalone import bring_down

    ended = bring_down(directory.absolute())
    print(f"{ended.master} is down")


@cluster.command()
@reported
def status(directory: Directory = DEFAULT_DIRECTORY, json: Json = False) -> None:
    """Who of the cluster lives, and what the master says of its workers and applications."""
    from tidelog.spark.standalone import find, seen_by_master

    found = find(directory.absolute())
    missing = dict(found.missing())
    lives = "master" not in missing
    seen = seen_by_master(found) if lives else {}
    applications = [
        {"name": each["name"], "cores": each["cores"], "state": each["state"]}
        for each in seen.get("activeapps", ())
    ]
    if json:
        print_json(
            {
                "master": found.master,
                "web": found.web,
                "members": [
                    {
                        "name": each.name,
                        "pid": each.process["pid"],
                        "gone": missing.get(each.name),
                        "log": each.log,
                    }
                    for each in found.members
                ],
                "cores": seen.get("cores"),
                "cores_used": seen.get("coresused"),
                "applications": applications,
            }
        )
    else:
        print(f"{found.master}, in a browser {found.web}")
        rows = [(m.name, m.process["pid"], missing.get(m.name, "runs"), m.log) for m in found.members]
        print_table(("member", "pid", "state", "log"), rows, right=("pid",))
        if lives:
            print(f"{seen.get('coresused')} of {seen.get('cores')} cores in use")
        for each in applications:
            print(f"application {each['name']}: {each['state']}, {each['cores']} cores")
    if missing:
        raise typer.Exit(1)


def _supervise(running: StandaloneCluster) -> str | None:
    """Until somebody says stop (None), or there is nothing left to look after (why). Workers that end are told, and the rest goes on."""
    from tidelog.spark.standalone import tail

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    told: set[str] = set()
    try:
        while True:
            for name, why in running.missing():
                if name not in told:
                    log = next(each.log for each in running.members if each.name == name)
                    warn([f"{name} has ended ({why}); its log {log} ends with", *tail(log)])
                    told.add(name)
            if "master" in told:
                return "the master has ended, and the cluster with it"
            if len(told) == len(running.members) - 1:
                return "no worker is left"
            time.sleep(0.5)
    except KeyboardInterrupt:
        return None
    finally:
        signal.signal(signal.SIGTERM, before)
