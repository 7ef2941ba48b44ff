"""Offsets, ranges and limits: what decides how much a Spark task or micro-batch reads, without Spark."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelog.client.metadata import TopicPartition
from tidelog.spark.fetch_sizes import SPARE_BYTES, FetchSizes
from tidelog.spark.limits import Patience, limited_by_bytes, limited_by_offsets, waiting
from tidelog.spark.offsets import MARKS, Offsets, OffsetsError, parse_assignment
from tidelog.spark.ranges import OffsetRange, pack, split

A, B, C = (TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0))

partitions = st.builds(TopicPartition, st.sampled_from(["a", "b", "c.d"]), st.integers(0, 12))


# ---- offsets


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    offsets=st.dictionaries(partitions, st.integers(0, 1 << 62), max_size=8),
    ids=st.dictionaries(
        st.sampled_from(["a", "b"]), st.integers(0, (1 << 128) - 1).map("{:032x}".format), max_size=2
    ),
    epochs=st.dictionaries(partitions, st.integers(0, 1 << 31), max_size=8),
    begins=st.dictionaries(partitions, st.integers(0, 1 << 62), max_size=8),
)
def test_offsets_come_back_as_they_were(
    offsets: dict[TopicPartition, int],
    ids: dict[str, str],
    epochs: dict[TopicPartition, int],
    begins: dict[TopicPartition, int],
) -> None:
    whole = Offsets(offsets, ids, epochs, begins)
    back = Offsets.from_json(whole.to_json())
    assert back.next == offsets
    assert back.topic_ids == {topic: each for topic, each in ids.items() if topic in whole.topics}
    assert back.epochs == epochs and back.begins == begins


def test_what_a_batch_reads_is_said_by_its_two_offsets() -> None:
    start = Offsets({A: 10, B: 5})
    end = Offsets({A: 12, B: 9, C: 3}, begins={B: 2})
    assert end.since(start) == {A: (10, 12), B: (2, 9), C: (0, 3)}
    assert end.unknown_since(start) == {C} and end.since(start, {A: 0, C: 1})[C] == (1, 3)


def test_offsets_of_sparks_own_source_are_read_and_ours_look_like_them() -> None:
    theirs = Offsets.from_json('{"a":{"0":33,"1":20},"b":{"0":7}}')
    assert theirs.next == {A: 33, B: 20, C: 7} and not theirs.topic_ids
    document = Offsets({A: 33}, {"a": "0" * 32}, {A: 5}).to_json()
    marks = document.pop(MARKS)
    assert document == {"a": {"0": 33}}
    assert marks == {"ids": {"a": "0" * 32}, "epochs": {"a": {"0": 5}}}


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"0": "1"}}', '{"a": {"0": true}}']
)
def test_what_is_no_offsets_is_said_to_be_so(text: str) -> None:
    with pytest.raises(OffsetsError):
        Offsets.from_json(text)


def test_an_assignment_lists_partitions() -> None:
    assert parse_assignment('{"a": [0, 1], "b": [0]}') == {A, B, C}
    for text in ('{"a": 1}', '{"a": ["0"]}', '{"a": [-1]}'):
        with pytest.raises(OffsetsError):
            parse_assignment(text)


def test_an_epoch_is_known_only_where_the_stream_stands() -> None:
    moved = Offsets({A: 5, B: 5}, {"a": "1"}, {A: 2, B: 3}).with_next({A: 5, B: 9})
    assert moved.epochs == {A: 2} and moved.topic_ids == {"a": "1"}


# ---- ranges

ranges = st.lists(
    st.builds(
        lambda tp, start, size: OffsetRange(tp, start, start + size),
        partitions,
        st.integers(0, 1 << 50),
        st.integers(0, 500),
    ),
    max_size=6,
)


@given(ranges, st.none() | st.integers(1, 40), st.none() | st.integers(1, 100))
def test_a_split_covers_every_offset_once(
    whole: list[OffsetRange], tasks_min: int | None, size_max: int | None
) -> None:
    parts = split(whole, tasks_min=tasks_min, size_max=size_max)
    covered = [(p.tp, offset) for p in parts for offset in range(p.start, p.end)]
    assert covered == [(r.tp, offset) for r in whole for offset in range(r.start, r.end)]
    assert all(part.size > 0 for part in parts)
    if size_max is not None:
        assert all(part.size <= size_max for part in parts)
    if tasks_min is not None:
        assert len(parts) >= min(tasks_min, sum(r.size for r in whole))


def test_more_tasks_go_where_there_is_more_to_read() -> None:
    parts = split([OffsetRange(A, 0, 900), OffsetRange(B, 0, 100)], tasks_min=10)
    assert [part.tp for part in parts].count(A) == 9 and len(parts) == 10


def test_small_batches_are_one_task() -> None:
    small = [OffsetRange(A, 0, 10), OffsetRange(B, 0, 10)]
    assert pack(small) == [tuple(small)]
    assert pack(small, offsets_max=19) == [(small[0],), (small[1],)]
    assert pack([]) == []


# ---- limits


@given(
    st.dictionaries(
        partitions, st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=8
    ),
    st.integers(1, 500),
)
def test_a_limit_is_shared_out_and_nobody_starves(
    logs: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    start = {tp: begun for tp, (begun, _) in logs.items()}
    end = {tp: begun + more for tp, (begun, more) in logs.items()}
    for chosen in (
        limited_by_offsets(start, end, limit),
        limited_by_bytes(start, end, limit, dict.fromkeys(logs, 1.0)),
    ):
        taken = {tp: chosen[tp] - start[tp] for tp in logs}
        with_some = [tp for tp in logs if end[tp] > start[tp]]
        assert all(0 <= taken[tp] <= end[tp] - start[tp] for tp in logs)
        assert all(taken[tp] > 0 for tp in with_some), "every partition moves"
        assert sum(taken.values()) <= limit + len(with_some), "one offset each, however small the limit"


def test_the_connectors_own_example_of_a_limit() -> None:
    start, end = dict.fromkeys((A, B, C), 0), dict.fromkeys((A, B, C), 100)
    assert limited_by_offsets(start, end, 100) == {A: 33, B: 33, C: 33}
    assert waiting(start, end) == end


def test_bytes_count_by_what_a_record_of_the_partition_takes() -> None:
    start, end = {A: 0, B: 0}, {A: 1000, B: 1000}
    chosen = limited_by_bytes(start, end, 100_000, {A: 1000.0, B: 10.0})
    assert chosen[A] * 1000 + chosen[B] * 10 <= 100_000
    assert chosen[A] == chosen[B] == 99


def test_small_batches_wait_for_more_but_not_for_ever() -> None:
    patience = Patience(10, 4_000)
    assert patience.is_over({A: 0}, {A: 1}, now_ms=0), "the first one never waits"
    assert not patience.is_over({A: 1}, {A: 2}, now_ms=3_999)
    assert patience.is_over({A: 1}, {A: 11}, now_ms=3_999)
    assert not patience.is_over({A: 11}, {A: 12}, now_ms=7_998)
    assert patience.is_over({A: 11}, {A: 12}, now_ms=7_999)


# ---- how much is asked for at once


def test_not_much_more_is_asked_for_than_what_is_left() -> None:
    sizes = FetchSizes()
    limit = 8 << 20
    assert sizes.wanted(A, 1, limit) == limit, "nothing is known yet"
    sizes.learn(A, 1 << 20, 1 << 10)
    assert sizes.wanted(A, 1_000_000, limit) == limit
    assert 1 << 20 < sizes.wanted(A, 1 << 10, limit) < (1 << 20) * 1.1 + SPARE_BYTES
    assert sizes.wanted(B, 1, limit) == limit, "of another partition"
    sizes.learn(A, 100 << 20, 1 << 10)
    assert sizes.wanted(A, 1 << 10, limit) == limit, "records have grown since"


@given(
    size=st.integers(0, 1 << 40),
    offsets=st.integers(-1, 1 << 40),
    left=st.integers(1, 1 << 62),
    limit=st.integers(1, 1 << 31),
)
def test_something_is_always_asked_for_and_never_more_than_the_limit(
    size: int, offsets: int, left: int, limit: int
) -> None:
    sizes = FetchSizes()
    sizes.learn(A, size, offsets)
    assert 0 < sizes.wanted(A, left, limit) <= limit
