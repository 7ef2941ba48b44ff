"""`tidelog start`: options, a properties file and the environment become one configuration; the broker does the rest."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli import STARTED_AT
from tidelog.cli.boundary import reported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidelog.config import BrokerConfig, Given

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9092
DEFAULT_DATA_DIR = "tidelog-data"
# Variables with our prefix that are no broker settings.
OTHER_VARIABLES = (
    "TIDELOG_BOOTSTRAP_SERVERS",
    "TIDELOG_LOG_LEVEL",
    "TIDELOG_TEST_BOOTSTRAP",
    "TIDELOG_CRASH_CYCLES",
)


def register(app: typer.Typer) -> None:
    app.command()(start)


@reported
def start(
    data_dir: Annotated[
        str | None,
        typer.Option(
            "--data-dir", "-d", metavar="DIR", show_default="./tidelog-data", help="Where the log is kept."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", "-p", min=0, max=65535, show_default=str(DEFAULT_PORT), help="0 takes a free one."
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", show_default=DEFAULT_HOST, help="The address to listen on.")
    ] = None,
    brokers: Annotated[
        int,
        typer.Option(
            "--brokers",
            min=1,
            max=16,
            help="So many brokers on this machine, as one cluster, on consecutive ports.",
        ),
    ] = 1,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A broker setting; repeatable.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="A server.properties file, as Kafka's."),
    ] = None,
) -> None:
    """Start a broker and run it until Ctrl-C or SIGTERM.

    Settings come from the properties file, then from TIDELOG_… environment variables (TIDELOG_LOG_RETENTION_MS is
    log.retention.ms), then from --set, then from the other options; the later wins.
    """
    if brokers > 1:
        raise typer.Exit(_start_many(brokers, config, settings or (), data_dir, host, port))
    resolved = resolve(config, os.environ, settings or (), data_dir=data_dir, host=host, port=port)
    gc.disable()  # modules are no garbage, and looking for some among them takes a tenth of a start
    from tidelog.broker.server import run

    gc.enable()

    raise typer.Exit(run(resolved, started_at=STARTED_AT))


def _start_many(
    brokers: int,
    config: Path | None,
    assignments: Sequence[str],
    data_dir: str | None,
    host: str | None,
    port: int | None,
) -> int:
    from tidelog.cli.local_cluster import LocalClusterError
    from tidelog.cli.supervisor import supervise
    from tidelog.config import ConfigError, combine, from_assignments, from_environment

    if config is not None:
        raise ConfigError(
            [
                "--config is the file of one node: leave --brokers out, or give settings for all of them with --set"
            ]
        )
    given = combine(from_environment(os.environ, ignore=OTHER_VARIABLES), from_assignments(assignments))
    try:
        return supervise(
            Path(data_dir or DEFAULT_DATA_DIR).absolute(),
            brokers=brokers,
            host=host or DEFAULT_HOST,
            port=DEFAULT_PORT if port is None else port,
            settings=given.values,
            origins=given.origins,
        )
    except LocalClusterError as error:
        raise ConfigError([str(error)]) from error


def resolve(
    file: Path | None,
    environ: Mapping[str, str],
    assignments: Sequence[str],
    *,
    data_dir: str | None = None,
    host: str | None = None,
    port: int | None = None,
) -> BrokerConfig:
    """One checked configuration from all sources. ConfigError lists everything that is wrong and where it was given."""
    from tidelog.config import (
        BrokerConfig,
        Given,
        combine,
        from_assignments,
        from_environment,
        from_properties,
    )

    given = combine(
        Given({}, {}) if file is None else from_properties(file.read_text(encoding="utf-8"), file=str(file)),
        from_environment(environ, ignore=OTHER_VARIABLES),
        from_assignments(assignments),
        _from_options(data_dir, host, port),
    )
    return BrokerConfig.load(given.values, source=given.origins)


def _from_options(data_dir: str | None, host: str | None, port: int | None) -> Given:
    from tidelog.config import Given

    given = Given({}, {})
    if data_dir is not None:
        given.values["log.dirs"] = data_dir
        given.origins["log.dirs"] = "--data-dir"
    if host is not None or port is not None:
        chosen = DEFAULT_HOST if host is None else host
        bracketed = f"[{chosen}]" if ":" in chosen else chosen
        given.values["listeners"] = f"PLAINTEXT://{bracketed}:{DEFAULT_PORT if port is None else port}"
        given.origins["listeners"] = "--host/--port"
    return given
