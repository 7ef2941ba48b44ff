"""How messages are declared, and what the codec promises beyond the bytes: defaults, parts, no copies, clear mistakes."""

from __future__ import annotations

import copy
import dataclasses
from typing import ClassVar

import pytest

from tidelog.wire.codec import decode, encode, encoder
from tidelog.wire.messages.fetch import FetchableTopicResponse, FetchResponse, LeaderIdAndEpoch, PartitionData
from tidelog.wire.messages.metadata import MetadataRequest
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.schema import Field, Schema, fresh, message, shared
from tidelog.wire.types import ZERO_UUID, FilePart, Part


@message
class Inner:
    number: int = -1
    text: str | None = None

    SCHEMA: ClassVar[Schema] = Schema(
        Field("number", "int32"), Field("text", "string", (1, None), nullable=(1, None))
    )


@message
class Outer:
    """Declared by hand, as the metadata and offset records are."""

    flag: bool = False
    identity: bytes = ZERO_UUID
    inner: Inner = fresh(default_factory=Inner)
    maybe: Inner | None = None
    inners: list[Inner] = fresh(default_factory=list)
    ids: list[bytes] = fresh(default_factory=list)
    gone: int = 7
    ratio: float = 0.5
    port: int = 0
    tagged: Inner = shared(Inner)
    moved: str = "here"

    SCHEMA: ClassVar[Schema] = Schema(
        Field("flag", "bool"),
        Field("identity", "uuid", (1, None)),
        Field("inner", Inner),
        Field("maybe", Inner, (2, None), nullable=(2, None)),
        Field("inners", [Inner]),
        Field("ids", ["uuid"], (1, None), nullable=(2, None)),
        Field("gone", "int64", (0, 1)),
        Field("ratio", "float64"),
        Field("port", "uint16"),
        Field("tagged", Inner, (2, None), tag=0),
        Field("moved", "string", (1, None), tag=1, tagged=(2, None)),
        versions=(0, 3),
        flexible=2,
    )


@dataclasses.dataclass(slots=True)
class Plain:
    name: str = "n"
    parts: list[Inner] = dataclasses.field(default_factory=list)

    SCHEMA: ClassVar[Schema] = Schema(
        Field("name", "string", default="n"), Field("parts", [Inner]), versions=(0, 2), flexible=2
    )


