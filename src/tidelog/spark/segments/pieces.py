"""Bytes of segments as Arrow batches: the one reader behind `format("tidelog")` with a path, `tidelog log export` and the audit.

A stretch is read in pieces into one buffer that is used again, and each piece is decoded at once. Batches that must not be seen (of aborted transactions, or all older than what is asked for) are
taken out by their headers before anything is decompressed. Damage is an error that names file, position and offsets; `on_harm` gets it instead, and reading goes on behind it. Memory is bounded
by a piece and what it expands to, whose size the next piece goes by.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.errors import CorruptDataError
from tidelog.records import columnar_kernels as kernels
from tidelog.records.batch import (
    CONTROL_FLAG,
    HEADER_SIZE,
    MIN_BATCH_LENGTH,
    TRANSACTIONAL_FLAG,
    crc_matches,
    iter_headers,
)
from tidelog.records.columnar import Decoded, decode_batches
from tidelog.spark.segments.errors import DamagedSegmentError, Harm, SegmentsError
from tidelog.spark.segments.plan import Stretch
from tidelog.spark.segments.stored import MAX_RELATIVE_OFFSET
from tidelog.spark.segments.transactions import Aborted
from tidelog.storage import files
from tidelog.storage.batch_scan import find_valid_batch
from tidelog.storage.posix_disk import PosixDisk, PosixFile

PIECE_BYTES: Final = 4 << 20
PIECE_BYTES_MIN: Final = 256 << 10
EXPANDED_BYTES: Final = 8 << 20
"""About what a piece may become: compressed ones are taken smaller."""
_TABLE_ROWS: Final = 4096


class Wanted(NamedTuple):
    """What of the batches is wanted. Columns are those of `records.columnar`."""

    columns: tuple[str, ...]
    with_batches: bool = False
    """Also the batch that each record stands in."""
    timestamp_min: int | None = None
    """Batches of which every record is older may be left out."""
    includes_control: bool = False


class Piece(NamedTuple):
    records: pa.RecordBatch | None
    """None where no column of a record was asked for: `rows` says how many there are."""
    rows: int
    read_bytes: int
    batches: Any = None
    """The batch table (`columnar_kernels`), positions counted from the file's beginning, with rows of each; None unless asked for."""


OnHarm = Callable[[Harm], None]


def read_stretch(
    stretch: Stretch, wanted: Wanted, *, on_harm: OnHarm | None = None, buffer: bytearray | None = None
) -> Iterator[Piece]:
    disk = PosixDisk(max_open_files=4, read_only=True)
    file = open_stretch(disk, stretch)
    try:
        yield from Reading(file, stretch, wanted, on_harm, bytearray() if buffer is None else buffer).pieces()
    finally:
        file.unpin()
        file.close()


def open_stretch(disk: PosixDisk, stretch: Stretch) -> PosixFile:
    """The very file that was planned for, pinned. Retention and compaction rename the old one, and keep it for a while."""
    for path in (stretch.path, stretch.path + files.DELETED):
        try:
            file = disk.open(path)
            file.pin()
        except FileNotFoundError:
            continue
        size = file.size()
        if size == stretch.size or (size > stretch.size and not stretch.is_sealed):
            return file
        file.unpin()
        file.close()
    raise SegmentsError(
        f"{stretch.path} ({stretch.size} bytes when the query was planned) is not there any more, or another file has its name: retention or compaction was faster,"
        " or this executor does not see the same files; run the query again"
    )


