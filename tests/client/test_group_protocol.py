"""What members tell each other, byte for byte, and the range assignor against examples worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.group_protocol import (
    Subscriber,
    assign_ranges,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tidelog.client.metadata import TopicPartition
from tidelog.errors import ProtocolError

SUBSCRIPTION = bytes.fromhex("0000 00000002 0001 61 0001 62 ffffffff")
ASSIGNMENT = bytes.fromhex("0000 00000001 0001 61 00000002 00000000 00000002 ffffffff")


def dealt(subscribers: list[Subscriber], counts: dict[str, int]) -> dict[str, list[str]]:
    return {m: sorted(map(str, share)) for m, share in assign_ranges(subscribers, counts).items()}


def member(member_id: str, *topics: str, instance: str | None = None) -> Subscriber:
    return Subscriber(member_id, instance, frozenset(topics))


def test_the_bytes_are_kafkas() -> None:
    assert encode_subscription({"b", "a"}) == SUBSCRIPTION
    assert decode_subscription(SUBSCRIPTION) == {"a", "b"}
    assert encode_assignment([TopicPartition("a", 2), TopicPartition("a", 0)]) == ASSIGNMENT
    assert decode_assignment(ASSIGNMENT) == {TopicPartition("a", 0), TopicPartition("a", 2)}


def test_no_bytes_are_no_partitions() -> None:
    assert decode_assignment(b"") == frozenset()
    assert decode_assignment(encode_assignment([])) == frozenset()


def test_newer_versions_are_read_as_far_as_they_are_known() -> None:
    version_3 = bytes.fromhex("0003 00000001 0001 61 ffffffff 00000000 00000007 0001 72")
    assert decode_subscription(version_3) == {"a"}
    assert decode_subscription(b"\0\x09" + version_3[2:] + b"whatever comes next") == {"a"}


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff" + SUBSCRIPTION[2:], SUBSCRIPTION[:-5], b"\0\0\x7f"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_subscription(data)


def test_the_first_members_get_what_is_left_over() -> None:
    shares = dealt([member("c", "t"), member("a", "t"), member("b", "t")], {"t": 7})
    assert shares == {"a": ["t-0", "t-1", "t-2"], "b": ["t-3", "t-4"], "c": ["t-5", "t-6"]}


def test_more_members_than_partitions() -> None:
    assert dealt([member("a", "t"), member("b", "t")], {"t": 1}) == {"a": ["t-0"], "b": []}


def test_each_topic_goes_to_those_who_read_it() -> None:
    shares = dealt(
        [member("a", "t"), member("b", "t", "u"), member("c", "gone")], {"t": 2, "u": 2, "gone": 0}
    )
    assert shares == {"a": ["t-0"], "b": ["t-1", "u-0", "u-1"], "c": []}


def test_static_members_keep_their_place_whatever_their_member_id() -> None:
    before = [member("x9", "t", instance="i1"), member("x1", "t", instance="i2"), member("a", "t")]
    after = [member("x0", "t", instance="i2"), member("x9", "t", instance="i1"), member("a", "t")]
    assert dealt(before, {"t": 3}) == {"x9": ["t-0"], "x1": ["t-1"], "a": ["t-2"]}
    assert dealt(after, {"t": 3}) == {"x9": ["t-0"], "x0": ["t-1"], "a": ["t-2"]}


@given(
    st.dictionaries(st.text("abc", min_size=1), st.sets(st.sampled_from("tuv"), min_size=1), min_size=1),
    st.dictionaries(st.sampled_from("tuv"), st.integers(0, 20)),
)
def test_every_partition_that_is_read_has_one_reader(
    subscriptions: dict[str, set[str]], counts: dict[str, int]
) -> None:
    members = [Subscriber(m, None, frozenset(topics)) for m, topics in subscriptions.items()]
    shares = assign_ranges(members, counts)
    dealt_out = [tp for share in shares.values() for tp in share]
    read = {topic for topics in subscriptions.values() for topic in topics}
    assert sorted(dealt_out) == sorted(
        TopicPartition(topic, p) for topic, n in counts.items() if topic in read for p in range(n)
    )
    for m, share in shares.items():
        assert {tp.topic for tp in share} <= subscriptions[m]
