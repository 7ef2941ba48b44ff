"""Members of a group for tests: consumers that are polled in the background, with notes of what they got and heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import Any, Final

from tidelog.client import Consumer, ConsumerRecord, TopicPartition
from tidelog.client.admin import Admin, Resource, ResourceType
from tidelog.client.consumer.membership import GroupMembership
from tidelog.client.errors import ClientError, CommitFailedError

IMPATIENT: Final[dict[str, Any]] = {
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "heartbeat_interval_ms": 100,
    "session_timeout_ms": 10_000,
    "fetch_max_wait_ms": 50,
    "request_timeout_ms": 5_000,
}
SHORT_SESSION_MS: Final = 1_500


class Member:
    """`commits`: after each poll, by hand. It is the listener of its own consumer."""

    def __init__(
        self, bootstrap: str, group: str, topics: Iterable[str], *, commits: bool = False, **options: Any
    ) -> None:
        self.consumer = Consumer(bootstrap, group_id=group, **{**IMPATIENT, **options})
        self.got: list[ConsumerRecord] = []
        self.heard: list[tuple[str, frozenset[int]]] = []
        """What happened to which partitions."""
        self.refused: list[CommitFailedError] = []
        self.failure: ClientError | None = None
        self._topics = list(topics)
        self._commits = commits
        self._polling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Member:
        await self.consumer.start()
        self.consumer.subscribe(self._topics, listener=self)
        self.go_on()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(
                f"a member with partitions {sorted(self.partitions)} and {len(self.got)} records; failed: {self.failure!r}; refused: {self.refused}; heard: {self.heard}"
            )
        await self.rest()
        await self.consumer.close()

    def go_on(self) -> None:
        self._polling = asyncio.create_task(self._poll())

    async def rest(self) -> None:
        """The application asks for no more records; heartbeats go on."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait({self._polling})

    async def _poll(self) -> None:
        try:
            while True:
                records = await self.consumer.poll(timeout_ms=100)
                self.got += records
                if records and self._commits:
                    try:
                        await self.consumer.commit()
                    except CommitFailedError as error:
                        self.refused.append(error)
        except ClientError as error:
            self.failure = error

    @property
    def values(self) -> list[int]:
        return [int(record.value or b"") for record in self.got]

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(tp.partition for tp in self.consumer.assignment())

    # ---- as a listener

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._hear("assigned", partitions)

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._hear("revoked", partitions)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._hear("lost", partitions)

    def _hear(self, what: str, partitions: Collection[TopicPartition]) -> None:
        if partitions:
            self.heard.append((what, frozenset(tp.partition for tp in partitions)))


def membership_of(consumer: Consumer) -> GroupMembership | None:
    """None before it has joined a group, and when it has left."""
    return None if consumer._group is None else consumer._group.membership


async def until(condition: Callable[[], object], *, seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def are_shared(count: int, *members: Member) -> bool:
    """All partitions are somebody's, none is two members', and nobody has two more than another."""
    shares = [member.partitions for member in members]
    sizes = sorted(map(len, shares))
    return (
        sum(sizes) == count
        and frozenset().union(*shares) == frozenset(range(count))
        and sizes[-1] - sizes[0] < 2
    )


async def shorten_session(bootstrap: str, group: str) -> None:
    """Members of the classic protocol ask for a session timeout; with the consumer protocol it is the group's."""
    async with Admin(bootstrap) as admin:
        await admin.alter_configs(
            Resource(ResourceType.GROUP, group), set_={"consumer.session.timeout.ms": str(SHORT_SESSION_MS)}
        )
