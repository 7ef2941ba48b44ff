"""Offsets in transactions: staged by a producer, invisible until its marker, and never lost to anything but a delete (I37)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.coordinator.test_offsets import NOW, WEEK_MS, add, asked, committed, expired, gone, told
from tidelog.coordinator.group.offsets import Offsets
from tidelog.coordinator.group.record_serde import decode_record, encode_key, encode_value
from tidelog.coordinator.group.records import OffsetCommitKey, OffsetCommitValue
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.outcome import CoordinatorRecord, Now
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)


def offset_of(offsets: Offsets, topic: str = "t", partition: int = 0) -> int | None:
    found = offsets.get("g", topic, partition)
    return None if found is None else found.offset


def test_staged_offsets_are_invisible_until_they_count() -> None:
    offsets = committed(("t", 0, 5))
    add(offsets, ("t", 0, 9), ("t", 1, 9), producer_id=7)
    assert told(offsets.fetch_all("g")) == {("t", 0): (5, 0)}
    offsets.replay_end_transaction(7, True)
    assert told(offsets.fetch_all("g")) == {("t", 0): (9, 0), ("t", 1): (9, 0)}
    assert not offsets.has_pending("g")
    assert offsets.total == 2


def test_an_aborted_transaction_leaves_no_trace() -> None:
    offsets = committed(("t", 0, 5))
    before = offsets.persistent_state()
    add(offsets, ("t", 0, 9), ("t", 1, 9), producer_id=7)
    assert offsets.persistent_state() != before
    offsets.replay_end_transaction(7, False)
    assert offsets.persistent_state() == before


def test_who_wants_stable_offsets_waits_for_the_marker() -> None:
    offsets = committed(("t", 0, 5), ("t", 1, 6))
    add(offsets, ("t", 0, 9), ("t", 2, 9), producer_id=7)
    unstable = (-1, E.UNSTABLE_OFFSET_COMMIT)
    wanted = asked(("t", [0, 1, 2]))
    assert told(offsets.fetch(wanted, require_stable=True)) == {
        ("t", 0): unstable, ("t", 1): (6, 0), ("t", 2): unstable,
    }  # fmt: skip
    assert told(offsets.fetch(wanted)) == {("t", 0): (5, 0), ("t", 1): (6, 0), ("t", 2): (-1, 0)}
    assert told(offsets.fetch_all("g", require_stable=True)) == {("t", 0): unstable, ("t", 1): (6, 0)}
    offsets.replay_end_transaction(7, True)
    assert told(offsets.fetch(wanted, require_stable=True))["t", 0] == (9, 0)


def test_a_marker_is_about_its_own_producer() -> None:
    offsets = Offsets(GroupSettings())
    add(offsets, ("t", 0, 1), producer_id=1)
    add(offsets, ("t", 1, 2), producer_id=2)
    offsets.replay_end_transaction(3, True)
    offsets.replay_end_transaction(2, True)
    assert (offset_of(offsets, partition=0), offset_of(offsets, partition=1)) == (None, 2)
    assert offsets.has_pending("g")


def test_the_next_transaction_of_a_producer_is_another_one() -> None:
    offsets = Offsets(GroupSettings())
    add(offsets, ("t", 0, 1), producer_id=1)
    offsets.replay_end_transaction(1, True)
    add(offsets, ("t", 0, 2), producer_id=1)
    offsets.replay_end_transaction(1, False)
    assert offset_of(offsets) == 1


def test_transactions_count_when_their_markers_come_and_the_later_record_stays() -> None:
    for first, second in ((1, 2), (2, 1)):
        offsets = Offsets(GroupSettings())
        add(offsets, ("t", 0, 10), producer_id=1)
        add(offsets, ("t", 0, 20), producer_id=2)
        offsets.replay_end_transaction(first, True)
        assert offset_of(offsets) == 10 * first
        offsets.replay_end_transaction(second, True)
        assert offset_of(offsets) == 20, f"markers of {first}, then {second}"


def test_a_plain_commit_after_it_outdates_what_is_staged() -> None:
    """Compaction keeps the plain commit, which stands later; a coordinator that loads the rest must agree (I36)."""
    offsets = Offsets(GroupSettings())
    add(offsets, ("t", 0, 10), producer_id=1)
    add(offsets, ("t", 0, 5))
    assert told(offsets.fetch(asked(("t", [0])), require_stable=True)) == {
        ("t", 0): (-1, E.UNSTABLE_OFFSET_COMMIT)
    }
    offsets.replay_end_transaction(1, True)
    assert offset_of(offsets) == 5


def test_what_is_staged_after_a_plain_commit_replaces_it() -> None:
    offsets = Offsets(GroupSettings())
    add(offsets, ("t", 0, 10), producer_id=1)
    add(offsets, ("t", 0, 5))
    add(offsets, ("t", 0, 11), producer_id=1)
    offsets.replay_end_transaction(1, True)
    assert offset_of(offsets) == 11


def test_an_aborted_transaction_outdates_nothing() -> None:
    offsets = Offsets(GroupSettings())
    add(offsets, ("t", 0, 10), producer_id=1)
    add(offsets, ("t", 0, 20), producer_id=2)
    offsets.replay_end_transaction(2, False)
    offsets.replay_end_transaction(1, True)
    assert offset_of(offsets) == 10


def test_expiry_does_not_touch_partitions_of_open_transactions() -> None:
    offsets = committed(("t", 0, 5), ("t", 1, 6))
    add(offsets, ("t", 0, 9), producer_id=7)
    late = NOW.wall_ms + 100 * WEEK_MS
    assert expired(offsets, late) == [("g", "t", 1)]
    offsets.replay_end_transaction(7, False)
    assert expired(offsets, late) == [("g", "t", 0), ("g", "t", 1)]


def test_what_a_transaction_committed_counts_its_retention_from_its_commit() -> None:
    offsets = Offsets(GroupSettings())
    add(offsets, ("t", 0, 9), producer_id=7)
    assert expired(offsets, NOW.wall_ms + 100 * WEEK_MS) == []
    offsets.replay_end_transaction(7, True)
    assert expired(offsets, NOW.wall_ms + WEEK_MS - 1) == []
    assert expired(offsets, NOW.wall_ms + WEEK_MS) == [("g", "t", 0)]


def test_a_delete_takes_what_is_staged_too() -> None:
    offsets = committed(("t", 0, 5))
    add(offsets, ("t", 0, 9), ("t", 1, 9), ("u", 0, 9), producer_id=7)
    partitions = [OffsetDeleteRequestPartition(index) for index in (0, 1, 2)]
    records, _ = offsets.delete(
        "g", OffsetDeleteRequest("g", [OffsetDeleteRequestTopic("t", partitions)]), ()
    )
    assert gone(records) == [("g", "t", 0), ("g", "t", 1)]
    for record in records:
        offsets.replay_commit(record.key, record.value)
    offsets.replay_end_transaction(7, True)
    assert told(offsets.fetch_all("g")) == {("u", 0): (9, 0)}


class OffsetsModel(RuleBasedStateMachine):
    """Any sequence of commits, transactions, deletes and expiry: the log says what is committed, read whole or compacted."""

    GROUPS = st.sampled_from(["g", "h"])
    TOPICS = st.sampled_from(["t", "u"])
    PARTITIONS = st.integers(0, 1)
    PRODUCERS = st.integers(1, 2)

    def __init__(self) -> None:
        super().__init__()
        self.offsets = self.fresh()
        self.ms = NOW.wall_ms
        self.next_offset = 0
        # Key, value and producer id of a record, or a marker: producer id and whether it commits.
        self.log: list[tuple[bytes, bytes | None, int] | tuple[int, bool]] = []
        self.open: set[int] = set()

    def fresh(self) -> Offsets:
        return Offsets(GroupSettings(offsets_retention_ms=100))

    def write(self, records: list[CoordinatorRecord], producer_id: int = -1) -> None:
        for record in records:
            value = None if record.value is None else encode_value(record.value)
            self.log.append((encode_key(record.key), value, producer_id))
            self.offsets.replay_commit(record.key, record.value, producer_id)

    @rule(
        group=GROUPS,
        places=st.lists(st.tuples(TOPICS, PARTITIONS), min_size=1, max_size=3),
        producer=st.none() | PRODUCERS,
        retention_ms=st.sampled_from([-1, -1, 0, 50]),
        metadata=st.sampled_from(["", "m"]) | st.none(),
        epoch=st.integers(-1, 3),
    )
    def commit(
        self,
        group: str,
        places: list[tuple[str, int]],
        producer: int | None,
        retention_ms: int,
        metadata: str | None,
        epoch: int,
    ) -> None:
        self.next_offset += 1
        topics = [
            OffsetCommitRequestTopic(
                topic,
                partitions=[OffsetCommitRequestPartition(partition, self.next_offset, epoch, metadata)],
            )
            for topic, partition in places
        ]
        request = OffsetCommitRequest(
            topics=topics, retention_time_ms=-1 if producer is not None else retention_ms
        )
        before = self.offsets.persistent_state()
        records, response = self.offsets.commit(group, request, Now(0, self.ms))
        assert self.offsets.persistent_state() == before
        assert len(records) == len(places) == len(response.topics)
        if producer is not None:
            self.open.add(producer)
        self.write(records, -1 if producer is None else producer)
        for topic, partition in places:
            found = self.offsets.get(group, topic, partition)
            if producer is None:
                assert found is not None
                assert found.offset == self.next_offset
            else:
                assert found is None or found.offset != self.next_offset

    @rule(producer=PRODUCERS, commits=st.booleans())
    def end(self, producer: int, commits: bool) -> None:
        self.open.discard(producer)
        self.log.append((producer, commits))
        self.offsets.replay_end_transaction(producer, commits)

    @rule(group=GROUPS, topic=TOPICS, subscribed=st.booleans())
    def delete(self, group: str, topic: str, subscribed: bool) -> None:
        partitions = [OffsetDeleteRequestPartition(index) for index in (0, 1)]
        request = OffsetDeleteRequest(group, [OffsetDeleteRequestTopic(topic, partitions)])
        records, _ = self.offsets.delete(group, request, {topic} if subscribed else ())
        assert not (subscribed and records)
        self.write(records)
        if not subscribed:
            assert self.offsets.get(group, topic, 0) is None

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        self.write(self.offsets.delete_all(group))
        assert group not in self.offsets.groups()

    @rule(topic=TOPICS)
    def delete_topic(self, topic: str) -> None:
        self.write(self.offsets.topic_deleted(topic, bytes(16)))
        assert not any(place.topic == topic for place in self.offsets.persistent_state()["committed"])

    @rule(group=GROUPS, ms=st.integers(0, 120), empty=st.booleans())
    def expire(self, group: str, ms: int, empty: bool) -> None:
        self.ms += ms
        pending = dict(self.offsets.persistent_state()["pending"])
        tombstones = self.offsets.expired(
            group, self.ms, subscribed_topics=() if empty else {"t"}, group_is_empty=empty
        )
        nothing_left = self.offsets.leaves_nothing(group, tombstones)
        self.write(tombstones)
        assert self.offsets.persistent_state()["pending"] == pending
        assert nothing_left == (group not in self.offsets.groups())

    @invariant()
    def live_is_what_the_log_says(self) -> None:
        assert self.replayed(self.log).persistent_state() == self.offsets.persistent_state()

    @invariant()
    def a_compacted_log_says_the_same(self) -> None:
        """While no transaction is open, all records but the last of each key may be gone, and all of aborted transactions."""
        if self.open:
            return
        last: dict[bytes, int] = {}
        for position, entry in enumerate(self.log):
            if len(entry) == 3 and self.committed_at(position):
                last[entry[0]] = position
        kept = [
            entry
            for position, entry in enumerate(self.log)
            if len(entry) == 2 or last.get(entry[0]) == position
        ]
        assert self.replayed(kept).persistent_state() == self.offsets.persistent_state()

    def committed_at(self, position: int) -> bool:
        """The record counts: it is in no transaction, or in one that was committed."""
        entry = self.log[position]
        assert len(entry) == 3
        if entry[2] == -1:
            return True
        ends = (end[1] for end in self.log[position:] if len(end) == 2 and end[0] == entry[2])
        return next(ends)

    def replayed(self, log: list[tuple[bytes, bytes | None, int] | tuple[int, bool]]) -> Offsets:
        offsets = self.fresh()
        for entry in log:
            if len(entry) == 2:
                offsets.replay_end_transaction(*entry)
                continue
            key, value, producer_id = entry
            record = decode_record(key, value)
            assert record is not None
            assert isinstance(record.key, OffsetCommitKey)
            assert record.value is None or isinstance(record.value, OffsetCommitValue)
            offsets.replay_commit(record.key, record.value, producer_id)
        return offsets


TestOffsetsModel = OffsetsModel.TestCase
TestOffsetsModel.settings = settings(max_examples=80, stateful_step_count=30)
