"""The food-delivery example from end to end: what its pipeline has written is what plain Python calculates from the same records."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from examples.food_delivery import expected
from examples.food_delivery.events import Event, events
from examples.food_delivery.generate import send
from examples.food_delivery.minutes import read_result
from examples.food_delivery.place import Place
from examples.food_delivery.topics import create_topics
from tidelog.client import Consumer, TopicPartition
from tidelog.pipeline.context import JobContext
from tidelog.pipeline.spec import load
from tidelog.testing import Cluster

pytestmark = pytest.mark.slow

DELAY_MS = 30_000
"""The watermark's, as pipeline.toml has it."""
SECONDS_MAX = 200
"""Of one flow. It takes a few; a crowded machine takes its time."""
RATE, ORDERS = 4.0, 2_000


def rounds() -> tuple[list[Event], list[Event]]:
    """Five minutes, then two: orders of the second that belong to the first's minutes are late. Some orders are still open at the end."""
    start_ms = expected.minute_of(int(time.time() * 1000)) - 900_000
    happened = list(events(11, RATE, start_ms, orders=ORDERS))
    cut_ms, end_ms = start_ms + 300_000, start_ms + 420_000
    return (
        [event for event in happened if event.at_ms < cut_ms],
        [event for event in happened if cut_ms <= event.at_ms < end_ms],
    )


def run_once(spark: Any, place: Place, brokers: str) -> dict[str, Mapping[str, int]]:
    """Every flow of the specification works off what is there; returns their counters."""
    pipeline = load(str(place.specification))
    counters: dict[str, Mapping[str, int]] = {}
    for flow in pipeline.flows:
        context = JobContext(
            spark=spark,
            name=flow.name,
            brokers=brokers,
            state=pipeline.state_of(flow.name),
            trigger={"availableNow": True},
        )
        query = flow.module.start(context, flow.options)
        assert query.awaitTermination(SECONDS_MAX), f"flow {flow.name} takes too long"
        counters[flow.name] = context.counters.now()
    return counters


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_every_result_is_what_plain_python_calculates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any, cluster: Cluster
) -> None:
    monkeypatch.chdir(tmp_path)  # where sqlite:///food_delivery.db is
    brokers, place = cluster.bootstrap_servers, Place(tmp_path)
    place.write_specification()
    await create_topics(brokers)
    first, second = rounds()
    counters: dict[str, Mapping[str, int]] = {}
    for happened in (first, second):
        await send(brokers, happened)
        counters = await asyncio.to_thread(run_once, spark, place, brokers)
    await judge(place, brokers, first, second, counters)


async def judge(
    place: Place,
    brokers: str,
    first: list[Event],
    second: list[Event],
    counters: Mapping[str, Mapping[str, int]],
) -> None:
    """The tables, the database, the topic of results and the dead letters are what plain Python makes of the records that were sent."""
    happened = [*first, *second]
    seen = expected.watched([first, second], DELAY_MS)
    assert len(seen.late) >= 3 and expected.poison(happened), "the records show nothing: take another seed"

    orders = table(place, "orders")
    assert by_id(orders, "order_id") == {
        order.order_id: {**order.document, "ordered_at": moment(order.ordered_at_ms)}
        for order in expected.orders(happened)
    }
    payments = [json.loads(event.value or b"") for event in happened if event.topic == "payments"]
    assert by_id(table(place, "payments"), "payment_id") == {
        each["payment_id"]: {**each, "paid_at": moment(expected.epoch_ms(each["paid_at"]))}
        for each in payments
    }

    letters = await dead_letters(brokers)
    assert sorted((letter["key"], letter["topic"]) for letter in letters) == sorted(
        (event.key.decode(), "orders") for event in expected.poison(happened)
    )
    assert all(letter["reason"] for letter in letters)

    totals = expected.per_minute(seen.in_time)
    assert counters["orders-per-minute"]["late rows"] == len(seen.late)
    assert await results(brokers) == totals
    assert in_table(place) == totals

    assert {
        (round(row["window_start"].timestamp() * 1000), row["restaurant_id"], row["event"]): (
            row["times"], pytest.approx(row["mean_seconds"]), row["longest_seconds"],
        )
        for row in table(place, "service_times")
    } == expected.service_times(happened)  # fmt: skip

    for name, topic, key in (
        ("restaurants", "restaurants", "restaurant_id"),
        ("open_orders", "order-status", "order_id"),
    ):
        state = expected.current_state(happened, topic)
        assert state, f"{topic} shows nothing: take another seed"
        assert rows(place, name, key) == {
            each: {**value, "changed_at": expected.epoch_ms(value["changed_at"])}
            for each, value in state.items()
        }


async def dead_letters(brokers: str) -> list[dict[str, Any]]:
    """As `tidelog dlq list` has them."""
    listing = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidelog.cli.main", "dlq", "list", "orders-dlq", "--json", "-b", brokers),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await listing.communicate()
    assert listing.returncode == 0
    return [json.loads(line) for line in output.splitlines()]


def table(place: Place, name: str) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    found: list[dict[str, Any]] = DeltaTable(str(place.tables / name)).to_pyarrow_table().to_pylist()
    return found


def by_id(found: list[dict[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    """Without the columns that say where a row is from; no id may be there twice."""
    rows = {row[key]: {name: value for name, value in row.items() if name[0] != "_"} for row in found}
    assert len(rows) == len(found)
    return rows


def rows(place: Place, name: str, key: str) -> Mapping[str, dict[str, Any]]:
    with sqlite3.connect(place.database) as database:
        database.row_factory = sqlite3.Row
        found = [dict(row) for row in database.execute(f"SELECT * FROM {name}")]
    for row in found:
        when = datetime.strptime(row["changed_at"], "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC)
        row["changed_at"] = round(when.timestamp() * 1000)
    return by_id(found, key)


def moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def in_table(place: Place) -> expected.PerMinute:
    found: expected.PerMinute = {}
    for row in table(place, "orders_per_minute"):
        at = round(row["window_start"].timestamp() * 1000), row["restaurant_id"]
        assert at not in found
        found[at] = expected.Total(row["orders"], row["revenue_cents"])
    return found


async def results(brokers: str) -> expected.PerMinute:
    """The latest of each minute and restaurant in the topic of results."""
    found: expected.PerMinute = {}
    place = TopicPartition("orders-per-minute", 0)
    async with Consumer(brokers, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        while await consumer.position(place) < end:
            for record in await consumer.poll():
                minute, restaurant, total = read_result(json.loads(record.value or b""))
                found[minute, restaurant] = total
    return found
