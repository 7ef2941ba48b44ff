"""`tidelog config`: the settings of a topic, of one broker, or of all brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.boundary import CommandError, plain_typer, reported, with_cluster
from tidelog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, parse_assignments
from tidelog.cli.output import print_json, print_table, warn

if TYPE_CHECKING:
    from tidelog.client.admin import ConfigEntry, Resource
    from tidelog.client.cluster import ClusterClient

app = plain_typer("Describe and change the settings of a topic, a broker, or all brokers.")

Topic = Annotated[str | None, typer.Option("--topic", "-t", help="The settings of this topic.")]
Broker = Annotated[
    int | None, typer.Option("--broker", min=0, metavar="ID", help="The settings of this broker.")
]
Default = Annotated[bool, typer.Option("--default", help="The dynamic default of all brokers.")]


@app.command()
@reported
def describe(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Only these settings.")] = None,
    topic: Topic = None,
    broker: Broker = None,
    default: Default = False,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Settings at their default, too.")] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show settings, where each comes from, and whether it can be changed."""
    resource = _resource(topic, broker, default)

    async def work(cluster: ClusterClient) -> list[ConfigEntry]:
        from tidelog.client.admin import Admin

        return await Admin(cluster).describe_configs(resource, names or None)

    entries = sorted(with_cluster(bootstrap_server, work), key=lambda entry: entry.name)
    if missing := set(names or ()) - {entry.name for entry in entries}:
        raise CommandError(
            f"{resource} has no setting {', '.join(sorted(missing))}; `--all` shows those it has"
        )
    shown = [
        e for e in entries if names or all_ or e.source.name not in ("DEFAULT_CONFIG", "STATIC_BROKER_CONFIG")
    ]
    if json:
        print_json([_entry(entry) for entry in shown])
    elif not shown:
        print(f"{resource} has no settings of its own; `--all` shows the defaults")
    else:
        rows = [(e.name, _value(e), e.source.name.lower(), "yes" if e.read_only else "no") for e in shown]
        print_table(("setting", "value", "source", "read-only"), rows)


@app.command(name="set")
@reported
def set_(
    assignments: Annotated[list[str], typer.Argument(metavar="NAME=VALUE")],
    topic: Topic = None,
    broker: Broker = None,
    default: Default = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Change settings; the others stay as they are."""
    resource = _resource(topic, broker, default)
    configs = parse_assignments(assignments, "NAME=VALUE")

    async def work(cluster: ClusterClient) -> None:
        from tidelog.client.admin import Admin

        await Admin(cluster).alter_configs(resource, set_=configs)
        if topic is not None:
            await _warn_of(cluster, topic)
        else:
            from tidelog.config.footguns import default_warnings

            warn(default_warnings(configs, brokers=len(cluster.metadata.brokers)))

    with_cluster(bootstrap_server, work)
    if json:
        print_json({"resource": str(resource), "set": configs})
    else:
        print(f"changed {resource}: {', '.join(f'{name}={value}' for name, value in configs.items())}")


@app.command()
@reported
def unset(
    names: Annotated[list[str], typer.Argument(metavar="NAME")],
    topic: Topic = None,
    broker: Broker = None,
    default: Default = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Take settings back to their default."""
    resource = _resource(topic, broker, default)

    async def work(cluster: ClusterClient) -> None:
        from tidelog.client.admin import Admin

        await Admin(cluster).alter_configs(resource, unset=names)
        if topic is not None:
            await _warn_of(cluster, topic)  # the default may be what is seldom meant

    with_cluster(bootstrap_server, work)
    if json:
        print_json({"resource": str(resource), "unset": names})
    else:
        print(f"changed {resource}: {', '.join(names)} back to the default")


async def _warn_of(cluster: ClusterClient, topic: str) -> None:
    from tidelog.cli.topic_warnings import warnings_for
    from tidelog.client.admin import Admin

    admin = Admin(cluster)
    (info,) = await admin.describe_topics([topic])
    warn(await warnings_for(admin, info))


def _resource(topic: str | None, broker: int | None, default: bool) -> Resource:
    if (topic is not None) + (broker is not None) + default != 1:
        raise typer.BadParameter("say whose settings: one of --topic NAME, --broker ID or --default")
    from tidelog.client.admin import Resource, ResourceType

    if topic is not None:
        return Resource(ResourceType.TOPIC, topic)
    return Resource(ResourceType.BROKER, "" if broker is None else str(broker))


def _value(entry: ConfigEntry) -> str:
    if entry.sensitive:
        return "(hidden)"
    return "" if entry.value is None else entry.value


def _entry(entry: ConfigEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source.name,
        "read_only": entry.read_only,
        "sensitive": entry.sensitive,
        "synonyms": [{"name": n, "value": v, "source": s.name} for n, v, s in entry.synonyms],
    }
