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
    missing = [role for role in ("broker", "controller") if role not in values.list("process.roles")]
    if missing:
        problems.append(
            f"process.roles leaves out {missing[0]}: a node of this release is broker and controller in one process"
        )
    for name in ("controller.quorum.voters", "controller.quorum.bootstrap.servers"):
        members = values.list(name)
        if len(members) > 1:
            # Three nodes that each ignored the other two would be three clusters with the same data.
            problems.append(
                f"{name} names {len(members)} controllers: this release runs one node per cluster"
            )
    voters = values.list("controller.quorum.voters")
    if len(voters) == 1 and int(voters[0].partition("@")[0]) != values.int("node.id"):
        problems.append(
            f"controller.quorum.voters names node {voters[0].partition('@')[0]}, but this is node {values.int('node.id')}"
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
    check_listeners(listeners, problems)
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
