"""The options of a source, under the names that Spark's Kafka source has, checked before anything is asked of a broker.

Names count whatever their case. One that nobody knows is an error, because it is a spelling mistake more often than not; `kafka.*` goes to the client (`client_options`).
Pure: what an option asks of the cluster (offsets for a time, partitions of a pattern) is `bounds`' business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, overload

from tidelog.client.metadata import TopicPartition
from tidelog.errors import TidelogError
from tidelog.spark.client_options import ClientOptionError, ClientOptions, client_options
from tidelog.spark.kafka_settings import KAFKA
from tidelog.spark.offsets import OffsetsError, parse_assignment, parse_document, parse_offsets

EARLIEST: Final = -2
LATEST: Final = -1
SERVERS: Final = "kafka.bootstrap.servers"
COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)
_KNOWN: Final = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "groupIdPrefix",
    "commitGroup",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "partition.metadata.cache.ttl.ms",
    "columns",
    "path",
)
_DURATION: Final = re.compile(
    r"\s*(\d+)\s*(ms|s|sec|secs|seconds?|m|min|mins|minutes?|h|hours?|d|days?)?\s*", re.IGNORECASE
)
_MS: Final = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "s": 1_000}


_OTHERS: Final = frozenset({"topic", "checkpointlocation", "queryname"})
"""Of the sink and of Spark: a program that reads and writes may hand the same options to both."""
_BY_LOWER_NAME: Final = {name.lower(): name for name in _KNOWN}


class OptionError(TidelogError, ValueError):
    """An option that is missing, not known, or makes no sense beside another one."""


@dataclass(frozen=True, slots=True)
class Names:
    """`subscribe`."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Pattern:
    """`subscribePattern`: whole names of topics that are not internal."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assigned:
    """`assign`."""

    partitions: frozenset[TopicPartition]


Subscription = Names | Pattern | Assigned


@dataclass(frozen=True, slots=True)
class At:
    """Where every partition begins or ends: EARLIEST or LATEST, or, with `each`, an offset (or one of these) of its own."""

    everywhere: int = LATEST
    each: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record that is not older than a time in ms, the same everywhere or one for each partition."""

    everywhere: int = 0
    each: Mapping[TopicPartition, int] | None = None
    is_error_if_none: bool = True
    """If all records are older: an error, or the end."""


Edge = At | AtTime


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    servers: str
    subscription: Subscription
    start: Edge
    end: Edge
    fail_on_data_loss: bool = True
    offsets_max: int | None = None
    bytes_max: int | None = None
    offsets_min: int | None = None
    delay_ms_max: int = 15 * 60_000
    tasks_min: int | None = None
    task_offsets_max: int | None = None
    columns: tuple[str, ...] = COLUMNS[:-1]
    commit_group: str | None = None
    """The group under whose name the stream says how far it is, for tools that show lag. It never reads it back."""
    retries: int = 3
    retry_pause_ms: int = 1_000
    poll_timeout_ms: int = 120_000
    """How long a task waits for records that should be there."""
    metadata_ttl_ms: int = 0
    """How long a stream goes without asking for new partitions."""
    client: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the consumer, under Kafka's names."""
    ignored: tuple[str, ...] = ()
    """`kafka.*` settings that were given and have no use here."""

    @property
    def reads_committed(self) -> bool:
        return self.client.get("isolation.level") == "read_committed"

    @classmethod
    def parse(cls, given: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
        options = _Options(given)
        if options.text("path") is not None:
            raise OptionError(
                f"path (segment files) and {SERVERS} (brokers) are two ways to read: give one of them"
            )
        client = _client(options, is_stream=is_stream)
        return cls(
            servers=options.required(SERVERS),
            subscription=_subscription(options),
            start=_start(options, is_stream=is_stream),
            end=_end(options, is_stream=is_stream),
            fail_on_data_loss=options.boolean("failOnDataLoss", True),
            offsets_max=options.number("maxOffsetsPerTrigger"),
            bytes_max=options.number("maxBytesPerTrigger"),
            offsets_min=_offsets_min(options),
            delay_ms_max=options.duration_ms("maxTriggerDelay", 15 * 60_000),
            tasks_min=options.number("minPartitions"),
            task_offsets_max=options.number("maxRecordsPerPartition"),
            columns=_columns(options),
            commit_group=options.text("commitGroup"),
            retries=options.number("fetchOffset.numRetries", least=0, default=3),
            retry_pause_ms=options.number("fetchOffset.retryIntervalMs", least=0, default=1_000),
            poll_timeout_ms=options.number("kafkaConsumer.pollTimeoutMs", default=120_000),
            metadata_ttl_ms=_metadata_ttl_ms(options),
            client=client.settings,
            ignored=client.ignored,
        )


class _Options:
    """What was given, by names in lower case."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        for name in sorted(self._given):
            if name not in _BY_LOWER_NAME and name not in _OTHERS and not name.startswith(KAFKA):
                raise OptionError(_unknown(name))

    def kafka(self) -> dict[str, str]:
        return {name[len(KAFKA) :]: value for name, value in self._given.items() if name.startswith(KAFKA)}

    def text(self, name: str) -> str | None:
        return self._given.get(name.lower())

    def required(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise OptionError(f"option {name} is missing")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionError(f"{name} is true or false, not {value!r}")
        return value.lower() == "true"

    @overload
    def number(self, name: str, *, least: int = 1) -> int | None: ...
    @overload
    def number(self, name: str, *, default: int, least: int = 1) -> int: ...
    def number(self, name: str, *, default: int | None = None, least: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        if not value.strip().isdecimal() or int(value) < least:
            raise OptionError(f"{name} is a whole number from {least} on, not {value!r}")
        return int(value)

    def duration_ms(self, name: str, default: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        match = _DURATION.fullmatch(value)
        if match is None:
            raise OptionError(f"{name} is a duration such as 500ms, 30s or 15m, not {value!r}")
        unit = (match[2] or "ms").lower()
        return int(match[1]) * (1 if unit == "ms" else _MS[unit[0]])

    def offsets(self, name: str) -> dict[TopicPartition, int]:
        try:
            return parse_offsets(parse_document(self.required(name)))
        except OffsetsError as error:
            raise OptionError(f"{name}: {error}") from None


def _unknown(name: str) -> str:
    near = get_close_matches(name, _BY_LOWER_NAME, n=1, cutoff=0.75)
    if near:
        return f"there is no option {name}; do you mean {_BY_LOWER_NAME[near[0]]}?"
    return f"there is no option {name}; there are {', '.join(_KNOWN)}, and {KAFKA}* for the client"


def _client(options: _Options, *, is_stream: bool) -> ClientOptions:
    """A group's name is only a label here, as in Spark's own source: brokers see it as the client's name."""
    given = options.kafka()
    prefix = options.text("groupIdPrefix") or ("spark-kafka-source" if is_stream else "spark-kafka-relation")
    try:
        return client_options(given, label=given.get("group.id") or prefix)
    except ClientOptionError as error:
        raise OptionError(str(error)) from None


def _subscription(options: _Options) -> Subscription:
    ways = ("assign", "subscribe", "subscribePattern")
    given = [name for name in ways if options.text(name) is not None]
    if len(given) != 1:
        what = "none of them is given" if not given else f"{' and '.join(given)} are given"
        raise OptionError(f"what to read is said by one of assign, subscribe and subscribePattern; {what}")
    text = options.required(given[0])
    if given[0] == "subscribe":
        topics = frozenset(name.strip() for name in text.split(",") if name.strip())
        if not topics:
            raise OptionError(f"subscribe names no topic: {text!r}")
        return Names(topics)
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"subscribePattern {text!r} is no regular expression: {error}") from None
        return Pattern(text)
    try:
        return Assigned(parse_assignment(text))
    except OffsetsError as error:
        raise OptionError(f"assign: {error}") from None


