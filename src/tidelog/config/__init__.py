"""Configuration: one table of settings from which reading, checking, describing and documenting follow.

    given = combine(from_properties(text), from_environment(environ), from_assignments(arguments))
    config = BrokerConfig.load(given.values, source=given.origins)
    config.int("log.retention.check.interval.ms")
    TopicConfig.resolve({"retention.ms": "60000"}, config).int("segment.bytes")

Never reads a file, the environment or a clock: all of that is handed in.
"""

from __future__ import annotations

from tidelog.config.definition import ConfigSource, ConfigType, Effect, Setting, UpdateMode, Value
from tidelog.config.errors import ConfigError, SettingError
from tidelog.config.listeners import Endpoint
from tidelog.config.resolve import BrokerConfig, TopicConfig
from tidelog.config.sources import Given, combine, from_assignments, from_environment, from_properties

__all__ = [
    "BrokerConfig",
    "ConfigError",
    "ConfigSource",
    "ConfigType",
    "Effect",
    "Endpoint",
    "Given",
    "Setting",
    "SettingError",
    "TopicConfig",
    "UpdateMode",
    "Value",
    "combine",
    "from_assignments",
    "from_environment",
    "from_properties",
]
