"""What groups have committed: who may say what, what is told, and when it goes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest

from tidelog.coordinator.group.offsets import Offsets
from tidelog.coordinator.group.offsets_values import CommittedOffset
from tidelog.coordinator.group.record_serde import decode_record, encode_key, encode_value
from tidelog.coordinator.group.records import OffsetCommitKey, OffsetCommitValue
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.outcome import CoordinatorRecord, Now
from tidelog.errors import RequestError
from tidelog.wire.codec import decode, encode
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
)
from tidelog.wire.types import ZERO_UUID

NOW = Now(5000, 1_700_000_000_000)
DAY_MS = 24 * 3600 * 1000
WEEK_MS = 7 * DAY_MS
OLD_ID, NEW_ID = b"o" * 16, b"n" * 16


def commit_request(*partitions: tuple[str, int, int], **fields: Any) -> OffsetCommitRequest:
    """Topic, partition and offset; further fields are those of the request."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for topic, partition, offset in partitions:
        topics.setdefault(topic, OffsetCommitRequestTopic(topic)).partitions.append(
            OffsetCommitRequestPartition(partition, offset)
        )
    return OffsetCommitRequest(group_id="g", topics=list(topics.values()), **fields)


def apply(offsets: Offsets, records: Sequence[CoordinatorRecord], producer_id: int = -1) -> None:
    for record in records:
        offsets.replay_commit(record.key, record.value, producer_id)


def committed(*partitions: tuple[str, int, int], at_ms: int = NOW.wall_ms, group: str = "g") -> Offsets:
    offsets = Offsets(GroupSettings())
    add(offsets, *partitions, at_ms=at_ms, group=group)
    return offsets


def add(
    offsets: Offsets,
    *partitions: tuple[str, int, int],
    at_ms: int = NOW.wall_ms,
    group: str = "g",
    producer_id: int = -1,
    **fields: Any,
) -> None:
    records, _ = offsets.commit(group, commit_request(*partitions, **fields), Now(0, at_ms))
    apply(offsets, records, producer_id)


def asked(*topics: tuple[str, list[int]], group: str = "g") -> OffsetFetchRequestGroup:
    return OffsetFetchRequestGroup(
        group_id=group,
        topics=[OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in topics],
    )


def told(response: OffsetFetchResponseGroup) -> dict[tuple[str, int], tuple[int, int]]:
    """Offset and error code."""
    return {
        (topic.name, found.partition_index): (found.committed_offset, found.error_code)
        for topic in response.topics
        for found in topic.partitions
    }


def codes(response: OffsetCommitResponse) -> list[tuple[str, int, int]]:
    return [
        (topic.name, partition.partition_index, partition.error_code)
        for topic in response.topics
        for partition in topic.partitions
    ]


def gone(records: Sequence[CoordinatorRecord]) -> list[tuple[str, str, int]]:
    assert all(record.value is None for record in records)
    return [(record.key.group, record.key.topic, record.key.partition) for record in records]


# ---- committing


def test_a_commit_changes_nothing_before_it_is_replayed() -> None:
    offsets = Offsets(GroupSettings())
    records, response = offsets.commit("g", commit_request(("t", 0, 5), ("t", 1, 6), ("u", 0, 7)), NOW)
    assert codes(response) == [("t", 0, E.NONE), ("t", 1, E.NONE), ("u", 0, E.NONE)]
    assert offsets.get("g", "t", 0) is None
    assert records[0] == CoordinatorRecord(
        OffsetCommitKey("g", "t", 0), OffsetCommitValue(5, -1, "", NOW.wall_ms, -1)
    )
    apply(offsets, records)
    assert offsets.get("g", "t", 1) == CommittedOffset(6, -1, "", NOW.wall_ms, -1, ZERO_UUID)
    assert (offsets.total, offsets.count("g"), list(offsets.groups())) == (3, 3, ["g"])


