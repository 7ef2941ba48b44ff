"""What compaction makes of a run of batches: the latest value of each key stays, at its offset, in its batch.

Owns the map from keys to their latest offsets, and the filter that writes what remains (I28): a batch of which everything stays is copied
byte for byte; one of which some records go is rebuilt around the bytes of the others, with its offsets, producer and leader epoch, in its own
codec; one that must stay without records becomes an empty batch. It decides about records only. Which batches were aborted, must stay, or are
markers, the caller says (`verdicts`); markers never meet the map (I30).

A tombstone that becomes clean gives its batch a delete horizon (KIP-534): bit 6 of the attributes is set and the base timestamp is the time from
which the tombstone may go (I29). Timestamps of records count from the base, so those of such a batch are written anew.

CRCs are checked before anything is believed (I2): a rebuilt batch would otherwise hide damage under a CRC of its own. Needs numba and numpy,
which take a second to import: only where they are used, in the cleaner's worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
from crc32c import crc32c

from tidelog.errors import CorruptDataError
from tidelog.records import columnar_kernels as columns
from tidelog.records import compaction_kernels as kernels
from tidelog.records.batch import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_OFFSET,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
)
from tidelog.records.compression import compress, decompress_onto
from tidelog.records.record import DECOMPRESS_LIMIT_BYTES, INT64_MAX, RECORD_BYTES_MIN

SLOT_BYTES: Final = 24
"""16 of the key's hash, 8 of the offset: as many as Kafka's map takes."""
EXPANDED_BYTES_MAX: Final = 8 << 20
"""Decompressed at once, unless a single batch is larger."""
_TABLE_ROWS_FIRST: Final = 512
_CRC: Final = Struct(">I")
_PROBLEMS: Final = {
    columns.BAD_BATCH: "no record batch",
    columns.BAD_OFFSETS: "a batch whose offsets are negative or overflow",
    columns.BAD_COUNT: "a batch that claims more records than its bytes can hold",
}


class OffsetMap:
    """The latest offset of every key, in a fixed amount of memory; it says when it is full.

    Keys are known by 128 bits of SipHash-2-4 under a secret that is drawn anew for each map. By chance two of five million keys meet with a
    probability below 10**-25; and who does not know the secret cannot make them meet, unlike with a plain hash.
    """

    def __init__(
        self, bytes_max: int, *, load_factor: float, secret: bytes, keys_max: int | None = None
    ) -> None:
        """`keys_max`: there will not be more, so that a small log gets a small map."""
        slots = max(2, min(bytes_max // SLOT_BYTES, (1 << 32) - 1))
        if keys_max is not None:
            slots = min(slots, max(2, int(keys_max / load_factor) + 2))
        self.capacity = max(1, min(int(slots * load_factor), slots - 1))
        self.entries = 0
        self._slots = np.zeros(3 * slots, np.uint64)
        self._secret = np.frombuffer(secret, "<u8", 2).astype(np.uint64)

    def get(self, key: bytes) -> int | None:
        found = int(kernels.find_key(_as_bytes(key), self._slots, self._secret))
        return None if found < 0 else found

    def add(self, chunk: Chunk, *, start_offset: int, without: Any) -> int | None:
        """Note the keys of a chunk's records from `start_offset` on; not those of the batches marked in `without`.

        Returns the offset of the first record that found no room: everything below it is noted. None: all were.
        """
        entries, full_at = kernels.add_keys(
            chunk.stored, chunk.expanded, chunk.table, chunk.records, without | chunk.opaque,
            self._slots, self._secret, start_offset, self.entries, self.capacity,
        )  # fmt: skip
        self.entries = int(entries)
        return None if full_at < 0 else int(full_at)

    @property
    def arrays(self) -> tuple[Any, Any]:
        return self._slots, self._secret


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Whole batches, checked and decompressed, with a row for each in `table` and for each of their records in `records`."""

    stored: Any
    expanded: Any
    table: Any
    records: Any
    opaque: Any  # per batch: its CRC is right, but no records can be made out in it
    consumed: int  # bytes of the buffer; what follows is a batch that is cut off, or for the next chunk

    def __len__(self) -> int:
        return len(self.table)

    @property
    def is_control(self) -> Any:
        return self.table[:, columns.ATTRIBUTES] & CONTROL_FLAG != 0

    @property
    def in_transactions(self) -> list[int]:
        """Numbers of the batches that are transactional or control something."""
        flags = TRANSACTIONAL_FLAG | CONTROL_FLAG
        rows: list[int] = np.flatnonzero(self.table[:, columns.ATTRIBUTES] & flags).tolist()
        return rows

    @property
    def control_types(self) -> list[int]:
        types = np.full(len(self.table), kernels.UNREADABLE, np.int64)
        kernels.control_types(self.stored, self.table, self.records, types)
        listed: list[int] = types.tolist()
        return listed

    def column(self, number: int) -> Any:
        return self.table[:, number]

    def no_verdicts(self) -> Any:
        return np.zeros(len(self.table), np.uint8)


