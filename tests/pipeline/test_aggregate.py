"""*aggregate* with a real Spark and a real broker, against a plain calculation over the same records in the same batches."""

from __future__ import annotations

import asyncio
import datetime
import json
import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidelog.client.blocking import Consumer, Producer
from tidelog.client.dead_letter_topic import read_dead_letters
from tidelog.client.metadata import TopicPartition
from tidelog.pipeline.context import JobContext
from tidelog.pipeline.jobs import aggregate
from tidelog.pipeline.microbatches import planned
from tidelog.pipeline.options import read_options
from tidelog.pipeline.tables.delta_merge import DeltaState
from tidelog.pipeline.windows import Windows
from tidelog.testing import Cluster

pytestmark = pytest.mark.slow

BASE_MS = 1_700_000_000_000
DELAY_MS = 60_000
WINDOWS = Windows(20_000, 10_000)
Event = dict[str, Any]


def events(seed: int, count: int, begin_ms: int) -> list[Event]:
    """In about the order of their time; one in ten is minutes late."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        at = begin_ms + number * 500 - (chance.randrange(200_000) if chance.random() < 0.1 else 0)
        shop = chance.choice(["a", "b", None])
        found.append(
            {"at": at, "shop": shop, "total": chance.randrange(100) / 4, "customer": chance.randrange(20)}
        )
    return found


def moment(at_ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)


class Model:
    """What should come out, by Spark's rule: rows of a batch are late by the watermark of the batch before."""

    def __init__(self, log: list[Event | None], checkpoint: Path, start: int = 0) -> None:
        """`checkpoint` only says which records, from `start` on, were in which batch; its watermarks are compared with ours."""
        self.rows: dict[tuple[int, str | None], list[Event]] = defaultdict(list)
        self.late = self.partly = 0
        latest_ms, late_by_ms = DELAY_MS, 0
        for number in range(len([*(checkpoint / "offsets").glob("[0-9]*")])):
            batch = planned(str(checkpoint), number)
            assert batch is not None and batch.end is not None
            watermark_ms = latest_ms - DELAY_MS
            assert batch.watermark_ms == watermark_ms
            (end,) = batch.end.next.values()
            for event in log[start:end]:
                if event is not None and event["total"] >= 0:  # `where`
                    self._add(event, late_by_ms)
                    latest_ms = max(latest_ms, event["at"])
            start, late_by_ms = end, watermark_ms
        assert start == len(log)

    def _add(self, event: Event, late_by_ms: int) -> None:
        first, last = WINDOWS.ends_ms(event["at"] * 1000)
        ends = range(first, last + 1, WINDOWS.slide_ms)
        taken = [end for end in ends if end > late_by_ms]
        self.late += not taken
        self.partly += 0 < len(taken) < len(ends)
        for end in taken:
            self.rows[end, event["shop"]].append(event)

    def results(self) -> dict[tuple[Any, Any], tuple[Any, ...]]:
        return {
            (moment(end), shop): (
                moment(end - WINDOWS.size_ms),
                len(rows),
                sum(each["total"] for each in rows),
                pytest.approx(sum(each["total"] for each in rows) / len(rows)),
                min(each["at"] for each in rows),
                max(each["at"] for each in rows),
                pytest.approx(len({each["customer"] for each in rows}), rel=0.15, abs=1),
            )
            for (end, shop), rows in self.rows.items()
        }


POISON: dict[bytes | None, str] = {
    b"{broken": "not JSON",
    b'{"at": "noon"}': 'at: "noon" is string, not a bigint',
    b'{"shop": "a", "total": 1}': "there is no event time: at is null",
    None: "there is no value",
}
"""And what the reason must say."""


def produce(cluster: Cluster, topic: str, batch: list[Event], poison: Iterable[bytes | None] = ()) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for event in batch:
            producer.send(topic, json.dumps(event).encode(), key=b"k")
        for value in poison:
            producer.send(topic, value, key=b"k", headers=(("trace", b"1"),))


def run(spark: Any, cluster: Cluster, state: Path, table: dict[str, Any]) -> dict[str, int]:
    context = JobContext(
        spark=spark,
        name="sums",
        brokers=cluster.bootstrap_servers,
        state=str(state),
        trigger={"availableNow": True},
    )
    query = aggregate.start(context, read_options(aggregate.Options, table))
    assert query.awaitTermination(600), "still running"
    return context.counters.now()


