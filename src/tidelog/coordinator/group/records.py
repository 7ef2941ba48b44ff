"""The records of `__consumer_offsets`, as Kafka 4.3 writes them: names, types, version ranges and tags.

Owns facts only. A key's type number stands before it as an int16, a value's version before the value: `record_serde`. Records of share and
streams groups are not here: this release has no such groups. Format: docs/formats/group-records.md.
"""

from __future__ import annotations

from typing import ClassVar

from tidelog.wire.schema import Field, Schema, fresh, message, shared
from tidelog.wire.types import ZERO_UUID

# ---- offsets


@message
class OffsetCommitKey:
    """Where a group stands in a partition. Type 0 is the same, written by old releases."""

    group: str = ""
    topic: str = ""
    partition: int = 0

    SCHEMA: ClassVar[Schema] = Schema(
        Field("group", "string"), Field("topic", "string"), Field("partition", "int32"), versions=(0, 0)
    )


@message
class OffsetCommitValue:
    offset: int = 0
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = 0
    expire_timestamp: int = -1
    topic_id: bytes = ZERO_UUID

    SCHEMA: ClassVar[Schema] = Schema(
        Field("offset", "int64"),
        Field("leader_epoch", "int32", (3, None)),
        Field("metadata", "string"),
        Field("commit_timestamp", "int64"),
        Field("expire_timestamp", "int64", (1, 1)),
        Field("topic_id", "uuid", (4, None), tag=0),
        versions=(0, 4),
        flexible=4,
    )


# ---- classic groups


@message
class GroupMetadataKey:
    group: str = ""

    SCHEMA: ClassVar[Schema] = Schema(Field("group", "string"), versions=(0, 0))


@message
class GroupMetadataMember:
    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: int = 0
    session_timeout: int = 0
    subscription: bytes = b""
    assignment: bytes = b""

    SCHEMA: ClassVar[Schema] = Schema(
        Field("member_id", "string"),
        Field("group_instance_id", "string", (3, None), nullable=(3, None)),
        Field("client_id", "string"),
        Field("client_host", "string"),
        Field("rebalance_timeout", "int32", (1, None)),
        Field("session_timeout", "int32"),
        Field("subscription", "bytes"),
        Field("assignment", "bytes"),
    )


@message
class GroupMetadataValue:
    """A classic group after a rebalance: its generation and its members, each with what it was given."""

    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    current_state_timestamp: int = -1
    members: list[GroupMetadataMember] = fresh(default_factory=list)

    SCHEMA: ClassVar[Schema] = Schema(
        Field("protocol_type", "string"),
        Field("generation", "int32"),
        Field("protocol", "string", nullable=(0, None)),
        Field("leader", "string", nullable=(0, None)),
        Field("current_state_timestamp", "int64", (2, None)),
        Field("members", [GroupMetadataMember]),
        versions=(0, 4),
        flexible=4,
    )


# ---- consumer groups (KIP-848)


@message
class ConsumerGroupMetadataKey:
    group_id: str = ""

    SCHEMA: ClassVar[Schema] = Schema(Field("group_id", "string"), versions=(0, 0))


@message
class ConsumerGroupMetadataValue:
    epoch: int = 0
    metadata_hash: int = 0
    """Of the subscribed topics: another one means that the assignment must be made anew (KIP-1101)."""

    SCHEMA: ClassVar[Schema] = Schema(
        Field("epoch", "int32"), Field("metadata_hash", "int64", tag=0), versions=(0, 0), flexible=0
    )


@message
class ConsumerGroupPartitionMetadataKey:
    """Written by releases before 4.1; since then only tombstones of it are."""

    group_id: str = ""

    SCHEMA: ClassVar[Schema] = Schema(Field("group_id", "string"), versions=(0, 0))


@message
class PartitionMetadata:
    partition: int = 0
    racks: list[str] = fresh(default_factory=list)

    SCHEMA: ClassVar[Schema] = Schema(Field("partition", "int32"), Field("racks", ["string"]))


@message
class TopicMetadata:
    topic_id: bytes = ZERO_UUID
    topic_name: str = ""
    num_partitions: int = 0
    partition_metadata: list[PartitionMetadata] = fresh(default_factory=list)

    SCHEMA: ClassVar[Schema] = Schema(
        Field("topic_id", "uuid"),
        Field("topic_name", "string"),
        Field("num_partitions", "int32"),
        Field("partition_metadata", [PartitionMetadata]),
    )


@message
class ConsumerGroupPartitionMetadataValue:
    topics: list[TopicMetadata] = fresh(default_factory=list)

    SCHEMA: ClassVar[Schema] = Schema(Field("topics", [TopicMetadata]), versions=(0, 0), flexible=0)


@message
class ConsumerGroupMemberMetadataKey:
    group_id: str = ""
    member_id: str = ""

    SCHEMA: ClassVar[Schema] = Schema(
        Field("group_id", "string"), Field("member_id", "string"), versions=(0, 0)
    )


