"""Topics made and deleted by the broker itself: for clients that produce to a topic that is not there, and for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

USE_DEFAULT = -1


class TopicAdmin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def create(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str],
        *,
        replication_factor: int = USE_DEFAULT,
        replicas: Sequence[Sequence[int]] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create one topic, ready for use when this returns; RequestError when it cannot be. `replicas`: the brokers of each partition."""
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=USE_DEFAULT if replicas else partitions,
                    replication_factor=replication_factor,
                    assignments=[
                        CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
                        for index, brokers in enumerate(replicas or ())
                    ],
                    configs=[CreatableTopicConfig(name=key, value=value) for key, value in config.items()],
                )
            ]
        )
        response: CreateTopicsResponse = await self._broker.metadata.ask_controller(request)
        result = response.topics[0]
        if result.error_code and not (exist_ok and result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS):
            raise RequestError(ErrorCode(result.error_code), result.error_message or "")
        await self._broker.metadata.when(lambda image: name in image.topics_by_name)

    async def create_with_defaults(self, name: str) -> None:
        """For a client that asked for a topic that is not there. Somebody else may have been faster."""
        await self.create(name, USE_DEFAULT, {}, exist_ok=True)

    async def delete(self, name: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])
        response: DeleteTopicsResponse = await self._broker.metadata.ask_controller(request)
        result = response.responses[0]
        if result.error_code:
            raise RequestError(ErrorCode(result.error_code), result.error_message or "")
        await self._broker.metadata.when(lambda image: result.topic_id not in image.topics_by_id)
