"""Frames and headers: what stands around a message."""

from __future__ import annotations

import struct

import pytest

from tidelog.errors import ProtocolError
from tidelog.wire.api import ApiKey, first_flexible, request_header_version, response_header_version, spec
from tidelog.wire.codec import decode, joined
from tidelog.wire.error_codes import ErrorCode, error_name
from tidelog.wire.headers import (
    RequestHeader,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from tidelog.wire.messages import APIS
from tidelog.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.wire.messages.list_groups import ListGroupsRequest


@pytest.mark.parametrize("version", [0, 3, 4])
@pytest.mark.parametrize("client_id", [None, "", "someone", "ü" * 200])
def test_requests_come_back(version: int, client_id: str | None) -> None:
    header = RequestHeader(ApiKey.HEARTBEAT, version, -5, client_id)
    request = HeartbeatRequest("g", 3, "m")
    frame = encode_request(header, request)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    read, position = decode_request_header(memoryview(bytearray(frame)), 4)
    assert read == header
    assert decode(HeartbeatRequest, version, frame[position:]) == request


def test_a_header_skips_tags_that_are_newer_than_we_are() -> None:
    raw = struct.pack(">hhih", 12, 4, 1, 1) + b"c" + b"\x01\x07\x02??" + b"body"
    header, position = decode_request_header(memoryview(raw))
    assert header == (12, 4, 1, "c")
    assert raw[position:] == b"body"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (struct.pack(">hhih", 999, 0, 1, -1), "no API with the key 999"),
        (struct.pack(">hhih", 4, 0, 1, -1), "no API with the key 4"),
        (struct.pack(">hhih", 12, 0, 1, -2), "length -2"),
        (struct.pack(">hhih", 12, 0, 1, 9) + b"short", "ends within its header"),
        (struct.pack(">hhih", 12, 0, 1, 1) + b"\xff", "not UTF-8"),
        (struct.pack(">hhih", 12, 4, 1, -1), "ends within its header"),
        (b"\x00\x0c", "ends within its header"),
        (b"", "ends within its header"),
    ],
)
def test_bad_headers_are_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode_request_header(memoryview(raw))


@pytest.mark.parametrize("version", [0, 3, 4])
def test_responses_come_back(version: int) -> None:
    response = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    frame = joined(encode_response(ApiKey.HEARTBEAT, version, 12, response))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode_response(ApiKey.HEARTBEAT, version, frame[4:]) == (12, response)


@pytest.mark.parametrize("raw", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\1\1", b"\0\0\0\1\0\0\0\0\0\0\0\0!"])
def test_bad_responses_are_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_response(ApiKey.HEARTBEAT, 4, raw)


def test_the_api_versions_answer_has_the_old_header_in_every_version() -> None:
    response = ApiVersionsResponse(api_keys=[ApiVersion(18, 0, 4)])
    for version in range(5):
        frame = joined(encode_response(ApiKey.API_VERSIONS, version, 3, response))
        assert frame[4:10] == b"\0\0\0\3\0\0"
        assert decode_response(18, version, frame[4:]) == (3, response)
        assert response_header_version(18, version) == 0
    assert request_header_version(18, 3) == 2
    assert len(encode_request(RequestHeader(18, 3, 1, None), ApiVersionsRequest())) == 4 + 10 + 1 + 3


def test_a_message_without_a_body_is_a_frame_all_the_same() -> None:
    assert encode_request(RequestHeader(16, 0, 1, None), ListGroupsRequest()) == struct.pack(
        ">ihhih", 10, 16, 0, 1, -1
    )


def test_every_api_has_its_messages() -> None:
    for key, (_, name, lowest, highest, flexible) in APIS.items():
        api = spec(key)
        assert ApiKey(key).name.replace("_", "").lower() == name.lower()
        assert (api.min_version, api.max_version, api.first_flexible) == (lowest, highest, flexible)
        for cls, kind in ((api.request_class, "Request"), (api.response_class, "Response")):
            assert cls.__name__ == name + kind
            assert cls.SCHEMA.versions == (lowest, highest)
            assert cls() == cls()
        if flexible is not None:
            assert request_header_version(key, flexible) == 2
        assert request_header_version(key, lowest) == (2 if lowest >= first_flexible(key) else 1)
    with pytest.raises(ProtocolError):
        spec(4)
    with pytest.raises(ProtocolError):
        request_header_version(-1, 0)


def test_error_codes_know_their_names_and_what_may_be_retried() -> None:
    assert ErrorCode.NONE == 0 and ErrorCode.UNKNOWN_SERVER_ERROR == -1 and ErrorCode.UNKNOWN_TOPIC_ID == 100
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable and not ErrorCode.MESSAGE_TOO_LARGE.retriable
    assert error_name(3) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert error_name(9999) == "error code 9999"
