"""Which value counts: dynamic topic > dynamic broker > dynamic default broker > static > default.

Owns precedence, and with it the three places that could disagree (the running broker, DescribeConfigs and the CLI) but
do not, because all of them ask here. Values are resolved once, when a layer changes; reading one is a dictionary
look-up. Nothing here changes a configuration in place: a new layer makes a new `BrokerConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tidelog.config.broker_settings import BROKER_SETTINGS, find
from tidelog.config.checks import broker_problems, endpoints
from tidelog.config.definition import ConfigSource, Effect, Scope, Setting, Value
from tidelog.config.errors import ConfigError, SettingError
from tidelog.config.listeners import Endpoint
from tidelog.config.names import foreign, unknown
from tidelog.config.topic_settings import TOPIC_SETTINGS
from tidelog.config.values import TypedValues

Layer = tuple[ConfigSource, Mapping[str, str]]
_Lookup = Callable[[str], Setting | None]
_NOTHING: Mapping[str, str] = MappingProxyType({})
_BROKER_DEFAULTS = {name: setting.default for name, setting in BROKER_SETTINGS.items()}


class BrokerConfig(TypedValues):
    """A broker's settings, from all layers. `static` comes from file, environment and command line."""

    __slots__ = ("advertised", "default_dynamic", "dynamic", "ignored", "listeners", "static")

    def __init__(
        self, static: Mapping[str, str], dynamic: Mapping[str, str], default_dynamic: Mapping[str, str]
    ) -> None:
        """For `load` and `with_dynamic`, which check what they pass: texts are taken as valid."""
        self.static = static
        self.dynamic, dropped = _usable(dynamic, find)
        self.default_dynamic, dropped_default = _usable(default_dynamic, find)
        self.ignored: tuple[str, ...] = (*dropped, *dropped_default)
        """Stored dynamic settings that this release cannot use, each as a sentence for the log."""
        values = dict(_BROKER_DEFAULTS)
        for _, layer in reversed(self.layers()):
            values.update(
                {name: BROKER_SETTINGS[name].parse(text) for name, text in layer.items() if name in values}
            )
        values["broker.id"] = values["node.id"]  # one number under two names, also when neither was given
        super().__init__(values)
        self.listeners: tuple[Endpoint, ...]
        self.advertised: tuple[Endpoint, ...]
        self.listeners, self.advertised = endpoints(self, static, [])

    @classmethod
    def load(
        cls,
        properties: Mapping[str, str] = _NOTHING,
        *,
        source: str | Mapping[str, str] = "server.properties",
    ) -> BrokerConfig:
        """Check static settings and resolve them. ConfigError lists everything that is wrong, each with its origin."""
        static, problems = _checked(properties, source)
        for stronger, weaker in (("node.id", "broker.id"), ("broker.id", "node.id")):
            if stronger in static and weaker not in properties:
                static[weaker] = static[stronger]
        if problems:
            raise ConfigError(problems)
        config = cls(MappingProxyType(static), _NOTHING, _NOTHING)
        problems = broker_problems(config, static)
        if problems:
            raise ConfigError(problems)
        return config

    def with_dynamic(
        self, *, node: Mapping[str, str] | None = None, default: Mapping[str, str] | None = None
    ) -> BrokerConfig:
        """The same broker with other dynamic settings: this node's, the whole cluster's, or both."""
        return BrokerConfig(
            self.static,
            self.dynamic if node is None else node,
            self.default_dynamic if default is None else default,
        )

    def layers(self) -> tuple[Layer, ...]:
        """The layers above the defaults, strongest first."""
        return (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, self.dynamic),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, self.default_dynamic),
            (ConfigSource.STATIC_BROKER_CONFIG, self.static),
        )

    @property
    def node_id(self) -> int:
        return self.int("node.id")

    @property
    def log_dirs(self) -> tuple[str, ...]:
        return self.list("log.dirs") or self.list("log.dir")

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener at which brokers find each other."""
        named = self.optional_str("inter.broker.listener.name")
        if named:
            return named.upper()
        return next((endpoint.name for endpoint in self.advertised if not endpoint.for_controllers), "")

    def without_effect(self) -> list[str]:
        """The static settings that were given and change nothing, each with the reason, for the log at start."""
        return [
            f"{name}: {reason}"
            for name in self.static
            if (reason := _why_without_effect(name, self)) is not None
        ]


class TopicConfig(TypedValues):
    """A topic's settings as they count on one broker."""

    __slots__ = ("ignored", "overrides")

    def __init__(self, overrides: Mapping[str, str], broker: BrokerConfig) -> None:
        self.overrides, self.ignored = _usable(overrides, TOPIC_SETTINGS.get)
        super().__init__({name: self._value(setting, broker) for name, setting in TOPIC_SETTINGS.items()})

    @classmethod
    def resolve(cls, overrides: Mapping[str, str], broker: BrokerConfig) -> TopicConfig:
        return cls(overrides, broker)

    def _value(self, setting: Setting, broker: BrokerConfig) -> Value:
        text = self.overrides.get(setting.name)
        return setting.parse(text) if text is not None else fallback_value(setting, broker)


def fallback_value(setting: Setting, broker: BrokerConfig) -> Value:
    """What a topic or group gets when it sets nothing itself."""
    # Layer by layer, and within a layer the strongest name: a dynamic value wins over any static one.
    for _, layer in broker.layers():
        for fallback in setting.fallbacks:
            text = layer.get(fallback.name)
            if text is not None:
                return fallback.convert(BROKER_SETTINGS[fallback.name].parse(text))
    return setting.default


def _checked(
    properties: Mapping[str, str], source: str | Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    static: dict[str, str] = {}
    problems = []
    for name, text in properties.items():
        origin = source if isinstance(source, str) else source.get(name, "configuration")
        setting = find(name)
        try:
            if setting is not None:
                static[name] = setting.normalized(text)
                refuse_unsupported(setting, text)
            elif foreign(name) is not None:
                static[name] = text
            else:
                problems.append(f"{origin}: {unknown(name, Scope.BROKER)}")
        except SettingError as error:
            problems.append(f"{origin}: {error}")
    return static, problems


def refuse_unsupported(setting: Setting, text: str) -> None:
    """Refuse a value that would have to be ignored although something depends on it."""
    if setting.effect is Effect.REFUSED and setting.parse(text) not in (setting.default, "", ()):
        default = setting.default_text
        only = (
            "leave it out"
            if default is None
            else f"only {default!r} is possible"
            if default
            else "it must stay empty"
        )
        raise setting.error(text, f"{setting.doc} In Tidelog {only}.")


def _usable(layer: Mapping[str, str], lookup: _Lookup) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """The entries of a stored layer that parse, and a sentence for each that does not (another release wrote it)."""
    usable, dropped = {}, []
    for name, text in layer.items():
        setting = lookup(name)
        if setting is None:
            dropped.append(f"The stored setting {name} is unknown to this release and is ignored.")
            continue
        try:
            usable[name] = setting.normalized(text)
        except SettingError as error:
            dropped.append(f"A stored setting is ignored: {error}")
    return MappingProxyType(usable), tuple(dropped)


def _why_without_effect(name: str, config: BrokerConfig) -> str | None:
    setting = find(name)
    if setting is None:
        return foreign(name)
    if name not in BROKER_SETTINGS:
        return "set for one listener, where Tidelog does not look for it"
    if setting.effect is Effect.ACCEPTED and config[name] != setting.default:
        return Effect.ACCEPTED.value
    return None
