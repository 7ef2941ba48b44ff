"""What fuzzing found, each by the smallest input that showed it. None of these may come back."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest

from tests.fuzz import batches
from tests.fuzz.wire import Wire, encoded, produce_request
from tidelog.config.alter import Alteration, AlterOp, alter_broker, alter_topic
from tidelog.config.names import nearest
from tidelog.config.resolve import BrokerConfig
from tidelog.errors import CorruptDataError, ProtocolError, RequestError
from tidelog.records.batch import read_header
from tidelog.records.builder import BatchBuilder
from tidelog.records.columnar import decode_batches
from tidelog.records.compression import Codec
from tidelog.records.record import INT64_MAX, first_at_or_after_timestamp, iter_records
from tidelog.records.validation import RECORDS_WALKED_MAX, BatchRules, validate_for_append
from tidelog.testing import Cluster
from tidelog.wire.codec import request_decoder
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages import (
    api_versions,
    create_topics,
    describe_configs,
    fetch,
    incremental_alter_configs,
    list_offsets,
)
from tidelog.wire.messages.metadata import MetadataRequest
from tidelog.wire.produce_frames import read_produce

MANY_DIGITS = "9" * 5000


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with Cluster(topics={"findings": 1}) as cluster:
        yield int(cluster.bootstrap_servers.rpartition(":")[2])


@pytest.fixture
def wire(port: int) -> Iterator[Wire]:
    with Wire(port) as connection:
        yield connection


# ---- records


def test_a_timestamp_beyond_64_bits_wraps_and_does_not_fail() -> None:
    """The sum of base and delta did not fit into the header that the broker rewrites."""
    payload = batches.record(b"\x00", 5, 0, 1, b"k", -1, 0)
    batch = batches.forged(batches.with_payload(payload), base_timestamp=INT64_MAX, max_timestamp=INT64_MAX)
    (found,) = iter_records(batch, 0, read_header(batch))
    assert found.timestamp == -(1 << 63) + 4
    rules = BatchRules(compacted=True, after_max_ms=INT64_MAX)
    with pytest.raises(RequestError):
        validate_for_append(batch, rules, batches.NOW_MS)
    assert first_at_or_after_timestamp(batch, 0, read_header(batch), 0) is None


def test_both_readers_refuse_a_number_of_more_than_64_bits() -> None:
    """The columnar one let the bits above the 64th go."""
    payload = batches.record(b"\x00", b"\xff" * 9 + b"\x7f", 0, -1, -1, 0)
    batch = batches.with_payload(payload)
    with pytest.raises(CorruptDataError):
        list(iter_records(batch, 0, read_header(batch)))
    with pytest.raises(CorruptDataError):
        decode_batches(batch)


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_of_61_bytes_has_no_room_for_two_billion_records(codec: Codec) -> None:
    """It was accepted, and used up as many offsets."""
    count = (1 << 31) - 1
    batch = batches.forged(
        batches.with_payload(b"", codec=codec, compressed=True),
        record_count=count,
        last_offset_delta=count - 1,
    )
    assert len(batch) == 61
    with pytest.raises(RequestError) as refusal:
        validate_for_append(batch, BatchRules(), batches.NOW_MS)
    assert refusal.value.code == ErrorCode.INVALID_RECORD


def test_a_batch_is_not_walked_for_longer_than_it_should() -> None:
    """Nineteen million records of seven bytes fit into a hundred kilobytes of zstd, and a minute of the event loop."""
    count = RECORDS_WALKED_MAX + 1
    payload = b"".join(batches.record(b"\x00", 0, number, -1, -1, 0) for number in range(count))
    batch = batches.with_payload(payload, count=count, codec=Codec.ZSTD)
    validate_for_append(batch, BatchRules(max_message_bytes=len(batch)), batches.NOW_MS)
    with pytest.raises(RequestError) as refusal:
        validate_for_append(batch, BatchRules(compacted=True, max_message_bytes=len(batch)), batches.NOW_MS)
    assert refusal.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_nonsense_of_one_producer_does_not_end_searches_by_time(wire: Wire) -> None:
    """The broker does not look inside a batch on produce; ListOffsets did, and answered CORRUPT_MESSAGE from then on."""
    topic_id, now = wire.create("nonsense"), time.time_ns() // 1_000_000
    nonsense = batches.forged(
        batches.with_payload(b"no records at all"), base_timestamp=now, max_timestamp=now
    )
    builder = BatchBuilder()
    builder.append(now + 1000, None, b"sense")
    assert wire.produce(topic_id, nonsense).error_code == 0
    assert wire.produce(topic_id, bytes(builder.build())).error_code == 0
    for timestamp, offset in ((now, 0), (now + 1000, 1), (-3, 1)):
        asked = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        answer = wire.ask(
            list_offsets.ListOffsetsRequest(
                replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name="nonsense", partitions=[asked])]
            )
        )
        found = answer.topics[0].partitions[0]
        assert (found.error_code, found.offset) == (0, offset)


# ---- requests


def test_an_overlong_null_is_null() -> None:
    """0x80 0x00 is zero in two bytes: the reader of Produce took a step back and read everything from the wrong place."""
    body = b"\x80\x00" + struct.pack(">hi", 1, 0) + b"\x01\x00"
    assert read_produce(memoryview(body), 0, 9) == (None, 1, 0, [])


def test_a_request_has_so_many_entries_and_no_more() -> None:
    def topics(count: int) -> memoryview:
        length = bytes((count + 1 & 127 | 128, count + 1 >> 7 & 127 | 128, count + 1 >> 14))
        return memoryview(length + b"\x02a\x00" * count + b"\x01\x00\x00\x00")

    decode = request_decoder(MetadataRequest, 9)
    assert len(decode(topics(40_000), 0)[0].topics or ()) == 40_000
    with pytest.raises(ProtocolError, match="more than 40000 entries"):
        decode(topics(40_001), 0)


@pytest.mark.parametrize("per_topic", [0, 3])
@pytest.mark.parametrize("version", [3, 9])
def test_a_produce_request_too(version: int, per_topic: int) -> None:
    def produce(topics: int) -> memoryview:
        if version == 3:
            one = (
                b"\x00\x01a" + struct.pack(">i", per_topic) + b"\x00\x00\x00\x01\xff\xff\xff\xff" * per_topic
            )
            return memoryview(struct.pack(">hhii", -1, 1, 0, topics) + one * topics)
        one = b"\x02a" + bytes((per_topic + 1,)) + b"\x00\x00\x00\x01\x00\x00" * per_topic + b"\x00"
        length = bytes((topics + 1 & 127 | 128, topics + 1 >> 7 & 127 | 128, topics + 1 >> 14))
        return memoryview(b"\x00" + struct.pack(">hi", 1, 0) + length + one * topics + b"\x00")

    most = 40_000 // (1 + per_topic)
    assert len(read_produce(produce(most - 1), 0, version)[3]) == most - 1
    with pytest.raises(ProtocolError, match="more than 40000"):
        read_produce(produce(most + 2), 0, version)


# ---- settings


@pytest.mark.parametrize("name", ["retention.ms", "segment.bytes", "min.cleanable.dirty.ratio"])
def test_a_number_of_five_thousand_digits_is_refused_like_any_other(name: str) -> None:
    with pytest.raises(RequestError) as refusal:
        alter_topic({}, [Alteration(name, AlterOp.SET, MANY_DIGITS)], BrokerConfig.load({}))
    assert refusal.value.code == ErrorCode.INVALID_CONFIG


def test_a_limit_of_connections_that_is_no_number_is_refused_before_it_is_stored() -> None:
    """It would have been stored, and then have kept the broker from starting."""
    changes = [Alteration("max.connections.per.ip.overrides", AlterOp.SET, f"127.0.0.1:{MANY_DIGITS}")]
    with pytest.raises(RequestError):
        alter_broker({}, changes, BrokerConfig.load({}), cluster_wide=True)


def test_a_broker_of_five_thousand_digits_is_not_registered(wire: Wire) -> None:
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=4, resource_name=MANY_DIGITS, configs=[]
    )
    answer = wire.ask(incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == ErrorCode.INVALID_REQUEST


def test_names_that_are_longer_than_any_are_not_compared_with_all() -> None:
    began = time.thread_time()
    assert nearest("retention.ms" * 2000, ["retention.ms", "segment.ms"]) == []
    assert time.thread_time() - began < 0.05


def test_a_resource_is_described_once(wire: Wire) -> None:
    """Thirty bytes for a hundred kilobytes of answer: not once more for the asking."""
    resource = describe_configs.DescribeConfigsResource(
        resource_type=4, resource_name="0", configuration_keys=None
    )
    answer = wire.ask(describe_configs.DescribeConfigsRequest(resources=[resource] * 20))
    assert [bool(result.configs) for result in answer.results] == [True] + [False] * 19
    assert {result.error_code for result in answer.results[1:]} == {ErrorCode.INVALID_REQUEST}


# ---- connections


def test_what_comes_behind_an_admin_request_sees_what_it_did(wire: Wire) -> None:
    """Requests behind it were looked at meanwhile: neither Kafka's order, nor any limit on how many wait."""
    new = create_topics.CreatableTopic(name="behind", num_partitions=1, replication_factor=1)
    create = create_topics.CreateTopicsRequest(topics=[new], timeout_ms=10_000)
    asked = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    offsets = list_offsets.ListOffsetsRequest(
        replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name="behind", partitions=[asked])]
    )
    wire.send(encoded(create))
    assert wire.ask_behind(offsets).topics[0].partitions[0].error_code == 0


