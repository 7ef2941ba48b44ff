"""Keys and values of `__consumer_offsets` to bytes and back: an int16 (type of the key, version of the value), then the message.

Owns the table of types, and which version each value is written in: those of Kafka 4.3. Every version Kafka ever wrote is read. Keys of a
type that this release does not know (share and streams groups, newer releases) are None: they are nobody's state here, and stay in the log.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from tidelog.coordinator.group import records as types
from tidelog.coordinator.outcome import CoordinatorRecord
from tidelog.errors import CorruptDataError, ProtocolError
from tidelog.wire.codec import decoder, encoder, joined
from tidelog.wire.types import ZERO_UUID, Buffer, Part
from tidelog.wire.varint import write_uvarint

_LEGACY_OFFSET_COMMIT: Final = 0
_TYPES: Final[dict[int, tuple[type[Any], type[Any]]]] = {
    _LEGACY_OFFSET_COMMIT: (types.OffsetCommitKey, types.OffsetCommitValue),
    1: (types.OffsetCommitKey, types.OffsetCommitValue),
    2: (types.GroupMetadataKey, types.GroupMetadataValue),
    3: (types.ConsumerGroupMetadataKey, types.ConsumerGroupMetadataValue),
    4: (types.ConsumerGroupPartitionMetadataKey, types.ConsumerGroupPartitionMetadataValue),
    5: (types.ConsumerGroupMemberMetadataKey, types.ConsumerGroupMemberMetadataValue),
    6: (types.ConsumerGroupTargetAssignmentMetadataKey, types.ConsumerGroupTargetAssignmentMetadataValue),
    7: (types.ConsumerGroupTargetAssignmentMemberKey, types.ConsumerGroupTargetAssignmentMemberValue),
    8: (types.ConsumerGroupCurrentMemberAssignmentKey, types.ConsumerGroupCurrentMemberAssignmentValue),
    16: (types.ConsumerGroupRegularExpressionKey, types.ConsumerGroupRegularExpressionValue),
}
_TYPE_OF: Final = {key: number for number, (key, _) in _TYPES.items() if number != _LEGACY_OFFSET_COMMIT}
_WRITTEN_IN: Final[dict[type[Any], int]] = {types.OffsetCommitValue: 4, types.GroupMetadataValue: 3}
"""As Kafka 4.3 does; 0 for all others."""
_WITH_EXPIRY: Final = 1
_COMMIT_VALUE_VERSION: Final = _WRITTEN_IN[types.OffsetCommitValue]
_COMMIT_TYPE: Final = _TYPE_OF[types.OffsetCommitKey]
_KEY_HEAD, _LENGTH, _PARTITION = struct.Struct(">hh").pack, struct.Struct(">h").pack, struct.Struct(">i").pack
_VALUE_HEAD, _TIMESTAMP = struct.Struct(">hqi").pack, struct.Struct(">q").pack
_NO_TAGS: Final = b"\x00"
_TOPIC_ID_TAG: Final = b"\x01\x00\x10"  # one tag: number 0, 16 bytes


def encode_key(key: Any) -> bytes:
    if type(key) is types.OffsetCommitKey:
        try:
            return _encode_commit_key(key)
        except struct.error:
            pass  # the generic encoder says what does not fit
    parts: list[Part] = [_TYPE_OF[type(key)].to_bytes(2, "big")]
    encoder(type(key), 0)(key, parts)
    return joined(parts)


def encode_value(value: Any) -> bytes:
    version = _WRITTEN_IN.get(type(value), 0)
    if type(value) is types.OffsetCommitValue:
        if value.expire_timestamp != -1:
            version = _WITH_EXPIRY  # the only one that has it
        else:
            try:
                return _encode_commit_value(value)
            except struct.error:
                pass
    parts: list[Part] = [version.to_bytes(2, "big")]
    encoder(type(value), version)(value, parts)
    return joined(parts)


def _encode_commit_key(key: types.OffsetCommitKey) -> bytes:
    """What the generic encoder writes, in a third of the time: a consumer of a hundred partitions commits a hundred of them."""
    group, topic = key.group.encode(), key.topic.encode()
    return b"".join(
        (
            _KEY_HEAD(_COMMIT_TYPE, len(group)), group,
            _LENGTH(len(topic)), topic,
            _PARTITION(key.partition),
        )
    )  # fmt: skip


def _encode_commit_value(value: types.OffsetCommitValue) -> bytes:
    metadata, topic_id = value.metadata.encode(), value.topic_id
    return b"".join(
        (
            _VALUE_HEAD(_COMMIT_VALUE_VERSION, value.offset, value.leader_epoch),
            write_uvarint(len(metadata) + 1), metadata,
            _TIMESTAMP(value.commit_timestamp),
            _NO_TAGS if topic_id == ZERO_UUID else _TOPIC_ID_TAG + topic_id,
        )
    )  # fmt: skip


def decode_record(key: Buffer, value: Buffer | None) -> CoordinatorRecord | None:
    """None: of a kind that is not ours. CorruptDataError says what makes no sense."""
    if len(key) < 2:
        raise CorruptDataError(f"a group record has a key of {len(key)} bytes, which names no type")
    number = int.from_bytes(key[:2], "big", signed=True)
    found = _TYPES.get(number)
    if found is None:
        return None
    key_class, value_class = found
    return CoordinatorRecord(
        _read(key_class, 0, key), None if value is None else _read_value(value_class, value)
    )


def _read_value(cls: type[Any], value: Buffer) -> Any:
    if len(value) < 2:
        raise CorruptDataError(f"{cls.__name__} of {len(value)} bytes, which states no version")
    version = int.from_bytes(value[:2], "big", signed=True)
    oldest, latest = cls.SCHEMA.versions
    if not oldest <= version <= latest:
        raise CorruptDataError(
            f"{cls.__name__} in version {version}, this release reads {oldest} to {latest}: a newer one wrote it"
        )
    return _read(cls, version, value)


def _read(cls: type[Any], version: int, data: Buffer) -> Any:
    try:
        read, end = decoder(cls, version)(memoryview(data), 2)
    except ProtocolError as error:
        raise CorruptDataError(f"{cls.__name__} version {version}: {error}") from error
    if end != len(data):
        raise CorruptDataError(
            f"{cls.__name__} version {version} is followed by {len(data) - end} stray bytes"
        )
    return read
