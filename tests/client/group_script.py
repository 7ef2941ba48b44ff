"""A scripted broker that coordinates groups: answers by API, in order, the last one again and again."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from tests.client.conftest import FakeBroker, versions_answer
from tidelog.client.cluster import ClusterClient
from tidelog.client.groups import Groups
from tidelog.client.settings import ClientSettings
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from tidelog.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

FAST = ClientSettings(retry_backoff_ms=1, retry_backoff_max_ms=2, request_timeout_ms=2_000)
KAFKA_4 = {
    "METADATA": (0, 13),
    "FIND_COORDINATOR": (0, 6),
    "LIST_GROUPS": (0, 5),
    "DESCRIBE_GROUPS": (0, 6),
    "CONSUMER_GROUP_DESCRIBE": (0, 1),
    "DELETE_GROUPS": (0, 2),
    "OFFSET_FETCH": (1, 10),
    "OFFSET_COMMIT": (2, 10),
    "OFFSET_DELETE": (0, 0),
    "JOIN_GROUP": (0, 9),
    "SYNC_GROUP": (0, 5),
    "HEARTBEAT": (0, 4),
    "LEAVE_GROUP": (0, 5),
    "LIST_OFFSETS": (1, 9),
}


class GroupScript:
    """`script.say(ApiKey.HEARTBEAT, answer, …)`; an answer may be a function of the request. `asked` are the requests."""

    def __init__(self, **versions: tuple[int, int] | None) -> None:
        offered = {**KAFKA_4, **versions}
        self.versions = versions_answer(**{name: range_ for name, range_ in offered.items() if range_})
        self.topics = {"t": 3}
        self.port = 0
        self.asked: dict[ApiKey, list[Any]] = defaultdict(list)
        self.used: dict[ApiKey, int] = {}
        self._answers: dict[ApiKey, list[Any]] = {}

    def say(self, key: ApiKey, *answers: Any) -> GroupScript:
        self._answers[key] = list(answers)
        return self

    def __call__(self, header: Any, body: Any) -> Any:
        key = ApiKey(header.api_key)
        if key == ApiKey.API_VERSIONS:
            return self.versions
        if key == ApiKey.METADATA:
            return self._metadata(body)
        self.asked[key].append(body)
        self.used[key] = header.api_version
        answers = self._answers.get(key)
        if answers:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            return answer(body) if callable(answer) else answer
        if key == ApiKey.FIND_COORDINATOR:
            return self.coordinator()
        raise AssertionError(f"nobody told what to answer to {key.name}")

    def coordinator(self, error: ErrorCode = ErrorCode.NONE) -> FindCoordinatorResponse:
        found = Coordinator(key="g", node_id=0, host="127.0.0.1", port=self.port, error_code=error)
        return FindCoordinatorResponse(coordinators=[found])

    def _metadata(self, body: Any) -> MetadataResponse:
        names = self.topics if body.topics is None else [topic.name for topic in body.topics]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=0, host="127.0.0.1", port=self.port)],
            controller_id=0,
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        if name not in self.topics:
            return MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partitions = [
            MetadataResponsePartition(partition_index=p, leader_id=0, replica_nodes=[0], isr_nodes=[0])
            for p in range(self.topics[name])
        ]
        return MetadataResponseTopic(name=name, partitions=partitions)


def play(script: GroupScript, scenario: Callable[[Groups], Awaitable[None]]) -> FakeBroker:
    """Run a scenario against the script, on a loop of its own."""

    async def main() -> FakeBroker:
        broker = FakeBroker(script)
        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
        broker.port = script.port = server.sockets[0].getsockname()[1]
        try:
            async with asyncio.timeout(10), ClusterClient(f"127.0.0.1:{broker.port}", FAST) as cluster:
                await scenario(Groups(cluster))
        finally:
            server.close()
        return broker

    return asyncio.run(main())
