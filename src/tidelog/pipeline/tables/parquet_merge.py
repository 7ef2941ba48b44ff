"""One Parquet file from many, a few thousand rows in memory at a time, for each folder of partition values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

ROWS_AT_A_TIME: Final = 20_000
FILE_BYTES_TARGET: Final = 256 << 20


def merge_files(directories: Sequence[str], target: str) -> tuple[int, int]:
    """Rows of all files below the directories, in that order, to `target`. Returns how many files there were and are."""
    by_folder: dict[str, list[str]] = {}
    for directory in directories:
        for folder, _, names in os.walk(directory):
            for name in sorted(names):
                by_folder.setdefault(os.path.relpath(folder, directory), []).append(
                    os.path.join(folder, name)
                )
    written = 0
    for folder, paths in sorted(by_folder.items()):
        made = os.path.normpath(os.path.join(target, folder))
        os.makedirs(made, exist_ok=True)
        written += _merge(paths, made)
    return sum(map(len, by_folder.values())), written


def _merge(paths: Sequence[str], folder: str) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # The newest file has all columns: no column ever leaves a table, and none changes its type.
    schemas = [pq.read_schema(path) for path in paths]
    schema = max(schemas, key=lambda each: (_leaves(each), schemas.index(each)))
    number, writer = 0, None
    try:
        for path in paths:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(ROWS_AT_A_TIME):
                    if writer is None:
                        writer = pq.ParquetWriter(_file(folder, number), schema)
                        number += 1
                    writer.write_table(_aligned(pa.Table.from_batches([batch]), schema))
            if writer is not None and os.path.getsize(_file(folder, number - 1)) >= FILE_BYTES_TARGET:
                writer.close()
                writer = None
    finally:
        if writer is not None:
            writer.close()
    for each in range(number):
        _sync(_file(folder, each))
    _sync(folder)
    return number


def _file(folder: str, number: int) -> str:
    return os.path.join(folder, f"merged-{number:05d}.parquet")


def _leaves(schema: Any) -> int:
    return sum(_type_leaves(field.type) for field in schema)


def _type_leaves(kind: Any) -> int:
    inner = [kind.field(index).type for index in range(kind.num_fields)]
    return sum(map(_type_leaves, inner)) if inner else 1


def _aligned(table: Any, schema: Any) -> Any:
    import pyarrow as pa

    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
        elif table.schema.field(field.name).type == field.type:
            columns.append(table.column(field.name))
        else:
            columns.append(table.column(field.name).cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
