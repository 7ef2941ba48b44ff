"""The cluster's metadata at one offset of its log, as an immutable value.

Owns the shape of that value. Nobody changes an image: `MetadataDelta` makes the next one and shares everything that
stayed the same, so readers may keep an image for as long as they like. Two nodes at the same offset hold equal images
(I18); `ELR ∩ ISR = ∅` (I23) is asserted where a partition is built.

The mappings are plain dicts for speed, typed as `Mapping` so that mypy refuses to write to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from tidelog.controller.image_security import SecurityImage
from tidelog.wire.types import ZERO_UUID

#: What stands for a directory that its broker has not named yet, and for one that is gone.
UNASSIGNED_DIRECTORY: Final = ZERO_UUID
LOST_DIRECTORY: Final = bytes(15) + b"\x01"


class ResourceType(IntEnum):
    """What dynamic settings can belong to, by Kafka's number."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class LeaderRecoveryState(IntEnum):
    """RECOVERING: the leader came from outside ISR and ELR, and the partition has lost data (KIP-704)."""

    RECOVERED = 0
    RECOVERING = 1


class ResourceKey(NamedTuple):
    """A holder of settings. A broker resource with an empty name is the default for all brokers."""

    type: int
    name: str


class PartitionImage(NamedTuple):
    """`replicas` is in preferred order; `directories` goes with it, one for one."""

    replicas: tuple[int, ...]
    directories: tuple[bytes, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    leader_recovery_state: int = LeaderRecoveryState.RECOVERED
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()

    def directory_of(self, broker_id: int) -> bytes:
        """In which log directory this broker keeps its replica."""
        return self.directories[self.replicas.index(broker_id)]


class TopicImage(NamedTuple):
    """Partitions by number, in rising order."""

    name: str
    topic_id: bytes
    partitions: Mapping[int, PartitionImage]


class Endpoint(NamedTuple):
    name: str
    host: str
    port: int
    security_protocol: int


class VersionRange(NamedTuple):
    min: int
    max: int


class BrokerImage(NamedTuple):
    """A registered broker. `epoch` tells one run of it from the next; `incarnation_id` is the process's own choice."""

    broker_id: int
    epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, VersionRange]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[bytes, ...]
    cordoned_log_dirs: tuple[bytes, ...] | None = None
    is_migrating_zk_broker: bool = False

    @property
    def active(self) -> bool:
        """May lead and join an ISR (KIP-841)."""
        return not self.fenced and not self.in_controlled_shutdown

    def has_online(self, directory: bytes) -> bool:
        """Whether a replica there can be served. What has no place yet will be given one that works."""
        if directory == UNASSIGNED_DIRECTORY or not self.log_dirs:
            return True
        return directory in self.log_dirs

    def default_directory(self) -> bytes:
        """Where a new replica will be, as far as can be said now: with several directories the broker decides."""
        return self.log_dirs[0] if len(self.log_dirs) == 1 else UNASSIGNED_DIRECTORY


class ControllerImage(NamedTuple):
    controller_id: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, VersionRange]
    zk_migration_ready: bool = False


_NO_CONFIGS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """`offset` is that of the last record contained (-1: none), `epoch` the leader epoch of its batch."""

    offset: int = -1
    epoch: int = -1
    features: Mapping[str, int] = field(default_factory=dict)
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    controllers: Mapping[int, ControllerImage] = field(default_factory=dict)
    topics_by_name: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[bytes, TopicImage] = field(default_factory=dict)
    partition_count: int = 0
    configs: Mapping[ResourceKey, Mapping[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0
    security: SecurityImage = field(default_factory=SecurityImage)

    def topic(self, name: str) -> TopicImage | None:
        return self.topics_by_name.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        return self.topics_by_id.get(topic_id)

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        found = self.topics_by_name.get(topic)
        return found.partitions.get(index) if found is not None else None

    def partitions(self) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
        for topic in self.topics_by_name.values():
            for index, partition in topic.partitions.items():
                yield topic, index, partition

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """The dynamic settings of one resource; those it inherits are not in here."""
        return self.configs.get(ResourceKey(resource_type, name), _NO_CONFIGS)

    @property
    def broker_defaults(self) -> Mapping[str, str]:
        """Dynamic settings that hold for every broker which has none of its own."""
        return self.config(ResourceType.BROKER, "")

    def same_metadata(self, other: MetadataImage) -> bool:
        """Equal but for the place in the log at which it was true."""
        return self.at(offset=0, epoch=0) == other.at(offset=0, epoch=0)

    def at(self, *, offset: int, epoch: int) -> MetadataImage:
        """The same metadata, told to be of another place in the log."""
        return MetadataImage(
            offset=offset,
            epoch=epoch,
            features=self.features,
            brokers=self.brokers,
            controllers=self.controllers,
            topics_by_name=self.topics_by_name,
            topics_by_id=self.topics_by_id,
            partition_count=self.partition_count,
            configs=self.configs,
            next_producer_id=self.next_producer_id,
            security=self.security,
        )


EMPTY_IMAGE: Final = MetadataImage()
