"""One row per key, the latest. Pure, on Arrow tables.

Within a partition the offset decides. Between partitions there is no order in a log; a key is in two of them after their number was raised, and then the later timestamp
decides, as the best there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

DELETED: Final = "__deleted"
TOPIC: Final = "__topic"
PARTITION: Final = "__partition"
OFFSET: Final = "__offset"
TIMESTAMP: Final = "__timestamp"
POSITION: Final = (TIMESTAMP, TOPIC, PARTITION)
_ROW: Final = "__row"


def latest_of_partitions(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Of rows that are the latest of their partition, those that are the latest of all."""
    import pyarrow as pa

    if rows.num_rows < 2:
        return rows
    numbered = rows.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    ordered = numbered.sort_by([(name, "ascending") for name in POSITION]).select([*key, _ROW])
    last = ordered.group_by(list(key), use_threads=False).aggregate([(_ROW, "last")])
    if last.num_rows == rows.num_rows:
        return rows
    return rows.take(last[f"{_ROW}_last"])
