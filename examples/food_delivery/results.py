"""What the pipeline has written, read from where it wrote it: the topic of results, the dead letters, the SQLite database, two Delta tables and its status.

Reads only, and only as any other program could. What is not there yet, because the pipeline is still starting, is left out of the snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from examples.food_delivery.minutes import Minutes
from examples.food_delivery.place import Place
from examples.food_delivery.topics import DEAD_LETTERS, RESULTS
from examples.food_delivery.view import MINUTES_SHOWN, Snapshot
from tidelog.client import Consumer, TopicPartition
from tidelog.client.dead_letters import origin_of
from tidelog.client.errors import ClientError
from tidelog.pipeline.status import PipelineStatus, StatusError, read_status

TABLES_EVERY_SECONDS: Final = 5.0
POLL_MS: Final = 100
REASON_CHARACTERS_MAX: Final = 100


class Results:
    def __init__(self, place: Place, brokers: str) -> None:
        self._place = place
        self._consumer = Consumer(
            brokers, auto_offset_reset="earliest", enable_auto_commit=False, client_id="food-delivery-view"
        )
        self._is_started = False
        self._minutes = Minutes()
        self._dead_letters = 0
        self._last_reason: str | None = None
        self._paid_cents: int | None = None
        self._service_seconds: Mapping[str, float] = {}
        self._tables_at = -TABLES_EVERY_SECONDS
        self._began_at = time.time()

    async def close(self) -> None:
        if self._is_started:
            await self._consumer.close()

    async def read(self) -> Snapshot:
        troubles: list[str] = []
        try:
            await self._read_topics()
        except ClientError as error:
            troubles.append(f"the topics of results cannot be read: {error}")
        if time.monotonic() - self._tables_at >= TABLES_EVERY_SECONDS:
            self._paid_cents = await asyncio.to_thread(self._paid)
            self._service_seconds = await asyncio.to_thread(self._service)
            self._tables_at = time.monotonic()
        names, open_orders = await asyncio.to_thread(self._state)
        status = self._status()
        if status is not None:
            troubles += [
                f"flow {flow.name} has failed{'' if flow.state == 'failed' else ' and is started again'}: {flow.error.splitlines()[0]}"
                for flow in status.flows
                if flow.error and flow.state != "running"
            ]
        return Snapshot(
            per_minute=self._minutes.newest(MINUTES_SHOWN),
            total=self._minutes.total(),
            restaurants=names,
            open_orders=open_orders,
            paid_cents=self._paid_cents,
            service_seconds=self._service_seconds,
            late=_late(status),
            dead_letters=self._dead_letters,
            last_reason=self._last_reason,
            lag=_lag(status),
            troubles=tuple(troubles),
        )

    async def _read_topics(self) -> None:
        if not self._is_started:
            await self._consumer.start()
            self._is_started = True
            self._consumer.assign([TopicPartition(RESULTS, 0), TopicPartition(DEAD_LETTERS, 0)])
        while records := await self._consumer.poll(timeout_ms=POLL_MS):
            for record in records:
                origin = origin_of(record.headers)
                if record.topic == RESULTS and record.value is not None:
                    self._minutes.add(record.value)
                elif origin is not None:
                    self._dead_letters += 1
                    self._last_reason = " ".join(origin.reason.split())[:REASON_CHARACTERS_MAX]

    def _state(self) -> tuple[Mapping[str, str], Mapping[str, int]]:
        """Names of restaurants, and open orders by status."""
        if not self._place.database.exists():
            return {}, {}
        address = f"{self._place.database.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
            try:
                names = dict(database.execute("SELECT restaurant_id, name FROM restaurants"))
                statuses = dict(database.execute("SELECT status, count(*) FROM open_orders GROUP BY status"))
            except sqlite3.OperationalError:  # the tables are not made yet, or are just being written
                return {}, {}
        return names, statuses

    def _paid(self) -> int | None:
        """What was captured, less what was given back."""
        table = self._table("payments", ["amount_cents"], [("event", "in", ["captured", "refunded"])])
        if table is None:
            return None
        import pyarrow.compute as pc

        return int(pc.sum(table["amount_cents"]).as_py() or 0)

    def _service(self) -> Mapping[str, float]:
        """How long each step took on average in the minutes shown, over all restaurants."""
        since = datetime.now(UTC) - timedelta(minutes=MINUTES_SHOWN)
        columns = ["event", "times", "mean_seconds"]
        table = self._table("service_times", columns, [("window_start", ">=", since)])
        rows = [] if table is None else table.to_pylist()
        times, seconds = Counter[str](), Counter[str]()
        for row in rows:
            times[row["event"]] += row["times"]
            seconds[row["event"]] += row["times"] * row["mean_seconds"]
        return {event: seconds[event] / count for event, count in times.items()}

    def _table(self, name: str, columns: list[str], filters: list[tuple[str, str, Any]]) -> Any | None:
        """Of a Delta table; None: it is not made yet."""
        from deltalake import DeltaTable

        path = str(self._place.tables / name)
        if not DeltaTable.is_deltatable(path):
            return None
        return DeltaTable(path).to_pyarrow_table(columns=columns, filters=filters)

    def _status(self) -> PipelineStatus | None:
        """Of this run; None before there is one."""
        try:
            status = read_status(str(self._place.state))
        except StatusError:
            return None
        return status if status.written_at >= self._began_at else None


def _lag(status: PipelineStatus | None) -> int | None:
    lags = [
        query.lag for flow in status.flows for query in flow.queries if query.lag is not None
    ] if status is not None else []  # fmt: skip
    return sum(lags) if lags else None


def _late(status: PipelineStatus | None) -> int | None:
    if status is None or not any(flow.queries for flow in status.flows):
        return None
    return sum(
        count for flow in status.flows for name, count in flow.counters.items() if name.startswith("late")
    )
