"""What members of a classic group tell each other, byte for byte."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.consumer.assignors import STICKY
from tidelog.client.consumer.member_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tidelog.client.metadata import TopicPartition
from tidelog.errors import ProtocolError

A0, A2 = TopicPartition("a", 0), TopicPartition("a", 2)
VERSION_0 = bytes.fromhex("0000 00000002 0001 61 0001 62 ffffffff")
VERSION_3 = bytes.fromhex(
    "0003 00000002 0001 61 0001 62 ffffffff 00000001 0001 61 00000002 00000000 00000002 00000007 0001 72"
)
ASSIGNMENT_0 = bytes.fromhex("0000 00000001 0001 61 00000002 00000000 00000002 ffffffff")


def test_the_bytes_are_kafkas() -> None:
    written = encode_subscription({"b", "a"}, assignor="range", owned=[A2, A0], generation=7, rack="r")
    assert written == VERSION_3
    read = decode_subscription("m", "i", VERSION_3)
    assert (read.member_id, read.instance_id, read.topics) == ("m", "i", {"a", "b"})
    assert (read.owned, read.generation) == ((A0, A2), 7)
    assert encode_assignment([A2, A0])[2:] == ASSIGNMENT_0[2:]
    assert decode_assignment(ASSIGNMENT_0) == {A0, A2}


def test_no_bytes_are_no_partitions() -> None:
    assert decode_assignment(b"") == frozenset()
    assert decode_assignment(encode_assignment([])) == frozenset()


def test_older_and_newer_versions_are_read_as_far_as_they_are_known() -> None:
    old = decode_subscription("m", None, VERSION_0)
    assert (old.topics, old.owned) == ({"a", "b"}, ())
    new = decode_subscription("m", None, b"\0\x09" + VERSION_3[2:] + b"whatever comes next")
    assert (new.topics, new.owned) == ({"a", "b"}, (A0, A2))


def test_the_sticky_assignors_own_way_to_say_what_it_has() -> None:
    """An array of (topic, array of partitions), then the generation, where only members of that assignor look for it."""
    written = encode_subscription(["a"], assignor=STICKY, owned=[A0, A2], generation=7)
    user_data = bytes.fromhex("00000001 0001 61 00000002 00000000 00000002 00000007")
    assert user_data in written
    old = bytes.fromhex("0000 00000001 0001 61") + len(user_data).to_bytes(4, "big") + user_data
    read = decode_subscription("m", None, old)
    assert (read.owned, read.generation) == ((A0, A2), 7)
    cut = bytes.fromhex("0000 00000001 0001 61 00000006") + user_data[:6]
    unreadable = decode_subscription("m", None, cut)
    assert unreadable.topics == {"a"} and unreadable.owned == (), "it costs stickiness, nothing else"


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff" + VERSION_0[2:], VERSION_0[:-5], b"\0\0\x7f"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_subscription("m", None, data)


@given(st.binary(max_size=60))
def test_whatever_others_write_is_read_or_refused(data: bytes) -> None:
    for decode in (decode_assignment, lambda d: decode_subscription("m", None, d)):
        with suppress(ProtocolError):
            decode(data)
