"""One segment looked at closely: every batch with what its header says, what is damaged, and whether the indexes agree.

For the audit, in tasks of their own: a table of a row for each batch, small beside the segment, and findings. Reads as `pieces` does and checks the CRC of every batch; what is not sound is
named and passed over. Never writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.errors import CorruptDataError
from tidelog.records import columnar_kernels as kernels
from tidelog.records.batch import CODEC_MASK, CONTROL_FLAG, DELETE_HORIZON_FLAG, TRANSACTIONAL_FLAG
from tidelog.spark.segments.errors import Harm
from tidelog.spark.segments.pieces import Piece, Reading, Wanted, check_crcs, open_stretch, scan
from tidelog.spark.segments.plan import Stretch
from tidelog.spark.segments.stored import NO_LIMIT
from tidelog.storage import files
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.posix_disk import PosixDisk
from tidelog.storage.time_index import TimeIndex

BATCH_SCHEMA: Final = pa.schema(
    [
        pa.field("segment", pa.string()),
        pa.field("position", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("base_offset", pa.int64()),
        pa.field("last_offset", pa.int64()),
        pa.field("records", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int32()),
        pa.field("base_sequence", pa.int32()),
        pa.field("base_timestamp", pa.int64()),
        pa.field("max_timestamp", pa.int64()),
        pa.field("crc", pa.int64()),
        pa.field("codec", pa.int32()),
        pa.field("is_transactional", pa.bool_()),
        pa.field("is_control", pa.bool_()),
        pa.field("has_delete_horizon", pa.bool_()),
    ]
)
_CRC: Final = kernels.TABLE_WIDTH  # columns behind those of the kernels
_SEQUENCE: Final = kernels.TABLE_WIDTH + 1
_INDEX_PROBLEMS_MAX: Final = 20


class IndexProblem(NamedTuple):
    path: str
    problem: str
    position: int | None
    offset: int | None


class Inspection(NamedTuple):
    batches: pa.RecordBatch
    harms: list[Harm]
    index_problems: list[IndexProblem]


class _Inspecting(Reading):
    """The same pieces, as tables of batches instead of records."""

    def decode(self, view: memoryview) -> Piece | None:
        stretch = self.stretch
        table, consumed, next_offset = scan(view, stretch.start_offset, stretch.end_offset)
        check_crcs(view, table)
        if not consumed and next_offset < stretch.end_offset:
            return None
        stored = np.frombuffer(view, np.uint8)
        at = table[:, kernels.POSITION]
        more = np.stack([_big_endian(stored, at + 17), _big_endian(stored, at + 53)], axis=1)
        found = np.concatenate([table, more], axis=1)
        found[:, kernels.POSITION] += self.position
        found[:, kernels.PAYLOAD_END] += self.position
        self.position += consumed
        self.next_offset = max(next_offset, self.next_offset)
        return Piece(None, len(found), consumed, found)


def _big_endian(stored: Any, at: Any) -> Any:
    """Four unsigned bytes at each of these places."""
    numbers = np.zeros(len(at), np.int64)
    for index in range(4):
        numbers = numbers << 8 | stored[at + index].astype(np.int64)
    return numbers


def inspect_segment(stretch: Stretch, *, base_offset: int, end_offset: int) -> Inspection:
    """All of a file, which should hold offsets [base_offset, end_offset)."""
    harms: list[Harm] = []
    disk = PosixDisk(max_open_files=8, read_only=True)
    file = open_stretch(disk, stretch)
    try:
        reading = _Inspecting(file, stretch, Wanted(()), harms.append, bytearray())
        tables = [piece.batches for piece in reading.pieces()]
    finally:
        file.unpin()
        file.close()
    table = np.concatenate(tables) if tables else np.empty((0, _SEQUENCE + 1), np.int64)
    harms = [
        harm._replace(
            first_offset=max(harm.first_offset, base_offset),
            end_offset=max(base_offset, min(harm.end_offset, end_offset)),
        )
        for harm in harms
    ]
    problems = list(_index_problems(disk, stretch, base_offset, table, harms))
    return Inspection(_as_arrow(stretch.path, table), harms, problems)


def _as_arrow(path: str, table: Any) -> pa.RecordBatch:
    attributes = table[:, kernels.ATTRIBUTES]
    sequence = table[:, _SEQUENCE].astype(np.uint32).astype(np.int32)
    columns: dict[str, Any] = {
        "segment": pa.repeat(path, len(table)),
        "position": table[:, kernels.POSITION],
        "size": table[:, kernels.PAYLOAD_END] - table[:, kernels.POSITION],
        "base_offset": table[:, kernels.BASE_OFFSET],
        "last_offset": table[:, kernels.LAST_OFFSET],
        "records": table[:, kernels.RECORD_COUNT],
        "leader_epoch": table[:, kernels.LEADER_EPOCH].astype(np.int32),
        "producer_id": table[:, kernels.PRODUCER_ID],
        "producer_epoch": table[:, kernels.PRODUCER_EPOCH].astype(np.int32),
        "base_sequence": sequence,
        "base_timestamp": table[:, kernels.BASE_TIMESTAMP],
        "max_timestamp": table[:, kernels.MAX_TIMESTAMP],
        "crc": table[:, _CRC],
        "codec": (attributes & CODEC_MASK).astype(np.int32),
        "is_transactional": attributes & TRANSACTIONAL_FLAG != 0,
        "is_control": attributes & CONTROL_FLAG != 0,
        "has_delete_horizon": attributes & DELETE_HORIZON_FLAG != 0,
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in BATCH_SCHEMA], schema=BATCH_SCHEMA
    )


# ---- indexes


def _index_problems(
    disk: PosixDisk, stretch: Stretch, base_offset: int, table: Any, harms: list[Harm]
) -> Iterator[IndexProblem]:
    """What an index says and the log does not. Entries of batches that are damaged are not blamed, nor is a file that is not there."""
    directory = files.parent(stretch.path)
    for kind, check in ((files.INDEX, _offset_problems), (files.TIME_INDEX, _time_problems)):
        path = files.segment_path(directory, base_offset, kind)
        if not disk.exists(path):
            continue
        file = disk.open(path)
        try:
            index = (OffsetIndex if kind == files.INDEX else TimeIndex)(file, base_offset, NO_LIMIT)
            index.check(deep=True)
            entries = np.array(list(index), np.int64).reshape(-1, 2)
        except CorruptDataError as error:
            yield IndexProblem(path, str(error).removeprefix(path).lstrip(": "), None, None)
            continue
        finally:
            file.close()
        yield from (
            IndexProblem(path, problem, position, offset)
            for problem, position, offset in check(entries, table, harms)[:_INDEX_PROBLEMS_MAX]
        )


_Problem = tuple[str, int | None, int | None]


def _offset_problems(entries: Any, table: Any, harms: list[Harm]) -> list[_Problem]:
    """Each entry points at the first byte of a batch that holds its offset, or that was appended together with the one that does."""
    found: list[_Problem] = []
    positions = table[:, kernels.POSITION]
    places = np.searchsorted(positions, entries[:, 1])
    for (offset, position), place in zip(entries.tolist(), places.tolist(), strict=True):
        if any(harm.position <= position < harm.position + harm.length for harm in harms):
            continue
        if place == len(positions) or positions[place] != position:
            found.append(("the entry points at no batch", position, offset))
        elif table[place, kernels.BASE_OFFSET] > offset:
            found.append(("the entry points at a batch that begins later", position, offset))
    return found


def _time_problems(entries: Any, table: Any, harms: list[Harm]) -> list[_Problem]:
    """Each entry names the last offset of a batch whose largest timestamp is the entry's, and the largest so far."""
    found: list[_Problem] = []
    lasts, times = table[:, kernels.LAST_OFFSET], table[:, kernels.MAX_TIMESTAMP]
    if (np.diff(lasts) <= 0).any():  # offsets that do not rise are a finding of their own
        return found
    largest = np.maximum.accumulate(times) if len(times) else times
    places = np.searchsorted(lasts, entries[:, 1])
    for (timestamp, offset), place in zip(entries.tolist(), places.tolist(), strict=True):
        if any(harm.first_offset <= offset < harm.end_offset for harm in harms):
            continue
        if place == len(lasts):
            found.append((f"the entry of time {timestamp} lies behind the log", None, offset))
        elif times[place] != timestamp:
            found.append(
                (
                    f"the entry says time {timestamp}, the batch there has {times[place]} as its latest",
                    None,
                    offset,
                )
            )
        elif largest[place] > timestamp:
            found.append((f"records before the entry of time {timestamp} are later", None, offset))
    return found
