"""Topics made and deleted by the broker itself: for clients that produce to a topic that is not there, and for tests."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.broker.metadata_service import MetadataService
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

USE_DEFAULT = -1


class TopicAdmin:
    def __init__(self, metadata: MetadataService) -> None:
        self._metadata = metadata

    async def create(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str],
        *,
        replication_factor: int = USE_DEFAULT,
        exist_ok: bool = False,
    ) -> None:
        """Create one topic, ready for use when this returns; RequestError when it cannot be."""
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=replication_factor,
                    configs=[CreatableTopicConfig(name=key, value=value) for key, value in config.items()],
                )
            ]
        )
        response = await self._metadata.submit(lambda controller: controller.create_topics(request))
        result = response.topics[0]
        if result.error_code and not (exist_ok and result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS):
            raise RequestError(ErrorCode(result.error_code), result.error_message or "")

    async def create_with_defaults(self, name: str) -> None:
        """For a client that asked for a topic that is not there. Somebody else may have been faster."""
        await self.create(name, USE_DEFAULT, {}, exist_ok=True)

    async def delete(self, name: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])
        response = await self._metadata.submit(lambda controller: controller.delete_topics(request))
        result = response.responses[0]
        if result.error_code:
            raise RequestError(ErrorCode(result.error_code), result.error_message or "")