class Reading:
    def __init__(
        self, file: PosixFile, stretch: Stretch, wanted: Wanted, on_harm: OnHarm | None, buffer: bytearray
    ) -> None:
        self._file = file
        self._descriptor = file.pin()
        file.unpin()  # the caller's pin holds it
        self.stretch = stretch
        self._wanted = wanted
        self._on_harm = on_harm
        self._buffer = buffer
        self.position = stretch.position
        self.next_offset = stretch.start_offset
        self._piece = PIECE_BYTES
        self._harm: Harm | None = None  # found, and not reached yet
        self._needs_table = bool(
            stretch.aborted or wanted.with_batches or wanted.timestamp_min is not None or not wanted.columns
        )

    def pieces(self) -> Iterator[Piece]:
        stretch = self.stretch
        while self.position < stretch.end_position and self.next_offset < stretch.end_offset:
            if self._harm is not None and self._harm.position == self.position:
                self._pass(self._harm)
                continue
            stop = stretch.end_position if self._harm is None else self._harm.position
            view = self._read(min(self._piece, stop - self.position))
            try:
                piece = self.decode(view)
            except CorruptDataError as error:
                self._found(self._locate(view, str(error)))
                continue
            finally:
                view.release()
            if piece is not None:
                if piece.rows:
                    yield piece
                continue
            # Nothing was whole: the batch is larger than a piece, or cut off.
            if self.position + self._piece < stop:
                self._piece *= 2
            elif stretch.may_be_torn and stop == stretch.end_position:
                return
            else:
                left = stop - self.position
                self._found(self._harm_at(self.position, f"{left} bytes hold no whole batch"))

    def _read(self, count: int) -> memoryview:
        if len(self._buffer) < count:
            self._buffer.extend(bytes(count - len(self._buffer)))
        view = memoryview(self._buffer)[:count]
        done = 0
        while done < count:
            more = os.preadv(self._descriptor, [view[done:]], self.position + done)
            if not more:
                break
            done += more
        if done == count:
            return view
        short = view[:done]
        view.release()
        return short

    def decode(self, view: memoryview) -> Piece | None:
        """None: not a single whole batch. Moves on behind what it has read."""
        stretch, wanted = self.stretch, self._wanted
        table, consumed, next_offset = None, 0, -1
        visible: memoryview = view
        if self._needs_table:
            table, consumed, next_offset = scan(view, stretch.start_offset, stretch.end_offset)
            is_visible = visible_batches(table, stretch.aborted, wanted)
            if not is_visible.all():
                check_crcs(view, table[~is_visible])
                visible = gathered(view, table, is_visible)
                table = table[is_visible]
            else:
                visible = view[:consumed]
        decoded = self._records(visible, table)
        rows = decoded if isinstance(decoded, int) else decoded.records.num_rows
        if table is None:
            assert not isinstance(decoded, int)
            consumed = decoded.consumed_bytes
            next_offset = stretch.start_offset if decoded.next_offset is None else decoded.next_offset
        if not consumed and next_offset < stretch.end_offset:
            return None
        records = None if isinstance(decoded, int) else decoded.records
        if table is not None and wanted.with_batches:
            assert records is not None
            table[:, kernels.POSITION] += self.position
            table[:, kernels.ROWS] = _rows_of(table, records.column("offset"))
        self.position += consumed
        self.next_offset = max(next_offset, self.next_offset)
        self._piece = _next_piece(consumed, records.nbytes if records is not None else 0)
        return Piece(records, rows, consumed, table if wanted.with_batches else None)

    def _records(self, visible: memoryview, table: Any) -> Decoded | int:
        """Decoded records, or only their number, which headers tell if no column is asked for."""
        stretch, wanted = self.stretch, self._wanted
        if not wanted.columns and table is not None:
            is_inside = (table[:, kernels.BASE_OFFSET] >= stretch.start_offset) & (
                table[:, kernels.LAST_OFFSET] < stretch.end_offset
            )
            if is_inside.all():
                check_crcs(visible, table)
                return int(table[:, kernels.RECORD_COUNT].sum())
        columns = wanted.columns or ("offset",)
        decoded = decode_batches(
            visible,
            start_offset=stretch.start_offset,
            end_offset=stretch.end_offset,
            columns=columns,
            include_control=wanted.includes_control,
        )
        if table is not None and len(table) and decoded.consumed_bytes < len(visible):
            # More than Arrow takes in one go. Rare: a piece of one enormous expansion.
            raise SegmentsError(
                f"{stretch.path}, from position {self.position} on: batches expand to more than 1 GiB in {len(visible)} bytes; they cannot be read with these options"
            )
        return decoded if wanted.columns else decoded.records.num_rows

    # ---- damage

    def _locate(self, view: memoryview, problem: str) -> Harm:
        """The first batch of the piece that cannot be read; the buffer may have been rearranged, so it is read again."""
        fresh = self._read(len(view))
        try:
            at = offset = 0
            try:
                for at, header in iter_headers(fresh):
                    offset = header.next_offset
                    if problem_of := _problem(fresh, at, header):
                        return Harm(
                            self.stretch.path,
                            self.position + at,
                            header.size,
                            header.base_offset,
                            header.next_offset,
                            problem_of,
                        )
                    at += header.size
            except CorruptDataError as error:
                return self._harm_at(self.position + at, str(error), offset)
        finally:
            fresh.release()
        return self._harm_at(self.position, problem)

    def _harm_at(self, position: int, problem: str, first_offset: int = 0) -> Harm:
        stretch = self.stretch
        first_offset = max(first_offset, self.next_offset)
        found = find_valid_batch(
            self._file,
            position + 1,
            stretch.end_position,
            first_offset=first_offset,
            last_offset=first_offset + MAX_RELATIVE_OFFSET,
        )
        end, end_offset = stretch.end_position, stretch.end_offset
        if found is not None:
            end, end_offset = found, int.from_bytes(self._file.read_at(8, found), "big")
        return Harm(stretch.path, position, end - position, first_offset, end_offset, problem)

    def _found(self, harm: Harm) -> None:
        if self._on_harm is None:
            raise DamagedSegmentError(harm)
        self._harm = harm

    def _pass(self, harm: Harm) -> None:
        assert self._on_harm is not None
        self._on_harm(harm)
        self._harm = None
        self.position += harm.length
        self.next_offset = max(self.next_offset, harm.end_offset)