def test_everything_that_comes_with_an_offset_is_kept() -> None:
    offsets = Offsets(GroupSettings())
    partition = OffsetCommitRequestPartition(3, 77, 12, "where I was")
    request = OffsetCommitRequest(topics=[OffsetCommitRequestTopic("t", NEW_ID, [partition])])
    records, response = offsets.commit("g", request, NOW)
    assert (response.topics[0].name, response.topics[0].topic_id) == ("t", NEW_ID)
    apply(offsets, records)
    assert offsets.get("g", "t", 3) == CommittedOffset(77, 12, "where I was", NOW.wall_ms, -1, NEW_ID)


def test_null_metadata_is_none() -> None:
    offsets = Offsets(GroupSettings())
    request = OffsetCommitRequest(
        topics=[OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 1, -1, None)])]
    )
    records, _ = offsets.commit("g", request, NOW)
    assert [record.value for record in records] == [OffsetCommitValue(1, -1, "", NOW.wall_ms)]


@pytest.mark.parametrize(
    ("metadata", "limit", "code"),
    [
        ("m" * 10, 10, E.NONE),
        ("m" * 11, 10, E.OFFSET_METADATA_TOO_LARGE),
        ("ä" * 10, 10, E.NONE),  # Kafka counts characters, whatever the setting is called
        ("𝄞" * 5, 10, E.NONE),
        ("𝄞" * 6, 10, E.OFFSET_METADATA_TOO_LARGE),  # and in UTF-16
        ("", 0, E.NONE),
        (None, 0, E.NONE),
        ("m" * 32767, 10**6, E.NONE),
        ("m" * 32768, 10**6, E.OFFSET_METADATA_TOO_LARGE),  # the record has no room for it
        ("ä" * 16384, 10**6, E.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_metadata_that_is_too_large_costs_its_partition_only(
    metadata: str | None, limit: int, code: E
) -> None:
    offsets = Offsets(GroupSettings(offset_metadata_max_bytes=limit))
    partitions = [OffsetCommitRequestPartition(0, 1, -1, metadata), OffsetCommitRequestPartition(1, 2)]
    request = OffsetCommitRequest(topics=[OffsetCommitRequestTopic("t", partitions=partitions)])
    records, response = offsets.commit("g", request, NOW)
    assert codes(response) == [("t", 0, code), ("t", 1, E.NONE)]
    assert [record.key.partition for record in records] == ([0, 1] if code == E.NONE else [1])


def test_a_topic_whose_id_nobody_knows() -> None:
    offsets = Offsets(GroupSettings())
    partitions = [OffsetCommitRequestPartition(0, 1)]
    request = OffsetCommitRequest(
        topics=[
            OffsetCommitRequestTopic("", NEW_ID, partitions),
            OffsetCommitRequestTopic("t", OLD_ID, partitions),
        ]
    )
    records, response = offsets.commit("g", request, NOW)
    assert codes(response) == [("", 0, E.UNKNOWN_TOPIC_ID), ("t", 0, E.NONE)]
    assert [record.key.topic for record in records] == ["t"]


def test_a_member_may_be_refused_for_one_partition_and_then_nothing_is_committed() -> None:
    offsets = Offsets(GroupSettings())

    def check(topic: str, topic_id: bytes, partition: int) -> None:
        if (topic, topic_id, partition) == ("t", ZERO_UUID, 1):
            raise RequestError(E.STALE_MEMBER_EPOCH, "it was assigned to somebody else")

    with pytest.raises(RequestError) as caught:
        offsets.commit("g", commit_request(("t", 0, 1), ("t", 1, 1)), NOW, check)
    assert caught.value.code is E.STALE_MEMBER_EPOCH
    records, _ = offsets.commit("g", commit_request(("t", 0, 1)), NOW, check)
    assert len(records) == 1


@pytest.mark.parametrize(
    ("retention_ms", "expires"),
    [
        (-1, -1),
        (0, NOW.wall_ms),
        (1000, NOW.wall_ms + 1000),
        (-2, NOW.wall_ms - 2),
        (2**63 - 1, 2**63 - 1),  # the end of time, not its beginning
    ],
)
def test_old_clients_say_how_long_an_offset_is_kept(retention_ms: int, expires: int) -> None:
    offsets = Offsets(GroupSettings())
    records, _ = offsets.commit("g", commit_request(("t", 0, 1), retention_time_ms=retention_ms), NOW)
    assert [record.value for record in records] == [OffsetCommitValue(1, -1, "", NOW.wall_ms, expires)]
    assert decode_record(encode_key(records[0].key), encode_value(records[0].value)) == records[0]


def test_what_is_stored_with_an_expiry_is_what_its_format_has_room_for() -> None:
    offsets = Offsets(GroupSettings())
    request = OffsetCommitRequest(
        retention_time_ms=10,
        topics=[OffsetCommitRequestTopic("t", NEW_ID, [OffsetCommitRequestPartition(0, 1, 9, "m")])],
    )
    records, _ = offsets.commit("g", request, NOW)
    assert decode_record(encode_key(records[0].key), encode_value(records[0].value)) == records[0]


# ---- fetching


def test_what_was_committed_is_told_and_what_was_not_is_no_error() -> None:
    offsets = committed(("t", 0, 5), ("t", 1, 6))
    response = offsets.fetch(asked(("t", [1, 0, 7]), ("u", [0])))
    assert response.group_id == "g"
    assert told(response) == {("t", 1): (6, 0), ("t", 0): (5, 0), ("t", 7): (-1, 0), ("u", 0): (-1, 0)}
    unknown = response.topics[1].partitions[0]
    assert (unknown.committed_leader_epoch, unknown.metadata) == (-1, "")
    assert told(offsets.fetch(asked(("t", [0]), group="unknown"))) == {("t", 0): (-1, 0)}


def test_all_that_a_group_has() -> None:
    offsets = committed(("t", 0, 5), ("t", 1, 6), ("u", 0, 7))
    everything = OffsetFetchRequestGroup(group_id="g", topics=None)
    assert told(offsets.fetch(everything)) == {("t", 0): (5, 0), ("t", 1): (6, 0), ("u", 0): (7, 0)}
    assert offsets.fetch(everything) == offsets.fetch_all("g")
    assert offsets.fetch_all("unknown").topics == []
    assert offsets.fetch(OffsetFetchRequestGroup(group_id="g", topics=[])).topics == []


def test_an_offset_of_another_topic_of_the_same_name_is_none() -> None:
    offsets = Offsets(GroupSettings())
    for partition, topic_id in ((0, OLD_ID), (1, ZERO_UUID)):
        offsets.replay_commit(
            OffsetCommitKey("g", "t", partition), OffsetCommitValue(5, -1, "", 0, -1, topic_id)
        )

    def by_id(name: str, topic_id: bytes) -> dict[tuple[str, int], tuple[int, int]]:
        topics = [OffsetFetchRequestTopics(name, topic_id, [0, 1])]
        return told(offsets.fetch(OffsetFetchRequestGroup(group_id="g", topics=topics)))

    assert by_id("t", OLD_ID) == {("t", 0): (5, 0), ("t", 1): (5, 0)}
    assert by_id("t", NEW_ID) == {
        ("t", 0): (-1, 0),
        ("t", 1): (5, 0),
    }  # where no id is known, the name counts
    assert by_id("t", ZERO_UUID) == {("t", 0): (5, 0), ("t", 1): (5, 0)}
    assert by_id("", NEW_ID) == {("", 0): (-1, E.UNKNOWN_TOPIC_ID), ("", 1): (-1, E.UNKNOWN_TOPIC_ID)}


# ---- deleting


def delete_request(*topics: tuple[str, list[int]]) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        "g",
        [
            OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(index) for index in indexes])
            for name, indexes in topics
        ],
    )


