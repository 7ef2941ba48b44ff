"""The audit's results as tables: one for each kind of finding, and what the report is made of. Small, written anew as a whole each time."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidelog.pipeline.audit_checks import KINDS, Finding

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Results:
    paths: tuple[str, ...]
    findings: list[Finding]
    partitions: list[dict[str, Any]]
    """One for each replica of a partition."""
    hot_keys: list[dict[str, Any]]
    timeline: list[dict[str, Any]]


def _schemas() -> dict[str, pa.Schema]:
    import pyarrow as pa

    finding = pa.schema(
        [
            ("severity", pa.string()),
            ("replica", pa.string()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("segment", pa.string()),
            ("position", pa.int64()),
            ("first_offset", pa.int64()),
            ("end_offset", pa.int64()),
            ("what", pa.string()),
        ]
    )
    partition = [("replica", pa.string()), ("topic", pa.string()), ("partition", pa.int32())]
    numbers = (
        "segments",
        "batches",
        "records",
        "bytes",
        "log_start_offset",
        "high_watermark",
        "log_end_offset",
        "first_ms",
        "last_ms",
    )
    return {
        **dict.fromkeys(KINDS, finding),
        "partitions": pa.schema(
            [
                *partition,
                *((name, pa.int64()) for name in numbers),
                ("share", pa.float64()),
                ("times_average", pa.float64()),
            ]
        ),
        "hot_keys": pa.schema(
            [
                ("topic", pa.string()),
                ("rank", pa.int32()),
                ("key", pa.binary()),
                ("text", pa.string()),
                ("records", pa.int64()),
                ("share", pa.float64()),
                ("partition", pa.int32()),
                ("partitions", pa.int64()),
            ]
        ),
        "timeline": pa.schema(
            [
                ("topic", pa.string()),
                ("start_ms", pa.int64()),
                ("end_ms", pa.int64()),
                ("records", pa.int64()),
                ("bytes", pa.int64()),
            ]
        ),
    }


TABLES: Final = (*KINDS, "partitions", "hot_keys", "timeline")


def as_tables(results: Results) -> dict[str, pa.Table]:
    import pyarrow as pa

    rows: dict[str, list[dict[str, Any]]] = {
        kind: [each._asdict() for each in results.findings if each.kind == kind] for kind in KINDS
    }
    rows |= {"partitions": results.partitions, "hot_keys": results.hot_keys, "timeline": results.timeline}
    return {name: pa.Table.from_pylist(rows[name], schema=schema) for name, schema in _schemas().items()}


def write_tables(results: Results, directory: str, kind: str) -> None:
    """A directory for each, also where it has no rows."""
    for name, table in as_tables(results).items():
        path = os.path.join(directory, name)
        if kind == "delta":
            from deltalake import write_deltalake

            write_deltalake(path, table, mode="overwrite", schema_mode="overwrite")
            continue
        import pyarrow.parquet as parquet

        unfinished = path + ".new"
        shutil.rmtree(unfinished, ignore_errors=True)
        os.makedirs(unfinished)
        parquet.write_table(table, os.path.join(unfinished, "part-0.parquet"), compression="zstd")
        shutil.rmtree(path, ignore_errors=True)
        os.rename(unfinished, path)