def read_chunk(buffer: Any, *, decompress_limit: int = DECOMPRESS_LIMIT_BYTES) -> Chunk:
    """The whole batches at the start of `buffer`. CorruptDataError names the batch that fails its CRC, or is none."""
    stored = _as_bytes(buffer)
    table, consumed = _find_batches(stored)
    _check_crcs(stored, table)
    opaque = np.zeros(len(table), np.bool_)
    expanded, rows = _decompress(stored, table, opaque, decompress_limit)
    if rows < len(table):
        consumed = int(table[rows, columns.POSITION])
        table, opaque = table[:rows], opaque[:rows]
    sizes = table[:, columns.PAYLOAD_END] - table[:, columns.PAYLOAD_START]
    records_max = int(np.minimum(table[:, columns.RECORD_COUNT], sizes // RECORD_BYTES_MIN + 1).sum())
    records = np.empty((records_max, kernels.RECORD_WIDTH), np.int64)
    count = kernels.outline(stored, expanded, table, records, opaque)
    return Chunk(stored, expanded, table, records[:count], opaque, consumed)


def _as_bytes(buffer: Any) -> Any:
    """A read-only uint8 array over the buffer, so that the kernels are compiled for one type."""
    array = np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)
    view = array.view()
    view.flags.writeable = False
    return view


def _find_batches(stored: Any) -> tuple[Any, int]:
    table = np.empty((_TABLE_ROWS_FIRST, columns.TABLE_WIDTH), np.int64)
    position = count = payload = 0
    while True:
        error, position, count, _, payload = columns.scan(
            stored, position, table, count, payload, -1, INT64_MAX, True, INT64_MAX
        )
        if error != columns.OK:
            raise CorruptDataError(f"{_PROBLEMS[error]} at position {position} of {len(stored)} bytes")
        if count < len(table):
            return table[:count], int(position)
        table = np.concatenate((table, np.empty((3 * count, columns.TABLE_WIDTH), np.int64)))


def _check_crcs(stored: Any, table: Any) -> None:
    view = memoryview(stored)
    for base_offset, position, end in table[
        :, [columns.BASE_OFFSET, columns.POSITION, columns.PAYLOAD_END]
    ].tolist():
        attributes = position + ATTRIBUTES_OFFSET
        (stated,) = _CRC.unpack_from(view, position + CRC_OFFSET)
        if crc32c(view[attributes:end]) != stated:
            raise CorruptDataError(f"the batch at offset {base_offset} fails its CRC")


def _decompress(stored: Any, table: Any, opaque: Any, limit: int) -> tuple[Any, int]:
    """Decompressed payloads in one array, with the table pointing there; and how many batches that is."""
    compressed = np.flatnonzero(table[:, columns.ATTRIBUTES] & CODEC_MASK).tolist()
    out = bytearray()
    end, rows = 0, len(table)
    for row in compressed:
        start, entry = end, table[row]
        if start > EXPANDED_BYTES_MAX:
            rows = row
            break
        payload = memoryview(stored)[entry[columns.PAYLOAD_START] : entry[columns.PAYLOAD_END]]
        if not len(payload) and not entry[columns.RECORD_COUNT]:
            continue  # emptied by a cleaner that has kept the codec's number
        try:
            end = decompress_onto(int(entry[columns.ATTRIBUTES]) & CODEC_MASK, payload, out, start, limit)
        except CorruptDataError:
            # Its CRC is right: it was sent like that, to a topic that nobody looks into. It stays as it is.
            end, opaque[row] = start, True
            entry[columns.RECORD_COUNT] = 0
            continue
        entry[columns.PAYLOAD_START], entry[columns.PAYLOAD_END], entry[columns.EXPANDED] = start, end, 1
    return _as_bytes(out), rows


# ---- the filter


class Rules(NamedTuple):
    map_end: int  # the map knows the log below this offset; from there on everything stays
    now_ms: int  # tombstones whose horizon is not above it go
    horizon_ms: int  # for tombstones that become clean now


class Filtered(NamedTuple):
    """What remains of a chunk: `pieces` are its bytes; the arrays have a value for each batch that is written."""

    pieces: Sequence[Any]
    rows: Any  # of the chunk's table
    sizes: Any
    last_offsets: Any
    max_timestamps: Any
    records_read: int
    records_kept: int
    null_keys: int  # records without a key that went
    latest_horizon_ms: int  # above `now_ms`, of any batch that remains; -1 if there is none


def filter_chunk(chunk: Chunk, verdicts: Any, offset_map: OffsetMap, rules: Rules) -> Filtered:
    table, records = chunk.table, chunk.records
    verdicts = np.where(chunk.opaque, np.uint8(kernels.OPAQUE), verdicts)
    stays = np.empty(len(records), np.bool_)
    plan = np.zeros((len(table), kernels.PLAN_WIDTH), np.int64)
    kept, null_keys = kernels.decide(
        chunk.stored, chunk.expanded, table, records, verdicts, *offset_map.arrays,
        rules.map_end, rules.now_ms, rules.horizon_ms, stays, plan,
    )  # fmt: skip
    pieces = _write(chunk, stays, plan)
    rows = np.flatnonzero(plan[:, kernels.OUTCOME])
    outcomes = plan[rows, kernels.OUTCOME]
    rebuilt = outcomes == kernels.REBUILD
    horizons = plan[rows, kernels.HORIZON]
    latest = int(horizons.max(initial=-1))
    return Filtered(
        pieces,
        rows,
        plan[rows, kernels.SIZE],
        table[rows, columns.LAST_OFFSET],
        np.where(rebuilt, plan[rows, kernels.NEW_MAX_TIMESTAMP], table[rows, columns.MAX_TIMESTAMP]),
        len(records),
        int(kept),
        int(null_keys),
        latest if latest > rules.now_ms else -1,
    )


def _write(chunk: Chunk, stays: Any, plan: Any) -> list[Any]:
    arrays = (chunk.stored, chunk.expanded, chunk.table, chunk.records, stays, plan)
    outcomes = plan[:, kernels.OUTCOME]
    room = int(plan[outcomes != kernels.DROP, kernels.SIZE].sum())
    out = np.empty(room, np.uint8)
    view = out.data
    pieces: list[Any] = []
    first = target = 0
    compressed = (outcomes == kernels.REBUILD) & (chunk.table[:, columns.ATTRIBUTES] & CODEC_MASK != 0)
    for row in (*np.flatnonzero(compressed).tolist(), len(chunk)):
        end = int(kernels.write(*arrays, first, row, out, target))
        if end > target:
            pieces.append(view[target:end])
        if row < len(chunk):
            pieces.append(_compressed(arrays, row))
        first, target = row + 1, end
    changed = ((outcomes == kernels.REBUILD) & ~compressed) | (outcomes == kernels.EMPTY)
    for start, size in plan[changed][:, [kernels.TARGET, kernels.SIZE]].tolist():
        crc = crc32c(view[start + ATTRIBUTES_OFFSET : start + size])
        _CRC.pack_into(view, start + CRC_OFFSET, crc)
    return pieces


def _compressed(arrays: tuple[Any, ...], row: int) -> bytearray:
    """A batch that is rebuilt and compressed again, with the codec's usual level."""
    stored, _, table, _, _, plan = arrays
    payload = np.empty(int(plan[row, kernels.PAYLOAD_BYTES]), np.uint8)
    kernels.write_payload(*arrays, row, payload)
    batch = bytearray(HEADER_SIZE)
    batch += compress(int(table[row, columns.ATTRIBUTES]) & CODEC_MASK, payload.data)
    plan[row, kernels.SIZE] = len(batch)
    kernels.write_header(stored, table, plan, row, np.frombuffer(batch, np.uint8), 0, len(batch))
    _CRC.pack_into(batch, CRC_OFFSET, crc32c(memoryview(batch)[ATTRIBUTES_OFFSET:]))
    return batch
