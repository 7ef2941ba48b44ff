"""Topics and configs: what an administrator asks of a cluster, with typed answers.

Every method raises `BrokerError` for the first resource that was refused, with the broker's own message. Requests that
change something are retried only when the broker said that it did nothing (it was not the controller, it was busy); if
the connection breaks in between, the error says that the outcome is unknown instead of doing it twice.
Offsets, log directories and record deletion are addressed to partition leaders: see `offsets.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tidelog.client.cluster import ANY_NODE, CONTROLLER, ClusterClient, TopicMissingError
from tidelog.client.errors import ClientError, ConnectionLostError, RequestTimedOutError, check
from tidelog.client.metadata import ClusterMetadata, TopicInfo
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:
        return cls.UNKNOWN


_SET, _DELETE = 0, 1


@dataclass(frozen=True, slots=True)
class Resource:
    """What a config belongs to. A broker with an empty name is the default of all brokers."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower()} {self.name}" if self.name else "the cluster-wide broker default"


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = -1
    """-1: the broker's num.partitions."""
    replication_factor: int = -1
    """-1: the broker's default.replication.factor."""
    configs: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    documentation: str | None
    synonyms: tuple[tuple[str, str | None, ConfigSource], ...]


class Admin:
    def __init__(self, cluster: ClusterClient, *, timeout_ms: int | None = None) -> None:
        self.cluster = cluster
        self._timeout_ms = cluster.settings.request_timeout_ms if timeout_ms is None else timeout_ms

    # -- topics -----------------------------------------------------------------------------------------------------

    async def list_topics(self) -> ClusterMetadata:
        async def ask() -> ClusterMetadata:
            return await self.cluster.refresh_metadata(None)

        return await self.cluster.retrying(ask, timeout_ms=self._timeout_ms)

    async def describe_topics(self, names: Sequence[str]) -> list[TopicInfo]:
        async def ask() -> ClusterMetadata:
            return await self.cluster.refresh_metadata(names)

        found = (await self.cluster.retrying(ask, timeout_ms=self._timeout_ms)).topics
        for name in names:
            topic = found.get(name)
            if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise TopicMissingError(name)
            check(topic.error_code, f"topic {name}")
        return [found[name] for name in names]

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> list[CreatedTopic]:
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in topics],
            timeout_ms=self._timeout_ms,
            validate_only=validate_only,
        )

        async def ask() -> list[CreatedTopic]:
            response: CreateTopicsResponse = await self._change(ApiKey.CREATE_TOPICS, request)
            for t in response.topics:
                check(t.error_code, f"creating topic {t.name}", t.error_message)
            return [
                CreatedTopic(t.name, t.topic_id, t.num_partitions, t.replication_factor)
                for t in response.topics
            ]

        return await self.cluster.retrying(ask, timeout_ms=self._timeout_ms)

    async def delete_topics(self, names: Sequence[str]) -> None:
        # Versions up to 5 carry plain names, later ones names or ids; the codec writes whichever the version has.
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in names],
            topic_names=list(names),
            timeout_ms=self._timeout_ms,
        )

        async def ask() -> None:
            response: DeleteTopicsResponse = await self._change(ApiKey.DELETE_TOPICS, request)
            for t in response.responses:
                if t.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise TopicMissingError(t.name or "")
                check(t.error_code, f"deleting topic {t.name}", t.error_message)

        await self.cluster.retrying(ask, timeout_ms=self._timeout_ms)
        self.cluster.forget_leaders(names)

    async def create_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
        """Grow a topic to `count` partitions. Keys move: what had one partition may go to another from now on."""
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=topic, count=count, assignments=None)],
            timeout_ms=self._timeout_ms,
            validate_only=validate_only,
        )

        async def ask() -> None:
            response: CreatePartitionsResponse = await self._change(ApiKey.CREATE_PARTITIONS, request)
            for result in response.results:
                if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise TopicMissingError(topic)
                check(result.error_code, f"adding partitions to topic {result.name}", result.error_message)

        await self.cluster.retrying(ask, timeout_ms=self._timeout_ms)
        self.cluster.forget_leaders([topic])

    # -- configs ----------------------------------------------------------------------------------------------------

    async def describe_configs(
        self, resource: Resource, names: Sequence[str] | None = None, *, documentation: bool = False
    ) -> list[ConfigEntry]:
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configuration_keys=None if names is None else list(names),
                )
            ],
            include_synonyms=True,
            include_documentation=documentation,
        )

        async def ask() -> list[ConfigEntry]:
            response: DescribeConfigsResponse = await self.cluster.request(
                ApiKey.DESCRIBE_CONFIGS, request, node=self._node_of(resource), timeout_ms=self._timeout_ms
            )
            for result in response.results:
                self._check_resource(result.error_code, result.error_message, resource, "config of")
            return [_entry(config) for result in response.results for config in result.configs]

        return await self.cluster.retrying(ask, timeout_ms=self._timeout_ms)

    async def alter_configs(
        self,
        resource: Resource,
        *,
        set_: Mapping[str, str] | None = None,
        unset: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Change some settings and leave the others alone; a setting that is unset falls back to its default."""
        changes = [AlterableConfig(name=k, config_operation=_SET, value=v) for k, v in (set_ or {}).items()]
        changes += [AlterableConfig(name=name, config_operation=_DELETE, value=None) for name in unset]
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=resource.type, resource_name=resource.name, configs=changes
                )
            ],
            validate_only=validate_only,
        )
        node = self._node_of(resource) if resource.type == ResourceType.BROKER else CONTROLLER

        async def ask() -> None:
            response: IncrementalAlterConfigsResponse = await self._change(
                ApiKey.INCREMENTAL_ALTER_CONFIGS, request, node=node
            )
            for result in response.responses:
                self._check_resource(
                    result.error_code, result.error_message, resource, "changing the config of"
                )

        await self.cluster.retrying(ask, timeout_ms=self._timeout_ms)

    def _node_of(self, resource: Resource) -> int:
        """A broker's own settings are known to that broker only; everything else is known to all."""
        if resource.type != ResourceType.BROKER or not resource.name:
            return ANY_NODE
        node, brokers = int(resource.name), sorted(self.cluster.metadata.brokers)
        if node not in brokers:
            raise ClientError(
                f"there is no broker {node} in the cluster; its brokers are {', '.join(map(str, brokers))}"
            )
        return node

    def _check_resource(self, code: int, message: str | None, resource: Resource, doing: str) -> None:
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and resource.type == ResourceType.TOPIC:
            raise TopicMissingError(resource.name)
        check(code, f"{doing} {resource}", message)

    async def _change(self, key: ApiKey, request: object, *, node: int = CONTROLLER) -> Any:
        try:
            return await self.cluster.request(key, request, node=node, timeout_ms=self._timeout_ms + 5_000)
        except (ConnectionLostError, RequestTimedOutError) as error:
            error.retriable = False
            error.add_note("it may or may not have been carried out: look before you try again")
            raise


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[CreatableTopicConfig(name=k, value=v) for k, v in (topic.configs or {}).items()],
    )


def _entry(config: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        name=config.name,
        value=config.value,
        source=ConfigSource(config.config_source),
        read_only=config.read_only,
        sensitive=config.is_sensitive,
        documentation=config.documentation,
        synonyms=tuple((s.name, s.value, ConfigSource(s.source)) for s in config.synonyms),
    )
