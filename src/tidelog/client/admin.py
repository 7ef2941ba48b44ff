"""Administration: topics, settings, groups and their offsets, records, log directories; with typed answers.

    async with Admin("localhost:9092") as admin:
        await admin.create_topics([NewTopic("orders", 12)])

Every method raises `BrokerError` for the first resource that was refused, with the broker's own message. Requests that
change something are retried only when the broker said that it did nothing (it was not the controller, it was busy); if
the connection breaks in between, the error says that the outcome is unknown instead of doing it twice.
What is addressed to partition leaders is in `offsets.py`, what is addressed to coordinators in `groups.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidelog.client.admin_values import (
    ConfigEntry,
    ConfigSource,
    CreatedTopic,
    NewTopic,
    Resource,
    ResourceType,
)
from tidelog.client.cluster import ANY_NODE, CONTROLLER, ClusterClient, TopicMissingError
from tidelog.client.errors import ClientError, ConnectionLostError, RequestTimedOutError, check
from tidelog.client.metadata import ClusterMetadata, TopicInfo, TopicPartition
from tidelog.client.settings import ClientSettings
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

if TYPE_CHECKING:
    from tidelog.client.group_description import GroupDescription
    from tidelog.client.groups import Committed, Groups, ListedGroup
    from tidelog.client.offsets import FoundOffset, LogDir

__all__ = ["Admin", "ConfigEntry", "ConfigSource", "CreatedTopic", "NewTopic", "Resource", "ResourceType"]

_SET, _DELETE = 0, 1


class Admin:
    def __init__(
        self,
        servers: str | Iterable[str] | ClusterClient,
        *,
        timeout_ms: int | None = None,
        **options: Any,
    ) -> None:
        """Bootstrap servers and settings (`ClientSettings`), or a cluster that is connected to already and that somebody else will close."""
        self._is_owner = not isinstance(servers, ClusterClient)
        self.cluster = (
            servers
            if isinstance(servers, ClusterClient)
            else ClusterClient(servers, ClientSettings(**options))
        )
        self._timeout_ms = self.cluster.settings.request_timeout_ms if timeout_ms is None else timeout_ms

    async def __aenter__(self) -> Admin:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Find the cluster. `async with` does it."""
        try:
            await self.cluster.retrying(
                partial(self.cluster.refresh_metadata, []), timeout_ms=self._timeout_ms
            )
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._is_owner:
            await self.cluster.close()

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

    # -- groups -----------------------------------------------------------------------------------------------------

    @cached_property
    def groups(self) -> Groups:
        from tidelog.client.groups import Groups

        return Groups(self.cluster)

    async def list_groups(
        self, *, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> list[ListedGroup]:
        return await self.groups.list_groups(states=states, types=types)

    async def describe_group(self, group_id: str) -> GroupDescription:
        return await self.groups.describe(group_id)

    async def delete_group(self, group_id: str) -> None:
        """With its offsets. NON_EMPTY_GROUP while it has members."""
        await self.groups.delete(group_id)

    async def group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed]:
        """What is committed, for some partitions or all; without those that have nothing committed."""
        return await self.groups.offsets(group_id, partitions)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int] | Mapping[TopicPartition, Committed]
    ) -> None:
        """Where a group without members goes on. UNKNOWN_MEMBER_ID while it has some."""
        await self.groups.commit(group_id, offsets)

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        await self.groups.delete_offsets(group_id, partitions)

    # -- offsets and records ----------------------------------------------------------------------------------------

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, FoundOffset]:
        """By time in ms, or `offsets.EARLIEST`, `offsets.LATEST`, `offsets.MAX_TIMESTAMP`."""
        from tidelog.client.offsets import list_offsets

        return await list_offsets(
            self.cluster, wanted, isolation_level=int(read_committed), timeout_ms=self._timeout_ms
        )

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Every record below an offset (-1: up to the high watermark). Returns where the partitions begin now."""
        from tidelog.client.offsets import delete_records

        return await delete_records(self.cluster, before, timeout_ms=self._timeout_ms)

    async def describe_log_dirs(self) -> list[LogDir]:
        from tidelog.client.offsets import describe_log_dirs

        return await describe_log_dirs(self.cluster, timeout_ms=self._timeout_ms)

    # -- how --------------------------------------------------------------------------------------------------------

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
