"""A topic, or a part of it, as Arrow tables: for backfills, notebooks, and whoever wants columns and no group."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from tidelog.client.consumer.consumer import Consumer

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.client.consumer.arrow import Edge

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")


async def scan(
    bootstrap_servers: str | Iterable[str],
    topic: str,
    *,
    start: Edge = "earliest",
    end: Edge = "latest",
    partitions: Iterable[int] | None = None,
    columns: Sequence[str] = COLUMNS,
    **options: Any,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Records from `start` to `end` (exclusive), partition by partition in order, as Arrow RecordBatches. Ends by itself.

    Edges are "earliest", "latest" (as of now), a time in ms, or an offset for each partition. Options are the consumer's.
    """
    from tidelog.client.consumer.arrow import scan as scan_with

    chosen = {"enable_auto_commit": False, "max_partition_fetch_bytes": 8 << 20, **options}
    async with Consumer(bootstrap_servers, **chosen) as consumer:
        batches = scan_with(consumer, topic, start=start, end=end, partitions=partitions, columns=columns)
        async with aclosing(batches):
            async for batch in batches:
                yield batch


def scan_table(bootstrap_servers: str | Iterable[str], topic: str, **options: Any) -> pa.Table:
    """All of it as one table, for programs without an event loop. It must fit into memory."""
    import asyncio

    import pyarrow as pa

    from tidelog.client.consumer.arrow import schema_of

    async def collect() -> list[pa.RecordBatch]:
        return [batch async for batch in scan(bootstrap_servers, topic, **options)]

    return pa.Table.from_batches(asyncio.run(collect()), schema=schema_of(options.get("columns", COLUMNS)))
