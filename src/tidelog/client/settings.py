"""What can be set on producers and consumers: Kafka's names with underscores for dots, Kafka's defaults, checked when they are given.

`Producer(servers, linger_ms=20)` and `Producer.configured({"bootstrap.servers": servers, "linger.ms": 20})` mean the same. A setting that Kafka
has and this client has no use for is refused by name, not ignored. Pure values; what they do is told where they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

from tidelog.client.errors import SettingsError
from tidelog.records.compression import Codec

S = TypeVar("S", bound="ClientSettings")

INT32_MAX: Final = (1 << 31) - 1
ACKS: Final[dict[Any, int]] = {"all": -1, "-1": -1, "0": 0, "1": 1, -1: -1, 0: 0, 1: 1}
BOOTSTRAP_SERVERS: Final = "bootstrap.servers"


def setting(default: Any, doc: str, *, least: int | None = None, one_of: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"doc": doc, "least": least, "one_of": one_of})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    client_id: str = setting("tidelog", "How brokers name this client in their logs and metrics.")
    client_version: str = setting(
        "unknown", "The version that brokers are told with the name of this library."
    )
    request_timeout_ms: int = setting(30_000, "How long a request waits for its answer.", least=1)
    connect_timeout_ms: int = setting(
        10_000,
        "How long a connection may take to come about (Kafka: socket.connection.setup.timeout.ms).",
        least=1,
    )
    retry_backoff_ms: int = setting(
        100, "The pause before the first retry; it doubles with each one.", least=0
    )
    retry_backoff_max_ms: int = setting(1_000, "The longest pause between two retries.", least=0)
    metadata_max_age_ms: int = setting(
        300_000,
        "After this, leaders and partitions are asked for again even if nothing seems to have changed.",
        least=1,
    )
    metadata_recovery_strategy: str = setting(
        "rebootstrap",
        "Where to look when no broker that was heard of answers: at the bootstrap servers again, or nowhere else (none).",
        one_of=("rebootstrap", "none"),
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            _check(each.name, getattr(self, each.name), each.metadata)

    @classmethod
    def configured(cls: type[S], config: Mapping[str, Any]) -> tuple[str, S]:
        """The bootstrap servers and the settings from a mapping with Kafka's own, dotted names; values may be strings."""
        known = {each.name.replace("_", "."): each for each in fields(cls)}
        servers = config.get(BOOTSTRAP_SERVERS)
        if not servers:
            raise SettingsError(f"{BOOTSTRAP_SERVERS} is missing: one or more host:port, separated by commas")
        values: dict[str, Any] = {}
        for name, value in config.items():
            if name == BOOTSTRAP_SERVERS:
                continue
            if name not in known:
                raise SettingsError(
                    f"{name} is no setting of {cls.__name__}; there are: {', '.join(sorted(known))}"
                )
            values[known[name].name] = _parsed(name, value, known[name].default)
        return (servers if isinstance(servers, str) else ",".join(servers)), cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(ClientSettings):
    acks: int | str = setting(
        "all",
        "Who must have a record before it counts as delivered: all in-sync replicas, the leader (1), nobody (0).",
    )
    enable_idempotence: bool = setting(True, "Retries neither duplicate nor reorder records. Needs acks=all.")
    max_in_flight_requests_per_connection: int = setting(
        5, "Requests that a broker has not answered; at most 5 with idempotence.", least=1
    )
    batch_size: int = setting(16_384, "A batch goes when it has so many bytes.", least=0)
    linger_ms: int = setting(5, "… or when its first record has waited so long.", least=0)
    buffer_memory: int = setting(
        33_554_432,
        "Bytes of all records that are not delivered yet. `send` waits when they are used up.",
        least=1,
    )
    max_block_ms: int = setting(
        60_000, "How long `send` waits for room, or for the metadata of its topic, before it fails.", least=0
    )
    max_request_size: int = setting(1_048_576, "The largest request, and so the largest record.", least=1)
    delivery_timeout_ms: int = setting(
        120_000, "How long a record may take from `send` to its acknowledgement, retries included.", least=1
    )
    retries: int = setting(
        INT32_MAX, "How often a batch is sent again; usually left to delivery.timeout.ms.", least=0
    )
    compression_type: str = setting(
        "none", "Batches are compressed with it.", one_of=("none", "gzip", "snappy", "lz4", "zstd")
    )
    compression_gzip_level: int = setting(-1, "1 to 9; -1 leaves it to the library.")
    compression_lz4_level: int = setting(9, "1 to 17, as Kafka counts them.")
    compression_zstd_level: int = setting(3, "-131072 to 22.")
    partitioner_ignore_keys: bool = setting(False, "Keyed records are spread like those without a key.")
    partitioner_adaptive_partitioning_enable: bool = setting(
        True, "Partitions with shorter queues get more of the records without a key."
    )

    def __post_init__(self) -> None:
        super(ProducerSettings, self).__post_init__()
        if self.acks not in ACKS:
            raise SettingsError(f"acks is all, 1 or 0, not {self.acks!r}")
        if self.enable_idempotence and self.required_acks != -1:
            raise SettingsError(
                f"acks={self.acks} and enable.idempotence do not go together: say enable.idempotence=false, or acks=all"
            )
        if self.enable_idempotence and self.max_in_flight_requests_per_connection > 5:
            raise SettingsError(
                "enable.idempotence allows max.in.flight.requests.per.connection of 5 at most: brokers remember that many batches"
            )
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise SettingsError(
                f"delivery.timeout.ms={self.delivery_timeout_ms} is less than linger.ms + request.timeout.ms ="
                f" {self.linger_ms + self.request_timeout_ms}: no record could be sent a second time"
            )

    @property
    def required_acks(self) -> int:
        return ACKS[self.acks]

    @property
    def codec(self) -> Codec:
        return Codec[self.compression_type.upper()]

    @property
    def compression_level(self) -> int | None:
        """As `records.compression` takes it."""
        level = {
            Codec.GZIP: self.compression_gzip_level,
            Codec.LZ4: self.compression_lz4_level,
            Codec.ZSTD: self.compression_zstd_level,
        }.get(self.codec)
        return None if level is None or (self.codec is Codec.GZIP and level == -1) else level


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(ClientSettings):
    group_id: str | None = setting(
        None, "Consumers with the same group share the partitions; without one, `assign` them yourself."
    )
    group_instance_id: str | None = setting(
        None, "A name that survives restarts: coming back within the session timeout costs no rebalance."
    )
    group_protocol: str = setting(
        "classic", "classic, or consumer: the server assigns (KIP-848).", one_of=("classic", "consumer")
    )
    group_remote_assignor: str | None = setting(
        None, "Which of the server's assignors a group of the consumer protocol uses: uniform or range."
    )
    partition_assignment_strategy: tuple[str, ...] = setting(
        ("range", "cooperative-sticky"),
        "Assignors of the classic protocol, the preferred one first: range, roundrobin, sticky, cooperative-sticky.",
    )
    session_timeout_ms: int = setting(
        45_000, "A member that is silent for so long is removed from its group.", least=1
    )
    heartbeat_interval_ms: int = setting(
        3_000, "How often a member says that it is there (classic protocol).", least=1
    )
    max_poll_interval_ms: int = setting(
        300_000, "An application that asks for no records for so long leaves the group.", least=1
    )
    max_poll_records: int = setting(500, "The most records that one poll returns.", least=1)
    auto_offset_reset: str = setting(
        "latest",
        "Where to begin without a committed offset: earliest, latest, by_duration:PT1H (ISO 8601), or none, which is an error.",
    )
    enable_auto_commit: bool = setting(
        True,
        "Positions are committed by themselves, those of records that were returned before the last poll.",
    )
    auto_commit_interval_ms: int = setting(5_000, "How often.", least=1)
    isolation_level: str = setting(
        "read_uncommitted",
        "read_committed hides records of open and aborted transactions.",
        one_of=("read_uncommitted", "read_committed"),
    )
    fetch_min_bytes: int = setting(1, "A broker waits until it has so much to send …", least=0)
    fetch_max_wait_ms: int = setting(500, "… or so long has passed.", least=0)
    fetch_max_bytes: int = setting(
        52_428_800, "The most that one answer holds; its first batch may be larger.", least=1
    )
    max_partition_fetch_bytes: int = setting(
        1_048_576, "The most of one partition in one answer; its first batch may be larger.", least=1
    )
    check_crcs: bool = setting(True, "Compare each batch with its checksum.")
    client_rack: str = setting(
        "", "Where this consumer is: a replica in the same rack serves it if the brokers allow that."
    )
    allow_auto_create_topics: bool = setting(
        True, "Brokers may create a topic that is subscribed to, if they do such things."
    )
    exclude_internal_topics: bool = setting(True, "A pattern does not match __consumer_offsets and its like.")
    default_api_timeout_ms: int = setting(
        60_000, "How long commits, look-ups and the like may take.", least=1
    )

    def __post_init__(self) -> None:
        super(ConsumerSettings, self).__post_init__()
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise SettingsError(
                f"heartbeat.interval.ms={self.heartbeat_interval_ms} must be less than session.timeout.ms={self.session_timeout_ms}"
            )
        if self.group_id == "":
            raise SettingsError("group.id must not be empty")
        if self.group_id is None and self.group_instance_id is not None:
            raise SettingsError("group.instance.id needs a group.id")

    @property
    def reads_committed(self) -> bool:
        return self.isolation_level == "read_committed"

    @property
    def isolation(self) -> int:
        """As requests have it."""
        return int(self.reads_committed)


def _check(name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    dotted = name.replace("_", ".")
    least, one_of = metadata.get("least"), metadata.get("one_of")
    if least is not None and (
        isinstance(value, bool) or not isinstance(value, int) or not least <= value <= INT32_MAX
    ):
        raise SettingsError(f"{dotted} is a number from {least} to {INT32_MAX}, not {value!r}")
    if one_of and value not in one_of:
        raise SettingsError(f"{dotted} is one of {', '.join(one_of)}, not {value!r}")


def _parsed(name: str, value: Any, default: Any) -> Any:
    """A string as properties files have it, turned into what the setting is."""
    if not isinstance(value, str):
        return value
    if isinstance(default, bool):
        if value.lower() not in ("true", "false"):
            raise SettingsError(f"{name} is true or false, not {value!r}")
        return value.lower() == "true"
    if isinstance(default, int):
        try:
            return int(value)
        except ValueError:
            raise SettingsError(f"{name} is a number, not {value!r}") from None
    if isinstance(default, tuple):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value