@message
class ClassicProtocol:
    name: str = ""
    metadata: bytes = b""

    SCHEMA: ClassVar[Schema] = Schema(Field("name", "string"), Field("metadata", "bytes"))


@message
class ClassicMemberMetadata:
    """Of a member that still speaks the classic protocol in a consumer group."""

    session_timeout_ms: int = 0
    supported_protocols: list[ClassicProtocol] = fresh(default_factory=list)

    SCHEMA: ClassVar[Schema] = Schema(
        Field("session_timeout_ms", "int32"), Field("supported_protocols", [ClassicProtocol])
    )


@message
class ConsumerGroupMemberMetadataValue:
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = fresh(default_factory=list)
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic_member_metadata: ClassicMemberMetadata | None = shared(ClassicMemberMetadata)
    """None has to be written: left out, it stands for an empty one, and Kafka takes its member for a classic one."""

    SCHEMA: ClassVar[Schema] = Schema(
        Field("instance_id", "string", nullable=(0, None)),
        Field("rack_id", "string", nullable=(0, None)),
        Field("client_id", "string"),
        Field("client_host", "string"),
        Field("subscribed_topic_names", ["string"]),
        Field("subscribed_topic_regex", "string", nullable=(0, None)),
        Field("rebalance_timeout_ms", "int32"),
        Field("server_assignor", "string", nullable=(0, None)),
        Field("classic_member_metadata", ClassicMemberMetadata, nullable=(0, None), tag=0),
        versions=(0, 0),
        flexible=0,
    )


@message
class ConsumerGroupTargetAssignmentMetadataKey:
    group_id: str = ""

    SCHEMA: ClassVar[Schema] = Schema(Field("group_id", "string"), versions=(0, 0))


@message
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: int = 0
    assignment_timestamp: int = 0

    SCHEMA: ClassVar[Schema] = Schema(
        Field("assignment_epoch", "int32"),
        Field("assignment_timestamp", "int64", tag=0),
        versions=(0, 0),
        flexible=0,
    )


@message
class TargetTopicPartition:
    topic_id: bytes = ZERO_UUID
    partitions: list[int] = fresh(default_factory=list)

    SCHEMA: ClassVar[Schema] = Schema(Field("topic_id", "uuid"), Field("partitions", ["int32"]))


@message
class ConsumerGroupTargetAssignmentMemberKey:
    group_id: str = ""
    member_id: str = ""

    SCHEMA: ClassVar[Schema] = Schema(
        Field("group_id", "string"), Field("member_id", "string"), versions=(0, 0)
    )


@message
class ConsumerGroupTargetAssignmentMemberValue:
    topic_partitions: list[TargetTopicPartition] = fresh(default_factory=list)

    SCHEMA: ClassVar[Schema] = Schema(
        Field("topic_partitions", [TargetTopicPartition]), versions=(0, 0), flexible=0
    )


@message
class ConsumerGroupCurrentMemberAssignmentKey:
    group_id: str = ""
    member_id: str = ""

    SCHEMA: ClassVar[Schema] = Schema(
        Field("group_id", "string"), Field("member_id", "string"), versions=(0, 0)
    )


@message
class CurrentTopicPartitions:
    topic_id: bytes = ZERO_UUID
    partitions: list[int] = fresh(default_factory=list)
    assignment_epochs: list[int] | None = None
    """As of which member epoch the member has each of the partitions (KIP-1251)."""

    SCHEMA: ClassVar[Schema] = Schema(
        Field("topic_id", "uuid"),
        Field("partitions", ["int32"]),
        Field("assignment_epochs", ["int32"], nullable=(0, None), tag=0),
    )


@message
class ConsumerGroupCurrentMemberAssignmentValue:
    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: int = 0
    assigned_partitions: list[CurrentTopicPartitions] = fresh(default_factory=list)
    partitions_pending_revocation: list[CurrentTopicPartitions] = fresh(default_factory=list)

    SCHEMA: ClassVar[Schema] = Schema(
        Field("member_epoch", "int32"),
        Field("previous_member_epoch", "int32"),
        Field("state", "int8"),
        Field("assigned_partitions", [CurrentTopicPartitions]),
        Field("partitions_pending_revocation", [CurrentTopicPartitions]),
        versions=(0, 0),
        flexible=0,
    )


@message
class ConsumerGroupRegularExpressionKey:
    group_id: str = ""
    regular_expression: str = ""

    SCHEMA: ClassVar[Schema] = Schema(
        Field("group_id", "string"), Field("regular_expression", "string"), versions=(0, 0)
    )


@message
class ConsumerGroupRegularExpressionValue:
    """The topics that a pattern matched, and as of which metadata offset."""

    topics: list[str] = fresh(default_factory=list)
    version: int = 0
    timestamp: int = 0

    SCHEMA: ClassVar[Schema] = Schema(
        Field("topics", ["string"]),
        Field("version", "int64"),
        Field("timestamp", "int64"),
        versions=(0, 0),
        flexible=0,
    )