def _start(options: _Options, *, is_stream: bool) -> Edge:
    """A time for all wins over times for each, and those over offsets."""
    strategy = (options.text("startingOffsetsByTimestampStrategy") or "error").lower()
    if strategy not in ("error", "latest"):
        raise OptionError(f"startingOffsetsByTimestampStrategy is error or latest, not {strategy!r}")
    time = _at_time(options, "starting", is_error_if_none=strategy == "error")
    if time is not None:
        return time
    edge = _at(options, "startingOffsets", "latest" if is_stream else "earliest")
    if not is_stream and (
        (edge.everywhere == LATEST and edge.each is None) or LATEST in (edge.each or {}).values()
    ):
        raise OptionError(
            "a batch that begins at the latest offset (-1) reads nothing: give startingOffsets another one, or use readStream"
        )
    return edge


def _end(options: _Options, *, is_stream: bool) -> Edge:
    given = [
        name
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
        if options.text(name) is not None
    ]
    if is_stream and given:
        raise OptionError(f"a stream has no end: leave out {', '.join(given)}")
    time = _at_time(options, "ending", is_error_if_none=False)
    if time is not None:
        return time
    edge = _at(options, "endingOffsets", "latest")
    if (edge.everywhere == EARLIEST and edge.each is None) or EARLIEST in (edge.each or {}).values():
        raise OptionError(
            "a batch that ends at the earliest offset (-2) reads nothing: give endingOffsets another one"
        )
    return edge


def _at_time(options: _Options, which: str, *, is_error_if_none: bool) -> AtTime | None:
    everywhere, each = f"{which}Timestamp", f"{which}OffsetsByTimestamp"
    if options.text(everywhere) is not None:
        return AtTime(options.number(everywhere, least=0) or 0, None, is_error_if_none)
    if options.text(each) is not None:
        return AtTime(0, options.offsets(each), is_error_if_none)
    return None


def _at(options: _Options, name: str, default: str) -> At:
    text = (options.text(name) or default).strip()
    if text.lower() in ("earliest", "latest"):
        return At(EARLIEST if text.lower() == "earliest" else LATEST)
    return At(LATEST, options.offsets(name))


def _offsets_min(options: _Options) -> int | None:
    least, most = options.number("minOffsetsPerTrigger"), options.number("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
    return least


def _metadata_ttl_ms(options: _Options) -> int:
    text = options.text("partition.metadata.cache.ttl.ms")
    if text is None or text.strip() == "-1":
        return 0
    return options.number("partition.metadata.cache.ttl.ms", least=0, default=0)


def columns_of(given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that options ask for, whatever else they say."""
    return _columns(
        _Options(
            {name: value for name, value in given.items() if name.lower() in ("columns", "includeheaders")}
        )
    )


def _columns(options: _Options) -> tuple[str, ...]:
    has_headers = options.boolean("includeHeaders", False)
    text = options.text("columns")
    if text is None:
        return COLUMNS if has_headers else COLUMNS[:-1]
    by_name = {name.lower(): name for name in COLUMNS}
    wanted = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not wanted or any(name not in by_name for name in wanted):
        raise OptionError(f"columns names some of {', '.join(COLUMNS)}, not {text!r}")
    return tuple(by_name[name] for name in dict.fromkeys(wanted))
