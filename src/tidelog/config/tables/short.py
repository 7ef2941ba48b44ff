"""Short names for the words that fill the tables, so that a row stays on one line."""

from __future__ import annotations

from tidelog.config.definition import ConfigType, Effect, Scope, UpdateMode

BOOLEAN = ConfigType.BOOLEAN
STRING = ConfigType.STRING
INT = ConfigType.INT
SHORT = ConfigType.SHORT
LONG = ConfigType.LONG
DOUBLE = ConfigType.DOUBLE
LIST = ConfigType.LIST
CLASS = ConfigType.CLASS
PASSWORD = ConfigType.PASSWORD

ACTS = Effect.ACTS
REFUSED = Effect.REFUSED
PER_BROKER = UpdateMode.PER_BROKER
CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE
TOPIC = Scope.TOPIC
GROUP = Scope.GROUP

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308
MINUTES = 60_000
HOURS = 3_600_000
