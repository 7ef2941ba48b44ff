"""What a value may be, beyond its type. Each rule says in words what it allows, so that every error can say it too.

Owns the rules and nothing else: a rule sees one value of the right type and answers yes or no.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tidelog.config.definition import Value


@dataclass(frozen=True, slots=True)
class Rule:
    """What is allowed, in words and as a test."""

    description: str
    accepts: Callable[[Value], bool]


def at_least(low: int) -> Rule:
    return Rule(f"at least {low}", lambda value: isinstance(value, int | float) and value >= low)


def between(low: float, high: float) -> Rule:
    return Rule(f"{low} to {high}", lambda value: isinstance(value, int | float) and low <= value <= high)


def one_of(*words: str, any_case: bool = False) -> Rule:
    """One of a few words; with `any_case`, in capitals or not."""
    accepted = frozenset(word.lower() for word in words) if any_case else frozenset(words)

    def accepts(value: Value) -> bool:
        return isinstance(value, str) and (value.lower() if any_case else value) in accepted

    return Rule("one of " + ", ".join(words), accepts)


def items(*words: str, may_be_empty: bool = False) -> Rule:
    """A list made of a few words only."""

    def accepts(value: Value) -> bool:
        return (
            isinstance(value, tuple)
            and (may_be_empty or bool(value))
            and all(item in words for item in value)
        )

    return Rule("a list of " + ", ".join(words) + (", or nothing" if may_be_empty else ""), accepts)


# Compiled when first needed: start-up time is a feature.
_THROTTLED = r"\d+:\d+"
_CONNECTION_LIMIT = r"\S+:[0-9]{1,10}"
_VOTER = r"\d+@\S+:\d+"
_DURATION = r"by_duration:P(?=.)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?"


def _each(pattern: str) -> Callable[[Value], bool]:
    return lambda value: isinstance(value, tuple) and all(re.fullmatch(pattern, item) for item in value)


def _throttled(value: Value) -> bool:
    return value in (("*",), ("none",)) or _each(_THROTTLED)(value)


def _connection_limits(value: Value) -> bool:
    limits = [item.strip() for item in str(value).split(",") if item.strip()]
    return all(re.fullmatch(_CONNECTION_LIMIT, limit) for limit in limits)


def _offset_reset(value: Value) -> bool:
    return value in ("latest", "earliest") or re.fullmatch(_DURATION, str(value)) is not None


GZIP_LEVEL = Rule("1 to 9, or -1", lambda value: value == -1 or value in range(1, 10))
POSITIVE_OR_UNLIMITED = Rule(
    "at least 1, or -1 for no limit", lambda value: isinstance(value, int) and (value >= 1 or value == -1)
)
NOT_EMPTY = Rule("a text that is not empty", lambda value: value is None or value != "")
SOME = Rule("a list with at least one entry", lambda value: isinstance(value, tuple) and bool(value))
THROTTLED_REPLICAS = Rule("* or a list of partition:broker", _throttled)
CONNECTION_LIMITS = Rule("a list of host:count", _connection_limits)
VOTERS = Rule("a list of id@host:port", _each(_VOTER))
OFFSET_RESET = Rule("latest, earliest or by_duration: with an ISO-8601 duration such as PT1H", _offset_reset)