def stored(path: Path) -> dict[tuple[Any, Any], tuple[Any, ...]]:
    from deltalake import DeltaTable

    rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    found = {(row["window_end"], row["shop"]): tuple(row.values()) for row in rows}
    assert len(found) == len(rows), "a window has two results for a group"
    return {key: (row[0], *row[3:]) for key, row in found.items()}


def sent(cluster: Cluster, topic: str) -> list[tuple[Any, Any]]:
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        end = consumer.end_offsets([tp])[tp]
        found: list[tuple[Any, Any]] = []
        while consumer.position(tp) < end:
            found += [(json.loads(each.key), json.loads(each.value)) for each in consumer.poll()]
    return found


def sums(source: str, table: Path) -> dict[str, Any]:
    return {
        "topics": source,
        "schema": "at BIGINT, shop STRING, total DOUBLE, customer INT",
        "event_time": "at",
        "window": "20 seconds",
        "slide": "10 seconds",
        "watermark": "1 minute",
        "group_by": "shop",
        "where": "total >= 0",
        "aggregates": {
            "n": "count",
            "revenue": "sum(total)",
            "mean": "avg(total)",
            "first": "min(at)",
            "last": "max(at)",
            "customers": "approx_distinct(customer)",
        },
        "table": str(table),
    }


