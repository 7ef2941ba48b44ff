"""What a setting is: one row of a table from which parsing, validation, DescribeConfigs and the docs all follow.

Owns the vocabulary (types, scopes, update modes, effects) and the two conversions text → value → text, which follow
Kafka's own: surrounding blanks do not count, numbers have their type's range, lists are separated by commas. It never
looks at more than one setting at a time; rules between settings live in `tidelog.config.checks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Protocol

from tidelog.config.errors import SettingError

Value = bool | int | float | str | tuple[str, ...] | None


class ConfigType(IntEnum):
    """Type of a value, by its number in DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where a value comes from, by its number in DescribeConfigs. Lower layers are asked when upper ones are silent."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


class Scope(Enum):
    BROKER = "broker"
    TOPIC = "topic"
    GROUP = "group"


class UpdateMode(Enum):
    """Whether a running broker takes a new value, and for whom it can be set."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Effect(Enum):
    """What Tidelog does with a value.

    ACCEPTED is the reason why Kafka's own server.properties loads unchanged. REFUSED is for settings whose silent
    loss would break a promise (access rules, policies, tiers): only the default is taken.
    """

    ACTS = "acts on it"
    ACCEPTED = "accepted, no effect"
    REFUSED = "only the default is accepted"


class Validator(Protocol):
    @property
    def description(self) -> str:
        """What is allowed, as the end of the sentence "allowed: …"."""
        ...

    @property
    def accepts(self) -> Callable[[Value], bool]: ...


@dataclass(frozen=True, slots=True)
class Fallback:
    """A broker setting that a topic or group setting falls back to; `factor` turns its unit into ours."""

    name: str
    factor: int = 1

    def convert(self, value: Value) -> Value:
        if self.factor == 1 or not isinstance(value, int):
            return value
        # Hours and minutes below zero mean "unlimited", which milliseconds write as -1.
        return value * self.factor if value >= 0 else -1


class _Same:
    """Marks a default that is Kafka's own."""

    def __repr__(self) -> str:
        return "SAME_AS_KAFKA"


SAME_AS_KAFKA = _Same()
NO_DEFAULT = "(none: must be given)"

_DIGITS_MAX = 100
_INTEGER_RANGES = {
    ConfigType.INT: (-(2**31), 2**31 - 1),
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.LONG: (-(2**63), 2**63 - 1),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `default` is Tidelog's; where it differs from Kafka's, `kafka_default` and `reason` say so."""

    name: str
    type: ConfigType
    default: Value
    validator: Validator | None
    doc: str
    scope: Scope = Scope.BROKER
    update: UpdateMode = UpdateMode.READ_ONLY
    effect: Effect = Effect.ACCEPTED
    internal: bool = False
    """Known, but listed only where it has been set."""
    fallbacks: tuple[Fallback, ...] = ()
    kafka_default: Value | _Same = SAME_AS_KAFKA
    reason: str = ""

    @property
    def sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    @property
    def allowed(self) -> str:
        """What may be given, in words."""
        if self.validator is not None:
            return self.validator.description
        if self.type is ConfigType.BOOLEAN:
            return "true or false"
        if self.type in _INTEGER_RANGES:
            low, high = _INTEGER_RANGES[self.type]
            return f"a whole number from {low} to {high}"
        return {ConfigType.DOUBLE: "a number", ConfigType.LIST: "a list separated by commas"}.get(
            self.type, "any text"
        )

    def parse(self, text: str) -> Value:
        """The value that `text` stands for; SettingError when it is not one this setting may have."""
        value = self._parse_type(text)
        if self.validator is not None and not self.validator.accepts(value):
            raise self.error(text, f"allowed: {self.allowed}")
        return value

    def error(self, text: str | None, why: str) -> SettingError:
        """An error about one value. A secret is named, never shown."""
        shown = "null" if text is None else "(hidden)" if self.sensitive else repr(text)
        return SettingError(f"{self.name} cannot be {shown}: {why}")

    def _parse_type(self, text: str) -> Value:
        kind = self.type
        if kind is ConfigType.PASSWORD:
            return text
        stripped = text.strip()
        if kind is ConfigType.BOOLEAN:
            lowered = stripped.lower()
            if lowered in ("true", "false"):
                return lowered == "true"
            raise self.error(text, "allowed: true or false")
        if kind in _INTEGER_RANGES:
            return self._parse_integer(text, stripped)
        if kind is ConfigType.DOUBLE:
            return self._parse_double(text, stripped)
        if kind is ConfigType.LIST:
            return self._parse_list(text, stripped)
        return stripped

    def _parse_integer(self, text: str, stripped: str) -> int:
        digits = stripped[1:] if stripped[:1] in ("+", "-") else stripped
        low, high = _INTEGER_RANGES[self.type]
        # Not int() alone: it also takes underscores, which no other reader of the same file would, and it refuses
        # thousands of digits with an error of its own.
        if len(digits) <= _DIGITS_MAX and digits.isascii() and digits.isdigit():
            value = int(stripped)
            if low <= value <= high:
                return value
        raise self.error(
            text, f"not a whole number of type {self.type.name} ({low} to {high}); allowed: {self.allowed}"
        )

    def _parse_double(self, text: str, stripped: str) -> float:
        try:
            value = float("" if "_" in stripped else stripped)
        except ValueError:
            raise self.error(text, f"not a number; allowed: {self.allowed}") from None
        if value != value or value in (float("inf"), float("-inf")):
            raise self.error(text, f"not a finite number; allowed: {self.allowed}")
        return value

    def _parse_list(self, text: str, stripped: str) -> tuple[str, ...]:
        if not stripped:
            return ()
        items = [item.strip() for item in stripped.split(",")]
        if not all(items):
            raise self.error(text, "it holds an empty entry (two commas in a row, or one at an end)")
        return tuple(dict.fromkeys(items))

    def format(self, value: Value) -> str | None:
        """The text Kafka would show for `value`."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, float):
            return format_double(value)
        return str(value)

    @property
    def default_text(self) -> str | None:
        return self.format(self.default)

    def normalized(self, text: str) -> str:
        """`text` in the one form in which it is stored and shown."""
        return self.format(self.parse(text)) or ""


def format_double(value: float) -> str:
    """A float as Java prints a double: 0.5, 1.0E10, 1.7976931348623157E308."""
    text = repr(value)
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return text
    sign, text = ("-", text[1:]) if text[0] == "-" else ("", text)
    digits, _, given = text.partition("e")
    whole, _, fraction = digits.partition(".")
    if given:
        exponent, digits = int(given), whole + fraction
    elif whole == "0":
        digits = fraction.lstrip("0")
        exponent = len(digits) - len(fraction) - 1
    else:
        exponent, digits = len(whole) - 1, whole + fraction
    return f"{sign}{digits[0]}.{digits[1:].rstrip('0') or '0'}E{exponent}"
