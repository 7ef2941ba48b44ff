"""Encoders and decoders of messages, compiled per class and version when first asked for.

`encoder` and `decoder` are what the broker's hot path keeps; `encode` and `decode` are for everything else. How a class is
declared is told in `schema.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from tidelog.errors import ProtocolError
from tidelog.wire.compile_decode import compile_decoder
from tidelog.wire.compile_encode import compile_encoder
from tidelog.wire.limits import REQUEST_ENTRIES_MAX
from tidelog.wire.plan import plan_message
from tidelog.wire.types import Buffer, Part

M = TypeVar("M")
Encoder: TypeAlias = Callable[[M, list[Part]], None]
Decoder: TypeAlias = Callable[[memoryview, int], tuple[M, int]]

_encoders: dict[tuple[type[Any], int], Encoder[Any]] = {}
_decoders: dict[tuple[type[Any], int], Decoder[Any]] = {}
_request_decoders: dict[tuple[type[Any], int], Decoder[Any]] = {}


def encoder(cls: type[M], version: int) -> Encoder[M]:
    """Appends a message to a list of parts; adjacent bytes are already joined, and the first part, if any, is bytes."""
    found = _encoders.get((cls, version))
    if found is None:
        try:
            plan = plan_message(cls, version)
        except LookupError as error:
            raise ValueError(f"cannot encode: {error}") from None
        found = _encoders[cls, version] = compile_encoder(plan, version)
    return found


def decoder(cls: type[M], version: int) -> Decoder[M]:
    """Reads a message at a position and returns it with the position after it. Raises nothing but `ProtocolError`."""
    found = _decoders.get((cls, version))
    if found is None:
        try:
            plan = plan_message(cls, version)
        except LookupError as error:
            raise ProtocolError(f"cannot decode: {error}") from None
        found = _decoders[cls, version] = compile_decoder(plan, version)
    return found


def request_decoder(cls: type[M], version: int) -> Decoder[M]:
    """The same for what strangers send to a broker: more than REQUEST_ENTRIES_MAX entries are refused."""
    found = _request_decoders.get((cls, version))
    if found is None:
        plan = plan_message(cls, version)
        found = _request_decoders[cls, version] = compile_decoder(plan, version, REQUEST_ENTRIES_MAX)
    return found


def encode(message: Any, version: int) -> bytes:
    """The whole message as bytes; file ranges are read."""
    parts: list[Part] = []
    encoder(type(message), version)(message, parts)
    return joined(parts)


def decode(cls: type[M], version: int, data: Buffer) -> M:
    """Exactly one message: bytes left over are an error."""
    message, end = decoder(cls, version)(memoryview(data), 0)
    if end != len(data):
        raise ProtocolError(
            f"{cls.__name__} version {version} is followed by {len(data) - end} bytes that belong to nothing"
        )
    return message


def joined(parts: list[Part]) -> bytes:
    """The parts as one piece. Reads file ranges: for tests, TLS and simulation, not for the sending path."""
    return b"".join(
        part if isinstance(part, (bytes, bytearray, memoryview)) else part.read() for part in parts
    )
