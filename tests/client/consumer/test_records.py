"""Fetched bytes as records: the same as the plain reader sees, without what is not for the application."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.client.consumer.records import Aborted, Chunk, ConsumerRecord, decode_batch
from tidelog.client.errors import RecordError
from tidelog.client.metadata import TopicPartition
from tidelog.errors import CorruptDataError
from tidelog.records.batch import TimestampType, read_header
from tidelog.records.builder import BatchBuilder, build_batch
from tidelog.records.compression import Codec
from tidelog.records.control import build_end_transaction_marker
from tidelog.records.record import Record, iter_records

TP = TopicPartition("orders", 3)
SIZED = st.one_of(st.none(), st.binary(max_size=200), st.just(b"x" * 9_000))
HEADERS = st.lists(
    st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=20))), max_size=3
).map(tuple)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    offset = draw(st.integers(0, 1 << 40))
    records = []
    for _ in range(draw(st.integers(1, 20))):
        records.append(Record(offset, draw(st.integers(0, 1 << 42)), draw(SIZED), draw(SIZED), draw(HEADERS)))
        offset += draw(st.sampled_from([1, 1, 1, 2, 500]))
    return build_batch(
        records,
        codec=draw(st.sampled_from(list(Codec))),
        timestamp_type=draw(st.sampled_from(list(TimestampType))),
        partition_leader_epoch=draw(st.integers(-1, 9)),
    )


@settings(max_examples=150)
@given(batch=batches(), skip=st.integers(0, 30))
def test_records_are_what_the_plain_reader_sees(batch: bytes, skip: int) -> None:
    header = read_header(batch)
    start = header.base_offset + skip
    expected = [
        ConsumerRecord(
            *TP,
            r.offset,
            r.timestamp,
            header.timestamp_type,
            r.key,
            r.value,
            r.headers,
            header.partition_leader_epoch,
        )
        for r in iter_records(batch, 0, header)
        if r.offset >= start
    ]
    assert decode_batch(memoryview(batch), 0, header, TP, start) == expected


@settings(max_examples=300)
@given(batch=batches(), where=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_damage_is_an_error_or_harmless_never_anything_else(batch: bytes, where: float, byte: int) -> None:
    header = read_header(batch)
    harmed = bytearray(batch)
    harmed[61 + int(where * (len(batch) - 61))] = byte
    with suppress(CorruptDataError):
        decode_batch(memoryview(harmed), 0, header, TP, 0)


def data_batch(offset: int, value: bytes, *, producer_id: int = -1, sequence: int = 0) -> bytes:
    builder = BatchBuilder(
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence if producer_id >= 0 else -1,
        is_transactional=producer_id >= 0,
    )
    builder.append(1_000, None, value)
    return builder.build()


def values(chunk: Chunk) -> list[bytes | None]:
    found = []
    while (records := chunk.next_batch()) is not None:
        found += [record.value for record in records]
    return found


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    return build_end_transaction_marker(
        commit=commit,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=1_000,
        base_offset=offset,
    )


def test_aborted_transactions_are_hidden_from_their_first_offset_to_their_marker() -> None:
    data = b"".join(
        [
            data_batch(0, b"plain"),
            data_batch(1, b"aborted", producer_id=7),
            data_batch(2, b"committed", producer_id=8),
            marker(3, 7, commit=False),
            data_batch(4, b"the next transaction of the same producer", producer_id=7, sequence=1),
            marker(5, 8, commit=True),
            marker(6, 7, commit=True),
        ]
    )
    aborted = [Aborted(7, 1)]
    shown = [b"plain", b"committed", b"the next transaction of the same producer"]
    assert values(Chunk(TP, memoryview(data), 0, aborted=aborted)) == shown
    assert values(Chunk(TP, memoryview(data), 0)) == [*shown[:1], b"aborted", *shown[1:]]
    chunk = Chunk(TP, memoryview(data), 0, aborted=aborted)
    assert b"".join(map(bytes, chunk.visible_ranges())) == b"".join(
        [
            data_batch(0, b"plain"),
            data_batch(2, b"committed", producer_id=8),
            data_batch(4, shown[2], producer_id=7, sequence=1),
        ]
    )
    assert chunk.next_offset == 7


def test_a_batch_that_fails_its_crc_is_named_with_the_way_around_it() -> None:
    data = bytearray(data_batch(0, b"good") + data_batch(1, b"bad"))
    data[-3] ^= 1
    chunk = Chunk(TP, memoryview(data), 0)
    assert [record.value for record in chunk.next_batch() or ()] == [b"good"]
    with pytest.raises(RecordError, match=r"orders-3: the batch at offset 1 .* CRC.* seek to offset 2"):
        chunk.next_batch()


def test_a_tail_that_is_cut_off_is_left_alone() -> None:
    data = data_batch(0, b"whole") + data_batch(1, b"half")[:-5]
    chunk = Chunk(TP, memoryview(data), 0)
    assert values(chunk) == [b"whole"]
    assert chunk.next_offset == 1
