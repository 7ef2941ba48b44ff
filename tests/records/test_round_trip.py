"""What the builder writes, both readers give back: the plain one and the columnar one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.errors import CorruptDataError
from tidelog.records.batch import (
    HEADER_SIZE,
    TimestampType,
    crc_matches,
    iter_headers,
    patched_prefix,
    read_header,
    restamped,
)
from tidelog.records.builder import BatchBuilder, build_batch
from tidelog.records.columnar import decode_batches
from tidelog.records.compression import Codec
from tidelog.records.record import Record, first_at_or_after_timestamp, iter_records

ALL_COLUMNS = (
    "offset", "timestamp", "timestamp_type", "key", "value", "headers",
    "is_control", "producer_id", "producer_epoch", "partition_leader_epoch",
)  # fmt: skip

short_bytes = st.none() | st.binary(max_size=40) | st.binary(min_size=100, max_size=300)
header_lists = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=10)), max_size=3).map(
    tuple
)
timestamps = st.integers(-1, 2**42)


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[list[Record], dict[str, Any]]]:
    """A run of batches as a log holds them: offsets rising, with gaps, each with its own codec and producer."""
    offset = draw(st.integers(0, 2**40))
    run = []
    for _ in range(draw(st.integers(1, 4))):
        records = []
        for _ in range(draw(st.integers(1, 6))):
            records.append(
                Record(offset, draw(timestamps), draw(short_bytes), draw(short_bytes), draw(header_lists))
            )
            offset += draw(st.sampled_from((1, 1, 1, 2, 1000)))
        options: dict[str, Any] = {
            "codec": draw(st.sampled_from(list(Codec))),
            "producer_id": draw(st.integers(-1, 2**62)),
            "producer_epoch": draw(st.integers(-1, 2**15 - 1)),
            "base_sequence": draw(st.integers(-1, 2**31 - 1)),
            "partition_leader_epoch": draw(st.integers(-1, 2**31 - 1)),
            "is_transactional": draw(st.booleans()),
            "is_control": draw(st.booleans()),
        }
        run.append((records, options))
    return run


def rows(records: list[Record], options: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (
            record.offset, record.timestamp, 0, record.key, record.value, record.headers,
            options["is_control"], options["producer_id"], options["producer_epoch"], options["partition_leader_epoch"],
        )
        for record in records
    ]  # fmt: skip


def decoded_rows(buffer: bytes, **options: Any) -> list[tuple[Any, ...]]:
    table = decode_batches(buffer, columns=ALL_COLUMNS, **options).records
    table.validate(full=True)
    columns = table.to_pydict()
    columns["timestamp"] = table.column("timestamp").cast("int64").to_pylist()
    columns["headers"] = [
        tuple((item["key"], item["value"]) for item in items) for items in columns["headers"]
    ]
    return list(zip(*(columns[name] for name in ALL_COLUMNS), strict=True))


@given(batches(), st.data())
@settings(max_examples=120)
def test_builder_and_both_readers_agree(
    run: list[tuple[list[Record], dict[str, Any]]], data: st.DataObject
) -> None:
    buffer = b"".join(build_batch(records, **options) for records, options in run)
    found = list(iter_headers(buffer))
    assert len(found) == len(run)
    for (position, header), (records, options) in zip(found, run, strict=True):
        assert crc_matches(buffer, position, header)
        assert list(iter_records(buffer, position, header)) == records
        assert header.base_offset == records[0].offset
        assert header.last_offset == records[-1].offset
        assert header.max_timestamp == max(record.timestamp for record in records)
        assert header.record_count == len(records)
        assert (header.producer_id, header.producer_epoch) == (
            options["producer_id"],
            options["producer_epoch"],
        )
        assert header.is_transactional == options["is_transactional"]

    everything = [row for records, options in run for row in rows(records, options)]
    assert decoded_rows(buffer, include_control=True) == everything
    assert decoded_rows(buffer) == [row for row in everything if not row[6]]

    offsets = [row[0] for row in everything]
    low = data.draw(st.integers(offsets[0] - 2, offsets[-1] + 2), label="start")
    high = data.draw(st.integers(low, offsets[-1] + 3), label="end")
    wanted = [row for row in everything if low <= row[0] < high]
    assert decoded_rows(buffer, include_control=True, start_offset=low, end_offset=high) == wanted

    cut = data.draw(st.integers(0, len(buffer)), label="cut")
    whole = [index for index, (position, header) in enumerate(found) if position + header.size <= cut]
    part = decode_batches(buffer[:cut], include_control=True)
    assert part.consumed_bytes == sum(found[index][1].size for index in whole)
    assert part.next_offset == (found[whole[-1]][1].next_offset if whole else None)


@given(
    st.lists(timestamps, min_size=1, max_size=12),
    st.integers(-2, 2**42),
    st.integers(0, 14),
    st.sampled_from(list(Codec)),
)
def test_timestamp_lookup(times: list[int], wanted: int, start: int, codec: Codec) -> None:
    records = [Record(index, time, None, b"v") for index, time in enumerate(times)]
    batch = build_batch(records, codec=codec)
    matching = [(r.timestamp, r.offset) for r in records if r.timestamp >= wanted and r.offset >= start]
    found = first_at_or_after_timestamp(batch, 0, read_header(batch), wanted, start_offset=start)
    assert found == (matching[0] if matching else None)


def test_lookup_under_log_append_time() -> None:
    created = build_batch([Record(7, 1, None, b""), Record(8, 2, None, b"")])
    batch = restamped(created, read_header(created), max_timestamp=500)
    header = read_header(batch)
    assert first_at_or_after_timestamp(batch, 0, header, 500) == (500, 7)
    assert first_at_or_after_timestamp(batch, 0, header, 100, start_offset=8) == (500, 8)
    assert first_at_or_after_timestamp(batch, 0, header, 501) is None


def test_log_append_time_gives_every_record_the_same_time() -> None:
    batch = build_batch(
        [Record(0, 10, b"a", None), Record(1, 99, b"b", None)], timestamp_type=TimestampType.LOG_APPEND_TIME
    )
    assert [record.timestamp for record in iter_records(batch, 0, read_header(batch))] == [99, 99]
    table = decode_batches(batch, columns=("timestamp", "timestamp_type")).records
    assert table.column("timestamp").cast("int64").to_pylist() == [99, 99]
    assert table.column("timestamp_type").to_pylist() == [1, 1]


def test_patching_offset_and_epoch_leaves_the_crc_alone() -> None:
    batch = build_batch([Record(0, 5, b"k", b"v")])
    header = read_header(batch)
    patched = patched_prefix(12345, header.batch_length, 7) + batch[16:]
    after = read_header(patched)
    assert (after.base_offset, after.partition_leader_epoch, after.next_offset) == (12345, 7, 12346)
    assert crc_matches(patched, 0, after)
    assert after._replace(base_offset=0, partition_leader_epoch=-1) == header


def test_sequences_wrap() -> None:
    header = read_header(
        build_batch([Record(index, 0, None, None) for index in range(3)], base_sequence=2**31 - 2)
    )
    assert header.last_sequence == 0
    assert header._replace(base_sequence=-1).last_sequence == -1
    assert header._replace(base_sequence=10).last_sequence == 12


def test_builder_mistakes_are_loud() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        BatchBuilder().build()
    builder = BatchBuilder(base_offset=10)
    assert builder.append(1, None, b"v") == 10
    with pytest.raises(ValueError, match="offset 10"):
        builder.append(1, None, b"v", offset=10)
    assert builder.record_count == 1
    assert builder.size_bytes == len(builder.build())


def test_headers_stop_at_a_cut_and_refuse_nonsense() -> None:
    batch = build_batch([Record(0, 5, b"k", b"v")])
    assert [position for position, _ in iter_headers(batch * 2 + batch[:-1])] == [0, len(batch)]
    with pytest.raises(CorruptDataError, match=f"position {len(batch)}"):
        list(iter_headers(batch + bytes(HEADER_SIZE)))
