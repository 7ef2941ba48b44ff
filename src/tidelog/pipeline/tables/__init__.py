"""Tables that a stream appends to exactly once: Delta, plain Parquet and Iceberg, with packages from PyPI only.

`table` says what a table can do, `schemas` what a change of columns means, `files` has Spark write Parquet and reads the footers. One module for each format.
Whoever appends gives the name of the query and the number of the batch; a batch that is in the table already is not written again.
"""

from __future__ import annotations

from tidelog.pipeline.tables.table import (
    FORMATS,
    Compacted,
    SchemaChangeError,
    SchemaChanges,
    Staged,
    Table,
    TableError,
    TableFormat,
    TableSettings,
    Written,
    open_table,
)

__all__ = [
    "FORMATS",
    "Compacted",
    "SchemaChangeError",
    "SchemaChanges",
    "Staged",
    "Table",
    "TableError",
    "TableFormat",
    "TableSettings",
    "Written",
    "open_table",
]
