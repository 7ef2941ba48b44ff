"""`kafka.*` options of the source: what of a Java consumer's settings this client has a use for, and what it passes over. What it must refuse is `kafka_settings`'.

A job that comes from Spark's own Kafka source brings settings that only tune a Java consumer: they are named in one warning and left out. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tidelog.client.errors import SettingsError
from tidelog.client.settings import ConsumerSettings
from tidelog.spark.kafka_settings import KAFKA, is_security, our_name, why_refused

FETCH_BYTES: Final = 8 << 20
"""Of a partition in one answer: decoding pays by the megabyte, and this much fits into memory that is used again (`client/receive.py`)."""
SET_BY_SOURCE: Final = (
    "auto.offset.reset",
    "enable.auto.commit",
    "key.deserializer",
    "value.deserializer",
    "interceptor.classes",
)
_USED: Final = frozenset(
    {
        "check.crcs",
        "client.id",
        "client.rack",
        "connect.timeout.ms",
        "default.api.timeout.ms",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "isolation.level",
        "max.partition.fetch.bytes",
        "metadata.recovery.strategy",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
    }
)
_QUIET: Final = frozenset({"bootstrap.servers", "group.id", "allow.auto.create.topics", "client.version"})


class ClientOptionError(ValueError):
    """A `kafka.*` option that cannot be honoured or makes no sense."""


class ClientOptions(NamedTuple):
    settings: dict[str, Any]
    """Of the consumer, under Kafka's names, as text."""
    ignored: tuple[str, ...]
    """Names that were given and have no use here."""


def client_options(given: Mapping[str, str], *, label: str) -> ClientOptions:
    """From settings without the prefix `kafka.`. `label` is how brokers name this client, unless `client.id` says."""
    settings: dict[str, Any] = {"client.id": label, "max.partition.fetch.bytes": str(FETCH_BYTES)}
    ignored: list[str] = []
    for name, value in given.items():
        if name in SET_BY_SOURCE:
            raise ClientOptionError(f"{KAFKA}{name} is set by the source itself: leave it out")
        if is_security(name):
            if (why := why_refused(name, value)) is not None:
                raise ClientOptionError(why)
        elif (ours := our_name(name)) in _USED:
            settings[ours] = value
        elif name not in _QUIET:
            ignored.append(name)
    try:
        ConsumerSettings.configured({"bootstrap.servers": "check:1", **settings})
    except SettingsError as error:
        raise ClientOptionError(f"{KAFKA}*: {error}") from None
    return ClientOptions(settings, tuple(sorted(ignored)))
