"""`tidelog log export`: the records of segment files as one Arrow or Parquet file.

Reads as `format("tidelog")` with a path does (`spark/segments/pieces`), which takes whole pieces of a segment at a time: a table of millions of
rows is there in seconds. Needs the `arrow` extra, no Spark. Files are never changed; markers of transactions are left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.cli.boundary import CommandError
from tidelog.client.metadata import TopicPartition
from tidelog.storage import files

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("offset", "timestamp", "key", "value", "headers")


class Source(NamedTuple):
    """One segment file, and whose it is."""

    path: str
    topic: str
    partition: int


def sources(paths: Sequence[str]) -> list[Source]:
    """The segments named: files, partition directories, or a whole data directory."""
    found: list[Source] = []
    for path in paths:
        found += _segments(os.path.normpath(path))
    if not found:
        raise CommandError(
            f"no segments in {', '.join(paths)}; give a data directory, a partition's directory or .log files"
        )
    return found


def _segments(path: str) -> list[Source]:
    if os.path.isfile(path):
        directory = files.parse_partition_dir(files.base_name(files.parent(os.path.abspath(path))))
        topic, partition = (directory.topic, directory.partition) if directory is not None else ("", -1)
        return [Source(path, topic, partition)]
    if not os.path.isdir(path):
        raise CommandError(f"{path} is not there")
    directory = files.parse_partition_dir(files.base_name(os.path.abspath(path)))
    if directory is not None:
        return [
            Source(files.join(path, name), directory.topic, directory.partition)
            for name in sorted(os.listdir(path))
            if (parsed := files.parse_segment_name(name)) is not None
            and parsed.kind == files.LOG
            and not parsed.suffix
        ]
    partitions = [name for name in sorted(os.listdir(path)) if _is_user_partition(name)]
    return [source for name in partitions for source in _segments(files.join(path, name))]


def _is_user_partition(name: str) -> bool:
    parsed = files.parse_partition_dir(name)
    return parsed is not None and not parsed.suffix and not parsed.topic.startswith("__")


def export(
    segments: Sequence[Source], target: str, *, on_progress: Callable[[int, int], None] | None = None
) -> int:
    """Write all records to `target` (.parquet or .arrow); returns how many. `on_progress` gets bytes done and in all."""
    if not target.endswith((".parquet", ".arrow")):
        raise CommandError(
            f"{target}: the name must end in .parquet or .arrow, which also chooses the format"
        )
    try:
        import pyarrow  # noqa: F401

        from tidelog.records import columnar  # noqa: F401
    except ModuleNotFoundError as error:
        raise CommandError(
            f"export needs {error.name}, which is not installed: pip install 'tidelog[arrow]'"
        ) from None
    total = sum(os.path.getsize(segment.path) for segment in segments)
    rows = done = 0
    unfinished = target + ".tmp"
    try:
        with _writer(unfinished, target) as writer:
            for segment, following in pairwise([*segments, None]):
                assert segment is not None
                is_sealed = following is not None and segment[1:] == following[1:]
                for batch, consumed in _read(segment, is_sealed=is_sealed):
                    writer.write_batch(batch)
                    rows += batch.num_rows
                    done += consumed
                    if on_progress is not None:
                        on_progress(done, total)
    except BaseException:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
        raise
    os.replace(unfinished, target)
    return rows


def _schema() -> pa.Schema:
    import pyarrow as pa

    from tidelog.records.columnar import COLUMN_TYPES

    fields = [pa.field("topic", pa.string()), pa.field("partition", pa.int32())]
    return pa.schema(fields + [pa.field(name, COLUMN_TYPES[name]) for name in COLUMNS])


def _writer(path: str, target: str) -> AbstractContextManager[Any]:
    import pyarrow as pa

    if target.endswith(".parquet"):
        import pyarrow.parquet as parquet

        writer: AbstractContextManager[Any] = parquet.ParquetWriter(path, _schema(), compression="zstd")
        return writer
    arrow_writer: AbstractContextManager[Any] = pa.ipc.new_file(path, _schema())
    return arrow_writer


def _read(segment: Source, *, is_sealed: bool) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Pieces of a segment as record batches, each with the bytes it came from.

    A torn tail is left out, but not where another segment follows: there it is damage, and hides whole batches.
    """
    import pyarrow as pa

    from tidelog.records.record import INT64_MAX
    from tidelog.spark.segments.errors import DamagedSegmentError
    from tidelog.spark.segments.pieces import Wanted, read_stretch
    from tidelog.spark.segments.plan import Stretch

    schema = _schema()
    size = os.path.getsize(segment.path)
    tp = TopicPartition(segment.topic, segment.partition)
    whole = Stretch(tp, segment.path, size, is_sealed, 0, size, 0, INT64_MAX, may_be_torn=not is_sealed)
    try:
        for piece in read_stretch(whole, Wanted(COLUMNS)):
            assert piece.records is not None
            columns = [
                pa.repeat(segment.topic, piece.rows),
                pa.repeat(pa.scalar(segment.partition, pa.int32()), piece.rows),
            ]
            yield (
                pa.RecordBatch.from_arrays(columns + piece.records.columns, schema=schema),
                piece.read_bytes,
            )
    except DamagedSegmentError as error:
        raise CommandError(
            f"{error.harm}; `tidelog log verify {files.parent(segment.path)}` shows what is damaged"
        ) from None
