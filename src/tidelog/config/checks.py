"""Rules between settings: combinations that no single row of the tables can refuse.

Owns those rules for a broker's static settings and for a topic's resolved ones. Each broken rule becomes a sentence;
nothing is repaired or defaulted here.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.config.definition import Value
from tidelog.config.listeners import (
    Endpoint,
    check_advertised,
    check_listeners,
    parse_endpoints,
    parse_protocol_map,
)
from tidelog.config.values import TypedValues

_NOT_ABOVE = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.min.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"),
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
)


def broker_problems(values: TypedValues, given: Mapping[str, str]) -> list[str]:
    """What is wrong with a broker's settings taken together."""
    problems: list[str] = []
    endpoints(values, given, problems)
    if "node.id" in given and "broker.id" in given and given["node.id"] != given["broker.id"]:
        problems.append(
            f"node.id is {given['node.id']} and broker.id is {given['broker.id']}: they must agree"
        )
    for low, high in _NOT_ABOVE:
        if values.int(low) > values.int(high):
            problems.append(f"{low} ({values.int(low)}) must not be above {high} ({values.int(high)})")
    heartbeat, session = (
        values.int(f"group.consumer.{name}") for name in ("heartbeat.interval.ms", "session.timeout.ms")
    )
    if heartbeat >= session:
        problems.append(
            f"group.consumer.heartbeat.interval.ms ({heartbeat}) must be below group.consumer.session.timeout.ms ({session}):"
            " all members would time out between two heartbeats"
        )
    problems += _cluster_problems(values)
    return problems


def _cluster_problems(values: TypedValues) -> list[str]:
    problems = []
    roles, node_id = values.list("process.roles"), values.int("node.id")
    voters = {int(voter.partition("@")[0]) for voter in values.list("controller.quorum.voters")}
    if "broker" not in roles and "controller" not in roles:
        problems.append("process.roles is empty: a node is a broker, a controller or both")
    bootstrap = values.list("controller.quorum.bootstrap.servers")
    if len(bootstrap) > 1 and not voters:
        # Kafka's own file names one, which is the node itself. Several nodes that each took themselves for all would be several clusters.
        problems.append(
            f"controller.quorum.bootstrap.servers names {len(bootstrap)} controllers of a dynamic quorum, which Tidelog does not have yet:"
            " name them in controller.quorum.voters, each as id@host:port"
        )
    if voters and "controller" in roles and node_id not in voters:
        problems.append(
            f"node {node_id} is to be a controller, and controller.quorum.voters does not name it (it names {', '.join(map(str, sorted(voters)))}):"
            " add it there, or leave controller out of process.roles"
        )
    if "controller" not in roles:
        if not voters:
            problems.append("a broker without a controller of its own needs controller.quorum.voters")
        elif node_id in voters:
            problems.append(
                f"controller.quorum.voters names node {node_id}, whose process.roles leave out controller"
            )
    if len(voters) > 1 and "controller" in roles and not values.list("controller.listener.names"):
        problems.append(
            "controllers of a cluster talk to each other at a listener of their own: name it in controller.listener.names and give it an address in listeners"
        )
    return problems


def endpoints(
    values: TypedValues, given: Mapping[str, str], problems: list[str]
) -> tuple[tuple[Endpoint, ...], tuple[Endpoint, ...]]:
    """(listeners, advertised listeners) of a broker; what is wrong with them is added to `problems`."""
    controllers = [name.upper() for name in values.list("controller.listener.names")]
    protocols = parse_protocol_map(values.str("listener.security.protocol.map"), problems)
    if "listener.security.protocol.map" not in given:
        for (
            name
        ) in controllers:  # as Kafka does: a controller listener is PLAINTEXT unless a map says otherwise
            protocols.setdefault(name, "PLAINTEXT")
    listeners = parse_endpoints("listeners", values.list("listeners"), protocols, controllers, problems)
    check_listeners(listeners, problems, for_clients="broker" in values.list("process.roles"))
    entries = values.list("advertised.listeners")
    if entries:
        advertised = parse_endpoints("advertised.listeners", entries, protocols, controllers, problems)
    else:
        advertised = tuple(endpoint for endpoint in listeners if not endpoint.for_controllers)
    check_advertised(advertised, listeners, problems)
    between = values.optional_str("inter.broker.listener.name")
    if between and between.upper() not in {endpoint.name for endpoint in advertised}:
        problems.append(
            f"inter.broker.listener.name is {between}, which is not among the advertised listeners"
        )
    return listeners, advertised


def topic_problems(values: Mapping[str, Value]) -> list[str]:
    """What is wrong with a topic's settings taken together."""
    low, high = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if isinstance(low, int) and isinstance(high, int) and low > high:
        return [f"min.compaction.lag.ms ({low}) must not be above max.compaction.lag.ms ({high})"]
    return []
