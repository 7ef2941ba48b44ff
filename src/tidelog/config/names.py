"""Names that stand in no table: what they mean when they appear, and what the writer may have meant.

Owns two things. `foreign(name)`: names that a working server.properties legitimately carries although they are not
settings of the broker (removed in Kafka 4, or read by plug-ins); they load without effect. `unknown(name, …)`: the
sentence for every other name, with a suggestion. A typing error must never start a broker with a default in its place.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.config.broker_settings import BROKER_SETTINGS, LISTENER_PREFIX
from tidelog.config.definition import Scope
from tidelog.config.group_settings import GROUP_SETTINGS
from tidelog.config.topic_settings import TOPIC_SETTINGS

_REMOVED = frozenset(
    [
        "auto.include.jmx.reporter",
        "broker.id.generation.enable",
        "control.plane.listener.name",
        "controlled.shutdown.max.retries",
        "controlled.shutdown.retry.backoff.ms",
        "delegation.token.master.key",
        "eligible.leader.replicas.enable",
        "group.coordinator.new.enable",
        "group.share.enable",
        "inter.broker.protocol.version",
        "log.message.downconversion.enable",
        "log.message.format.version",
        "log.message.timestamp.difference.max.ms",
        "offsets.commit.required.acks",
        "quota.consumer.default",
        "quota.producer.default",
        "reserved.broker.max.id",
        "zookeeper.clientCnxnSocket",
        "zookeeper.connect",
        "zookeeper.connection.timeout.ms",
        "zookeeper.max.in.flight.requests",
        "zookeeper.metadata.migration.enable",
        "zookeeper.session.timeout.ms",
        "zookeeper.set.acl",
    ]
)
_REMOVED_PREFIXES = ("password.encoder.", "zookeeper.ssl.")
_PLUGIN_NAMES = frozenset(
    {"super.users", "allow.everyone.if.no.acl.found", "metrics.jmx.include", "metrics.jmx.exclude"}
)
_PLUGIN_PREFIXES = ("config.providers.", "rlmm.config.", "rsm.config.", "client.quota.callback.static.")

_COMPARED_CHARACTERS_MAX = 120

_REPLACED = {
    "port": "listeners",
    "host.name": "listeners",
    "advertised.port": "advertised.listeners",
    "advertised.host.name": "advertised.listeners",
    "data.dir": "log.dirs",
}

_TABLES = {Scope.BROKER: BROKER_SETTINGS, Scope.TOPIC: TOPIC_SETTINGS, Scope.GROUP: GROUP_SETTINGS}


def foreign(name: str) -> str | None:
    """Why a name outside the table may stand in server.properties; None when it may not."""
    if name in _REMOVED or name.startswith(_REMOVED_PREFIXES):
        return "removed from Kafka"
    if name in _PLUGIN_NAMES or name.startswith(_PLUGIN_PREFIXES):
        return "read by a plug-in that Tidelog does not run"
    if name.startswith(LISTENER_PREFIX):
        return "set for one listener, where Tidelog does not look for it"
    return None


def unknown(name: str, scope: Scope) -> str:
    """What to say about a name that no table has."""
    sentence = f"Unknown {scope.value} setting {name!r}."
    hint = _elsewhere(name, scope) or _near(name, _TABLES[scope])
    return f"{sentence} {hint}" if hint else sentence


def _elsewhere(name: str, scope: Scope) -> str:
    if name in _REPLACED and scope is Scope.BROKER:
        return f"Use {_REPLACED[name]}."
    if scope is Scope.TOPIC:
        for row in TOPIC_SETTINGS.values():
            if any(fallback.name == name for fallback in row.fallbacks):
                return f"{name} is a broker setting; for a topic it is called {row.name}."
    if scope is Scope.BROKER and name in TOPIC_SETTINGS:
        fallbacks = TOPIC_SETTINGS[name].fallbacks
        if fallbacks:
            return f"{name} is a topic setting; for a broker it is called {fallbacks[0].name}."
    for other, table in _TABLES.items():
        if other is not scope and name in table:
            return f"It is a {other.value} setting."
    return ""


def _near(name: str, table: Iterable[str]) -> str:
    found = nearest(name, table)
    return f"Did you mean {' or '.join(found)}?" if found else ""


def nearest(name: str, candidates: Iterable[str]) -> list[str]:
    """Up to two names that look like `name`. A name that is longer than all of them looks like none, and comparing takes long."""
    if len(name) > _COMPARED_CHARACTERS_MAX:
        return []
    import difflib  # only ever needed for an error

    return difflib.get_close_matches(name, list(candidates), n=2, cutoff=0.75)