def test_offsets_of_topics_that_members_read_cannot_be_deleted() -> None:
    offsets = committed(("t", 0, 5), ("t", 1, 6), ("u", 0, 7))
    records, response = offsets.delete("g", delete_request(("t", [0, 1]), ("u", [0, 9])), {"t"})
    assert gone(records) == [("g", "u", 0)]
    found = {
        topic.name: [partition.error_code for partition in topic.partitions] for topic in response.topics
    }
    assert found == {"t": [E.GROUP_SUBSCRIBED_TO_TOPIC] * 2, "u": [E.NONE] * 2}
    assert response.error_code == E.NONE
    apply(offsets, records)
    assert told(offsets.fetch_all("g")) == {("t", 0): (5, 0), ("t", 1): (6, 0)}


def test_members_whose_subscription_is_unknown_may_read_any_topic() -> None:
    offsets = committed(("t", 0, 5))
    records, response = offsets.delete("g", delete_request(("t", [0])), None)
    assert records == []
    assert response.topics[0].partitions[0].error_code == E.GROUP_SUBSCRIBED_TO_TOPIC


def test_all_offsets_of_a_group_go_with_it() -> None:
    offsets = committed(("t", 0, 5), ("u", 1, 6))
    add(offsets, ("t", 0, 9), group="other")
    add(offsets, ("t", 0, 6), ("v", 2, 7), producer_id=1)
    records = offsets.delete_all("g")
    assert gone(records) == [("g", "t", 0), ("g", "u", 1), ("g", "v", 2)]
    apply(offsets, records)
    assert list(offsets.groups()) == ["other"]
    assert offsets.total == 1
    offsets.replay_end_transaction(1, True)
    assert list(offsets.groups()) == ["other"]
    assert offsets.delete_all("unknown") == []


