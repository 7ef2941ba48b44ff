"""The options of the sink, under the names that Spark's Kafka sink has, checked when a query is planned and before anything is asked of a broker.

Settings of the producer come as `kafka.*`. Those that only tune a Java client are passed over with a warning; those that decide who may read the records, where they go or
what they look like, and that this client cannot honour, are refused: a write that is less protected than it was asked to be must not happen. Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from tidelog.client.errors import SettingsError
from tidelog.client.settings import BOOTSTRAP_SERVERS, ProducerSettings
from tidelog.errors import TidelogError
from tidelog.spark.kafka_settings import KAFKA, is_security, our_name, why_refused

logger = logging.getLogger(__name__)

TOPIC: Final = "topic"
INCLUDE_TIMESTAMP: Final = "includeTimestamp"
_KNOWN: Final = (TOPIC, INCLUDE_TIMESTAMP)
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "path"})
"""Spark hands its own options to every sink. A path has no meaning here: `start("…")` and `save("…")` are told so."""
_OF_THE_SOURCE: Final = frozenset(
    {"subscribe", "subscribepattern", "assign", "startingoffsets", "endingoffsets", "includeheaders"}
)
_REFUSED: Final = {
    "key.serializer": "keys are written as they are: make them a string or binary column",
    "value.serializer": "values are written as they are: make them a string or binary column",
    "partitioner.class": "a Java class cannot be run here: give the DataFrame a column `partition`",
    "interceptor.classes": "a Java class cannot be run here: change the DataFrame instead",
    "transactional.id": "this sink writes at least once, without transactions",
}


class SinkError(TidelogError):
    """Something that cannot be written, or was not."""


class SinkOptionError(SinkError, ValueError):
    """An option of the sink that is missing, not known, or cannot be honoured."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    servers: str
    topic: str | None = None
    """Of all rows. Without one, each row says its own."""
    writes_timestamps: bool = False
    """Whether the column `timestamp` becomes the records' time; without, that is the time of writing."""
    client: Mapping[str, str] = field(default_factory=dict)
    """Settings of the producer, under Kafka's names."""

    def settings(self) -> ProducerSettings:
        return ProducerSettings.configured({BOOTSTRAP_SERVERS: self.servers, **self.client})[1]

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        by_name = {name.lower(): value for name, value in given.items()}
        _refuse_unknown(by_name)
        servers = (by_name.get(KAFKA + BOOTSTRAP_SERVERS) or "").strip()
        if not servers:
            raise SinkOptionError(
                f"option {KAFKA}{BOOTSTRAP_SERVERS} is missing: one or more host:port of brokers, separated by commas"
            )
        topic = by_name.get(TOPIC)
        if topic is not None and not topic.strip():
            raise SinkOptionError(
                f"option {TOPIC} is empty: name a topic, or leave it out and give the DataFrame a column {TOPIC}"
            )
        options = cls(
            servers,
            topic,
            _boolean(INCLUDE_TIMESTAMP, by_name.get(INCLUDE_TIMESTAMP.lower(), "false")),
            _client_settings(by_name),
        )
        try:
            options.settings()
        except SettingsError as error:
            raise SinkOptionError(f"{KAFKA}*: {error}") from None
        return options


def _refuse_unknown(by_name: Mapping[str, str]) -> None:
    known = {name.lower() for name in _KNOWN} | (_SPARKS_OWN - {"path"})
    for name in sorted(by_name):
        if name in known or name.startswith(KAFKA):
            continue
        if name == "path":
            raise SinkOptionError(
                f"records are written to a topic, not to the path {by_name[name]!r}: say option('{TOPIC}', …) and leave the path out"
            )
        about = "belongs to the source" if name in _OF_THE_SOURCE else "is not known"
        raise SinkOptionError(
            f"option {name} {about}; the sink has {', '.join(_KNOWN)}, and {KAFKA}* for the producer"
        )


def _boolean(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise SinkOptionError(f"{name} is true or false, not {value!r}")
    return value.lower() == "true"


def _client_settings(by_name: Mapping[str, str]) -> dict[str, Any]:
    known = {each.name.replace("_", ".") for each in fields(ProducerSettings)}
    settings: dict[str, Any] = {}
    for name, value in sorted(by_name.items()):
        name = name.removeprefix(KAFKA) if name.startswith(KAFKA) else ""
        if not name or name == BOOTSTRAP_SERVERS:
            continue
        if name in _REFUSED:
            raise SinkOptionError(f"{KAFKA}{name} cannot be set: {_REFUSED[name]}")
        if is_security(name):
            if (why := why_refused(name, value)) is not None:
                raise SinkOptionError(why)
        elif (ours := our_name(name)) in known:
            settings[ours] = value
        else:
            logger.warning("%s%s=%s has no meaning for this producer and is not used", KAFKA, name, value)
    return settings
