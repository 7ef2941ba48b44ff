"""Every broker setting of Kafka 4.3, and Tidelog's own, in one table.

Owns which names mean the same thing in different units (`FAMILIES`), and the look-up of `listener.name.<name>.` forms.
The rows themselves stand in `tidelog.config.tables`.
"""

from __future__ import annotations

from tidelog.config.definition import Setting
from tidelog.config.tables import (
    cluster,
    groups,
    log,
    network,
    oauth,
    observe,
    replication,
    security,
    share_streams,
    tiered,
    transactions,
)

SECTIONS: dict[str, tuple[Setting, ...]] = {
    "Cluster": cluster.SETTINGS,
    "Network": network.SETTINGS,
    "Topics and logs": log.SETTINGS,
    "Replication": replication.SETTINGS,
    "Groups and offsets": groups.SETTINGS,
    "Share and streams groups": share_streams.SETTINGS,
    "Producers and transactions": transactions.SETTINGS,
    "Security": security.SETTINGS,
    "OAuth": oauth.SETTINGS,
    "Metrics and quotas": observe.SETTINGS,
    "Tiered storage": tiered.SETTINGS,
}

BROKER_SETTINGS: dict[str, Setting] = {row.name: row for rows in SECTIONS.values() for row in rows}

# Names for one thing, the strongest first. Within one source the strongest name wins; across sources the later source
# wins, whatever name it uses.
FAMILIES: tuple[tuple[str, ...], ...] = (
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.dirs", "log.dir"),
    ("node.id", "broker.id"),
)

_SYNONYMS: dict[str, tuple[str, ...]] = {name: family for family in FAMILIES[:3] for name in family}
# Not the other way round, and no family: the scheduler's interval has a meaning of its own.
_SYNONYMS["log.flush.interval.ms"] = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")

LISTENER_PREFIX = "listener.name."


def synonyms(name: str) -> tuple[str, ...]:
    """The names that DescribeConfigs looks through for the broker setting `name`, in Kafka's order."""
    base = listener_base(name)
    if base is not None:
        return (name, base)
    return _SYNONYMS.get(name, (name,))


def listener_base(name: str) -> str | None:
    """The plain setting behind `listener.name.<listener>.<setting>`, also with a SASL mechanism in between."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    _, _, rest = name[len(LISTENER_PREFIX) :].partition(".")
    if rest in BROKER_SETTINGS:
        return rest
    _, _, after_mechanism = rest.partition(".")
    return after_mechanism if after_mechanism.startswith(("sasl.", "connections.max.reauth")) else None


def find(name: str) -> Setting | None:
    """The definition of `name`, also when it is set for one listener only."""
    setting = BROKER_SETTINGS.get(name)
    if setting is None:
        base = listener_base(name)
        setting = BROKER_SETTINGS.get(base) if base is not None else None
    return setting
