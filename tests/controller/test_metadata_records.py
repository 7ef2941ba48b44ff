"""Metadata records are Kafka's, byte for byte, in every version Kafka ever wrote."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.controller.metadata_serde import API_KEYS, decode_record, encode_record, record_version
from tidelog.errors import CorruptDataError

# Values of records in the metadata log of an Apache Kafka 4.3.1 node, and what Kafka's own dump tool says they are.
KAFKA_WROTE = [
    ("01170001001212426f6f747374726170207265636f726473", "BeginTransactionRecord(name='Bootstrap records')"),
    (
        "010c00116d657461646174612e76657273696f6e001e00",
        "FeatureLevelRecord(name='metadata.version', feature_level=30)",
    ),
    (
        "0104000401146d696e2e696e73796e632e7265706c69636173023100",
        "ConfigRecord(resource_type=4, resource_name='', name='min.insync.replicas', value='1')",
    ),
    ("01180000", "EndTransactionRecord()"),
    ("01140000", "NoOpRecord()"),
    (
        "011b00000000014acc4a8f84694eee8ba04eb9034ae3b000020b434f4e54524f4c4c45520a3132372e302e302e316269000000080e67726f"
        "75702e76657273696f6e00000001000e6b726166742e76657273696f6e0000000100116d657461646174612e76657273696f6e0007001e00"
        "0e73686172652e76657273696f6e00000001001073747265616d732e76657273696f6e0000000100147472616e73616374696f6e2e766572"
        "73696f6e000000020021656c696769626c652e6c65616465722e7265706c696361732e76657273696f6e000000010000",
        "RegisterControllerRecord(controller_id=1, ",
    ),
    (
        "0100040000000100545c3f33f99b4a9c8c1dc196b50da0eb000000000000000c020a504c41494e544558540a3132372e302e302e31620400"
        "0000080e67726f75702e76657273696f6e00000001001073747265616d732e76657273696f6e0000000100147472616e73616374696f6e2e"
        "76657273696f6e000000020021656c696769626c652e6c65616465722e7265706c696361732e76657273696f6e0000000100116d65746164"
        "6174612e76657273696f6e0007001e000e73686172652e76657273696f6e00000001000e6b726166742e76657273696f6e00000001000001"
        "0001001102c9938d07a997ccc9746ed4ac67b6c75a",
        "RegisterBrokerRecord(broker_id=1, ",
    ),
    (
        "01110000000001000000000000000c010001ff",
        "BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=12, fenced=-1, in_controlled_shutdown=0, ",
    ),
    (
        "01110100000001000000000000000c01010101",
        "BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=12, fenced=0, in_controlled_shutdown=1, ",
    ),
    (
        "01110300000001000000000000000c01030101",
        "BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=12, fenced=0, in_controlled_shutdown=0, log_dirs=[], "
        "cordoned_log_dirs=[])",
    ),
    ("0102000374316581720480164a41b87777e238558e2e00", "TopicRecord(name='t1', "),
    (
        "010302000000006581720480164a41b87777e238558e2e02000000010200000001010100000001000000000000000002c9938d07a997ccc9"
        "746ed4ac67b6c75a00",
        "PartitionRecord(partition_id=0, ",
    ),
    ("011c000100", "ClearElrRecord(topic_name='')"),
    (
        "010f0000000001000000000000000c00000000000003e800",
        "ProducerIdsRecord(broker_id=1, broker_epoch=12, next_producer_id=1000)",
    ),
    ("010900e8a4b1ecd57543ea9798864e2e921d9200", "RemoveTopicRecord("),
    (
        "01050200000000183f3f6355bf4fd19e65867e9e560b19040001010104ffffffff0605020000000107050200000001",
        "PartitionChangeRecord(partition_id=0, ",
    ),
]


@pytest.mark.parametrize(
    ("value", "meaning"), KAFKA_WROTE, ids=[meaning.split("(")[0] for _, meaning in KAFKA_WROTE]
)
def test_what_kafka_wrote_is_read_and_written_the_same(value: str, meaning: str) -> None:
    record = decode_record(bytes.fromhex(value))
    assert repr(record).startswith(meaning)
    assert encode_record(record).hex() == value


def test_a_kafka_partition_change_says_who_may_lead_after_the_last_replica_left() -> None:
    record = decode_record(bytes.fromhex(KAFKA_WROTE[-1][0]))
    assert (record.isr, record.leader) == ([], -1)
    assert (record.eligible_leader_replicas, record.last_known_elr) == ([1], [1])
    assert record.replicas is None


_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16),
    "string": st.text(max_size=200),
    "bytes": st.binary(max_size=40),
}


def _present(versions: tuple[int, int | None], version: int) -> bool:
    return versions[0] <= version and (versions[1] is None or version <= versions[1])


def instances(cls: type[Any], version: int) -> st.SearchStrategy[Any]:
    """Any value of the class that this version can carry."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in cls.SCHEMA.fields:
        if not _present(field.versions, version):
            continue
        kind = field.type[0] if isinstance(field.type, list) else field.type
        values = _SCALARS[kind] if isinstance(kind, str) else instances(kind, version)
        if isinstance(field.type, list):
            values = st.lists(values, max_size=4)
        if field.nullable is not None and _present(field.nullable, version):
            values = st.none() | values
        fields[field.name] = values
    return st.builds(cls, **fields)


VERSIONS = [
    (cls, version)
    for cls in API_KEYS.values()
    for version in range(cls.SCHEMA.versions[0], cls.SCHEMA.versions[1] + 1)
]


@pytest.mark.parametrize(
    ("cls", "version"), VERSIONS, ids=[f"{cls.__name__}-{version}" for cls, version in VERSIONS]
)
def test_every_version_of_every_record_survives_its_encoding(cls: type[Any], version: int) -> None:
    @given(instances(cls, version))
    @settings(max_examples=20)
    def round_trip(record: Any) -> None:
        encoded = encode_record(record, version)
        assert encoded[2] == version
        assert decode_record(encoded) == record

    round_trip()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"", "breaks off"),
        (b"\x01\x02", "breaks off"),
        (b"\x02\x14\x00\x00", "frame version 2"),
        (b"\x01\x63\x00\x00", "unknown type 99"),
        (b"\x01\x14\x05\x00", "NoOpRecord in version 5"),
        (b"\x01\x14\x00\x00\xff", "1 stray bytes"),
        (b"\x01\x02\x00\x09abc", "TopicRecord version 0"),
    ],
)
def test_a_record_that_makes_no_sense_is_refused_with_the_reason(value: bytes, says: str) -> None:
    with pytest.raises(CorruptDataError, match=says):
        decode_record(value)


def test_only_metadata_records_have_a_version() -> None:
    with pytest.raises(TypeError, match="int is no metadata record"):
        record_version(7)