def test_offsets_go_with_their_topic_and_those_of_its_successor_stay() -> None:
    offsets = committed(("t", 0, 5), ("u", 0, 6))
    for partition, topic_id in ((1, OLD_ID), (2, NEW_ID)):
        offsets.replay_commit(
            OffsetCommitKey("h", "t", partition), OffsetCommitValue(7, -1, "", 0, -1, topic_id)
        )
    for producer_id, topic_id in ((1, OLD_ID), (2, NEW_ID)):
        offsets.replay_commit(
            OffsetCommitKey("i", "t", producer_id), OffsetCommitValue(8, -1, "", 0, -1, topic_id), producer_id
        )
    records = offsets.topic_deleted("t", OLD_ID)
    assert gone(records) == [("g", "t", 0), ("h", "t", 1), ("i", "t", 1)]
    apply(offsets, records)
    assert offsets.topic_deleted("t", OLD_ID) == []
    assert told(offsets.fetch_all("h")) == {("t", 2): (7, 0)}
    assert offsets.has_pending("i")


# ---- expiring


def expired(offsets: Offsets, at_ms: int, **group: Any) -> list[tuple[str, str, int]]:
    kind: dict[str, Any] = {"subscribed_topics": frozenset(), "group_is_empty": True, "empty_since": None}
    return gone(offsets.expired("g", at_ms, **(kind | group)))


def test_a_simple_group_counts_from_the_commit() -> None:
    offsets = committed(("t", 0, 5))
    add(offsets, ("t", 1, 5), at_ms=NOW.wall_ms + DAY_MS)
    assert expired(offsets, NOW.wall_ms + WEEK_MS - 1) == []
    assert expired(offsets, NOW.wall_ms + WEEK_MS) == [("g", "t", 0)]
    assert expired(offsets, NOW.wall_ms + WEEK_MS + DAY_MS) == [("g", "t", 0), ("g", "t", 1)]


def test_a_group_that_lost_its_members_counts_from_then() -> None:
    offsets = committed(("t", 0, 5))
    empty_since = NOW.wall_ms + 3 * DAY_MS
    assert expired(offsets, empty_since + WEEK_MS - 1, empty_since=empty_since) == []
    assert expired(offsets, empty_since + WEEK_MS, empty_since=empty_since) == [("g", "t", 0)]
    assert expired(offsets, NOW.wall_ms + WEEK_MS, empty_since=-1) == [
        ("g", "t", 0)
    ]  # an old release wrote no time


def test_what_an_operator_commits_for_an_empty_group_is_kept_as_long_as_any_commit() -> None:
    offsets = committed(("t", 0, 5), at_ms=NOW.wall_ms)
    empty_since = NOW.wall_ms - 30 * DAY_MS
    assert expired(offsets, NOW.wall_ms + 1, empty_since=empty_since) == []
    assert expired(offsets, NOW.wall_ms + WEEK_MS, empty_since=empty_since) == [("g", "t", 0)]


