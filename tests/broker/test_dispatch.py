"""Bytes that are no request end their own connection, with a line in the log, and nobody else's (I53)."""

from __future__ import annotations

import dataclasses
import logging
import random
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.broker.conftest import OwnBroker, Topic, Wire, batch, code
from tidelog.broker.apis import APIS
from tidelog.wire.api import ApiKey, spec
from tidelog.wire.codec import encode
from tidelog.wire.headers import RequestHeader, encode_request
from tidelog.wire.messages import (
    alter_configs,
    api_versions,
    create_topics,
    delete_topics,
    describe_configs,
    describe_topic_partitions,
    fetch,
    incremental_alter_configs,
    list_offsets,
    metadata,
    produce,
)

ALL_TOPICS = encode(metadata.MetadataRequest(topics=None), 1)


def frame(key: int, version: int, body: bytes = b"", client_id: bytes = b"\0\x01x") -> bytes:
    """A request frame with a header of version 1, without its length."""
    return struct.pack(">hhi", key, version, 9) + client_id + body


HOSTILE = {
    "unknown API": frame(9999, 0),
    "negative API": frame(-1, 0),
    "controller API": frame(ApiKey.VOTE, 0),
    "version too high": frame(ApiKey.METADATA, 99),
    "negative version": frame(ApiKey.METADATA, -1),
    "version too low": frame(ApiKey.FETCH, 3),
    "header cut": b"\0\3\0",
    "only a key": b"\0\3",
    "one byte": b"\0",
    "client id longer than the frame": frame(ApiKey.METADATA, 1, client_id=b"\x7f\xff"),
    "client id of length -2": frame(ApiKey.METADATA, 1, ALL_TOPICS, client_id=b"\xff\xfe"),
    "client id that is not UTF-8": frame(ApiKey.METADATA, 1, ALL_TOPICS, client_id=b"\0\x02\xc3\x28"),
    "no body": frame(ApiKey.METADATA, 1),
    "body cut": frame(ApiKey.METADATA, 1, b"\0\0\0"),
    "array of 2**31-1": frame(ApiKey.METADATA, 1, b"\x7f\xff\xff\xff"),
    "array of -2": frame(ApiKey.METADATA, 1, b"\xff\xff\xff\xfe"),
    "compact array of 2**32-2": frame(ApiKey.METADATA, 12, b"\0\xff\xff\xff\xff\x0f\0\0\0"),
    "varint without end": frame(ApiKey.METADATA, 12, b"\0" + b"\xff" * 30),
    "tag longer than the frame": frame(ApiKey.METADATA, 12, b"\x01\x05\xff\xff\x03"),
    "topic name that is not UTF-8": frame(ApiKey.METADATA, 1, b"\0\0\0\1\0\2\xc3\x28"),
    "null topic name": frame(ApiKey.METADATA, 1, b"\0\0\0\1\xff\xff"),
    "garbage": bytes(range(256)),
    "records longer than the frame": frame(
        ApiKey.PRODUCE, 3, b"\xff\xff\0\1\0\0\0\1\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\x7f\xff\xff\xff"
    ),
}


