"""Bytes that are wrong in every way we could think of: the decoder answers with ProtocolError, and with little memory (I53)."""

from __future__ import annotations

import struct
import tracemalloc
from random import Random
from typing import Any, ClassVar

import pytest

from tidelog.errors import ProtocolError
from tidelog.wire.api import spec
from tidelog.wire.codec import decode, encode
from tidelog.wire.messages import APIS
from tidelog.wire.messages.fetch import FetchRequest, FetchResponse
from tidelog.wire.messages.metadata import MetadataRequest
from tidelog.wire.messages.produce import ProduceRequest
from tidelog.wire.schema import Field, Schema, fresh, message


@message
class Flexible:
    name: str = ""
    payload: bytes = b""
    numbers: list[int] = fresh(default_factory=list)
    known: int = 5
    later: str | None = None

    SCHEMA: ClassVar[Schema] = Schema(
        Field("name", "string"),
        Field("payload", "bytes", nullable=(0, None)),
        Field("numbers", ["int32"]),
        Field("known", "int32", tag=1),
        Field("later", "string", nullable=(0, None), tag=3),
        versions=(0, 0),
        flexible=0,
    )


@message
class Legacy:
    name: str = ""
    note: str | None = None
    payload: bytes = b""
    names: list[str] = fresh(default_factory=list)

    SCHEMA: ClassVar[Schema] = Schema(
        Field("name", "string"),
        Field("note", "string", nullable=(0, None)),
        Field("payload", "bytes"),
        Field("names", ["string"]),
        versions=(0, 0),
    )


FLEXIBLE_BODY = b"\x02a\x00\x01"  # name "a", payload null, no numbers


@pytest.mark.parametrize("key", APIS)
def test_every_prefix_of_every_message_is_refused(key: int, build_message: Any) -> None:
    api = spec(key)
    rng = Random(key)
    for version in range(api.min_version, api.max_version + 1):
        for cls in (api.request_class, api.response_class):
            encoded = encode(build_message(cls, version, rng), version)
            view = memoryview(bytearray(encoded))
            for end in range(0, len(encoded), 1 + len(encoded) // 200):
                with pytest.raises(ProtocolError):
                    decode(cls, version, view[:end])


@pytest.mark.parametrize("key", APIS)
def test_flipped_bytes_are_read_or_refused_and_nothing_else(key: int, build_message: Any) -> None:
    api = spec(key)
    rng = Random(key)
    for version in {api.min_version, api.max_version}:
        for cls in (api.request_class, api.response_class):
            encoded = encode(build_message(cls, version, rng), version)
            for _ in range(60):
                broken = bytearray(encoded)
                for _ in range(rng.choice((1, 1, 2, 5))):
                    if broken:
                        broken[rng.randrange(len(broken))] = rng.choice(
                            (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
                        )
                try:
                    decode(cls, version, broken)
                except ProtocolError as error:
                    assert str(error)


@pytest.mark.parametrize(
    ("cls", "version"),
    [
        (ProduceRequest, 3),
        (ProduceRequest, 9),
        (FetchRequest, 4),
        (FetchRequest, 17),
        (FetchResponse, 12),
        (MetadataRequest, 1),
    ],
)
def test_huge_lengths_cost_no_memory(cls: type[Any], version: int, build_message: Any) -> None:
    encoded = encode(build_message(cls, version, Random(1)), version)
    huge = (b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f")
    decode(cls, version, encoded)
    tracemalloc.start()
    try:
        for position in range(min(len(encoded), 400)):
            for value in huge:
                broken = encoded[:position] + value + encoded[position + len(value) :]
                try:
                    decode(cls, version, broken)
                except ProtocolError:
                    continue
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 500_000, f"{peak} bytes for a message of {len(encoded)}"


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (b"\x00\x00\x01\x00", "Flexible.name is null"),
        (b"\x02a\x00\x00\x00", "Flexible.numbers is null"),
        (b"\x02\xff\x00\x01\x00", "not UTF-8"),
        (b"\xff\xff\xff\xff\xff\x01a", "longer than 32 bits"),
        (b"\x80\x80\x80\x80\x80\x80\x01", "longer than 32 bits"),
        (b"\x02a\x00\xff\xff\xff\xff\x07\x00", "claims 2147483646 elements"),
        (b"\x02a\x00\x03\x00\x00\x00\x01\x00", "claims 2 elements"),
        (b"\x09a", "ends before"),
        (b"", "ends before"),
        (FLEXIBLE_BODY + b"\x01\x01\x05\x00\x00\x00\x07\x00", "does not end where its length says"),
        (FLEXIBLE_BODY + b"\x01\x01\x03\x00\x00\x00\x07", "does not end where its length says"),
        (FLEXIBLE_BODY + b"\x01\x09\x05abcd", "tagged field 9 claims 5 bytes"),
        (FLEXIBLE_BODY + b"\x02\x09\x00\x07\x00", "tagged field 7 comes after 9"),
        (
            FLEXIBLE_BODY + b"\x02\x01\x04\x00\x00\x00\x01\x01\x04\x00\x00\x00\x02",
            "tagged field 1 comes after 1",
        ),
        (FLEXIBLE_BODY + b"\x02\x01\x04\x00\x00\x00\x01", "ends before"),
        (FLEXIBLE_BODY + b"\xff\xff\xff\xff\x0f", "ends before"),
        (FLEXIBLE_BODY + b"\x00!", "followed by 1 bytes"),
    ],
)
def test_flexible_messages_say_what_is_wrong(broken: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode(Flexible, 0, broken)


def test_unknown_tags_are_skipped_and_known_ones_read() -> None:
    section = (
        b"\x04"
        + b"\x00\x02??"
        + b"\x01\x04\x00\x00\x00\x09"
        + b"\x03\x03hi"[:1]
        + b"\x03\x03hi"
        + b"\xe8\x07\x01!"
    )
    read = decode(Flexible, 0, FLEXIBLE_BODY + section)
    assert (read.name, read.payload, read.known, read.later) == ("a", None, 9, "hi")
    many = b"\x80\x02" + b"".join(_tag(number) + b"\x01x" for number in range(10, 266))
    assert decode(Flexible, 0, FLEXIBLE_BODY + many).known == 5


def _tag(number: int) -> bytes:
    return bytes((number,)) if number < 128 else bytes((number & 127 | 128, number >> 7))


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (struct.pack(">h", -1), "Legacy.name is null"),
        (struct.pack(">h", -2), "Legacy.name has the length -2"),
        (struct.pack(">hh", 0, -7), "Legacy.note has the length -7"),
        (struct.pack(">hhi", 0, -1, -1), "Legacy.payload is null"),
        (struct.pack(">hhi", 0, -1, 1 << 30), "ends before"),
        (struct.pack(">hhii", 0, -1, 0, -1), "Legacy.names is null"),
        (struct.pack(">hhii", 0, -1, 0, -5), "Legacy.names has the length -5"),
        (struct.pack(">hhii", 0, -1, 0, 1 << 30), "claims 1073741824 elements"),
        (struct.pack(">hhiih", 0, -1, 0, 1, -1), "Legacy.names is null"),
        (struct.pack(">h1s", 1, b"\xc3"), "not UTF-8|ends before"),
    ],
)
def test_legacy_messages_say_what_is_wrong(broken: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode(Legacy, 0, broken)


def test_a_version_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ProtocolError, match="versions 3 to 13, not 2"):
        decode(ProduceRequest, 2, b"")
