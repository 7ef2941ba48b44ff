"""The cluster as one thing to talk to: who is there, who leads what, and the patience to ask again.

Owns the metadata cache, the connections (one per broker and lane) and the retry loop. It never decides what a request
means: callers say which broker or partition it is for, and raise `ClientError`s whose `retriable` says whether another
round may help. Answers on one connection come in order, so a long-polling fetch would hold up everything behind it:
callers with such requests ask for a lane of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from tidelog.client.addresses import Address, parse_addresses
from tidelog.client.backoff import Backoff, Deadline
from tidelog.client.connection import Connection
from tidelog.client.errors import BrokerError, BrokerUnreachableError, ClientError, check
from tidelog.client.metadata import ClusterMetadata, TopicInfo, TopicPartition
from tidelog.client.settings import ClientSettings
from tidelog.ports import Rng, SystemRng
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

T = TypeVar("T")
logger = logging.getLogger(__name__)

ANY_NODE = -1
"""Whichever broker we are already connected to."""
CONTROLLER = -2
"""The controller, or a broker that forwards to it."""
NEXT_ADDRESS_SECONDS = 1.0
"""For a broker to take a connection and to answer the first question, before another one is tried beside it."""
FORGIVEN_SECONDS = 60.0
"""How long a broker that failed us is not asked for metadata while others are there."""


class ClusterClient:
    """`async with ClusterClient("host:9092") as cluster:` connects to the first bootstrap server that answers."""

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str],
        settings: ClientSettings | None = None,
        *,
        rng: Rng | None = None,
    ) -> None:
        self.settings = settings or ClientSettings()
        self.metadata = ClusterMetadata()
        self._bootstrap = parse_addresses(bootstrap_servers)
        self._rng = rng or SystemRng()
        self._connections: dict[tuple[Address, str], Connection] = {}
        self._opening: dict[tuple[Address, str], asyncio.Task[Connection]] = {}
        self._silent: dict[Address, float] = {}
        """Since when: could not be connected to, or stopped answering."""
        self._asked: list[Address] = []
        """For metadata, the last one last."""

    async def __aenter__(self) -> ClusterClient:
        try:
            await self.refresh_metadata([])
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for task in self._opening.values():
            task.cancel()
        connections = list(self._connections.values())
        self._connections.clear()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await asyncio.gather(*(connection.close() for connection in connections))

    # -- connections ------------------------------------------------------------------------------------------------

    async def connection(self, node: int = ANY_NODE, *, lane: str = "") -> Connection:
        """An open connection to a broker by node id, to ANY_NODE or to the CONTROLLER."""
        if node == CONTROLLER:
            node = self.metadata.controller_id
        broker = self.metadata.brokers.get(node)
        if broker is not None:
            return await self._connect(broker.address, lane)
        if node >= 0:
            raise BrokerUnreachableError(f"broker {node} is not (or no longer) part of the cluster")
        return await self._connect_to_any(lane)

    async def connection_to(self, address: Address, *, lane: str = "") -> Connection:
        """An open connection to a broker by its address: one that the cluster has fenced is no part of the metadata, and may answer all the same."""
        return await self._connect(address, lane)

    async def _connect_to_any(self, lane: str) -> Connection:
        # Whoever was asked for metadata last comes first: each retry asks another broker for them, and then that one is asked for everything else.
        asked = [(address, lane) for address in reversed(self._asked)]
        for key in dict.fromkeys([*asked, *self._connections]):
            connection = self._connections.get(key)
            if key[1] == lane and connection is not None and connection.is_open:
                return connection
        self._note_silence(lane)
        known = [broker.address for broker in self.metadata.brokers.values()]
        is_stuck = self.settings.metadata_recovery_strategy == "none" and bool(known)
        servers = dict.fromkeys(known if is_stuck else [*known, *self._bootstrap])
        # Whoever failed us comes last: one that takes connections and never answers would hold us up every time.
        return await self._connect_to_first(sorted(servers, key=self._silent.__contains__), lane)

    async def _connect_to_first(self, addresses: Iterable[Address], lane: str) -> Connection:
        """To whichever of them answers first. Each has a moment before the next one is tried as well: a process that stands still takes connections, and nobody would hear of it for half a minute."""
        failures: list[str] = []
        waiting: set[asyncio.Task[Connection]] = set()
        untried = iter(addresses)
        try:
            while True:
                address = next(untried, None)
                if address is not None:
                    task = asyncio.create_task(self._connect(address, lane))
                    task.add_done_callback(_seen)
                    waiting.add(task)
                if not waiting:
                    raise BrokerUnreachableError("; ".join(failures))
                done, waiting = await asyncio.wait(
                    waiting,
                    timeout=None if address is None else NEXT_ADDRESS_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not done and address is not None:
                    self._silent.setdefault(address, asyncio.get_running_loop().time())
                for task in done:
                    error = task.exception()
                    if error is None:
                        return task.result()
                    if not isinstance(error, ClientError) or not error.retriable:
                        raise error
                    failures.append(str(error))
        finally:
            for task in waiting:
                task.cancel()  # nobody waits for it here; a connection that is being opened is opened all the same

    async def _connect_to_another(self) -> Connection:
        """For metadata: not whom we asked the last time, if anybody else can be had.

        A broker that is cut off from its controller answers as readily as any other, and has heard of no election since: asked alone, it would be believed for ever.
        """
        self._note_silence("")
        last = self._asked[-1] if self._asked else None
        now = asyncio.get_running_loop().time()
        ready = [address for (address, lane), each in self._connections.items() if not lane and each.is_open]
        ready.sort(key=lambda address: self._asked.index(address) if address in self._asked else -1)
        others = [broker.address for broker in self.metadata.brokers.values()]
        others = [
            each for each in others if now - self._silent.get(each, -FORGIVEN_SECONDS) >= FORGIVEN_SECONDS
        ]
        connection = None
        with suppress(BrokerUnreachableError):
            connection = await self._connect_to_first(
                [each for each in dict.fromkeys([*ready, *others]) if each != last], ""
            )
        connection = connection or await self._connect_to_any("")
        self._asked = [address for address in self._asked if address != connection.address]
        self._asked.append(connection.address)
        return connection

    def _note_silence(self, lane: str) -> None:
        now = asyncio.get_running_loop().time()
        for (address, its_lane), connection in self._connections.items():
            if its_lane == lane and not connection.is_open:
                self._silent.setdefault(address, now)

    async def _connect(self, address: Address, lane: str) -> Connection:
        key = (address, lane)
        connection = self._connections.get(key)
        if connection is not None and connection.is_open:
            return connection
        # Callers that arrive while it is being opened share one attempt; one of them giving up does not end it.
        task = self._opening.get(key)
        if task is None:
            task = asyncio.create_task(self._open(key))
            task.add_done_callback(_seen)
            self._opening[key] = task
        return await asyncio.shield(task)

    async def _open(self, key: tuple[Address, str]) -> Connection:
        try:
            connection = await Connection.open(
                key[0],
                client_id=self.settings.client_id,
                client_version=self.settings.client_version,
                request_timeout_ms=self.settings.request_timeout_ms,
                connect_timeout_ms=self.settings.connect_timeout_ms,
            )
            self._connections[key] = connection
            self._silent.pop(key[0], None)
            return connection
        except ClientError:
            self._silent[key[0]] = asyncio.get_running_loop().time()
            raise
        finally:
            self._opening.pop(key, None)

    # -- metadata ---------------------------------------------------------------------------------------------------

    async def refresh_metadata(
        self, topics: Iterable[str] | None, *, create: bool = False
    ) -> ClusterMetadata:
        """Ask about some topics (none: only the brokers; None: every topic). `create` lets the broker auto-create."""
        names = None if topics is None else sorted(set(topics))
        connection = await self._connect_to_another()
        response: MetadataResponse = await connection.request(
            ApiKey.METADATA,
            MetadataRequest(
                topics=None if names is None else [MetadataRequestTopic(name=name) for name in names],
                allow_auto_topic_creation=create,
            ),
        )
        if (
            response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED
        ):  # KIP-1102: this is not our cluster any more
            logger.warning("%s asks its clients to begin anew with the bootstrap servers", connection.address)
            self.metadata = ClusterMetadata()
        check(response.error_code, f"metadata from {connection.address}")
        self.metadata = self.metadata.updated_by(response, everything=names is None)
        return self.metadata

    async def topic(
        self,
        name: str,
        *,
        create: bool = False,
        expected: bool = False,
        at_least_partitions: int = 1,
        timeout_ms: int | None = None,
    ) -> TopicInfo:
        """A topic whose partitions all have leaders, freshly asked for.

        One that does not exist fails at once, unless the broker may `create` it, or it is `expected` because it was
        just made: brokers hear of a new topic, or of more partitions, a moment after the controller made them.
        """

        async def ask() -> TopicInfo:
            info = (await self.refresh_metadata([name], create=create)).topics.get(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error_code
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not (create or expected):
                raise TopicMissingError(name)
            check(code, f"topic {name}")
            assert info is not None
            if len(info.partitions) < at_least_partitions or any(
                p.leader < 0 for p in info.partitions.values()
            ):
                raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name}")
            return info

        return await self.retrying(ask, timeout_ms=timeout_ms)

    async def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Partitions grouped by the broker that leads them; asks for metadata where it is not known."""
        wanted = list(partitions)
        if missing := {tp.topic for tp in wanted if self.metadata.leader_of(tp) is None}:
            await self.refresh_metadata(missing)
        groups: dict[int, list[TopicPartition]] = {}
        for tp in wanted:
            info = self.metadata.leader_of(tp)
            if info is None:
                raise self._no_leader(tp)
            groups.setdefault(info.leader, []).append(tp)
        return groups

    def _no_leader(self, tp: TopicPartition) -> ClientError:
        topic = self.metadata.topics.get(tp.topic)
        if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return TopicMissingError(tp.topic)
        if topic.error_code:
            return BrokerError(topic.error_code, f"topic {tp.topic}")
        if tp.partition not in topic.partitions:
            return PartitionMissingError(tp, len(topic.partitions))
        return BrokerError(
            ErrorCode.LEADER_NOT_AVAILABLE, f"partition {tp}", "no broker leads it at the moment"
        )

    def forget_leaders(self, topics: Iterable[str]) -> None:
        """What we know about these topics turned out stale: the next look-up asks again."""
        self.metadata = self.metadata.doubting(topics)

    # -- requests ---------------------------------------------------------------------------------------------------

    async def request(
        self,
        key: ApiKey,
        message: object,
        *,
        node: int = ANY_NODE,
        at_most: int | None = None,
        timeout_ms: int | None = None,
    ) -> Any:
        """One request to one broker, not retried."""
        connection = await self.connection(node)
        return await connection.request(key, message, at_most=at_most, timeout_ms=timeout_ms)

    def backoff(self) -> Backoff:
        return Backoff(
            self._rng, first_ms=self.settings.retry_backoff_ms, max_ms=self.settings.retry_backoff_max_ms
        )

    async def retrying(self, attempt: Callable[[], Awaitable[T]], *, timeout_ms: int | None = None) -> T:
        """Run `attempt` until it succeeds, fails for good, or the time is up; the last error is the one raised."""
        loop = asyncio.get_running_loop()
        deadline = Deadline(
            loop.time(), self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        )
        backoff = self.backoff()
        while True:
            try:
                return await attempt()
            except ClientError as error:
                if not error.retriable:
                    raise
                pause = backoff.next_seconds()
                if deadline.passed(loop.time() + pause):
                    error.add_note(f"gave up after {deadline.budget_ms} ms of retries")
                    raise
                logger.debug("retrying in %.0f ms: %s", pause * 1000, error)
            await asyncio.sleep(pause)
            await self._look_again()

    async def _look_again(self) -> None:
        """Leaders and brokers may have changed, which is often why the last try failed."""
        self.metadata = self.metadata.doubting(self.metadata.topics)
        try:
            await self.refresh_metadata([])
        except ClientError as error:
            logger.debug("no fresh metadata: %s", error)


def _seen(task: asyncio.Task[Connection]) -> None:
    """Everybody who wanted the connection may have given up: then nobody asks how it failed."""
    if not task.cancelled():
        task.exception()


class TopicMissingError(BrokerError):
    def __init__(self, topic: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}", "it does not exist")
        self.topic = topic
        self.retriable = False


class PartitionMissingError(BrokerError):
    def __init__(self, tp: TopicPartition, count: int) -> None:
        super().__init__(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"partition {tp}",
            f"topic {tp.topic} has partitions 0 to {count - 1}",
        )
        self.retriable = False
