"""The records that Spark's sources are measured with: the same rows in a topic, in a copy of its segment files, and in Parquet.

Values are half noise and half not, so that a codec has something to do and something to gain. Batches are 256 KiB before compression, as a tuned producer makes them. The segments are those of a broker that was
stopped, as a backup has them; they are hard links, so that they are in the page cache as often as the broker's own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench.spark_plan import PARTITIONS
from tools.peers.process import Peer

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES: Final = 256 << 10
PIECE_BYTES: Final = 64 << 20


class Data(NamedTuple):
    size: int
    codec: str
    rows: int
    topic: str
    parquet: Path
    segments: Path


NO_DATA: Final = Data(0, "none", 0, "", Path(), Path())
"""For what reads a topic of its own."""


def topic_name(size: int, codec: str) -> str:
    return f"rows-{size}-{codec}"


def make(peer: Peer, folder: Path, counts: dict[tuple[int, str], int]) -> dict[tuple[int, str], Data]:
    """For sizes and codecs so many records each, everything that is read, and a broker that has just been started with it."""
    made = {}
    for (size, codec), count in counts.items():
        name = topic_name(size, codec)
        parquet = folder / f"{name}.parquet"
        parquet.mkdir()
        asyncio.run(_write(peer.bootstrap, name, codec, size, count, parquet))
        made[size, codec] = Data(size, codec, count, name, parquet, folder / "segments")
    peer.terminate()
    shutil.copytree(peer.log_dir, folder / "segments", copy_function=os.link)
    peer.start()
    return made


async def _write(servers: str, topic: str, codec: str, size: int, count: int, parquet: Path) -> None:
    import pyarrow.parquet as pq

    from tidelog.client import Producer

    await make_topic(servers, topic)
    async with Producer(servers, compression_type=codec, max_request_size=BATCH_BYTES) as producer:
        for partition in range(PARTITIONS):
            offset, writer = 0, None
            for values in some_values(partition, size, count // PARTITIONS):
                await (await producer.send_arrow(topic, values, partition=partition))
                rows = rows_of(values, topic, partition, offset)
                writer = writer or pq.ParquetWriter(
                    parquet / f"{partition}.parquet", rows.schema, compression=codec, use_dictionary=["topic"]
                )
                writer.write_batch(rows)
                offset += values.num_rows
            if writer is not None:
                writer.close()


async def make_topic(servers: str, name: str) -> None:
    from tidelog.client import NewTopic
    from tidelog.client.admin import Admin

    async with Admin(servers) as admin:
        await admin.create_topics([NewTopic(name, PARTITIONS, 1, {})])


async def delete_topic(servers: str, name: str) -> None:
    from tidelog.client.admin import Admin

    async with Admin(servers) as admin:
        await admin.delete_topics([name])


def some_values(seed: int, size: int, count: int) -> Iterator[pa.RecordBatch]:
    import numpy as np
    import pyarrow as pa

    chance = np.random.default_rng(seed)
    rows_max = max(1, PIECE_BYTES // size)
    for first in range(0, count, rows_max):
        rows = min(rows_max, count - first)
        data = np.full((rows, size), ord("."), np.uint8)
        data[:, : size // 2] = chance.integers(0, 256, (rows, size // 2), np.uint8)
        ends = np.arange(rows + 1, dtype=np.int32) * size
        values = pa.Array.from_buffers(
            pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data.reshape(-1))]
        )
        yield pa.RecordBatch.from_arrays([values], names=["value"])


def rows_of(values: pa.RecordBatch, topic: str, partition: int, offset: int) -> Any:
    """As the source has them."""
    import numpy as np
    import pyarrow as pa

    count = values.num_rows
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.nulls(count, pa.binary()),
            "value": values.column(0),
            "topic": pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [topic]).dictionary_decode(),
            "partition": pa.array(np.full(count, partition, np.int32)),
            "offset": pa.array(np.arange(offset, offset + count, dtype=np.int64)),
            "timestamp": pa.array(np.full(count, 1_700_000_000_000_000), pa.timestamp("us", tz="UTC")),
            "timestampType": pa.array(np.zeros(count, np.int32)),
        }
    )
