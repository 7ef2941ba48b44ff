"""Messages against kafka-python's own protocol classes: a second implementation, made from Kafka's schemas by other people."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.wire.api import spec
from tidelog.wire.codec import decode, encode
from tidelog.wire.headers import RequestHeader, decode_request_header, encode_request, encode_response
from tidelog.wire.messages import APIS

pytest.importorskip("kafka.protocol.api_message")

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl  # noqa: F401
from kafka.protocol.api_message import ApiMessage


def their_classes() -> Iterator[Any]:
    """Each message once: kafka-python also makes a subclass per version when asked for one."""
    for cls in ApiMessage.__subclasses__():
        if cls._class_version is None and cls.API_KEY in APIS:
            yield cls


@pytest.mark.parametrize(
    "theirs", sorted(their_classes(), key=lambda cls: cls.name), ids=lambda cls: cls.name
)
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32))
def test_kafka_python_reads_and_writes_the_same_bytes(theirs: Any, seed: int, build_message: Any) -> None:
    api = spec(theirs.API_KEY)
    ours = api.request_class if theirs.is_request() else api.response_class
    assert ours.__name__ == theirs.name
    rng = Random(seed)
    for version in range(
        max(api.min_version, theirs.min_version), min(api.max_version, theirs.max_version) + 1
    ):
        message = build_message(ours, version, rng)
        if theirs.name == "ApiVersionsResponse":
            message.error_code = 0  # kafka-python takes any error for a version 0 answer
        encoded = encode(message, version)
        read = theirs.decode(encoded, version=version, header=False)
        read._header = None
        again = bytes(read.encode(version=version, header=False))
        assert again == encoded, f"{theirs.name} v{version}"
        assert decode(ours, version, again) == message, f"{theirs.name} v{version}"


@pytest.mark.parametrize("version", [0, 9, 12])
def test_headers_agree(version: int) -> None:
    from kafka.protocol.metadata import MetadataRequest, MetadataResponse

    request = MetadataRequest[version]()
    request.with_header(correlation_id=77, client_id="client-ä")
    frame = bytes(request.encode(version=version, header=True, framed=True))
    header, position = decode_request_header(memoryview(frame), 4)
    assert header == RequestHeader(3, version, 77, "client-ä")
    message = decode(spec(3).request_class, version, frame[position:])
    assert encode_request(header, message) == frame

    answer = b"".join(bytes(part) for part in encode_response(3, version, 77, spec(3).response_class()))  # type: ignore[arg-type]
    read = MetadataResponse.decode(answer, version=version, header=True, framed=True)
    assert read.header.correlation_id == 77
