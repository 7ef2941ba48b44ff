"""What commands that read have in common: how their consumer is set up, and what they do when nothing comes.

A consumer waits for ever for a cluster that went away, or for a topic that was deleted: it cannot know that nobody will bring them back. A command says so, and ends.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from tidelog.cli.boundary import our_name
from tidelog.cli.output import warn
from tidelog.client.cluster import ClusterClient
from tidelog.client.consumer.consumer import Consumer
from tidelog.client.errors import LogTruncatedError

SILENCE_SECONDS: Final = 5.0
PATIENCE_MS: Final = 60_000
"""How long a cluster may be away: long enough for a restart."""
POLL_MS: Final = 1_000
POLL_MS_TO_END: Final = 100
"""Whoever stops at the end looks more often: what is there at the end may be nothing that is shown, and brings no poll back."""


def reader_options() -> dict[str, Any]:
    """For a consumer that goes where it is told, changes nothing by itself, and takes many records at a time."""
    return {
        "auto_offset_reset": "none",
        "enable_auto_commit": False,
        "allow_auto_create_topics": False,
        "max_poll_records": 2_000,
        "default_api_timeout_ms": 30_000,
        **our_name(),
    }


class Watch:
    """Asks, when nothing has come for a while, whether the topic is still there."""

    def __init__(self, cluster: ClusterClient, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()

    async def heard(self, of_anything: bool) -> None:
        """After each look for records. Raises what keeps them away, if that does not pass."""
        if not of_anything and self._loop.time() - self._heard_at < SILENCE_SECONDS:
            return
        if not of_anything:
            await self._cluster.topic(self._topic, timeout_ms=PATIENCE_MS)
        self._heard_at = self._loop.time()


def go_on_where_cut(consumer: Consumer, error: LogTruncatedError) -> None:
    """What was read behind the cut was never committed by its brokers: there is nothing to go back to."""
    offset = error.offset if error.offset >= 0 else consumer.positions()[error.tp]
    warn([f"{error.tp}: records that were read are gone, the log was cut; going on at {offset}"])
    consumer.seek(error.tp, offset)
