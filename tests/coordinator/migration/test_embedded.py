"""What the coordinator reads and writes of the consumers' own protocol: every version, nothing that makes no sense."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator.consumer.world import FakeTopics
from tests.coordinator.migration.clients import assignment, read_assignment, subscription
from tidelog.coordinator.group.classic.group import SupportedProtocol
from tidelog.coordinator.group.consumer.member import Member
from tidelog.coordinator.group.migration import embedded
from tidelog.errors import ProtocolError

places = st.frozensets(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 5)))
versions = st.integers(0, 3)


@given(topics=st.frozensets(st.text(max_size=5)), owned=places, version=versions)
def test_a_subscription_of_any_version_is_read(
    topics: frozenset[str], owned: frozenset[tuple[str, int]], version: int
) -> None:
    data = subscription(topics, version=version, owned=owned, user_data=b"any")
    read = embedded.read_subscription([SupportedProtocol("range", data)])
    assert read.topics == topics
    assert {(topic, index) for topic, indexes in read.owned.items() for index in indexes} == (
        owned if version >= 1 else set()
    )


def test_a_version_that_nobody_knows_yet_is_read_as_far_as_it_is_known() -> None:
    known = subscription(["a"], version=3, owned=[("a", 1)])
    newer = (9).to_bytes(2, "big") + known[2:] + b"more"
    read = embedded.read_subscription([SupportedProtocol("range", newer)])
    assert (read.topics, read.owned) == (frozenset({"a"}), {"a": frozenset({1})})


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", b"\0\0\0\0\0\5a", b"\0\1\0\0\0\0\0\0\0\0"])
def test_what_makes_no_sense_is_an_error(data: bytes) -> None:
    sense = SupportedProtocol("range", subscription(["a"]))
    with pytest.raises(ProtocolError):
        embedded.read_subscription([sense, SupportedProtocol("other", data)])
    if data:
        with pytest.raises(ProtocolError):
            embedded.read_assignment(data[:4])


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (
        lambda: embedded.read_assignment(data),
        lambda: embedded.read_subscription([SupportedProtocol("range", data)]),
    ):
        with contextlib.suppress(ProtocolError):
            read()


def test_who_offers_no_assignor_has_no_subscription() -> None:
    with pytest.raises(ProtocolError):
        embedded.read_subscription([])


def test_no_bytes_are_no_partitions() -> None:
    assert embedded.read_assignment(b"") == embedded.Assignment({}, False)


def test_an_empty_user_data_is_none() -> None:
    assert not embedded.read_assignment(assignment([("a", 0)], user_data=b"")).has_user_data
    assert embedded.read_assignment(assignment([("a", 0)], user_data=b"x")).has_user_data


@given(assigned=places, version=st.integers(0, 7))
def test_an_assignment_is_written_in_the_version_of_the_subscription(
    assigned: frozenset[tuple[str, int]], version: int
) -> None:
    topics = FakeTopics()
    for name in ("a", "b"):
        topics.create(name, 6)
    topics.create("c", 6)
    gone = topics.ids["c"]
    topics.delete("c")
    by_id: dict[bytes, dict[int, int]] = {}
    for topic, index in assigned:
        by_id.setdefault(topics.ids.get(topic, gone), {})[index] = 1
    data = version.to_bytes(2, "big") + subscription(["a"], version=min(version, 3))[2:]
    classic = embedded.classic_metadata(10_000, [SupportedProtocol("range", data)])
    written = embedded.assignment_of(Member("m", assigned=by_id), classic, topics)
    assert int.from_bytes(written[:2], "big") == min(version, 3)
    assert read_assignment(written) == {place for place in assigned if place[0] != "c"}