def test_results_and_late_rows_are_those_of_the_plain_calculation(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = cluster.create_topic("sold", 1), cluster.create_topic("sums", 1)
    table = {**sums(source, tmp_path / "table"), "to_topic": out}
    log: list[Event | None] = []
    batches = [events(number, 400, BASE_MS + number * 200_000) for number in range(4)]
    batches[1].append({"at": BASE_MS, "shop": "a", "total": -1.0, "customer": 1})
    counters: dict[str, int] = {}
    apply = DeltaState.apply

    def dying(self: Any, batch: Any, rows: Any) -> bool:
        done = apply(self, batch, rows)
        raise InterruptedError(f"after the commit: {done}")

    poison: list[tuple[int, bytes | None]] = []
    for number, batch in enumerate(batches):
        produce(cluster, source, batch, bad := POISON if number == 2 else {})
        log += [*batch, *[None] * len(bad)]
        poison += [(len(log) - len(bad) + each, value) for each, value in enumerate(bad)]
        if number == 2:  # a crash after the table's commit: the batch is run again and changes nothing
            with monkeypatch.context() as patched, pytest.raises(Exception, match="after the commit: True"):
                patched.setattr(DeltaState, "apply", dying)
                run(spark, cluster, tmp_path / "state", table)
        counters = run(spark, cluster, tmp_path / "state", table)
    model = Model(log, tmp_path / "state" / "checkpoint")
    assert stored(tmp_path / "table") == model.results()
    assert counters["late rows"] == model.late > 10
    assert counters["partly late rows"] == model.partly > 0
    assert counters["dead_lettered"] == len(POISON)
    letters = asyncio.run(read_dead_letters(cluster.bootstrap_servers, "sums.dlq")).letters
    assert [(each.origin.offset, each.value) for each in letters] == poison, "each once, over the crash"
    for letter, says in zip(letters, POISON.values(), strict=True):
        assert (letter.key, letter.headers) == (b"k", (("trace", b"1"),))
        assert (letter.origin.topic, letter.origin.partition, letter.origin.group) == (source, 0, "sums")
        assert says in letter.origin.reason
    last: dict[tuple[str, str | None], Any] = {}
    for key, value in sent(cluster, out):
        assert key == {"shop": value["shop"]}
        last[value["window_end"], value["shop"]] = value
    assert {
        (datetime.datetime.fromisoformat(end), shop): value["n"] for (end, shop), value in last.items()
    } == {key: row[1] for key, row in model.results().items()}


@pytest.mark.long
def test_closed_windows_come_once_in_mode_append(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    source, out = cluster.create_topic("steps", 1), cluster.create_topic("closed", 1)
    table = {
        "topics": source,
        "schema": "at TIMESTAMP, n INT",
        "event_time": "at",
        "window": "1 minute",
        "watermark": "30 seconds",
        "aggregates": {"n": "sum(n)"},
        "mode": "append",
        "to_topic": out,
        "on_undecodable": "fail",
    }
    times = [BASE_MS + number * 7_000 for number in range(60)]
    for part in (times[:30], times[30:]):
        with Producer(cluster.bootstrap_servers) as producer:
            for number, at in enumerate(part):
                producer.send(source, json.dumps({"at": moment(at).isoformat(), "n": number}).encode())
        run(spark, cluster, tmp_path / "state", table)
    expected: dict[int, int] = defaultdict(int)
    for part in (times[:30], times[30:]):
        for number, at in enumerate(part):
            expected[at // 60_000 * 60_000] += number
    closed = {start: total for start, total in expected.items() if start + 60_000 <= times[-1] - 30_000}
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        tp = TopicPartition(out, 0)
        consumer.assign([tp])
        found: list[Any] = []
        while consumer.position(tp) < consumer.end_offsets([tp])[tp]:
            found += [json.loads(each.value or b"") for each in consumer.poll()]
    assert len(found) == len(closed) > 3
    assert {row["window_start"]: row["n"] for row in found} == {
        moment(start).strftime("%Y-%m-%dT%H:%M:%S.000Z"): total for start, total in closed.items()
    }
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send(source, b"poison")
    with pytest.raises(Exception, match=r"1 records of batch .* steps-0 at offset 60: not JSON"):
        run(spark, cluster, tmp_path / "state", table)
    assert run(spark, cluster, tmp_path / "state", {**table, "on_undecodable": "skip"})["undecodable"] == 1


@pytest.mark.long
def test_a_rebuild_replaces_all_results_at_once_and_another_checkpoint_can_take_over(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable, write_deltalake

    source, state = cluster.create_topic("rebuilt", 1), tmp_path / "state"
    table = {**sums(source, tmp_path / "table"), "max_offsets_per_batch": 250}
    log: list[Event | None] = [*events(1, 400, BASE_MS)]
    produce(cluster, source, [each for each in log if each is not None])
    run(spark, cluster, state, table)
    # What nobody would ever repair by going on: a result of a window that is closed for good.
    row = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().slice(0, 1).to_pydict()
    wrong = {**row, "window_start": [moment(0)], "window_end": [moment(20_000)]}
    schema = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().schema
    write_deltalake(str(tmp_path / "table"), pa.table(wrong, schema=schema), mode="append")
    before = stored(tmp_path / "table")
    assert len(before) == len(Model(log, state / "checkpoint").results()) + 1

    more = events(2, 400, BASE_MS + 200_000)
    produce(cluster, source, more)
    log += more
    apply = DeltaState.apply

    def dying(self: Any, batch: Any, rows: Any) -> bool:
        if batch.number == 2:
            raise InterruptedError("in the middle of the rebuild")
        return apply(self, batch, rows)

    with monkeypatch.context() as patched, pytest.raises(Exception, match="in the middle of the rebuild"):
        patched.setattr(DeltaState, "apply", dying)
        run(spark, cluster, state, {**table, "rebuild": True})
    assert stored(tmp_path / "table") == before, "the old results are there until the new ones have caught up"
    run(spark, cluster, state, table)  # goes on with the rebuild that was begun
    rebuilt = Model(log, state / "checkpoint").results()
    assert stored(tmp_path / "table") == rebuilt

    # The checkpoint is lost, and another one goes on from where it was.
    position, second = len(log), tmp_path / "second"
    later = events(3, 100, BASE_MS + 1_000_000)
    later = [each for each in later if each["at"] > BASE_MS + 900_000]
    produce(cluster, source, later)
    log += later
    moved = {**table, "start": json.dumps({source: {"0": position}})}
    with pytest.raises(Exception, match="another runner has taken the flow over"):
        run(spark, cluster, tmp_path / "refused", moved)
    assert stored(tmp_path / "table") == rebuilt
    run(spark, cluster, second, {**moved, "take_over": True})
    added = Model(log, second / "checkpoint", start=position).results()
    assert added and not added.keys() & rebuilt.keys()
    assert stored(tmp_path / "table") == {**rebuilt, **added}
    with pytest.raises(Exception, match="another runner has taken the flow over"):
        run(spark, cluster, state, table)
