"""Request and response headers, and whole frames around a message.

Owns the bytes between a frame's length and a message's first field. Written by hand: every request passes here, and the
header breaks two rules of the codec (the client id is never compact, and an ApiVersions answer is never flexible).
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from tidelog.errors import ProtocolError
from tidelog.wire.api import ApiKey, first_flexible, spec
from tidelog.wire.codec import decoder, encoder, joined
from tidelog.wire.types import Buffer, Part
from tidelog.wire.varint import skip_tags


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


_read_fixed: Final = struct.Struct(">hhih").unpack_from
_pack_request: Final = struct.Struct(">ihhih").pack
_pack_response: Final = struct.Struct(">ii").pack
_pack_flexible_response: Final = struct.Struct(">iix").pack
_FIXED_SIZE: Final = 10
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_new: Final = tuple.__new__


def decode_request_header(view: memoryview, position: int = 0) -> tuple[RequestHeader, int]:
    """The header and where the body begins. ProtocolError for an API key that does not exist."""
    *fields, position = read_request_header(view, position)
    return _new(RequestHeader, fields), position


def read_request_header(view: memoryview, position: int = 0) -> tuple[int, int, int, str | None, int]:
    """The same as bare numbers: key, version, correlation id, client id, where the body begins. Budget: 1 µs."""
    try:
        api_key, api_version, correlation_id, length = _read_fixed(view, position)
        position += _FIXED_SIZE
        client_id = None
        if length >= 0:
            end = position + length
            client_id = str(view[position:end], "utf-8")
            position = end
        elif length != -1:
            raise ProtocolError(f"the client id has the length {length}")
        if api_version >= first_flexible(api_key):
            tags = view[position]
            position += 1
            if tags:
                position = skip_tags(view, position, tags)
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the client id is not UTF-8: {error}") from error
    except (struct.error, IndexError) as error:
        raise ProtocolError("the request ends within its header") from error
    if position > len(view):
        raise ProtocolError("the request ends within its header")
    return api_key, api_version, correlation_id, client_id, position


def encode_request(header: RequestHeader, message: Any) -> bytes:
    """A whole request frame, its length included."""
    return joined(request_parts(header, message))


def request_parts(header: RequestHeader, message: Any) -> list[Part]:
    """The same in parts: records that are large are one by themselves, and not copied."""
    key, version, correlation_id, client_id = header
    name = b"" if client_id is None else client_id.encode()
    tags = b"\0" if version >= first_flexible(key) else b""
    parts: list[Part] = [b"", name, tags]
    encoder(message.__class__, version)(message, parts)
    size = _FIXED_SIZE
    for part in parts:
        size += len(part)
    parts[0] = _pack_request(size, key, version, correlation_id, -1 if client_id is None else len(name))
    return parts


def encode_response(key: int, version: int, correlation_id: int, message: Any) -> list[Part]:
    """A whole response frame, its length included. File ranges stay where they are, between the bytes around them."""
    parts: list[Part] = []
    encoder(message.__class__, version)(message, parts)
    size = 0
    for part in parts:
        size += len(part)
    if version >= first_flexible(key) and key != _API_VERSIONS:
        head = _pack_flexible_response(size + 5, correlation_id)
    else:
        head = _pack_response(size + 4, correlation_id)
    if not parts:
        return [head]
    parts[0] = head + parts[0]  # type: ignore[operator]  # the first part of a message is always bytes
    return parts


def with_correlation_id(frame: bytes, correlation_id: int) -> bytes:
    """The same whole response frame as the answer to another request."""
    return b"".join((frame[:4], correlation_id.to_bytes(4, "big", signed=True), frame[8:]))


def decode_response(key: int, version: int, data: Buffer) -> tuple[int, Any]:
    """The correlation id and the message of a response frame without its length."""
    view = memoryview(data)
    if len(view) < 4:
        raise ProtocolError(f"a response of {len(view)} bytes has no room for its correlation id")
    correlation_id = int.from_bytes(view[:4], "big", signed=True)
    position = 4
    if version >= first_flexible(key) and key != _API_VERSIONS:
        try:
            position = skip_tags(view, 5, view[4])
        except IndexError as error:
            raise ProtocolError("the response ends within its header") from error
    message, end = decoder(spec(key).response_class, version)(view, position)
    if end != len(view):
        raise ProtocolError(
            f"the {spec(key).name} response is followed by {len(view) - end} bytes that belong to nothing"
        )
    return correlation_id, message
