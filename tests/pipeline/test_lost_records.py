"""Records that are gone before a flow has read them: by retention while it was stopped, with their topic while it runs. Every job that reads topics says so, stops, and has skipped nothing until somebody says that it may."""

from __future__ import annotations

import json
import re
import sqlite3
import textwrap
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.pipeline.commands import Command, said_by, status_of, wait_until
from tidelog.client.blocking import Consumer, Producer
from tidelog.client.metadata import TopicPartition
from tidelog.pipeline.status import StatusError, read_status
from tidelog.testing import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

PARTITIONS = 2
TOTAL = -1
FLOWS = ("rows", "state", "sums")
TOPIC_SETTINGS = {"internal.segment.bytes": 20_000, "retention.bytes": 20_000}


class World:
    """A topic, and one flow of each job that reads it."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.spec = directory / "pipeline.toml"
        self.create_topic()

    def create_topic(self) -> None:
        self.cluster.create_topic("orders", PARTITIONS, config=TOPIC_SETTINGS)

    def write_spec(self, *, fail_on_data_loss: bool) -> None:
        reading = f'topics = "orders"\nfail_on_data_loss = {str(fail_on_data_loss).lower()}'
        text = f"""
            [pipeline]
            brokers = "{self.cluster.bootstrap_servers}"
            state = "state"
            master = "local[2]"
            trigger = "500 milliseconds"
            [pipeline.spark]
            spark.driver.memory = "1g"
            [[flow]]
            name = "rows"
            job = "ingest"
            READING
            schema = "id bigint, text string"
            table = "rows"
            [[flow]]
            name = "state"
            job = "materialize"
            READING
            schema = "id bigint, text string"
            key = ["id"]
            key_format = "value"
            database = "sqlite:///state.db"
            database_table = "orders"
            [[flow]]
            name = "sums"
            job = "aggregate"
            READING
            schema = "id bigint"
            window = "10 days"
            aggregates = {{ orders = "count" }}
            table = "sums"
            """
        self.spec.write_text(textwrap.dedent(text).replace("READING", reading))

    def send(self, numbers: range) -> None:
        with Producer(self.cluster.bootstrap_servers, batch_size=1000) as producer:
            for number in numbers:
                value = json.dumps({"id": number, "text": f"{number:0200d}"}).encode()
                producer.send("orders", value, partition=number % PARTITIONS)
            producer.flush()

    def there(self) -> dict[TopicPartition, tuple[int, int]]:
        """Where the topic begins and ends, as another client sees it."""
        tps = [TopicPartition("orders", number) for number in range(PARTITIONS)]
        with Consumer(self.cluster.bootstrap_servers) as consumer:
            begin, end = consumer.beginning_offsets(tps), consumer.end_offsets(tps)
        return {tp: (begin[tp], end[tp]) for tp in tps}

    def found(self) -> dict[str, Counter[int]]:
        """What each flow has of the records: their numbers, or how many they are."""
        with closing(sqlite3.connect(self.directory / "state.db")) as database:
            state = Counter(number for (number,) in database.execute("SELECT id FROM orders"))
        rows = DeltaTable(str(self.directory / "rows")).to_pyarrow_table()["id"].to_pylist()
        sums = DeltaTable(str(self.directory / "sums")).to_pyarrow_table()["orders"].to_pylist()
        return {"rows": Counter(rows), "state": state, "sums": Counter({TOTAL: sum(sums)})}

    def has_read(self, count: int) -> bool:
        """Whether all flows have so many, as they say themselves."""
        try:
            flows = read_status(str(self.directory / "state")).flows
        except StatusError:
            return False
        return [sum(query.rows for query in flow.queries) for flow in flows] == [count] * len(FLOWS)

    def has_aged_beyond(self, number: int) -> bool:
        return all(begin > number // PARTITIONS for begin, _ in self.there().values())

    def holds(self, numbers: list[int]) -> bool:
        return self.found() == {
            "rows": Counter(numbers),
            "state": Counter(set(numbers)),
            "sums": Counter({TOTAL: len(numbers)}),
        }


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with Cluster(config={"log.retention.check.interval.ms": 100}) as cluster:
        yield World(cluster, tmp_path)


def errors_of(status: dict[str, Any]) -> dict[str, str]:
    assert {flow["name"]: flow["state"] for flow in status["flows"]} == dict.fromkeys(FLOWS, "failed")
    return {flow["name"]: flow["error"] for flow in status["flows"]}


def check_told(world: World, said: Command, why: str) -> None:
    """The same to whoever ran it and to whoever asks, in words of the specification."""
    errors = errors_of(status_of(world.spec))
    for name, error in errors.items():
        for number in range(PARTITIONS):
            assert re.search(why.format(number), error), error
        assert "set fail_on_data_loss to false in the flow" in error
        for line in error.splitlines():
            assert f"error: flow {name}: {line}" in said.said
    assert "another name and another place to write to" in errors["rows"]
    assert "--rebuild state" in errors["state"] and "--rebuild sums" in errors["sums"]
    for noise in ("Traceback", "\tat ", "failOnDataLoss", "checkpoint"):
        assert noise not in said.text


def check_goes_on(world: World, why: str, *more: str) -> None:
    """Somebody says that it may; each flow tells what it went on without."""
    world.write_spec(fail_on_data_loss=False)
    code, text = said_by("pipeline", "run", world.spec, "--once", *more)
    assert code == 0, text
    for flow in status_of(world.spec)["flows"]:
        if flow["name"] in more:
            continue
        warning = flow["warning"]
        assert warning.startswith("went on after a loss (fail_on_data_loss is false): "), warning
        assert f" {flow['name']}: {warning}" in text
        assert flow["counters"]["losses"] == PARTITIONS
        for number in range(PARTITIONS):
            assert re.search(why.format(number), warning), warning


def test_retention_overtakes_stopped_flows(world: World) -> None:
    world.write_spec(fail_on_data_loss=True)
    world.send(range(100))
    code, text = said_by("pipeline", "run", world.spec, "--once")
    assert code == 0, text
    assert world.holds([*range(100)])

    world.send(range(100, 1000))
    wait_until(lambda: world.has_aged_beyond(100), "retention has passed where the flows were")
    refused = Command("pipeline", "run", world.spec)
    assert refused.ended() == 1, refused.text
    check_told(
        world, refused, r"orders-{0}: offsets 50 to \d+ were deleted before they were read, by retention"
    )
    assert world.holds([*range(100)]), "nothing was passed over"

    left = world.there()
    assert all(50 < begin < end == 500 for begin, end in left.values())
    check_goes_on(world, r"orders-{0}: offsets 50 to \d+ were gone before they were read")
    kept = [
        number
        for number in range(100, 1000)
        if number // PARTITIONS >= left[TopicPartition("orders", number % PARTITIONS)][0]
    ]
    assert world.holds([*range(100), *kept])


def test_a_topic_is_made_anew_under_running_flows(world: World) -> None:
    world.write_spec(fail_on_data_loss=True)
    world.send(range(60))
    running = Command("pipeline", "run", world.spec)
    try:
        wait_until(lambda: world.has_read(60), "all flows have what was there")
        world.cluster.delete_topic("orders")
        world.create_topic()
        world.send(range(1000, 1100))  # more than were read: offsets alone would tell nothing
        assert running.ended() == 1, running.text
    finally:
        running.kill()
    # A flow that looks in between the two finds no topic.
    gone = r"orders-{0} is not there any more: it was deleted"
    check_told(world, running, rf"topic orders was deleted and made anew .* what orders-{{0}} held|{gone}")
    assert world.holds([*range(60)]), "nothing of the new topic was taken for the old one"

    gone = r"orders-{0} was deleted and made anew, and is read from offset 0"
    check_goes_on(world, gone, "--rebuild", "sums")
    new = range(1000, 1100)
    both = Counter([*range(60), *new])
    assert world.found() == {"rows": both, "state": both, "sums": Counter({TOTAL: len(new)})}
