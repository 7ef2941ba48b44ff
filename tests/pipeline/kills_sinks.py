"""Two flows whose drivers, executors and brokers are killed: what is sent to each, and whether its table holds that in the end.

A row that is written to SQLite twice looks like one that is written once, so the database itself keeps account: triggers note every change, and the same record must not be there a second time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Protocol

from deltalake import DeltaTable

from tidelog.client.admin_values import NewTopic
from tidelog.client.blocking import Admin, Consumer, Producer
from tidelog.client.consumer.records import ConsumerRecord
from tidelog.client.dead_letter_topic import read_dead_letters
from tidelog.client.metadata import TopicPartition
from tidelog.pipeline.jobs import materialize

PARTITIONS = 2
SCHEMA = "id bigint, text string"


class Sink(Protocol):
    flow: ClassVar[str]
    """Its table in a specification; paths count from `directory`."""
    sent: int

    def __init__(self, servers: str, directory: Path) -> None: ...

    def send(self, count: int) -> None: ...

    def check(self) -> str:
        """That the table holds what was sent, each once; what else is to be told."""
        ...


class Delta:
    """Records go to a table, each a row; some are poison and go to another topic."""

    flow = f"""
        [[flow]]
        name = "rows"
        job = "ingest"
        topics = "rows"
        table = "rows"
        schema = "{SCHEMA}"
        max_offsets_per_batch = 1000
        compact_every_batches = 4
        """
    POISON_EVERY = 97

    def __init__(self, servers: str, directory: Path) -> None:
        self._servers = servers
        self._table = directory / "rows"
        self.sent = 0
        make_topic(servers, "rows")

    def send(self, count: int) -> None:
        with Producer(self._servers, delivery_timeout_ms=120_000) as producer:
            for number in range(self.sent, self.sent + count):
                row = {"id": number, "text": f"{number:050d}"}
                value = b"poison" if number % self.POISON_EVERY == 5 else json.dumps(row).encode()
                producer.send("rows", value, partition=number % PARTITIONS)
            producer.flush()
        self.sent += count

    def check(self) -> str:
        good: dict[tuple[int, int], bytes] = {}
        bad: set[tuple[int, int]] = set()
        for record in records_of(self._servers, "rows", self.sent):
            value = record.value or b""
            if value == b"poison":
                bad.add((record.partition, record.offset))
            else:
                good[record.partition, record.offset] = value
        rows = DeltaTable(str(self._table)).to_pyarrow_table().to_pylist()
        found = {(row["_partition"], row["_offset"]): row for row in rows}
        assert len(rows) == len(found), "rows are there twice"
        missing, strange = good.keys() - found.keys(), found.keys() - good.keys()
        assert not missing and not strange, f"missing {sorted(missing)[:5]}, strange {sorted(strange)[:5]}"
        for place, row in found.items():
            assert json.loads(good[place]) == {"id": row["id"], "text": row["text"]}
        letters = asyncio.run(read_dead_letters(self._servers, "rows.dlq")).letters
        told = Counter((each.origin.partition, each.origin.offset) for each in letters)
        assert told.keys() == bad
        return f"Delta: {len(rows)} rows, each once; {len(bad)} dead letters, {told.total() - len(bad)} of them again"


class Sqlite:
    """Changes go to a table of state, which has the latest row of each key. One in three is a tombstone; one in two is of the whale."""

    flow = f"""
        [[flow]]
        name = "state"
        job = "materialize"
        topics = "changes"
        database = "sqlite:///state.db"
        database_table = "kept"
        schema = "{SCHEMA}"
        key = ["id"]
        position_columns = true
        max_offsets_per_batch = 1000
        """
    KEYS = 150
    ACCOUNT = """
        CREATE TABLE account (what TEXT, id INTEGER, part INTEGER, at INTEGER);
        CREATE TRIGGER added AFTER INSERT ON kept BEGIN INSERT INTO account VALUES ('put', NEW.id, NEW._partition, NEW._offset); END;
        CREATE TRIGGER changed AFTER UPDATE ON kept BEGIN INSERT INTO account VALUES ('put', NEW.id, NEW._partition, NEW._offset); END;
        CREATE TRIGGER removed AFTER DELETE ON kept BEGIN INSERT INTO account VALUES ('gone', OLD.id, OLD._partition, OLD._offset); END;
        """

    def __init__(self, servers: str, directory: Path) -> None:
        self._servers = servers
        self._database = directory / "state.db"
        self.sent = 0
        make_topic(servers, "changes")
        options = materialize.Options(
            topics=("changes",),
            database=f"sqlite:///{self._database}",
            database_table="kept",
            schema=SCHEMA,
            key=("id",),
            position_columns=True,
        )
        materialize.open_target(options).prepare()
        with closing(sqlite3.connect(self._database)) as connection:
            connection.executescript(self.ACCOUNT)

    def send(self, count: int) -> None:
        with Producer(self._servers, delivery_timeout_ms=120_000) as producer:
            for number in range(self.sent, self.sent + count):
                key = 0 if number % 2 else number * 7919 % self.KEYS
                value = None if number % 3 == 0 else json.dumps({"id": key, "text": f"{number}"}).encode()
                producer.send("changes", value, key=json.dumps({"id": key}).encode())
            producer.flush()
        self.sent += count

    def check(self) -> str:
        expected: dict[int, tuple[str, int, int]] = {}
        for record in records_of(self._servers, "changes", self.sent):
            key = json.loads(record.key or b"")["id"]
            expected.pop(key, None)
            if record.value is not None:
                expected[key] = (json.loads(record.value)["text"], record.partition, record.offset)
        with closing(sqlite3.connect(self._database)) as connection:
            rows: list[Any] = connection.execute("SELECT id, text, _partition, _offset FROM kept").fetchall()
            twice = connection.execute(
                "SELECT what, id, part, at FROM account GROUP BY what, part, at HAVING count(*) > 1"
            ).fetchall()
            (changes,) = connection.execute("SELECT count(*) FROM account").fetchone()
            (last,) = connection.execute("SELECT batch FROM tidelog_flows").fetchone()
        assert not twice, f"changes went in twice: {twice[:5]}"
        assert {key: tuple(rest) for key, *rest in rows} == expected
        return f"SQLite: {len(rows)} rows after {changes} changes in {last + 1} batches, each once"


def make_topic(servers: str, name: str) -> None:
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS)])


def records_of(servers: str, topic: str, count: int) -> Iterator[ConsumerRecord]:
    """All that the topic holds, as another client reads it."""
    tps = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    read = itertools.count()
    with Consumer(servers, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        ends = consumer.end_offsets(tps)
        consumer.assign(tps)
        while any(consumer.position(tp) < ends[tp] for tp in tps):
            for record in consumer.poll():
                next(read)
                yield record
    assert next(read) == count, "the broker lost or doubled records itself"
