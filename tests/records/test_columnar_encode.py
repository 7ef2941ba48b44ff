"""Columns as records: byte for byte what encoding one record after the other gives."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.client.metadata import TopicPartition
from tidelog.client.partitioner import partition_for_key
from tidelog.client.producer.batch import ProducerBatch
from tidelog.records.columnar_encode import (
    NO_PARTITION,
    ColumnError,
    bytes_of,
    columns_of,
    encode_rows,
    partitions_by_key,
    partitions_of_column,
    rows_by_partition,
)

SIZED = st.one_of(st.none(), st.binary(max_size=40), st.just(b"v" * 300))
HEADERS = st.lists(st.tuples(st.text(max_size=4), st.one_of(st.none(), st.binary(max_size=9))), max_size=3)
ROWS = st.lists(st.tuples(st.integers(0, 1 << 45), SIZED, SIZED, HEADERS), min_size=1, max_size=40)
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NAMES = {"key": "key", "value": "value", "headers": "headers", "timestamp": "timestamp"}


def batch_of(
    rows: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]], kind: pa.DataType
) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row[0] for row in rows], pa.timestamp("ms", tz="UTC")),
            pa.array([row[1] for row in rows], kind),
            pa.array([row[2] for row in rows], kind),
            pa.array([[{"key": k, "value": v} for k, v in row[3]] for row in rows], HEADERS_TYPE),
        ],
        names=["timestamp", "key", "value", "headers"],
    )


@settings(max_examples=120)
@given(
    rows=ROWS,
    kind=st.sampled_from([pa.binary(), pa.large_binary()]),
    bytes_max=st.sampled_from([1, 100, 500, 1 << 20]),
    cut=st.integers(0, 5),
)
def test_payloads_are_those_of_records_one_by_one(
    rows: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    kind: pa.DataType,
    bytes_max: int,
    cut: int,
) -> None:
    cut = min(cut, len(rows) - 1)
    batch = batch_of(rows, kind).slice(cut)  # a slice has offsets into its buffers
    columns = columns_of(batch, **NAMES, now_ms=0)
    done = cut
    for payload in encode_rows(columns, np.arange(batch.num_rows, dtype=np.int64), bytes_max=bytes_max):
        one_by_one = ProducerBatch(TopicPartition("t", 0), 0.0)
        for timestamp, key, value, headers in rows[done : done + payload.rows]:
            one_by_one.append(timestamp, key, value, tuple(headers))
        assert payload.data == bytes(one_by_one.payload)
        assert (payload.base_timestamp, payload.max_timestamp) == (
            one_by_one.base_timestamp,
            one_by_one.max_timestamp,
        )
        assert len(payload.data) <= bytes_max or payload.rows == 1
        done += payload.rows
    assert done == len(rows)


@settings(max_examples=60)
@given(
    keys=st.lists(st.one_of(st.none(), st.binary(max_size=23)), min_size=1, max_size=60),
    count=st.integers(1, 13),
)
def test_keys_go_where_the_other_producer_puts_them(keys: list[bytes | None], count: int) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(keys, pa.binary())], names=["key"])
    columns = columns_of(batch, key="key", value=None, headers=None, timestamp=None, now_ms=5)
    found = partitions_by_key(columns, count).tolist()
    assert found == [NO_PARTITION if key is None else partition_for_key(key, count) for key in keys]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=50))
def test_rows_of_a_partition_stay_in_order(partitions: list[int]) -> None:
    found = {p: rows.tolist() for p, rows in rows_by_partition(np.array(partitions, np.int32), 7)}
    assert found == {p: [n for n, each in enumerate(partitions) if each == p] for p in set(partitions)}


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None, "ccc"]),
        pa.array(["a", None, "ccc"], pa.large_string()),
        pa.array(["a", None, "ccc"], pa.string_view()),
        pa.array([b"a", None, b"ccc"], pa.binary_view()),
        pa.array(["a", None, "ccc"]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_text_and_bytes_in_all_their_forms(column: pa.Array) -> None:
    batch = pa.RecordBatch.from_arrays([column], names=["value"])
    columns = columns_of(batch, key=None, value="value", headers=None, timestamp=None, now_ms=5)
    (payload,) = encode_rows(columns, np.arange(3, dtype=np.int64), bytes_max=1_000)
    expected = ProducerBatch(TopicPartition("t", 0), 0.0)
    for value in (b"a", None, b"ccc"):
        expected.append(5, None, value, ())
    assert payload.data == bytes(expected.payload)


def test_maps_are_headers_too_and_fixed_binary_is_bytes() -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array([b"0123"], pa.binary(4)), pa.array([[("a", b"1")]], pa.map_(pa.string(), pa.binary()))],
        names=["value", "headers"],
    )
    columns = columns_of(batch, key=None, value="value", headers="headers", timestamp=None, now_ms=5)
    (payload,) = encode_rows(columns, np.arange(1, dtype=np.int64), bytes_max=1_000)
    expected = ProducerBatch(TopicPartition("t", 0), 0.0)
    expected.append(5, None, b"0123", (("a", b"1"),))
    assert payload.data == bytes(expected.payload)


def test_columns_that_cannot_be_are_refused_by_name() -> None:
    batch = pa.RecordBatch.from_pydict({"n": [1], "f": [0.5]})
    for given_as, match in (
        ({"value": "n"}, "column 'n' is int64; keys and values"),
        ({"value": "x"}, "there is no column 'x'"),
        ({"headers": "n"}, "headers are a list"),
        ({"timestamp": "f"}, "a timestamp is"),
    ):
        with pytest.raises(ColumnError, match=match):
            columns_of(
                batch,
                **{"key": None, "value": None, "headers": None, "timestamp": None, **given_as},
                now_ms=0,
            )  # type: ignore[arg-type]
    with pytest.raises(ColumnError, match="0 to 2"):
        partitions_of_column(pa.RecordBatch.from_pydict({"p": [7]}), "p", 3)


@pytest.mark.parametrize(
    "ends",
    [[0, 4, 1 << 30], [0, 9, 4], [-4, 0, 4], [0, -(1 << 20), 4]],
    ids=["out", "back", "before", "overflow"],
)
def test_columns_that_lead_out_of_their_bytes_are_refused(ends: list[int]) -> None:
    offsets = np.array([0, 4, 9], np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"0123456789")]
    column = pa.Array.from_buffers(pa.binary(), 2, buffers)
    assert bytes_of("value", column).ends.tolist() == [0, 4, 9]
    offsets[:] = ends  # afterwards, because pyarrow looks at the last one
    with pytest.raises(ColumnError, match="'value' is no valid Arrow"):
        bytes_of("value", column)