def test_a_large_request_behind_an_admin_request_arrives(wire: Wire) -> None:
    """Received in parts while nothing may be handled, and more than the buffer that all connections share."""
    topic_id = wire.create("large")
    new = create_topics.CreatableTopic(name="large-2", num_partitions=1, replication_factor=1)
    builder = BatchBuilder()
    builder.append(time.time_ns() // 1_000_000, None, bytes(1_000_000))
    create = encoded(create_topics.CreateTopicsRequest(topics=[new], timeout_ms=10_000))
    question = encoded(api_versions.ApiVersionsRequest(client_software_name="x", client_software_version="1"))
    wire.send(create + question * 200)
    answer = wire.ask_behind(produce_request(topic_id, bytes(builder.build())), skip=200)
    assert answer.responses[0].partition_responses[0].base_offset == 0


def test_a_connection_parks_two_fetches_and_no_more(wire: Wire, port: int) -> None:
    """A thousand parked fetches of one connection were all looked at for every record produced."""
    topic_id = wire.create("parked")
    partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    parking = fetch.FetchRequest(
        max_wait_ms=300,
        min_bytes=1,
        max_bytes=1000,
        session_epoch=-1,
        topics=[fetch.FetchTopic(topic_id=topic_id, partitions=[partition])],
    )
    began = time.monotonic()
    wire.send(encoded(parking) * 5)
    for _ in range(5):
        wire.receive()
    assert time.monotonic() - began > 0.55, "two wait at the same time, then the next"
