"""Connections to brokers for whoever works by callbacks: a broker is ready, or it is being connected to, or it rests after a failure.

`is_paused` never waits: it begins to connect where there is no connection, and `changed` is called when there is one, or when the socket takes more
again. The pause after a failed attempt grows with each (`retry.backoff.ms`), so that a dead broker costs little.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidelog.client.backoff import Backoff
from tidelog.client.cluster import ClusterClient
from tidelog.client.connection import Connection
from tidelog.client.errors import ClientError

logger = logging.getLogger(__name__)


class Links:
    def __init__(
        self,
        cluster: ClusterClient,
        *,
        lane: str,
        changed: Callable[[], None],
        unreachable: Callable[[int], None] = lambda node: None,
    ) -> None:
        """`unreachable` hears of each attempt to connect that has failed."""
        self._cluster = cluster
        self._lane = lane
        self._changed = changed
        self._unreachable = unreachable
        self._open: dict[int, Connection] = {}
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._backoffs: dict[int, Backoff] = {}
        self.last_error: ClientError | None = None

    def is_paused(self, node: int) -> bool:
        connection = self._open.get(node)
        if connection is not None and connection.is_open:
            if connection.is_writable:
                return False
            connection.when_writable(self._changed)
            return True
        if node not in self._opening:
            self._opening[node] = asyncio.create_task(self._connect(node))
        return True

    def connection(self, node: int) -> Connection:
        """Of a broker that is not paused."""
        return self._open[node]

    async def _connect(self, node: int) -> None:
        try:
            self._open[node] = await self._cluster.connection(node, lane=self._lane)
            self._backoffs.pop(node, None)
        except ClientError as error:
            self.last_error = error
            logger.info("broker %d: %s", node, error)
            self._unreachable(node)
            backoff = self._backoffs.setdefault(node, self._cluster.backoff())
            await asyncio.sleep(backoff.next_seconds())
            # It may have gone, have another address by now, or lead nothing any more.
            try:
                await self._cluster.refresh_metadata(self._cluster.metadata.topics)
            except ClientError as nobody:
                logger.debug("no fresh metadata: %s", nobody)
        finally:
            del self._opening[node]
        self._changed()

    async def close(self) -> None:
        tasks = list(self._opening.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