class Range:
    """A file range, as the log hands it out."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __len__(self) -> int:
        return len(self.content)

    def read(self) -> bytes:
        return self.content

    def release(self) -> None:
        pass


def full() -> Outer:
    return Outer(
        flag=True,
        identity=bytes(range(16)),
        inner=Inner(1, "one"),
        maybe=Inner(2, "two"),
        inners=[Inner(3, "three"), Inner(4, "")],
        ids=[bytes(range(16)), ZERO_UUID],
        gone=99,
        ratio=1.25,
        port=65535,
        tagged=Inner(5, "five"),
        moved="there",
    )


def test_fields_that_a_version_lacks_come_back_as_their_defaults() -> None:
    oldest = decode(Outer, 0, encode(full(), 0))
    bare = [Inner(3), Inner(4)]
    assert oldest == Outer(flag=True, inner=Inner(1), inners=bare, gone=99, ratio=1.25, port=65535)
    newest = decode(Outer, 3, encode(full(), 3))
    assert newest == dataclasses.replace(full(), gone=7)


def test_a_field_may_be_plain_in_one_version_and_tagged_in_the_next() -> None:
    assert decode(Outer, 1, encode(Outer(moved="x"), 1)).moved == "x"
    assert decode(Outer, 2, encode(Outer(moved="x"), 2)).moved == "x"
    assert len(encode(Outer(), 2)) == len(encode(Outer(moved="x"), 2)) - 4


def test_tagged_fields_are_written_only_when_they_differ() -> None:
    bare = encode(Outer(), 2)
    assert bare.endswith(b"\0")
    assert encode(Outer(tagged=Inner(-1, None), moved="here"), 2) == bare
    assert encode(Outer(tagged=Inner(-1, "")), 2) != bare


def test_known_bytes() -> None:
    request = MetadataRequest(topics=None, allow_auto_topic_creation=True)
    assert encode(request, 0 + 1).hex() == "ffffffff"
    assert encode(request, 4).hex() == "ffffffff01"
    assert encode(request, 12).hex() == "00010000"


def test_a_dataclass_serves_as_well() -> None:
    value = Plain("x", [Inner(1, "a")])
    for version in (1, 2):
        assert decode(Plain, version, encode(value, version)) == value
    assert decode(Plain, 0, encode(Plain(), 0)) == Plain()


def test_defaults_that_disagree_are_found_at_once() -> None:
    @message
    class Wrong:
        name: str = ""
        SCHEMA: ClassVar[Schema] = Schema(Field("name", "string", default="other"), versions=(0, 0))

    with pytest.raises(TypeError, match=r"Wrong\.name defaults to ''"):
        encoder(Wrong, 0)


def test_facts_without_an_attribute_are_found_at_once() -> None:
    with pytest.raises(TypeError, match="'name'"):

        @message
        class Wrong:
            SCHEMA: ClassVar[Schema] = Schema(Field("name", "string"), versions=(0, 0))


def test_messages_behave_like_dataclasses() -> None:
    one = Inner(3, "x")
    assert repr(one) == "Inner(number=3, text='x')"
    assert one == Inner(number=3, text="x") != Inner(3, "y")
    assert one != "Inner"
    assert copy.copy(one) == one
    assert [field.name for field in dataclasses.fields(Inner)] == ["number", "text"]
    assert dataclasses.replace(one, text=None) == Inner(3)
    assert Outer().inners is not Outer().inners
    with pytest.raises(TypeError):
        Inner(nonsense=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        one.nonsense = 1  # type: ignore[attr-defined]


def test_a_shared_default_cannot_be_changed_for_everybody() -> None:
    partition = PartitionData()
    with pytest.raises(AttributeError, match=r"assign a new LeaderIdAndEpoch\(leader_id=...\)"):
        partition.current_leader.leader_id = 3
    assert partition.current_leader is PartitionData().current_leader
    assert partition.current_leader == LeaderIdAndEpoch()


def fetch_response(*records: Part | None) -> FetchResponse:
    partitions = [PartitionData(partition_index=index, records=part) for index, part in enumerate(records)]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])


@pytest.mark.parametrize("version", [4, 12, 16])
def test_file_ranges_stay_in_place_and_bytes_around_them_are_joined(version: int) -> None:
    first, second = Range(b"first" * 10), Range(b"")
    parts: list[Part] = []
    response = fetch_response(first, b"small", None, second, bytearray(b"tiny"))
    encoder(FetchResponse, version)(response, parts)
    assert [type(part) for part in parts] == [bytes, Range, bytes, Range, bytes]
    assert parts[1] is first and parts[3] is second
    whole = b"".join(part.read() if isinstance(part, FilePart) else part for part in parts)
    assert whole == encode(response, version)
    read = decode(FetchResponse, version, whole).responses[0].partitions
    assert [partition.records for partition in read] == [b"first" * 10, b"small", None, b"", b"tiny"]


def test_large_records_are_never_copied() -> None:
    records = bytes(1 << 20)
    parts: list[Part] = []
    encoder(FetchResponse, 12)(fetch_response(records), parts)
    assert any(part is records for part in parts)


def test_decoded_records_are_views_of_the_frame() -> None:
    topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=b"batch")])
    frame = bytearray(encode(ProduceRequest(topic_data=[topic]), 9))
    records = decode(ProduceRequest, 9, frame).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview) and records.obj is frame


MISTAKES = [
    (Outer(inner=None), "NoneType.*m1.text"),  # type: ignore[arg-type]
    (Outer(port=65536), "message.port"),
    (Outer(inner=Inner(1 << 31)), "m1.number"),
    (Outer(moved=None), "NoneType.*message.moved"),  # type: ignore[arg-type]
    (Outer(inners=None), "NoneType.*len"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("value", "reason"), MISTAKES)
def test_a_value_that_does_not_fit_is_our_own_mistake(value: Outer, reason: str) -> None:
    with pytest.raises(ValueError, match=f"Outer version 1 cannot be encoded: .*{reason}"):
        encode(value, 1)


def test_an_unknown_version_cannot_be_encoded() -> None:
    with pytest.raises(ValueError, match="Outer has versions 0 to 3, not 4"):
        encode(Outer(), 4)


def test_long_strings_and_arrays_use_longer_lengths() -> None:
    value = Outer(
        inners=[Inner(n, "x" * n) for n in range(200)],
        ids=[bytes([n]) * 16 for n in range(130)],
        moved="y" * 20000,
    )
    for version in (1, 2):
        read = decode(Outer, version, encode(value, version))
        assert (read.inners, read.ids, read.moved) == (value.inners, value.ids, value.moved)
