"""Records of `__consumer_offsets`: every type and every version that Kafka ever wrote, and bytes that nobody wrote."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.coordinator.group import record_serde, records
from tidelog.coordinator.group.record_serde import decode_record, encode_key, encode_value
from tidelog.coordinator.outcome import CoordinatorRecord
from tidelog.errors import CorruptDataError
from tidelog.wire.codec import encode
from tidelog.wire.schema import Field, defaults_of

TYPES: dict[int, tuple[Any, Any]] = {
    1: (records.OffsetCommitKey, records.OffsetCommitValue),
    2: (records.GroupMetadataKey, records.GroupMetadataValue),
    3: (records.ConsumerGroupMetadataKey, records.ConsumerGroupMetadataValue),
    4: (records.ConsumerGroupPartitionMetadataKey, records.ConsumerGroupPartitionMetadataValue),
    5: (records.ConsumerGroupMemberMetadataKey, records.ConsumerGroupMemberMetadataValue),
    6: (records.ConsumerGroupTargetAssignmentMetadataKey, records.ConsumerGroupTargetAssignmentMetadataValue),
    7: (records.ConsumerGroupTargetAssignmentMemberKey, records.ConsumerGroupTargetAssignmentMemberValue),
    8: (records.ConsumerGroupCurrentMemberAssignmentKey, records.ConsumerGroupCurrentMemberAssignmentValue),
    16: (records.ConsumerGroupRegularExpressionKey, records.ConsumerGroupRegularExpressionValue),
}
VERSIONS = [
    (number, version)
    for number, (_, value) in TYPES.items()
    for version in range(value.SCHEMA.versions[0], value.SCHEMA.versions[1] + 1)
]
PLAIN = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "string": st.text(max_size=8),
    "bytes": st.binary(max_size=8),
    "uuid": st.binary(min_size=16, max_size=16),
}


def within(versions: tuple[int, int | None] | None, version: int) -> bool:
    if versions is None:
        return False
    first, last = versions
    return first <= version and (last is None or version <= last)


def elements(kind: Any, version: int) -> st.SearchStrategy[Any]:
    return PLAIN[kind] if isinstance(kind, str) else messages(kind, version)


def values_of(field: Field, version: int) -> st.SearchStrategy[Any]:
    if isinstance(field.type, list):
        found: st.SearchStrategy[Any] = st.lists(elements(field.type[0], version), max_size=3)
    else:
        found = elements(field.type, version)
    return st.none() | found if within(field.nullable, version) else found


def messages(cls: Any, version: int) -> st.SearchStrategy[Any]:
    """Any value of the class that the version has room for: fields that it lacks have their defaults."""
    fields = {
        field.name: values_of(field, version)
        for field in cls.SCHEMA.fields
        if within(field.versions, version)
    }
    return st.builds(cls, **fields)


def stored(number: int, version: int) -> st.SearchStrategy[tuple[CoordinatorRecord, bytes, bytes]]:
    """A record, and its bytes with the value in `version`."""
    key_class, value_class = TYPES[number]
    return st.tuples(messages(key_class, 0), messages(value_class, version)).map(
        lambda pair: (
            CoordinatorRecord(*pair),
            number.to_bytes(2, "big") + encode(pair[0], 0),
            version.to_bytes(2, "big") + encode(pair[1], version),
        )
    )


@pytest.mark.parametrize(("number", "version"), VERSIONS)
@settings(max_examples=25)
@given(data=st.data())
def test_every_version_of_every_type_is_read(number: int, version: int, data: st.DataObject) -> None:
    record, key, value = data.draw(stored(number, version))
    assert decode_record(key, value) == record
    assert decode_record(memoryview(key), memoryview(value)) == record
    assert decode_record(key, None) == CoordinatorRecord(record.key, None)
    assert encode_key(record.key) == key


#: The version that each value is written in, and the fields that only another version has.
WRITTEN: list[Any] = [
    (1, 4, {"expire_timestamp": -1}),
    (2, 3, {}),
    *((number, 0, {}) for number in TYPES if number > 2),
]


@pytest.mark.parametrize(("number", "version", "fixed"), WRITTEN)
@settings(max_examples=25)
@given(data=st.data())
def test_what_is_written_is_read_back_whole(
    number: int, version: int, fixed: dict[str, Any], data: st.DataObject
) -> None:
    key_class, value_class = TYPES[number]
    value = data.draw(messages(value_class, version))
    for name, constant in fixed.items():
        setattr(value, name, constant)
    key = data.draw(messages(key_class, 0))
    written = encode_value(value)
    assert written == version.to_bytes(2, "big") + encode(value, version)
    assert decode_record(encode_key(key), written) == CoordinatorRecord(key, value)


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ValueError, match="OffsetCommitKey"):
        encode_key(records.OffsetCommitKey("g" * 40_000, "t", 1))
    with pytest.raises(ValueError, match="OffsetCommitValue"):
        encode_value(records.OffsetCommitValue(2**63))


def test_an_offset_with_a_moment_of_expiry_is_written_in_the_only_version_that_has_one() -> None:
    value = records.OffsetCommitValue(5, -1, "m", 10, 20)
    written = encode_value(value)
    assert written[:2] == b"\x00\x01"
    assert decode_record(encode_key(records.OffsetCommitKey("g", "t", 1)), written) == CoordinatorRecord(
        records.OffsetCommitKey("g", "t", 1), value
    )


def test_bytes_as_kafka_writes_them() -> None:
    """Worked out by hand from Kafka's message format."""
    key = records.OffsetCommitKey("my-group", "orders", 3)
    key_bytes = bytes.fromhex("0001 0008 6d792d67726f7570 0006 6f7264657273 00000003")
    assert encode_key(key) == key_bytes
    value = records.OffsetCommitValue(258, 7, "", 1_700_000_000_000)
    value_bytes = bytes.fromhex("0003 0000000000000102 00000007 0000 0000018bcfe56800")
    assert decode_record(key_bytes, value_bytes) == CoordinatorRecord(key, value)
    with_topic_id = records.OffsetCommitValue(258, 7, "", 1_700_000_000_000, -1, bytes(range(16)))
    flexible_bytes = bytes.fromhex(
        "0004 0000000000000102 00000007 01 0000018bcfe56800 01 00 10 000102030405060708090a0b0c0d0e0f"
    )
    assert decode_record(key_bytes, flexible_bytes) == CoordinatorRecord(key, with_topic_id)


