"""Data frames in and out: what Polars and pandas have goes over Arrow's C interfaces, without a conversion of ours."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tests.client.producer.test_producer import everything, make_topic
from tidelog.client import Consumer, Producer, TopicPartition, scan
from tidelog.client.partitioner import partition_for_key
from tidelog.client.scanning import scan_table

ROWS = 1_000
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def polars() -> Any:
    return pytest.importorskip("polars")


def pandas() -> Any:
    return pytest.importorskip("pandas")


def columns() -> dict[str, list[Any]]:
    return {
        "customer": [f"customer {n % 50}" for n in range(ROWS)],
        "order": [f"order {n} für dich" if n % 7 else None for n in range(ROWS)],
    }


async def assert_stored(bootstrap: str, topic: str) -> None:
    found = await everything(bootstrap, topic, ROWS)
    assert sum(map(len, found.values())) == ROWS
    for partition, records in found.items():
        mine = [n for n in range(ROWS) if partition_for_key(b"customer %d" % (n % 50), 3) == partition]
        assert [(key, value) for _, key, value in records] == [
            (b"customer %d" % (n % 50), f"order {n} für dich".encode() if n % 7 else None) for n in mine
        ]


@pytest.mark.parametrize("frames", [polars, pandas])
async def test_a_frame_goes_in(bootstrap: str, topic_name: str, frames: Any) -> None:
    await make_topic(bootstrap, topic_name, 3)
    frame = frames().DataFrame(columns())
    assert hasattr(frame, "__arrow_c_stream__")
    async with Producer(bootstrap, compression_type="lz4") as producer:
        delivery = await producer.send_arrow(topic_name, frame, key="customer", value="order")
        assert sum(place.rows for place in await delivery) == delivery.rows == ROWS
    await assert_stored(bootstrap, topic_name)


async def test_a_frame_in_pieces_with_times_and_partitions(bootstrap: str, topic_name: str) -> None:
    pl = polars()
    await make_topic(bootstrap, topic_name, 3)
    piece = pl.DataFrame({"value": ["a", "b", "c"], "at": [FIRST] * 3, "to": [0, 1, 2]})
    async with Producer(bootstrap) as producer:
        frame = pl.concat([piece, piece], rechunk=False)
        await (await producer.send_arrow(topic_name, frame, timestamp="at", partition="to"))
    found = await everything(bootstrap, topic_name, 6)
    assert {p: [value for _, _, value in records] for p, records in found.items()} == {
        0: [b"a", b"a"],
        1: [b"b", b"b"],
        2: [b"c", b"c"],
    }
    table = pa.Table.from_batches([batch async for batch in scan(bootstrap, topic_name)])
    assert set(table["timestamp"].to_pylist()) == {FIRST}


async def test_a_scan_comes_out_as_frames(bootstrap: str, topic_name: str) -> None:
    pl, _ = polars(), pandas()
    await make_topic(bootstrap, topic_name, 3)
    async with Producer(bootstrap) as producer:
        await (await producer.send_arrow(topic_name, pl.DataFrame(columns()), key="customer", value="order"))
    batches = [batch async for batch in scan(bootstrap, topic_name)]
    frame = pl.concat([pl.from_arrow(batch) for batch in batches])
    assert frame.columns == ["topic", "partition", "offset", "timestamp", "key", "value"]
    assert frame["topic"].unique().to_list() == [topic_name]
    assert sorted(frame["value"].drop_nulls().cast(pl.String)) == sorted(filter(None, columns()["order"]))
    assert frame["value"].null_count() == columns()["order"].count(None)
    pieces = [batch.to_pandas() for batch in batches]
    assert sum(map(len, pieces)) == ROWS
    assert {str(piece["topic"].iloc[0]) for piece in pieces} == {topic_name}
    assert {bytes(key) for piece in pieces for key in piece["key"]} == {b"customer %d" % n for n in range(50)}


async def test_polled_batches_and_a_whole_table_come_out_as_frames(bootstrap: str, topic_name: str) -> None:
    pl, _ = polars(), pandas()
    await make_topic(bootstrap, topic_name)
    async with Producer(bootstrap) as producer:
        for n in range(10):
            await producer.send(topic_name, b"%d" % n)
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic_name, 0)])
        batch = await consumer.poll_arrow(timeout_ms=10_000, columns=("offset", "value"))
    assert pl.from_arrow(batch)["offset"].to_list() == batch.to_pandas()["offset"].tolist() == list(range(10))
    import asyncio

    table = await asyncio.to_thread(scan_table, bootstrap, topic_name, columns=("offset",))
    assert pl.from_arrow(table)["offset"].sum() == table.to_pandas()["offset"].sum() == 45


async def test_a_frame_without_rows_sends_nothing(bootstrap: str, topic_name: str) -> None:
    pl = polars()
    await make_topic(bootstrap, topic_name)
    async with Producer(bootstrap) as producer:
        empty = pl.DataFrame({"value": []}, schema={"value": pl.Binary})
        assert await (await producer.send_arrow(topic_name, empty)) == []
