"""Logs written by the broker's own storage code, with transactions, and what a reader of each kind must see of them, in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from tidelog.records.batch import read_header
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.control import build_end_transaction_marker
from tidelog.records.record import Record
from tidelog.spark.filters import Narrowing
from tidelog.spark.segments.errors import Harm
from tidelog.spark.segments.options import SegmentOptions
from tidelog.spark.segments.pieces import Wanted, read_stretch
from tidelog.spark.segments.reader import plan_tasks
from tidelog.storage import checkpoints, files
from tidelog.storage.log_config import LogConfig
from tidelog.storage.posix_disk import PosixDisk
from tidelog.storage.recovery import open_log

NOW_MS = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=900, index_interval_bytes=150)
INDEXED_SELDOM = LogConfig(segment_bytes=1800, index_interval_bytes=400)
"""Several batches stand behind the last entry of an index."""


class Stored(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class _Batch(NamedTuple):
    first_offset: int
    last_offset: int
    records: tuple[Stored, ...]
    producer_id: int
    is_transactional: bool
    commits: bool | None  # of a marker


class LogMaker:
    """One partition of a data directory."""

    def __init__(
        self, data_dir: Path, topic: str = "orders", partition: int = 0, config: LogConfig = SMALL
    ) -> None:
        self.data_dir, self.topic, self.partition = data_dir, topic, partition
        self.disk = PosixDisk(max_open_files=64)
        self.directory = data_dir / f"{topic}-{partition}"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log = open_log(self.disk, str(self.directory), topic, partition, config=config, now_ms=NOW_MS)
        self.epoch = 0
        self._batches: list[_Batch] = []
        self._sequences: dict[int, int] = {}

    @property
    def end(self) -> int:
        return self.log.log_end_offset

    def data(
        self,
        timestamps: Sequence[int] = (NOW_MS,),
        *,
        producer_id: int = -1,
        transactional: bool = False,
        codec: Codec = Codec.NONE,
        value_bytes: int = 20,
        key: bytes | None = b"key",
    ) -> None:
        first = self.end
        stored = tuple(
            Stored(first + n, each, key, b"%d" % (first + n) + b"v" * value_bytes)
            for n, each in enumerate(timestamps)
        )
        sequence = self._sequences.get(producer_id, 0) if producer_id >= 0 else -1
        batch = build_batch(
            [Record(each.offset, each.timestamp, each.key, each.value) for each in stored],
            base_offset=first,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            is_transactional=transactional,
            codec=codec,
        )
        self._append(batch)
        if producer_id >= 0:
            self._sequences[producer_id] = sequence + len(stored)
        self._batches.append(_Batch(first, first + len(stored) - 1, stored, producer_id, transactional, None))

    def marker(self, producer_id: int, *, commit: bool) -> None:
        offset = self.end
        self._append(
            build_end_transaction_marker(
                commit=commit,
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=NOW_MS,
            )
        )
        self._batches.append(_Batch(offset, offset, (), producer_id, True, commit))

    def _append(self, batch: bytes) -> None:
        self.log.append_as_leader(batch, read_header(batch), leader_epoch=self.epoch, now_ms=NOW_MS)

    def roll(self) -> None:
        if self.log.active.size:
            self.log.roll(NOW_MS)

    def stop(
        self, *, high_watermark: int | None = None, log_start: int | None = None, cleanly: bool = True
    ) -> None:
        """Write the directory's checkpoints and let go of the files, as a broker does."""
        self.log.close_cleanly() if cleanly else self.log.close()
        water = self.end if high_watermark is None else high_watermark
        self._checkpoint(files.HIGH_WATERMARK_CHECKPOINT, water)
        if log_start is not None:
            self._checkpoint(files.LOG_START_OFFSET_CHECKPOINT, log_start)
        if cleanly:
            (self.data_dir / files.CLEAN_SHUTDOWN).write_bytes(checkpoints.encode_clean_shutdown(1))

    def _checkpoint(self, name: str, offset: int) -> None:
        path = self.data_dir / name
        known = checkpoints.read_offsets(self.disk, str(path)) or {}
        path.write_bytes(checkpoints.encode_offsets({**known, (self.topic, self.partition): offset}))

    # ---- the model

    def visible(
        self, *, high_watermark: int | None = None, start: int = 0, committed: bool = False
    ) -> list[Stored]:
        """What a reader sees, reckoned from what was appended."""
        water = self.end if high_watermark is None else high_watermark
        there = [each for each in self._batches if each.last_offset < water]
        end, hidden = water, set()
        if committed:
            open_since: dict[int, int] = {}
            members: dict[int, list[int]] = {}
            for number, each in enumerate(there):
                if each.commits is not None:
                    open_since.pop(each.producer_id, None)
                    done = members.pop(each.producer_id, [])
                    if not each.commits:
                        hidden.update(done)
                elif each.is_transactional:
                    open_since.setdefault(each.producer_id, each.first_offset)
                    members.setdefault(each.producer_id, []).append(number)
            end = min([water, *open_since.values()])
        return [
            record
            for number, each in enumerate(there)
            if number not in hidden
            for record in each.records
            if start <= record.offset < end
        ]


def table(
    paths: Path | Iterable[Path],
    *,
    narrowing: Narrowing | None = None,
    columns: tuple[str, ...] = ("offset", "timestamp", "key", "value"),
    harms: list[Harm] | None = None,
    **options: str,
) -> pa.Table:
    """What the source reads, without Spark."""
    named = [paths] if isinstance(paths, Path) else list(paths)
    parsed = SegmentOptions.parse({"path": ",".join(map(str, named)), **options})
    narrowing = narrowing or Narrowing()
    wanted = Wanted(columns, timestamp_min=narrowing.not_before_ms)
    batches = [
        piece.records
        for task in plan_tasks(parsed, narrowing)
        for stretch in task
        for piece in read_stretch(stretch, wanted, on_harm=None if harms is None else harms.append)
    ]
    return pa.Table.from_batches([each for each in batches if each is not None]) if batches else pa.table({})


def records(paths: Path | Iterable[Path], **options: str) -> list[Stored]:
    """The same as values, by offset."""
    return rows_of(table(paths, **options))


def rows_of(found: pa.Table) -> list[Stored]:
    rows = [
        Stored(row["offset"], round(row["timestamp"].timestamp() * 1000), row["key"], row["value"])
        for row in found.to_pylist()
    ]
    return sorted(rows)


def flipped(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def segment_paths(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))
