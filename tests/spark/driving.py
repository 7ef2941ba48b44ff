"""Drives readers as Spark does, in this process: objects are pickled on their way, offsets go through JSON, and a batch that was planned can be run again."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit

from tidelog.client.blocking import Producer
from tidelog.spark.source import TidelogDataSource

Row = dict[str, Any]


def options(servers: str, **more: str) -> dict[str, str]:
    """With underscores for dots: `kafka__isolation__level`."""
    patience = {"fetchOffset.retryIntervalMs": "10", "kafka.default.api.timeout.ms": "2000"}
    return {
        "kafka.bootstrap.servers": servers,
        **patience,
        **{name.replace("__", "."): value for name, value in more.items()},
    }


def rows_of(reader: Any, partitions: Iterable[Any]) -> list[Row]:
    """In workers of their own, as far as pickling goes."""
    rows: list[Row] = []
    for partition in partitions:
        there = pickle.loads(pickle.dumps(reader))
        for batch in there.read(pickle.loads(pickle.dumps(partition))):
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows


def batch(servers: str, schema: Any = None, **more: str) -> list[Row]:
    reader = batch_reader(servers, schema, **more)
    return rows_of(reader, reader.partitions())


def batch_reader(servers: str, schema: Any = None, **more: str) -> Any:
    source = TidelogDataSource(options(servers, **more))
    return source.reader(source.schema() if schema is None else schema)


class Query:
    """A streaming query: `checkpoint` is its log of offsets, which a restarted one goes on with."""

    def __init__(self, servers: str, checkpoint: list[dict[str, Any]] | None = None, **more: str) -> None:
        self._options = options(servers, **more)
        self.checkpoint: list[dict[str, Any]] = [] if checkpoint is None else checkpoint
        self.reader = self._new_reader()
        self.limit: ReadLimit = self.reader.getDefaultReadLimit()

    def _new_reader(self) -> Any:
        source = TidelogDataSource(dict(self._options))
        return source.streamReader(source.schema())

    def restarted(self, **more: str) -> Query:
        changed = {name.replace("__", "."): value for name, value in more.items()}
        query = Query.__new__(Query)
        query._options = {**self._options, **changed}
        query.checkpoint = self.checkpoint
        query.reader = query._new_reader()
        query.limit = query.reader.getDefaultReadLimit()
        return query

    def plan(self) -> bool:
        """Whether there is another batch."""
        if not self.checkpoint:
            self.checkpoint.append(_stored(self.reader.initialOffset()))
        start = self.checkpoint[-1]
        end = _stored(self.reader.latestOffset(start, self.limit))
        if json.dumps(end) == json.dumps(start):
            return False
        self.checkpoint.append(end)
        return True

    def run(self, number: int = -1) -> list[Row]:
        """A planned batch, again if need be. A worker's reader is another one than the driver's."""
        number %= len(self.checkpoint)
        start, end = self.checkpoint[number - 1], self.checkpoint[number]
        return rows_of(self._new_reader(), self.reader.partitions(start, end))

    def trigger(self) -> list[Row]:
        return self.run() if self.plan() else []

    def all_now(self) -> list[list[Row]]:
        """With Trigger.AvailableNow."""
        self.reader.prepareForTriggerAvailableNow()
        batches = []
        while self.plan():
            batches.append(self.run())
        return batches


def _stored(offsets: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offsets))
    return found


def send(
    servers: str, topic: str, values: Iterable[bytes | None], partition: int | None = 0, **more: Any
) -> None:
    settings = {
        name: more.pop(name) for name in list(more) if name in ("compression_type", "batch_size", "linger_ms")
    }
    with Producer(servers, **settings) as producer:
        for value in values:
            producer.send(topic, value, partition=partition, **more)
        producer.flush()


def numbered(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def values(rows: Iterable[Row]) -> list[bytes]:
    return [row["value"] for row in rows]
