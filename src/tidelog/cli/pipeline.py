"""`tidelog pipeline`: run a specification, check it, see how it does, and its checkpoints as plain offsets."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.boundary import CommandError, plain_typer, reported, with_cluster
from tidelog.cli.options import Json
from tidelog.cli.output import print_json, print_table, warn

if TYPE_CHECKING:
    from tidelog.pipeline.status import PipelineStatus
    from tidelog.pipeline.values import Pipeline

app = plain_typer("Flows between topics, tables and databases, on Spark.")
checkpoint = plain_typer("A flow's position as plain offsets, out of its checkpoint and into one.")
app.add_typer(checkpoint, name="checkpoint")

DEFAULT_SPEC = Path("pipeline.toml")
Spec = Annotated[
    Path,
    typer.Argument(metavar="[SPEC]", help="The specification, a TOML file.", show_default="pipeline.toml"),
]
FlowName = Annotated[str, typer.Argument(metavar="FLOW", help="The name of the flow.")]


@app.command()
@reported
def run(
    spec: Spec = DEFAULT_SPEC,
    master: Annotated[
        str | None,
        typer.Option(
            "--master",
            metavar="URL",
            help="Where Spark runs, instead of what the specification says: local[*], spark://host:port, yarn, k8s://…",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Work off what is there, then stop, whatever triggers say.")
    ] = False,
    brokers: Annotated[
        str | None,
        typer.Option("--brokers", metavar="HOST:PORT,…", help="Instead of what the specification says."),
    ] = None,
    rebuild: Annotated[
        list[str] | None,
        typer.Option(
            "--rebuild",
            metavar="FLOW",
            help="Build this flow's table anew from the first offset; the old rows go when the new ones have caught up. May be given more than once.",
        ),
    ] = None,
) -> None:
    """Run all flows until Ctrl-C or SIGTERM, or until the last has finished.

    A second Ctrl-C leaves at once. Exit code 1 if a flow failed.
    """
    from dataclasses import replace

    from tidelog.pipeline.display import shown
    from tidelog.pipeline.runner import run as run_pipeline
    from tidelog.pipeline.values import with_overrides

    pipeline = with_overrides(_load(spec), master=master, once=once, rebuild=rebuild or ())
    if brokers is not None:
        pipeline = replace(pipeline, brokers=brokers)
    with shown() as show:
        last = run_pipeline(pipeline, on_status=show)
    failed = [flow for flow in last.flows if flow.state == "failed"]
    for flow in failed:
        for line in (flow.error or "").splitlines():
            print(f"error: flow {flow.name}: {line}", file=sys.stderr)
    if failed:
        print(
            f"error: Spark's own account is in {os.path.join(pipeline.state, 'spark.log')}", file=sys.stderr
        )
        raise typer.Exit(1)


@app.command()
@reported
def validate(
    spec: Spec = DEFAULT_SPEC,
    online: Annotated[
        bool,
        typer.Option(
            "--online", help="Also ask the brokers for the topics, and try whether what is written to can be."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Say everything that is wrong with a specification, with its lines, and start nothing."""
    pipeline = _load(spec)
    if online:
        from tidelog.pipeline.online import check_online

        problems, notes = with_cluster(pipeline.brokers, lambda cluster: check_online(pipeline, cluster))
        warn(notes)
        if problems:
            raise CommandError("\n".join(f"{spec}: {problem}" for problem in problems))
    if json:
        print_json(
            {
                "name": pipeline.name,
                "flows": [{"name": flow.name, "job": flow.job} for flow in pipeline.flows],
            }
        )
        return
    for flow in pipeline.flows:
        print(f"{flow.name}: {flow.job}")


@app.command()
@reported
def status(
    spec: Spec = DEFAULT_SPEC,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again every second, until Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """How a pipeline does, from another terminal. SPEC may also be its state directory."""
    directory = _state(spec)
    from tidelog.pipeline.status import read_status

    if not watch:
        _show(read_status(directory), json)
    elif json or not sys.stdout.isatty():
        while True:
            _show(read_status(directory), json)
            sys.stdout.flush()
            time.sleep(1)
    else:
        _watch(directory)


@checkpoint.command("export")
@reported
def export(spec: Spec, flow: FlowName) -> None:
    """Print the offsets that a flow has read up to, as JSON: `{"orders": {"0": 33}}`, the next offset of each partition."""
    from tidelog.pipeline.checkpoints import export_offsets

    print_json(export_offsets(_load(spec), flow))


@checkpoint.command("import")
@reported
def import_(
    spec: Spec,
    flow: FlowName,
    file: Annotated[
        typer.FileText,
        typer.Argument(
            metavar="[FILE]", help="Offsets as `export` prints them; stdin by default.", show_default=False
        ),
    ] = "-",  # type: ignore[assignment]
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Put aside a checkpoint that is there (it is renamed, not removed)."
        ),
    ] = False,
) -> None:
    """Let a flow begin at the offsets of a file: its checkpoint is made anew. State of aggregations is not in it."""
    from tidelog.pipeline.checkpoints import import_offsets

    kept = import_offsets(_load(spec), flow, file.read(), overwrite=overwrite)
    print(
        f"flow {flow} begins there the next time it runs"
        + (f"; what was there is now {kept}" if kept else "")
    )


def _load(spec: Path) -> Pipeline:
    # Modules of jobs of the user's own lie beside the file that names them; Spark's workers need them as well.
    directory = str(spec.absolute().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
        given = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{directory}{os.pathsep}{given}" if given else directory
    from tidelog.pipeline.spec import load

    return load(str(spec))


def _state(spec: Path) -> str:
    if spec.is_dir():
        return str(spec)
    return _load(spec).state


def _show(status: PipelineStatus, json: bool) -> None:
    from json import loads

    from tidelog.pipeline.display import COLUMNS, RIGHT, errors, headline, rows, warnings
    from tidelog.pipeline.status import life_of

    life = life_of(status, time.time())
    if json:
        print_json({"life": life, **loads(status.to_json())})
        return
    print(headline(status, life))
    print_table(COLUMNS, rows(status), right=RIGHT)
    for warning in warnings(status):
        print(f"warning: {warning}")
    for error in errors(status):
        print(f"error: {error}")


def _watch(directory: str) -> None:
    from rich.console import Console
    from rich.live import Live

    from tidelog.pipeline.display import rendered
    from tidelog.pipeline.status import life_of, read_status

    with Live(console=Console(markup=False, highlight=False), auto_refresh=False) as table:
        while True:
            found = read_status(directory)
            table.update(rendered(found, life_of(found, time.time())), refresh=True)
            time.sleep(1)
