"""The topics of the example and how they are made. What exists already is left as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.client import Admin, NewTopic

COMPACTED: Final[Mapping[str, str]] = {"cleanup.policy": "compact"}

# (name, partitions, settings). Keys: orders, couriers and order-status by order, kitchen and restaurants by restaurant, payments by customer.
TOPICS: Final[tuple[tuple[str, int, Mapping[str, str]], ...]] = (
    ("orders", 3, {}),
    ("kitchen", 3, {}),
    ("couriers", 3, {}),
    ("payments", 3, {}),
    ("order-status", 3, COMPACTED),
    ("restaurants", 1, COMPACTED),
    ("orders-per-minute", 1, {}),
    ("orders-dlq", 1, {"retention.ms": "-1"}),
)
RESULTS, DEAD_LETTERS = "orders-per-minute", "orders-dlq"


async def create_topics(brokers: str, *, count: int = 1) -> list[str]:
    """Make those that are missing, with as many replicas as `count` brokers give (three at most); returns their names."""
    replicas = min(3, count)
    safety = {"min.insync.replicas": str(replicas - 1)} if replicas > 1 else {}
    async with Admin(brokers) as admin:
        existing = (await admin.list_topics()).topics
        missing = [
            NewTopic(name, partitions, replicas, {**settings, **safety})
            for name, partitions, settings in TOPICS
            if name not in existing
        ]
        if missing:
            await admin.create_topics(missing)
    return [topic.name for topic in missing]
