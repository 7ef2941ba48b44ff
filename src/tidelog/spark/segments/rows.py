"""Decoded pieces as the columns that a table has: those of the source, and where each record stands. Knows Arrow, not Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tidelog.records import columnar_kernels as kernels
from tidelog.records.batch import CODEC_MASK, TRANSACTIONAL_FLAG
from tidelog.records.compression import Codec
from tidelog.spark.columns import ARROW_TYPES, ColumnsOfTask
from tidelog.spark.segments.pieces import Piece
from tidelog.spark.segments.plan import Stretch

SEGMENT_TYPES: Final[dict[str, pa.DataType]] = {
    "segment": pa.string(),
    "position": pa.int64(),
    "batch_base_offset": pa.int64(),
    "batch_last_offset": pa.int64(),
    "partition_leader_epoch": pa.int32(),
    "producer_id": pa.int64(),
    "producer_epoch": pa.int32(),
    "is_transactional": pa.bool_(),
    "is_control": pa.bool_(),
    "compression": pa.string(),
}
"""Where a record stands, and what its batch says of itself."""
_OF_RECORDS: Final = {
    "key": "key",
    "value": "value",
    "offset": "offset",
    "timestamp": "timestamp",
    "timestampType": "timestamp_type",
    "headers": "headers",
    "partition_leader_epoch": "partition_leader_epoch",
    "producer_id": "producer_id",
    "producer_epoch": "producer_epoch",
    "is_control": "is_control",
}
_OF_BATCH: Final = frozenset(
    {"position", "batch_base_offset", "batch_last_offset", "is_transactional", "compression"}
)


def needs_batches(names: Sequence[str]) -> bool:
    return not _OF_BATCH.isdisjoint(names)


def decoder_columns(names: Sequence[str]) -> tuple[str, ...]:
    """What must be decoded for these columns."""
    needed = [_OF_RECORDS[name] for name in names if name in _OF_RECORDS]
    if needs_batches(names) and "offset" not in needed:
        needed.append("offset")
    return tuple(needed)


class Rows:
    """Makes record batches with the columns `names`, called `fields`, in that order."""

    def __init__(self, names: Sequence[str], fields: Sequence[str] | None = None) -> None:
        self.names = tuple(names)
        self._source = ColumnsOfTask([name for name in names if name in ARROW_TYPES])
        types = ARROW_TYPES | SEGMENT_TYPES
        self.schema = pa.schema(
            [pa.field(field, types[name]) for name, field in zip(names, fields or names, strict=True)]
        )
        self._segment = pa.array([], pa.string())

    def batch(self, stretch: Stretch, piece: Piece) -> pa.RecordBatch:
        records = piece.records
        if records is None:  # a count: columns that are the same for all rows need no more
            records = pa.RecordBatch.from_arrays([pa.nulls(piece.rows)], names=[""])
        arrays = [self._column(name, stretch, piece, records) for name in self.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, name: str, stretch: Stretch, piece: Piece, records: pa.RecordBatch) -> pa.Array:
        if name in ARROW_TYPES:
            return self._source.column(name, stretch.tp, records)
        if name == "segment":
            if len(self._segment) < piece.rows or self._segment[0].as_py() != stretch.path:
                self._segment = pa.repeat(stretch.path, piece.rows)
            return self._segment.slice(0, piece.rows)
        if name in _OF_BATCH:
            return _of_batch(name, piece)
        return records.column(_OF_RECORDS[name]).cast(SEGMENT_TYPES[name])


def _of_batch(name: str, piece: Piece) -> pa.Array:
    table = piece.batches
    counts = table[:, kernels.ROWS]
    attributes = table[:, kernels.ATTRIBUTES]
    if name == "is_transactional":
        return pa.array(np.repeat(attributes & TRANSACTIONAL_FLAG != 0, counts))
    if name == "compression":
        codes = pa.array(np.repeat((attributes & CODEC_MASK).astype(np.int8), counts))
        names = pa.array([_codec(number) for number in range(CODEC_MASK + 1)])
        return pa.DictionaryArray.from_arrays(codes, names).cast(pa.string())
    column = {
        "position": kernels.POSITION,
        "batch_base_offset": kernels.BASE_OFFSET,
        "batch_last_offset": kernels.LAST_OFFSET,
    }[name]
    return pa.array(np.repeat(table[:, column], counts))


def _codec(number: int) -> str:
    try:
        return Codec(number).name.lower()
    except ValueError:
        return str(number)