def test_a_member_that_is_no_classic_one_says_so() -> None:
    """Left out, Kafka 4.3 takes the field for an empty one. And where a struct has a tag, its null is no negative byte."""
    from_kafka = (
        bytes.fromhex("00000000") + b"\x05wire\x0b/127.0.0.1\x02\x05read\x01\x00\x00u0\x00\x01\x00\x01\x00"
    )
    key = records.ConsumerGroupMemberMetadataKey("consumers", "df4646c5")
    found = decode_record(encode_key(key), from_kafka)
    assert found is not None
    assert found.value.classic_member_metadata is None
    assert encode_value(found.value) == from_kafka
    found.value.classic_member_metadata = records.ClassicMemberMetadata(session_timeout_ms=9000)
    with_one = encode_value(found.value)
    assert with_one == from_kafka[:-3] + b"\x00\x07\x01\x00\x00\x23\x28\x01\x00"
    again = decode_record(encode_key(key), with_one)
    assert again == found


def test_the_first_type_of_key_is_that_of_old_releases() -> None:
    key = records.OffsetCommitKey("g", "t", 1)
    legacy = b"\x00\x00" + encode_key(key)[2:]
    assert decode_record(legacy, None) == CoordinatorRecord(key, None)


@pytest.mark.parametrize("number", [9, 10, 11, 15, 17, 100, 32767, -1])
def test_types_that_are_nobodys_here_are_left_alone(number: int) -> None:
    assert decode_record(number.to_bytes(2, "big", signed=True) + b"whatever", b"whatever") is None


@pytest.mark.parametrize("version", [-1, 5, 32767])
def test_a_version_from_the_future_is_not_guessed_at(version: int) -> None:
    key = encode_key(records.OffsetCommitKey("g", "t", 1))
    with pytest.raises(CorruptDataError, match=f"version {version}"):
        decode_record(key, version.to_bytes(2, "big", signed=True) + bytes(40))


def test_bytes_behind_a_record_are_not_overlooked() -> None:
    key, value = encode_key(records.OffsetCommitKey("g", "t", 1)), encode_value(records.OffsetCommitValue(5))
    for pair in ((key + b"\x00", value), (key, value + b"\x00"), (key + b"\x00", None)):
        with pytest.raises(CorruptDataError, match="1 stray bytes"):
            decode_record(*pair)


@settings(max_examples=500)
@given(
    number=st.sampled_from([0, *TYPES]) | st.integers(-(2**15), 2**15 - 1),
    key=st.binary(max_size=40),
    value=st.none() | st.binary(max_size=40),
)
def test_bytes_that_nobody_wrote_are_corrupt_and_nothing_else(
    number: int, key: bytes, value: bytes | None
) -> None:
    for candidate in (key, number.to_bytes(2, "big", signed=True) + key):
        with suppress(CorruptDataError):
            decode_record(candidate, value)


@settings(max_examples=300)
@given(data=st.data(), which=st.sampled_from(VERSIONS))
def test_bytes_that_were_damaged_are_corrupt_and_nothing_else(
    data: st.DataObject, which: tuple[int, int]
) -> None:
    _, key, value = data.draw(stored(*which))
    damaged = bytearray(data.draw(st.sampled_from([key, value])))
    position = data.draw(st.integers(0, len(damaged) - 1))
    damaged[position] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for candidate in (bytes(damaged), bytes(damaged[:cut]), bytes(damaged) + b"\x00"):
        for pair in ((candidate, value), (key, candidate)):
            with suppress(CorruptDataError):
                decode_record(*pair)


def test_every_key_and_value_of_the_module_has_a_type() -> None:
    written = {cls for pair in TYPES.values() for cls in pair}
    declared = {
        each
        for each in vars(records).values()
        if isinstance(each, type) and getattr(getattr(each, "SCHEMA", None), "versions", None) is not None
    }
    assert declared == written
    assert set(record_serde._TYPES) == {0, *TYPES}
    assert all(defaults_of(cls) for cls in written)
