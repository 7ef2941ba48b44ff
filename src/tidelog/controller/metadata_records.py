"""Metadata records about topics, settings, features and producer ids, as Kafka 4.3 writes them.

Owns facts only: names, types, version ranges and tags. Registrations are in `registration_records`, access and quotas in
`security_records`, the frame around a record and its version in `metadata_serde`. Format: docs/formats/metadata-log.md.
"""

from __future__ import annotations

from typing import ClassVar, Final

from tidelog.wire.schema import Field, Schema, fresh, message
from tidelog.wire.types import ZERO_UUID

NO_LEADER: Final = -1
LEADER_UNCHANGED: Final = -2
RECOVERY_STATE_UNCHANGED: Final = -1


@message
class TopicRecord:
    """A topic exists. Its partitions follow as records of their own."""

    name: str = ""
    topic_id: bytes = ZERO_UUID

    SCHEMA: ClassVar[Schema] = Schema(
        Field("name", "string"), Field("topic_id", "uuid"), versions=(0, 0), flexible=0
    )


@message
class PartitionRecord:
    """A partition as a whole: at creation, and in snapshots."""

    partition_id: int = -1
    topic_id: bytes = ZERO_UUID
    replicas: list[int] = fresh(default_factory=list)
    isr: list[int] = fresh(default_factory=list)
    removing_replicas: list[int] = fresh(default_factory=list)
    adding_replicas: list[int] = fresh(default_factory=list)
    leader: int = NO_LEADER
    leader_recovery_state: int = 0
    leader_epoch: int = -1
    partition_epoch: int = -1
    directories: list[bytes] = fresh(default_factory=list)
    eligible_leader_replicas: list[int] | None = None
    last_known_elr: list[int] | None = None

    SCHEMA: ClassVar[Schema] = Schema(
        Field("partition_id", "int32"),
        Field("topic_id", "uuid"),
        Field("replicas", ["int32"]),
        Field("isr", ["int32"]),
        Field("removing_replicas", ["int32"]),
        Field("adding_replicas", ["int32"]),
        Field("leader", "int32"),
        Field("leader_recovery_state", "int8", tag=0),
        Field("leader_epoch", "int32"),
        Field("partition_epoch", "int32"),
        Field("directories", ["uuid"], (1, None)),
        Field("eligible_leader_replicas", ["int32"], (2, None), nullable=(2, None), tag=1),
        Field("last_known_elr", ["int32"], (2, None), nullable=(2, None), tag=2),
        versions=(0, 2),
        flexible=0,
    )


@message
class PartitionChangeRecord:
    """What changed in a partition; None, -2 and -1 stand for "as before". Every one raises the partition epoch by one."""

    partition_id: int = -1
    topic_id: bytes = ZERO_UUID
    isr: list[int] | None = None
    leader: int = LEADER_UNCHANGED
    replicas: list[int] | None = None
    removing_replicas: list[int] | None = None
    adding_replicas: list[int] | None = None
    leader_recovery_state: int = RECOVERY_STATE_UNCHANGED
    directories: list[bytes] | None = None
    eligible_leader_replicas: list[int] | None = None
    last_known_elr: list[int] | None = None

    SCHEMA: ClassVar[Schema] = Schema(
        Field("partition_id", "int32"),
        Field("topic_id", "uuid"),
        Field("isr", ["int32"], nullable=(0, None), tag=0),
        Field("leader", "int32", tag=1),
        Field("replicas", ["int32"], nullable=(0, None), tag=2),
        Field("removing_replicas", ["int32"], nullable=(0, None), tag=3),
        Field("adding_replicas", ["int32"], nullable=(0, None), tag=4),
        Field("leader_recovery_state", "int8", tag=5),
        Field("directories", ["uuid"], (1, None), nullable=(1, None), tag=8),
        Field("eligible_leader_replicas", ["int32"], (2, None), nullable=(2, None), tag=6),
        Field("last_known_elr", ["int32"], (2, None), nullable=(2, None), tag=7),
        versions=(0, 2),
        flexible=0,
    )


@message
class RemoveTopicRecord:
    """A topic is gone, with its partitions and its settings."""

    topic_id: bytes = ZERO_UUID

    SCHEMA: ClassVar[Schema] = Schema(Field("topic_id", "uuid"), versions=(0, 0), flexible=0)


@message
class ClearElrRecord:
    """No replica is an eligible leader by ELR any more: of this topic, or of all when the name is empty."""

    topic_name: str = ""

    SCHEMA: ClassVar[Schema] = Schema(Field("topic_name", "string"), versions=(0, 0), flexible=0)


@message
class ConfigRecord:
    """One dynamic setting of one resource; None takes it away."""

    resource_type: int = 0
    resource_name: str = ""
    name: str = ""
    value: str | None = ""

    SCHEMA: ClassVar[Schema] = Schema(
        Field("resource_type", "int8"),
        Field("resource_name", "string"),
        Field("name", "string"),
        Field("value", "string", nullable=(0, None)),
        versions=(0, 0),
        flexible=0,
    )


@message
class FeatureLevelRecord:
    """The level at which a feature is finalized; 0 switches it off."""

    name: str = ""
    feature_level: int = 0

    SCHEMA: ClassVar[Schema] = Schema(
        Field("name", "string"), Field("feature_level", "int16"), versions=(0, 0), flexible=0
    )


@message
class ProducerIdsRecord:
    """A block of producer ids went to a broker; `next_producer_id` starts the next block."""

    broker_id: int = 0
    broker_epoch: int = -1
    next_producer_id: int = 0

    SCHEMA: ClassVar[Schema] = Schema(
        Field("broker_id", "int32"),
        Field("broker_epoch", "int64"),
        Field("next_producer_id", "int64"),
        versions=(0, 0),
        flexible=0,
    )


@message
class NoOpRecord:
    """Says nothing; Kafka's active controller writes it to show that the log still moves."""

    SCHEMA: ClassVar[Schema] = Schema(versions=(0, 0), flexible=0)


@message
class BeginTransactionRecord:
    """What follows counts only once its end is there: for changes that do not fit into one batch (KIP-868)."""

    name: str | None = None

    SCHEMA: ClassVar[Schema] = Schema(
        Field("name", "string", nullable=(0, None), tag=0), versions=(0, 0), flexible=0
    )


@message
class EndTransactionRecord:
    SCHEMA: ClassVar[Schema] = Schema(versions=(0, 0), flexible=0)


@message
class AbortTransactionRecord:
    """What came since the beginning of the transaction never happened."""

    reason: str | None = None

    SCHEMA: ClassVar[Schema] = Schema(
        Field("reason", "string", nullable=(0, None), tag=0), versions=(0, 0), flexible=0
    )


@message
class ZkMigrationStateRecord:
    """Left over in logs of clusters that once ran on ZooKeeper; read and passed over."""

    zk_migration_state: int = 0

    SCHEMA: ClassVar[Schema] = Schema(Field("zk_migration_state", "int8"), versions=(0, 0), flexible=0)
