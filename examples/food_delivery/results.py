"""What the pipeline has written, read from where it wrote it: the topic of results, the dead letters, the SQLite database, the Delta tables and its status.

Reads only, and only as any other program could. What is not there yet, because the pipeline is still starting, is left out of the snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import time
from typing import Any, Final

from examples.food_delivery.expected import MINUTE_MS, NOTHING, PerMinute, Total, epoch_ms
from examples.food_delivery.place import Place
from examples.food_delivery.topics import DEAD_LETTERS, RESULTS
from examples.food_delivery.view import MINUTES_SHOWN, Snapshot
from tidelog.client import Consumer, ConsumerRecord, TopicPartition
from tidelog.client.dead_letters import origin_of
from tidelog.client.errors import ClientError

PAID_EVERY_SECONDS: Final = 10.0
REMEMBERED_MS: Final = 3_600_000
"""Minutes older than this are kept as one sum."""
POLL_MS: Final = 200


class Results:
    def __init__(self, place: Place, brokers: str) -> None:
        self._place = place
        self._consumer = Consumer(
            brokers, auto_offset_reset="earliest", enable_auto_commit=False, client_id="food-delivery-view"
        )
        self._is_started = False
        self._minutes = Minutes()
        self._dead_letters, self._last_reason = 0, None
        self._paid_cents: int | None = None
        self._paid_at = 0.0

    async def close(self) -> None:
        if self._is_started:
            await self._consumer.close()

    async def read(self) -> Snapshot:
        troubles: list[str] = []
        try:
            await self._read_topics()
        except ClientError as error:
            troubles.append(f"the topics of results cannot be read: {error}")
        names, open_orders = await asyncio.to_thread(self._state)
        return Snapshot(
            per_minute=self._minutes.newest(),
            total=self._minutes.total(),
            restaurants=names,
            open_orders=open_orders,
            dead_letters=self._dead_letters,
            last_reason=self._last_reason,
            troubles=tuple(troubles),
        )

    async def _read_topics(self) -> None:
        if not self._is_started:
            await self._consumer.start()
            self._is_started = True
            self._consumer.assign([TopicPartition(RESULTS, 0), TopicPartition(DEAD_LETTERS, 0)])
        while records := await self._consumer.poll(timeout_ms=POLL_MS):
            for record in records:
                if record.topic == RESULTS:
                    self._minutes.add(record)
                elif (origin := origin_of(record.headers)) is not None:
                    self._dead_letters += 1
                    self._last_reason = origin.reason.splitlines()[0] if origin.reason else None

    def _state(self) -> tuple[dict[str, str], dict[str, int]]:
        """Names of restaurants, and open orders by status."""
        if not self._place.database.exists():
            return {}, {}
        with contextlib.closing(sqlite3.connect(f"file:{self._place.database}?mode=ro", uri=True)) as database:
            try:
                names = dict(database.execute("SELECT restaurant_id, name FROM restaurants"))
                open_orders = dict(database.execute("SELECT status, count(*) FROM open_orders GROUP BY status"))
            except sqlite3.OperationalError:  # the tables are not made yet, or a batch is being written
                return {}, {}
        return names, open_orders