STRICTER = {
    "client id of length -2",
    "client id that is not UTF-8",
    "array of -2",
    "compact array of 2**32-2",
    "topic name that is not UTF-8",
}
"""Kafka reads a negative length as null, and broken UTF-8 as replacement characters."""


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_frame_ends_its_connection_only(
    connect: Callable[[], Wire], kind: str, foreign: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if foreign and kind in STRICTER:
        pytest.skip("Kafka takes it")
    bystander = connect()
    hostile = connect()
    with caplog.at_level(logging.WARNING, "tidelog.broker"):
        hostile.send_raw(HOSTILE[kind])
        assert hostile.is_closed()
    assert bystander.metadata().brokers
    if not foreign:
        (record,) = [r for r in caplog.records if r.name == "tidelog.broker"]
        assert record.levelno == logging.WARNING, "the peer's fault, not ours"
        assert "closing connection from 127.0.0.1:" in record.getMessage()


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (b"\xff\xff\xff\xff", "-1 bytes"),
        (b"\x7f\xff\xff\xff", "2147483647 bytes"),
        (b"\x06\x40\x00\x01", "104857601 bytes"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
    ],
)
def test_what_does_not_look_like_a_frame(
    wire: Wire, start: bytes, why: str, foreign: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tidelog.broker"):
        wire.send_bytes(start)
        assert wire.is_closed()
    if not foreign:
        assert why in caplog.text


def test_requests_before_a_hostile_one_are_answered(wire: Wire, foreign: bool) -> None:
    if foreign:
        pytest.skip("Kafka may close first")
    wire.send(metadata.MetadataRequest(topics=[]), 1)
    wire.send_raw(HOSTILE["garbage"])
    assert wire.receive().brokers
    assert wire.is_closed()


def test_bytes_behind_the_last_field_are_ignored(wire: Wire) -> None:
    wire.send_raw(frame(ApiKey.METADATA, 1, ALL_TOPICS + b"xyz"))
    assert wire.receive_raw()[:4] == b"\0\0\0\x09"


def test_a_client_without_an_id(wire: Wire) -> None:
    wire.send_raw(frame(ApiKey.METADATA, 1, ALL_TOPICS, client_id=b"\xff\xff"))
    assert wire.receive_raw()[:4] == b"\0\0\0\x09"


def test_unknown_tags_are_skipped(wire: Wire) -> None:
    """In the header and in the body (CLIENTS trap 7)."""
    tags = b"\x02\x05\x03abc\x63\x00"
    body = encode(metadata.MetadataRequest(topics=[]), 12)[:-1] + tags
    wire.send_raw(struct.pack(">hhi", ApiKey.METADATA, 12, 9) + b"\0\x01x" + tags + body)
    assert wire.receive_raw()[:4] == b"\0\0\0\x09"


# ---- ApiVersions, which must never hang up for its version (KIP-511)


@pytest.mark.parametrize("version", [5, 9, 32767])
def test_an_unknown_version_of_api_versions_is_told_the_known_ones(wire: Wire, version: int) -> None:
    wire.send_raw(frame(ApiKey.API_VERSIONS, version, b"\0"))
    answer = wire.receive_raw()
    assert answer[:10] == b"\0\0\0\x09" + b"\0\x23" + b"\0\0\0\x01", "version 0, error 35, one entry"
    assert struct.unpack(">hhh", answer[10:]) == (18, 0, 4)
    request = api_versions.ApiVersionsRequest(client_software_name="a", client_software_version="1")
    assert code(wire.ask(request, 4)) == "NONE", "and the connection goes on"


# ---- answers that do not fit. Kafka answers UNKNOWN_SERVER_ERROR to these, or nothing at all.


@pytest.fixture
def ours(wire: Wire, foreign: bool) -> Wire:
    if foreign:
        pytest.skip("only ours is held to this")
    return wire


@pytest.mark.parametrize("version", [1, 3, 4])
def test_a_name_too_long_for_an_error_message(ours: Wire, version: int) -> None:
    """Before flexible versions a string holds 32767 bytes. A message that quotes a name of that length must still fit."""
    resource = describe_configs.DescribeConfigsResource(resource_type=4, resource_name="x" * 32_767)
    response = ours.ask(describe_configs.DescribeConfigsRequest(resources=[resource]), version)
    assert code(response.results[0]) == "INVALID_REQUEST"


@pytest.mark.parametrize("version", [2, 4, 7])
def test_a_topic_name_too_long_for_an_error_message(ours: Wire, version: int) -> None:
    topic = create_topics.CreatableTopic(name="x" * 32_767, num_partitions=1, replication_factor=1)
    response = ours.ask(create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=1000), version)
    assert code(response.topics[0]) == "INVALID_TOPIC_EXCEPTION"


@pytest.mark.parametrize("version", [0, 1])
def test_a_setting_too_long_for_an_error_message(ours: Wire, topic: Topic, version: int) -> None:
    for name, value in (("x" * 32_767, "1"), ("retention.ms", "x" * 32_767)):
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=2,
            resource_name=topic.name,
            configs=[incremental_alter_configs.AlterableConfig(name=name, value=value)],
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
        assert code(ours.ask(request, version).responses[0]) == "INVALID_CONFIG"


def test_quoted_text_that_grows(ours: Wire) -> None:
    """What is quoted may take more bytes than it came with, in escapes and in UTF-8."""
    for name in ("\x01" * 20_000, "ÿ" * 16_000):
        resource = alter_configs.AlterConfigsResource(resource_type=4, resource_name=name)
        (result,) = ours.ask(alter_configs.AlterConfigsRequest(resources=[resource]), 1).responses
        assert code(result) == "INVALID_REQUEST"


# ---- a storm of damaged requests


def requests(topic: Topic) -> Iterator[Any]:
    """One request per API with something in every array."""
    yield produce.ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=100,
        topic_data=[
            produce.TopicProduceData(
                name=topic.name,
                topic_id=topic.id,
                partition_data=[produce.PartitionProduceData(index=0, records=batch(b"storm"))],
            )
        ],
    )
    request = Wire.fetch_request(topic, 0, max_wait_ms=10)
    request.forgotten_topics_data = [
        fetch.ForgottenTopic(topic=topic.name, topic_id=topic.id, partitions=[0, 1])
    ]
    yield request
    yield list_offsets.ListOffsetsRequest(
        replica_id=-1,
        topics=[
            list_offsets.ListOffsetsTopic(
                name=topic.name, partitions=[list_offsets.ListOffsetsPartition(timestamp=-1)]
            )
        ],
    )
    yield metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=topic.name)])
    yield delete_topics.DeleteTopicsRequest(
        topics=[delete_topics.DeleteTopicState(name="no-such-topic")], topic_names=["no-such-topic"]
    )
    yield create_topics.CreateTopicsRequest(
        validate_only=True,
        topics=[
            create_topics.CreatableTopic(
                name="storm",
                num_partitions=1,
                replication_factor=1,
                configs=[create_topics.CreatableTopicConfig(name="retention.ms", value="5")],
            )
        ],
    )
    yield describe_topic_partitions.DescribeTopicPartitionsRequest(
        topics=[describe_topic_partitions.TopicRequest(name=topic.name)],
        cursor=describe_topic_partitions.Cursor(topic_name=topic.name, partition_index=0),
    )
    yield describe_configs.DescribeConfigsRequest(
        resources=[
            describe_configs.DescribeConfigsResource(
                resource_type=2, resource_name=topic.name, configuration_keys=["retention.ms", "x"]
            )
        ]
    )
    shown = {
        ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_TOPICS, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.DESCRIBE_CONFIGS,
    }  # fmt: skip
    for key in APIS:
        if key not in shown:
            yield spec(key).request_class()


