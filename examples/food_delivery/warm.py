"""What decodes and encodes records by the column is compiled at its first use and kept: done once here, while Spark starts, not by every process of Spark at its first batch.

Matters on the first run in a new clone only. Goes the way of all records: from a producer through a broker (in this process, on a free port) to a consumer.
"""

from __future__ import annotations

import asyncio

import pyarrow as pa

from tidelog.client import Consumer, Producer, TopicPartition
from tidelog.testing import Cluster

SECONDS_MAX = 120.0


async def main() -> None:
    rows = pa.table(
        {
            "key": pa.array([b"1", None, b"3"], pa.binary()),
            "value": pa.array([b"a", b"b", None], pa.binary()),
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}], [], None],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    columns = ["key", "value", "headers", "timestamp"]
    async with Cluster(topics={"warm": 2}) as cluster, asyncio.timeout(SECONDS_MAX):
        async with Producer(cluster.bootstrap_servers) as producer:
            await (await producer.send_arrow("warm", rows, key="key", headers="headers"))
        async with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("warm", 0), TopicPartition("warm", 1)])
            seen = 0
            while seen < rows.num_rows:
                seen += (await consumer.poll_arrow(columns=columns)).num_rows


if __name__ == "__main__":
    asyncio.run(main())