def scan(view: memoryview, start_offset: int, end_offset: int) -> tuple[Any, int, int]:
    """(table of whole batches with offsets in the range, markers too; bytes looked at; next offset or -1)."""
    stored = np.frombuffer(view, np.uint8)
    stored.flags.writeable = False
    table = np.empty((_TABLE_ROWS, kernels.TABLE_WIDTH), np.int64)
    position = count = payload = 0
    next_offset = -1
    while True:
        error, position, count, seen, payload = kernels.scan(
            stored, position, table, count, payload, start_offset, end_offset, True, len(stored)
        )
        next_offset = seen if seen >= 0 else next_offset
        if error != kernels.OK:
            raise CorruptDataError(f"no sound batch stands at position {position} of a piece")
        if count < len(table):
            return table[:count], int(position), int(next_offset)
        table = np.concatenate([table, np.empty_like(table)])


def visible_batches(table: Any, aborted: Sequence[Aborted], wanted: Wanted) -> Any:
    """A mask of the batches that are read."""
    attributes = table[:, kernels.ATTRIBUTES]
    is_control = attributes & CONTROL_FLAG != 0
    hidden = np.zeros(len(table), bool) if wanted.includes_control else is_control.copy()
    if wanted.timestamp_min is not None:
        hidden |= table[:, kernels.MAX_TIMESTAMP] < wanted.timestamp_min
    is_data = (attributes & TRANSACTIONAL_FLAG != 0) & ~is_control
    for each in aborted if is_data.any() else ():
        hidden |= (
            is_data
            & (table[:, kernels.PRODUCER_ID] == each.producer_id)
            & (table[:, kernels.BASE_OFFSET] >= each.first_offset)
            & (table[:, kernels.BASE_OFFSET] <= each.last_offset)
        )
    return ~hidden


def gathered(view: memoryview, table: Any, is_visible: Any) -> memoryview:
    """The visible batches one behind the other at the beginning of the same buffer."""
    end = 0
    for start, stop in table[is_visible][:, [kernels.POSITION, kernels.PAYLOAD_END]].tolist():
        if start != end:
            view[end : end + stop - start] = view[start:stop]
        end += stop - start
    return view[:end]


def check_crcs(view: memoryview, table: Any) -> None:
    """Of batches that nobody decodes: they decide what is shown, or how many there are."""
    for position, end in table[:, [kernels.POSITION, kernels.PAYLOAD_END]].tolist():
        with view[position:end] as batch:
            _, header = next(iter_headers(batch))
            if not crc_matches(batch, 0, header):
                raise CorruptDataError(f"the batch at offset {header.base_offset} fails its CRC")


def _problem(view: memoryview, at: int, header: Any) -> str | None:
    if header.batch_length < MIN_BATCH_LENGTH or at + header.size > len(view):
        return None
    if not crc_matches(view, at, header):
        return f"the batch of offsets {header.base_offset} to {header.last_offset} fails its CRC"
    try:
        decode_batches(view[at : at + header.size], columns=("offset", "key"), check_crcs=False)
    except CorruptDataError as error:
        return str(error)
    return None


def _rows_of(table: Any, offsets: pa.Array) -> Any:
    """How many of the records stand in each batch."""
    numbers = offsets.to_numpy()
    starts = np.searchsorted(numbers, table[:, kernels.BASE_OFFSET], "left")
    ends = np.searchsorted(numbers, table[:, kernels.LAST_OFFSET], "right")
    return ends - starts


def _next_piece(consumed: int, expanded: int) -> int:
    if expanded <= consumed or not consumed:
        return PIECE_BYTES
    return max(PIECE_BYTES_MIN, min(PIECE_BYTES, consumed * EXPANDED_BYTES // expanded))


assert PIECE_BYTES_MIN > HEADER_SIZE