def damaged(chance: random.Random, whole: bytes) -> bytes:
    kind = chance.randrange(4)
    if kind == 0:
        return whole[: chance.randrange(len(whole))]
    if kind == 1:
        return whole + chance.randbytes(chance.randrange(1, 9))
    harmed = bytearray(whole)
    for _ in range(chance.randrange(1, 4)):
        position = chance.randrange(4, len(whole))  # the API and version stay, or all would end there
        harmed[position] = chance.choice((0, 0xFF, 0x7F, 0x80, chance.randrange(256)))
    return bytes(harmed)


@pytest.mark.parametrize("seed", range(4))
def test_a_storm_of_damaged_requests(launch: Any, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever comes, the broker answers or hangs up; it meets no surprise of its own and stays well."""
    chance = random.Random(seed)
    broker: OwnBroker = launch()
    bystander = broker.connect()
    topic = bystander.create("t")
    bystander.produce(topic, batch())
    keys = {spec(key).request_class: key for key in APIS}
    with caplog.at_level(logging.ERROR):
        for request in requests(topic):
            api = APIS[keys[type(request)]]
            for version in range(max(api.min_version, api.lowest_served), api.max_version + 1):
                whole = encode_request(RequestHeader(api.key, version, 1, "storm"), request)[4:]
                stream = b"".join(
                    struct.pack(">i", len(body)) + body
                    for body in (damaged(chance, whole) for _ in range(3))
                    if body
                )
                with socket.create_connection(("127.0.0.1", broker.port)) as sock:
                    sock.settimeout(10)
                    try:
                        sock.sendall(stream)
                        sock.shutdown(socket.SHUT_WR)
                        while sock.recv(1 << 16):
                            pass
                    except ConnectionError:
                        pass
    assert [record.getMessage() for record in caplog.records] == []
    assert code(bystander.produce(topic, batch())) == "NONE"
    assert bystander.metadata(topic.name).topics[0].error_code == 0
    assert broker.broker.fetch_purgatory.parked == 0


# ---- bugs of our own, made on purpose


@pytest.mark.parametrize("kind", ["plain", "coroutine", "later"])
def test_an_answer_that_cannot_be_encoded_ends_the_connection(
    launch: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that waits for an answer that never comes is worse off than one that is hung up on."""
    broker: OwnBroker = launch()
    unfit = metadata.MetadataResponse(cluster_id="x" * 40_000)

    async def work() -> Any:
        return unfit

    def handler(_: Any, context: Any, request: Any) -> Any:
        if kind == "plain":
            return unfit
        if kind == "coroutine":
            return work()
        pending = context.defer()
        broker.broker.scheduler.call_soon(context.answer, pending, unfit)
        return pending

    wire, bystander = broker.connect(), broker.connect()
    apis = broker.broker.dispatcher._apis
    apis[ApiKey.METADATA] = dataclasses.replace(apis[ApiKey.METADATA], handler=handler)
    wire.send(metadata.MetadataRequest(topics=[]), 8)
    assert wire.is_closed()
    assert "does not fit" in caplog.text
    assert code(bystander.ask(api_versions.ApiVersionsRequest(), 0)) == "NONE"


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_a_handler_that_fails_is_answered_for(
    launch: Any, is_coroutine: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the API has a place for an error of the whole request; otherwise the connection ends."""
    broker: OwnBroker = launch()

    async def work() -> Any:
        raise ZeroDivisionError("made to fail")

    def handler(_: Any, context: Any, request: Any) -> Any:
        if is_coroutine:
            return work()
        raise ZeroDivisionError("made to fail")

    wire = broker.connect()
    apis = broker.broker.dispatcher._apis
    for key in (ApiKey.FETCH, ApiKey.METADATA):
        apis[key] = dataclasses.replace(apis[key], handler=handler, frame_handler=None)
    assert code(wire.ask(fetch.FetchRequest())) == "UNKNOWN_SERVER_ERROR"
    wire.send(metadata.MetadataRequest(topics=[]), 8)
    assert wire.is_closed()
    assert caplog.text.count("bug: ") == 2 and caplog.text.count("made to fail") >= 2