def test_topics_that_members_read_never_expire() -> None:
    offsets = committed(("t", 0, 5), ("u", 0, 6))
    late = NOW.wall_ms + 100 * WEEK_MS
    assert expired(offsets, late, group_is_empty=False, subscribed_topics={"t"}) == [("g", "u", 0)]
    assert expired(offsets, late, group_is_empty=False, subscribed_topics={"t", "u"}) == []
    # The moment at which a group that has members was last empty means nothing.
    assert expired(offsets, late, group_is_empty=False, subscribed_topics={"t"}, empty_since=late) == [
        ("g", "u", 0)
    ]


def test_nothing_expires_while_members_are_there_that_may_read_anything() -> None:
    offsets = committed(("t", 0, 5))
    late = NOW.wall_ms + 100 * WEEK_MS
    assert expired(offsets, late, group_is_empty=False, subscribed_topics=None) == []
    assert expired(offsets, late, group_is_empty=True, subscribed_topics=None) == [("g", "t", 0)]


def test_a_moment_that_a_client_asked_for_counts_as_it_is() -> None:
    offsets = Offsets(GroupSettings())
    add(offsets, ("t", 0, 5), retention_time_ms=1000)
    add(offsets, ("t", 1, 5), retention_time_ms=100 * WEEK_MS)
    late = NOW.wall_ms + WEEK_MS
    assert expired(offsets, NOW.wall_ms + 999, empty_since=NOW.wall_ms) == []
    assert expired(offsets, NOW.wall_ms + 1000, empty_since=NOW.wall_ms) == [("g", "t", 0)]
    assert expired(offsets, late) == [("g", "t", 0)]
    assert expired(offsets, late, group_is_empty=False, subscribed_topics={"t"}) == []


def test_the_retention_is_a_setting() -> None:
    offsets = Offsets(GroupSettings(offsets_retention_ms=10))
    add(offsets, ("t", 0, 5))
    assert expired(offsets, NOW.wall_ms + 9) == []
    assert expired(offsets, NOW.wall_ms + 10) == [("g", "t", 0)]


def test_whether_anything_is_left_afterwards() -> None:
    offsets = committed(("t", 0, 5))
    late = NOW.wall_ms + WEEK_MS
    assert offsets.leaves_nothing("unknown", [])
    assert not offsets.leaves_nothing("g", [])
    tombstones = offsets.expired("g", late, subscribed_topics=frozenset(), group_is_empty=True)
    assert offsets.leaves_nothing("g", tombstones)
    add(offsets, ("u", 0, 6), producer_id=1)
    assert not offsets.leaves_nothing("g", tombstones)  # a transaction is open


# ---- many


def test_a_hundred_thousand_offsets_are_small() -> None:
    """What a load brings: every value has been decoded on its own, nothing is shared by chance."""
    records = [
        CoordinatorRecord(
            OffsetCommitKey(f"group-{group}", f"topic-{topic}", partition),
            OffsetCommitValue(10**9 + partition, 3, "", NOW.wall_ms + partition, -1, NEW_ID),
        )
        for group in range(20)
        for topic in range(5)
        for partition in range(10)
    ]
    stored = [(encode_key(record.key), encode_value(record.value)) for record in records]
    tracemalloc.start()
    try:
        offsets = Offsets(GroupSettings())
        before, _ = tracemalloc.get_traced_memory()
        for key, value in stored * 10:
            decoded = decode_record(key, value)
            assert decoded is not None
            offsets.replay_commit(decoded.key, decoded.value)
        del decoded
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert offsets.total == len(records)
    assert (after - before) / len(records) < 350  # bytes; a hundred thousand are some thirty megabytes


def test_a_commit_of_many_partitions_through_the_wire() -> None:
    request = commit_request(*(("t", partition, partition) for partition in range(10_000)))
    decoded = decode(OffsetCommitRequest, 9, encode(request, 9))
    offsets = Offsets(GroupSettings())
    records, response = offsets.commit("g", decoded, NOW)
    apply(offsets, records)
    assert len(records) == offsets.count("g") == 10_000
    assert decode(OffsetCommitResponse, 9, encode(response, 9)) == response
