"""The filter of single batches: what is copied, rebuilt, emptied or dropped, and that nothing else of a batch changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords

from tests.compaction.compaction_world import NOW_MS, SECRET
from tidelog.errors import CorruptDataError
from tidelog.records.batch import (
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    HEADER_STRUCT,
    BatchHeader,
    TimestampType,
    crc_matches,
    iter_headers,
    read_header,
    restamped,
    write_crc,
)
from tidelog.records.builder import build_batch
from tidelog.records.compaction import SLOT_BYTES, Filtered, OffsetMap, Rules, filter_chunk, read_chunk
from tidelog.records.compaction_kernels import DISCARD, ENDS_NOTHING, MARKER, RETAIN
from tidelog.records.compression import Codec
from tidelog.records.control import build_end_transaction_marker
from tidelog.records.record import Record, iter_records

HORIZON_MS = NOW_MS + 5000
CODECS = list(Codec)


def keyed(*entries: tuple[bytes | None, bytes | None], base: int = 0, **options: Any) -> bytes:
    records = [
        Record(base + n, NOW_MS + n, key, value, (("header", b"1"),))
        for n, (key, value) in enumerate(entries)
    ]
    return build_batch(records, **options)


def run(
    buffer: bytes,
    *,
    superseded: dict[bytes, int] | None = None,
    verdicts: list[int] | None = None,
    map_end: int = 1 << 40,
    now_ms: int = NOW_MS,
) -> tuple[bytes, Filtered]:
    """What remains, given the latest offsets of some keys."""
    chunk = read_chunk(buffer)
    assert chunk.consumed == len(buffer)
    offset_map = OffsetMap(1000 * SLOT_BYTES, load_factor=0.9, secret=SECRET)
    for key, offset in (superseded or {}).items():
        later = read_chunk(build_batch([Record(offset, 0, key, b"")]))
        offset_map.add(later, start_offset=0, without=np.zeros(1, np.bool_))
    flags = np.array(verdicts if verdicts is not None else [0] * len(chunk), np.uint8)
    filtered = filter_chunk(chunk, flags, offset_map, Rules(map_end, now_ms, HORIZON_MS))
    out = b"".join(map(bytes, filtered.pieces))
    assert sum(filtered.sizes.tolist()) == len(out)
    for position, header in iter_headers(out):
        assert crc_matches(out, position, header)
    theirs = MemoryRecords(out)
    while (batch := theirs.next_batch()) is not None:
        assert batch.validate_crc()
    return out, filtered


def read(buffer: bytes) -> list[tuple[BatchHeader, list[Record]]]:
    return [
        (header, list(iter_records(buffer, position, header))) for position, header in iter_headers(buffer)
    ]


def with_fields(batch: bytes, **fields: int) -> bytes:
    changed = bytearray(batch)
    HEADER_STRUCT.pack_into(changed, 0, *read_header(batch)._replace(**fields))
    write_crc(changed)
    return bytes(changed)


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_of_which_everything_stays_is_copied(codec: Codec) -> None:
    batch = keyed((b"a", b"1"), (b"b", b"2" * 300), codec=codec, base=7)
    out, filtered = run(batch, superseded={b"c": 100, b"a": 7})
    assert out == batch
    assert (filtered.records_read, filtered.records_kept) == (2, 2)
    assert filtered.last_offsets.tolist() == [8]


@pytest.mark.parametrize("codec", CODECS)
def test_a_rebuilt_batch_differs_in_its_records_only(codec: Codec) -> None:
    batch = keyed(
        (b"a", b"1"), (b"b", b"2" * 300), (b"c", b"3"), (b"a", b"4"), base=20, codec=codec,
        producer_id=9, producer_epoch=3, base_sequence=17, partition_leader_epoch=5, is_transactional=True,
    )  # fmt: skip
    out, filtered = run(batch, superseded={b"a": 23, b"c": 30})
    ((header, records),) = read(out)
    ((before, all_records),) = read(batch)
    assert records == [all_records[1], all_records[3]]
    assert header.codec == codec
    same = ("base_offset", "partition_leader_epoch", "attributes", "last_offset_delta", "base_timestamp",
            "producer_id", "producer_epoch", "base_sequence")  # fmt: skip
    assert all(getattr(header, name) == getattr(before, name) for name in same)
    assert (header.record_count, header.max_timestamp) == (2, NOW_MS + 3)
    assert filtered.max_timestamps.tolist() == [NOW_MS + 3]


def test_the_max_timestamp_is_that_of_a_record_that_stays() -> None:
    batch = keyed((b"a", b"1"), (b"b", b"2"))
    ((header, records),) = read(run(batch, superseded={b"b": 9})[0])
    assert header.max_timestamp == records[0].timestamp == NOW_MS


def test_under_log_append_time_it_is_the_brokers() -> None:
    batch = keyed((b"a", b"1"), (b"b", None))
    stamped = bytes(restamped(batch, read_header(batch), max_timestamp=NOW_MS + 99))
    ((header, records),) = read(run(stamped, superseded={b"a": 9})[0])
    assert header.timestamp_type == TimestampType.LOG_APPEND_TIME
    assert [record.timestamp for record in records] == [NOW_MS + 99]
    assert header.has_delete_horizon


def test_what_is_empty_goes_unless_a_producer_is_known_from_it() -> None:
    batch = keyed((b"a", b"1"), base=4, producer_id=9, producer_epoch=3, base_sequence=17, codec=Codec.ZSTD)
    assert run(batch, superseded={b"a": 9})[0] == b""
    out, filtered = run(batch, superseded={b"a": 9}, verdicts=[RETAIN])
    ((header, records),) = read(out)
    before = read_header(batch)
    assert (records, len(out), header.codec, header.record_count) == ([], HEADER_SIZE, Codec.NONE, 0)
    assert (header.producer_id, header.producer_epoch, header.last_sequence) == (9, 3, before.last_sequence)
    assert (header.base_offset, header.last_offset) == (4, 4)
    assert header.max_timestamp == before.max_timestamp == filtered.max_timestamps[0]
    assert run(out, verdicts=[RETAIN])[0] == out
    assert run(out)[0] == b""


def test_data_that_was_aborted_goes() -> None:
    batches = keyed((b"a", b"1")) + keyed((b"b", b"2"), base=1) + keyed((b"c", b"3"), base=2)
    out, _ = run(batches, verdicts=[0, DISCARD, 0])
    assert [record.key for _, records in read(out) for record in records] == [b"a", b"c"]


class TestTombstones:
    BATCH = keyed((b"a", b"1"), (b"b", None), (b"c", b"3"))

    @pytest.mark.parametrize("codec", CODECS)
    def test_one_that_becomes_clean_gets_a_horizon(self, codec: Codec) -> None:
        batch = keyed((b"a", b"1"), (b"b", None), (b"c", b"3" * 200), codec=codec)
        out, filtered = run(batch)
        ((header, records),) = read(out)
        assert header.has_delete_horizon and header.base_timestamp == HORIZON_MS
        assert records == read(batch)[0][1], "also their timestamps, which count from the base"
        assert header.max_timestamp == read_header(batch).max_timestamp
        assert filtered.latest_horizon_ms == HORIZON_MS

    def test_it_stays_until_then_and_goes_afterwards(self) -> None:
        first, _ = run(self.BATCH)
        for now_ms in (NOW_MS, HORIZON_MS - 1):
            later, filtered = run(first, now_ms=now_ms)
            assert later == first
            assert filtered.latest_horizon_ms == HORIZON_MS
        gone, filtered = run(first, now_ms=HORIZON_MS)
        ((header, records),) = read(gone)
        assert [record.key for record in records] == [b"a", b"c"]
        assert [record.timestamp for record in records] == [NOW_MS, NOW_MS + 2]
        assert header.has_delete_horizon and header.base_timestamp == HORIZON_MS
        assert filtered.latest_horizon_ms == -1

    def test_a_horizon_is_set_once(self) -> None:
        first, _ = run(self.BATCH)
        second, _ = run(first, superseded={b"a": 50})
        ((header, records),) = read(second)
        assert header.base_timestamp == HORIZON_MS and len(records) == 2

    def test_what_the_map_does_not_reach_gets_none(self) -> None:
        """An older value may be there still: the horizon would pass before it is gone."""
        assert run(self.BATCH, map_end=2)[0] == self.BATCH
        assert run(self.BATCH, map_end=0)[0] == self.BATCH
        first, _ = run(self.BATCH)
        assert run(first, now_ms=HORIZON_MS, map_end=1)[0] == first

    def test_a_superseded_one_goes_at_once(self) -> None:
        ((header, records),) = read(run(self.BATCH, superseded={b"b": 9})[0])
        assert [record.key for record in records] == [b"a", b"c"]
        assert not header.has_delete_horizon


class TestMarkers:
    MARKER = build_end_transaction_marker(
        commit=True, producer_id=9, producer_epoch=0, coordinator_epoch=4, timestamp=NOW_MS, base_offset=3
    )

    def test_they_have_no_key(self) -> None:
        key = read(self.MARKER)[0][1][0].key
        assert key is not None
        assert run(self.MARKER, superseded={key: 99}, verdicts=[MARKER])[0] == self.MARKER

    def test_one_that_ends_nothing_gets_a_horizon_and_goes_after_it(self) -> None:
        out, filtered = run(self.MARKER, verdicts=[MARKER | ENDS_NOTHING])
        ((header, records),) = read(out)
        assert header.base_timestamp == HORIZON_MS == filtered.latest_horizon_ms
        assert header.attributes == read_header(self.MARKER).attributes | DELETE_HORIZON_FLAG
        assert records == read(self.MARKER)[0][1]
        assert run(out, verdicts=[MARKER | ENDS_NOTHING])[0] == out
        assert run(out, verdicts=[MARKER | ENDS_NOTHING | DISCARD])[0] == b""


def test_records_without_a_key_go_and_are_counted() -> None:
    batch = keyed((None, b"1"), (b"a", b"2"), (None, None))
    out, filtered = run(batch)
    assert [record.key for record in read(out)[0][1]] == [b"a"]
    assert filtered.null_keys == 2
    assert run(batch, map_end=0)[0] == batch


def test_nothing_above_the_maps_end_is_touched() -> None:
    batch = keyed((b"a", b"1"), (b"a", b"2"), (None, b"3"), (b"b", None), base=10)
    out, _ = run(batch, superseded={b"a": 11}, map_end=11)
    assert [record.offset for record in read(out)[0][1]] == [11, 12, 13]


def test_a_batch_whose_records_cannot_be_made_out_stays_as_it_is() -> None:
    """Topics that are not compacted take what producers send; such a batch must not stop the cleaner when the policy changes."""
    nonsense = bytearray(keyed((b"a", b"1"), (b"b", b"2")))
    nonsense[HEADER_SIZE] = 0x7E
    write_crc(nonsense)
    compressed = with_fields(keyed((b"a", b"1" * 100), base=2), attributes=Codec.ZSTD)
    lying = with_fields(keyed((b"a", b"1"), codec=Codec.LZ4, base=3), record_count=1 << 30)
    buffer = bytes(nonsense) + compressed + lying + keyed((b"a", b"1"), base=4)
    out, filtered = run(buffer, superseded={b"a": 9, b"b": 9})
    assert out == bytes(nonsense) + compressed + lying
    assert filtered.records_read == 1


def test_damage_is_never_hidden_under_a_new_crc() -> None:
    batch = bytearray(keyed((b"a", b"1"), (b"b", b"2"), base=70))
    batch[-3] ^= 1
    with pytest.raises(CorruptDataError, match="offset 70"):
        read_chunk(bytes(batch))


def test_a_chunk_ends_with_its_last_whole_batch() -> None:
    first, second = keyed((b"a", b"1")), keyed((b"b", b"2"), base=1)
    for cut in range(len(second)):
        assert read_chunk(first + second[:cut]).consumed == len(first)
    assert read_chunk(b"").consumed == 0


def test_a_chunk_is_cut_before_it_grows_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidelog.records import compaction

    monkeypatch.setattr(compaction, "EXPANDED_BYTES_MAX", 1000)
    batches = [keyed((b"a", bytes(900)), base=n, codec=Codec.GZIP) for n in range(4)]
    chunk = read_chunk(b"".join(batches))
    assert chunk.consumed == len(batches[0]) + len(batches[1])
    assert len(chunk) == 2


# ---- against a filter in plain Python

Key = st.sampled_from([b"", b"a", b"bb", b"c" * 20, None])
Value = st.sampled_from([None, b"", b"v", b"w" * 150])
Batches = st.lists(
    st.tuples(
        st.lists(st.tuples(Key, Value, st.integers(0, 3), st.integers(0, 100_000)), min_size=1, max_size=6),
        st.sampled_from(CODECS),
        st.sampled_from([0, RETAIN, DISCARD, RETAIN | DISCARD]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=6,
)


@given(
    Batches,
    st.dictionaries(st.sampled_from([b"", b"a", b"bb", b"c" * 20]), st.integers(0, 60)),
    st.integers(0, 60),
)
@settings(max_examples=300)
def test_it_keeps_what_plain_python_would_keep(
    shapes: list[tuple[list[tuple[bytes | None, bytes | None, int, int]], Codec, int, int]],
    latest: dict[bytes, int],
    map_end: int,
) -> None:
    buffer, expected, verdicts = b"", [], []
    offset = 0
    for entries, codec, verdict, gap in shapes:
        offset += gap
        records = []
        for key, value, skip, time in entries:
            records.append(Record(offset + skip, NOW_MS + time, key, value))
            offset += skip + 1
        buffer += build_batch(records, codec=codec)
        verdicts.append(verdict)
        expected.extend(
            record
            for record in records
            if not verdict & DISCARD
            and (
                record.offset >= map_end
                or (record.key is not None and latest.get(record.key, -1) <= record.offset)
            )
        )
    out, filtered = run(buffer, superseded=latest, verdicts=verdicts, map_end=map_end)
    assert [record for _, records in read(out) for record in records] == expected
    assert filtered.records_kept == len(expected)
    headers = {header.base_offset: header for _, header in iter_headers(buffer)}
    for (header, records), timestamp in zip(read(out), filtered.max_timestamps.tolist(), strict=True):
        assert header.last_offset == headers[header.base_offset].last_offset
        assert header.max_timestamp == timestamp
        assert not records or header.max_timestamp == max(record.timestamp for record in records)
