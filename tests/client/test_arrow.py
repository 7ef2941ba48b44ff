"""Tables in and out, against a broker: what goes in by the column comes out by the record, and the other way round."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.client.producer.test_producer import everything, make_topic
from tidelog.client import Consumer, Producer, TopicPartition, scan
from tidelog.client.partitioner import partition_for_key
from tidelog.client.scanning import scan_table
from tidelog.records.columnar_encode import Payload, encode_rows


def orders(count: int) -> pa.Table:
    return pa.table(
        {
            "customer": [f"customer {n % 50}" for n in range(count)],
            "order": [b"order %d" % n for n in range(count)],
            "at": pa.array([1_700_000_000_000 + n for n in range(count)], pa.timestamp("ms", tz="UTC")),
        }
    )


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
async def test_rows_are_records_where_keys_belong(bootstrap: str, topic_name: str, codec: str) -> None:
    await make_topic(bootstrap, topic_name, 3)
    table = orders(5_000)
    async with Producer(bootstrap, compression_type=codec) as producer:
        delivery = await producer.send_arrow(topic_name, table, key="customer", value="order", timestamp="at")
        places = await delivery
    assert delivery.rows == sum(place.rows for place in places) == 5_000
    found = await everything(bootstrap, topic_name, 5_000)
    for partition, records in found.items():
        mine = [n for n in range(5_000) if partition_for_key(b"customer %d" % (n % 50), 3) == partition]
        assert [(key, value) for _, key, value in records] == [
            (b"customer %d" % (n % 50), b"order %d" % n) for n in mine
        ]


async def test_rows_without_keys_partitions_by_name_and_by_number(bootstrap: str, topic_name: str) -> None:
    await make_topic(bootstrap, topic_name, 3)
    table = orders(9).append_column("p", pa.array([0, 1, 2] * 3))
    async with Producer(bootstrap) as producer:
        await (await producer.send_arrow(topic_name, table, value="order", partition="p"))
        await (await producer.send_arrow(topic_name, table.to_batches()[0], value="order", partition=2))
        await (await producer.send_arrow(topic_name, table.to_reader(), value="order"))
        with pytest.raises(TypeError, match="send_arrow takes Arrow data"):
            await producer.send_arrow(topic_name, [1, 2])
    found = await everything(bootstrap, topic_name, 27)
    assert sum(map(len, found.values())) == 27 and len(found[2]) >= 12


async def test_keys_decide_for_rows_that_name_no_partition(bootstrap: str, topic_name: str) -> None:
    await make_topic(bootstrap, topic_name, 3)
    table = orders(300).append_column("p", pa.array([2, None, None] * 100, pa.int32()))
    async with Producer(bootstrap) as producer:
        await (await producer.send_arrow(topic_name, table, key="customer", value="order", partition="p"))
    found = await everything(bootstrap, topic_name, 300)
    for partition, records in found.items():
        assert [value for _, _, value in records] == [
            b"order %d" % n
            for n in range(300)
            if (2 if n % 3 == 0 else partition_for_key(b"customer %d" % (n % 50), 3)) == partition
        ]


async def test_polled_tables_hold_what_was_sent(bootstrap: str, topic_name: str) -> None:
    await make_topic(bootstrap, topic_name, 2)
    async with Producer(bootstrap) as producer:
        for n in range(1_000):
            await producer.send(
                topic_name,
                b"%d" % n,
                key=b"k%d" % n,
                headers=(("h", b"1"),),
                timestamp_ms=1_700_000_000_000 + n,
            )
    parts: list[pa.RecordBatch] = []
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(TopicPartition(topic_name, p) for p in (0, 1))
        async with asyncio.timeout(20):
            while sum(part.num_rows for part in parts) < 1_000:
                parts.append(
                    await consumer.poll_arrow(
                        columns=("topic", "partition", "offset", "timestamp", "key", "value", "headers")
                    )
                )
        assert (await consumer.poll_arrow(timeout_ms=50)).num_rows == 0
        assert (
            await consumer.position(TopicPartition(topic_name, 0))
            + await consumer.position(TopicPartition(topic_name, 1))
            == 1_000
        )
    rows = pa.Table.from_batches([part for part in parts if part.num_rows]).to_pylist()
    assert sorted(int(row["value"]) for row in rows) == list(range(1_000))
    for row in rows:
        n = int(row["value"])
        assert row["topic"] == topic_name and row["partition"] == partition_for_key(b"k%d" % n, 2)
        assert row["key"] == b"k%d" % n and row["headers"] == [{"key": "h", "value": b"1"}]
        assert row["timestamp"].timestamp() == pytest.approx(1_700_000_000 + n / 1000)


async def test_a_scan_ends_by_itself_and_begins_and_ends_where_it_is_told(
    bootstrap: str, topic_name: str
) -> None:
    await make_topic(bootstrap, topic_name, 2)
    async with Producer(bootstrap, batch_size=300) as producer:
        for n in range(200):
            await producer.send(topic_name, b"%d" % n, partition=n % 2, timestamp_ms=1_700_000_000_000 + n)

    async def values(**edges: object) -> list[int]:
        found = [batch async for batch in scan(bootstrap, topic_name, columns=("value",), **edges)]  # type: ignore[arg-type]
        return sorted(int(value) for batch in found for value in batch.column(0).to_pylist())

    async with asyncio.timeout(30):
        assert await values() == list(range(200))
        assert await values(start=1_700_000_000_000 + 150) == list(range(150, 200))
        assert await values(end=1_700_000_000_000 + 20) == list(range(20))
        first, second = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
        assert await values(start={first: 3, second: 98}, end={first: 5, second: 100}) == [6, 8, 197, 199]
        assert await values(start="latest") == []
        assert await values(partitions=[1], end={second: 2}) == [1, 3]
        with pytest.raises(ValueError, match="earliest"):
            await values(start="soon")


async def test_a_scan_as_one_table(bootstrap: str, topic_name: str) -> None:
    await make_topic(bootstrap, topic_name, 2)
    async with Producer(bootstrap) as producer:
        await (await producer.send_arrow(topic_name, orders(1_000), key="customer", value="order"))
    table = await asyncio.to_thread(
        scan_table, bootstrap, topic_name, columns=("partition", "offset", "value")
    )
    assert table.num_rows == 1_000 and table.schema.names == ["partition", "offset", "value"]
    empty = await asyncio.to_thread(scan_table, bootstrap, topic_name, start="latest")
    assert empty.num_rows == 0


@pytest.mark.parametrize("codec", ["none", "lz4"])
async def test_only_what_is_compressed_is_encoded_in_a_thread(
    bootstrap: str, topic_name: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encoding takes less than to hand it over; compressing would hold up everybody else on the loop."""
    threads = set()

    def noted(*arguments: object, **named: object) -> Iterator[Payload]:
        for payload in encode_rows(*arguments, **named):  # type: ignore[arg-type]
            threads.add(threading.get_ident())
            yield payload

    await make_topic(bootstrap, topic_name, 1)
    table = orders(100)
    async with Producer(bootstrap, compression_type=codec) as producer:
        await (await producer.send_arrow(topic_name, table, value="order"))  # the kernels are loaded
        monkeypatch.setattr("tidelog.client.producer.arrow.encode_rows", noted)
        await (await producer.send_arrow(topic_name, table, value="order"))
    assert len(threads) == 1
    assert (threads == {threading.get_ident()}) is (codec == "none")
