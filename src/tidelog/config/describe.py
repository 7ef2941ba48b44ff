"""What DescribeConfigs answers, entry by entry, for a topic, a broker, the cluster's defaults and a group.

Owns the shape and order of Kafka's answer: value, source, and the synonyms that would count if the stronger ones were
not there. Recorded against a real broker: sources go strongest first, and within a source the names in the order of
the family. Kafka cuts the list before the first entry that carries the setting's own name, so a topic whose retention
comes from log.retention.hours alone shows no synonym and the source DEFAULT_CONFIG; tools expect that, and so do we.
A secret's value is never in an entry.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from itertools import dropwhile

from tidelog.config.broker_settings import BROKER_SETTINGS, find, synonyms
from tidelog.config.definition import ConfigSource, ConfigType, Setting, UpdateMode, Value
from tidelog.config.group_settings import GROUP_SETTINGS
from tidelog.config.resolve import BrokerConfig, TopicConfig, fallback_value
from tidelog.config.topic_settings import TOPIC_SETTINGS

Names = Container[str] | None
"""The settings asked for; None asks for all."""


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One line of the answer, in the terms of DescribeConfigs."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    type: ConfigType
    documentation: str
    synonyms: tuple[Synonym, ...]

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG


def describe_topic(
    overrides: Mapping[str, str], broker: BrokerConfig, names: Names = None
) -> list[ConfigEntry]:
    """A topic's settings as they count on `broker`."""
    topic = TopicConfig.resolve(overrides, broker)
    return [
        _layered_entry(setting, topic.overrides, topic[name], ConfigSource.DYNAMIC_TOPIC_CONFIG, broker)
        for name, setting in TOPIC_SETTINGS.items()
        if _asked(name, names) and not (setting.internal and name not in topic.overrides)
    ]


def describe_group(
    overrides: Mapping[str, str], broker: BrokerConfig, names: Names = None
) -> list[ConfigEntry]:
    """A group's settings as they count on `broker`."""
    entries = []
    for name, setting in GROUP_SETTINGS.items():
        if _asked(name, names):
            text = overrides.get(name)
            value = fallback_value(setting, broker) if text is None else setting.parse(text)
            entries.append(
                _layered_entry(setting, overrides, value, ConfigSource.DYNAMIC_GROUP_CONFIG, broker)
            )
    return entries


def describe_broker(broker: BrokerConfig, names: Names = None) -> list[ConfigEntry]:
    """A broker's settings, with those that are set without standing in the table."""
    given = {name: None for _, layer in broker.layers() for name in layer}
    listed = [name for name, setting in BROKER_SETTINGS.items() if not setting.internal or name in given]
    listed += [name for name in given if name not in BROKER_SETTINGS]
    return [_broker_entry(name, broker) for name in listed if _asked(name, names)]


def describe_broker_defaults(broker: BrokerConfig, names: Names = None) -> list[ConfigEntry]:
    """The cluster-wide dynamic settings: only what has been set, each as its own single synonym."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    entries = []
    for name, text in broker.default_dynamic.items():
        if _asked(name, names):
            setting = find(name)
            assert setting is not None, "a dynamic layer holds known settings only"
            value = None if setting.sensitive else text
            entries.append(_entry(name, setting, value, source, (Synonym(name, value, source),)))
    return entries


def _asked(name: str, names: Names) -> bool:
    return names is None or name in names


def _layered_entry(
    setting: Setting, overrides: Mapping[str, str], value: Value, source: ConfigSource, broker: BrokerConfig
) -> ConfigEntry:
    """The entry of a topic or group setting: its own value first, then the broker's synonyms."""
    chain: list[Synonym] = []
    if setting.name in overrides:
        chain.append(Synonym(setting.name, setting.normalized(overrides[setting.name]), source))
    if setting.fallbacks:
        chain += broker_synonyms(setting.fallbacks[0].name, broker)
    elif (
        setting.name in GROUP_SETTINGS
    ):  # a group setting without a broker's counterpart names its own default
        chain.append(Synonym(setting.name, setting.default_text, ConfigSource.DEFAULT_CONFIG))
    first = chain[0].source if chain else ConfigSource.DEFAULT_CONFIG
    return ConfigEntry(
        setting.name,
        setting.format(value),
        first,
        False,
        setting.sensitive,
        setting.type,
        setting.doc,
        tuple(chain),
    )


def _broker_entry(name: str, broker: BrokerConfig) -> ConfigEntry:
    chain = broker_synonyms(name, broker)
    source = chain[0].source if chain else ConfigSource.DEFAULT_CONFIG
    setting = find(name)
    if setting is None:
        # Whatever a plug-in would read may be a secret.
        return ConfigEntry(name, None, source, True, True, ConfigType.UNKNOWN, "", chain)
    if name == "advertised.listeners" and not chain:  # made of `listeners`, and as settled as those are
        source = broker_synonyms("listeners", broker)[0].source
        return _entry(name, setting, ",".join(map(str, broker.advertised)), source, chain)
    if name in broker:
        value = None if setting.sensitive else setting.format(broker[name])
    else:
        value = chain[0].value if chain else None
    return _entry(name, setting, value, source, chain)


def _entry(
    name: str, setting: Setting, value: str | None, source: ConfigSource, chain: tuple[Synonym, ...]
) -> ConfigEntry:
    read_only = setting.update is UpdateMode.READ_ONLY or name != setting.name
    return ConfigEntry(name, value, source, read_only, setting.sensitive, setting.type, setting.doc, chain)


def broker_synonyms(name: str, broker: BrokerConfig) -> tuple[Synonym, ...]:
    """Every place that gives `name` a value, strongest first, in Kafka's order and with Kafka's cut."""
    return tuple(dropwhile(lambda synonym: synonym.name != name, _all_synonyms(name, broker)))


def _all_synonyms(name: str, broker: BrokerConfig) -> Iterator[Synonym]:
    family = synonyms(name)
    for source, layer in broker.layers():
        for member in family:
            if member in layer:
                setting = find(member)
                hidden = setting is None or setting.sensitive
                yield Synonym(member, None if hidden else layer[member], source)
    for member in family:
        setting = BROKER_SETTINGS.get(member)
        if setting is not None and setting.default is not None:
            yield Synonym(member, setting.default_text, ConfigSource.DEFAULT_CONFIG)
