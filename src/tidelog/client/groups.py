"""Consumer groups as an administrator sees them: who coordinates, what there is, what is committed.

A group is known to its coordinator only. `at_coordinator` finds it, asks, and asks again while it loads or moves; `list_groups` asks
every broker, because each lists its own. Topics are named, not numbered, which OffsetCommit and OffsetFetch allow up to version 9: ids would
need the metadata of every topic. Only who has read a topic commits by its id, so that an offset in a deleted topic never counts for a new one of the
same name. Changes that may be done twice are retried over a lost connection; deleting a group is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tidelog.client.addresses import Address
from tidelog.client.cluster import ClusterClient, TopicMissingError
from tidelog.client.errors import (
    BrokerError,
    ClientError,
    ConnectionLostError,
    RequestTimedOutError,
    UnsupportedRequestError,
    check,
)
from tidelog.client.group_description import GroupDescription, of_classic, of_consumer
from tidelog.client.metadata import ZERO_ID, TopicPartition
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages import offset_commit, offset_delete, offset_fetch
from tidelog.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tidelog.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse

T = TypeVar("T")

LAST_VERSION_WITH_NAMES = 9
_FIRST_LIST_WITH_TYPES = 5
_GROUP = 0
_NOT_HERE = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
_NO_SUCH_TOPIC = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
NO_IDS: Mapping[str, bytes] = {}


class ListedGroup(NamedTuple):
    group_id: str
    type: str
    """classic, consumer, share or streams; empty where the broker is too old to say. So is `state`."""
    state: str
    protocol_type: str


class Committed(NamedTuple):
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Membership(NamedTuple):
    """In whose name offsets are committed: nobody's is for groups without members."""

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


NOBODY = Membership()


class GroupMissingError(BrokerError):
    def __init__(self, group_id: str) -> None:
        super().__init__(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id}", "it does not exist")
        self.group_id = group_id


class Groups:
    def __init__(self, cluster: ClusterClient) -> None:
        self.cluster = cluster
        self._coordinators: dict[str, int] = {}

    # -- coordinators -----------------------------------------------------------------------------------------------

    async def coordinator(self, group_id: str) -> int:
        """The node that coordinates a group, remembered until `forget`. Not retried: a new cluster has none for a moment."""
        node = self._coordinators.get(group_id)
        if node is None:
            node = self._coordinators[group_id] = await self._find(group_id)
        return node

    def forget(self, group_id: str) -> None:
        """It answered with an error or not at all, and may be another one by now."""
        self._coordinators.pop(group_id, None)

    async def _find(self, group_id: str) -> int:
        response: FindCoordinatorResponse = await self.cluster.request(
            ApiKey.FIND_COORDINATOR,
            FindCoordinatorRequest(key=group_id, key_type=_GROUP, coordinator_keys=[group_id]),
        )
        found: Any = response.coordinators[0] if response.coordinators else response
        check(found.error_code, f"looking for the coordinator of group {group_id}", found.error_message)
        broker = self.cluster.metadata.brokers.get(found.node_id)
        if broker is None or broker.address != Address(found.host, found.port):
            await self.cluster.refresh_metadata([])
        return int(found.node_id)

    async def at_coordinator(
        self, group_id: str, ask: Callable[[int], Awaitable[T]], *, timeout_ms: int | None = None
    ) -> T:
        """Run `ask` with the coordinator's node, again for as long as its errors say that another try may help."""

        async def attempt() -> T:
            try:
                return await ask(await self.coordinator(group_id))
            except ClientError:
                self.forget(group_id)
                raise

        return await self.cluster.retrying(attempt, timeout_ms=timeout_ms)

    # -- groups -----------------------------------------------------------------------------------------------------

    async def list_groups(
        self, *, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> list[ListedGroup]:
        """Of the whole cluster, by name. Without `states` or `types`: all of them."""

        async def ask() -> list[ListedGroup]:
            await self.cluster.refresh_metadata([])
            nodes = sorted(self.cluster.metadata.brokers)
            answers = await asyncio.gather(*(self._list_at(node, states, types) for node in nodes))
            return sorted(group for answer in answers for group in answer)

        return await self.cluster.retrying(ask)

    async def _list_at(self, node: int, states: Sequence[str], types: Sequence[str]) -> list[ListedGroup]:
        connection = await self.cluster.connection(node)
        if (states or types) and connection.version_for(ApiKey.LIST_GROUPS) < _FIRST_LIST_WITH_TYPES:
            raise UnsupportedRequestError(
                f"the broker at {connection.address} cannot choose groups by state or type; list them all"
            )
        response: ListGroupsResponse = await connection.request(
            ApiKey.LIST_GROUPS, ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        )
        check(response.error_code, f"listing the groups of broker {node}")
        return [
            ListedGroup(g.group_id, g.group_type.lower(), g.group_state, g.protocol_type)
            for g in response.groups
        ]

    async def describe(self, group_id: str) -> GroupDescription:
        """A classic group or one of the consumer protocol (KIP-848). GroupMissingError if it is neither."""

        async def ask(node: int) -> GroupDescription:
            found = await self._describe_consumer(node, group_id)
            return found or await self._describe_classic(node, group_id)

        return await self.at_coordinator(group_id, ask)

    async def _describe_consumer(self, node: int, group_id: str) -> GroupDescription | None:
        try:
            response: ConsumerGroupDescribeResponse = await self.cluster.request(
                ApiKey.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest(group_ids=[group_id]), node=node
            )
        except UnsupportedRequestError:
            return None  # a broker before KIP-848 has classic groups only
        (group,) = response.groups
        if group.error_code in _NOT_HERE:
            return None
        check(group.error_code, f"describing group {group_id}", group.error_message)
        return of_consumer(group, node)

    async def _describe_classic(self, node: int, group_id: str) -> GroupDescription:
        response: DescribeGroupsResponse = await self.cluster.request(
            ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=[group_id]), node=node
        )
        (group,) = response.groups
        # Before version 6 a group that does not exist was a dead one (KIP-1043).
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or (
            not group.error_code and group.group_state == "Dead"
        ):
            raise GroupMissingError(group_id)
        check(group.error_code, f"describing group {group_id}", group.error_message)
        return of_classic(group, node)

    async def delete(self, group_id: str) -> None:
        """The group and its committed offsets. NON_EMPTY_GROUP while it has members."""

        async def ask(node: int) -> None:
            try:
                response: DeleteGroupsResponse = await self.cluster.request(
                    ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=[group_id]), node=node
                )
            except (ConnectionLostError, RequestTimedOutError) as error:
                error.retriable = False
                error.add_note(f"group {group_id} may or may not be deleted: look before you try again")
                raise
            for result in response.results:
                if result.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                    raise GroupMissingError(group_id)
                check(result.error_code, f"deleting group {group_id}")

        await self.at_coordinator(group_id, ask)

    # -- offsets ----------------------------------------------------------------------------------------------------

    async def offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
    ) -> dict[TopicPartition, Committed]:
        """What is committed, for some partitions or all; without those that have nothing committed.

        `require_stable` waits for open transactions that commit offsets too, which whoever reads on from them must.
        """
        wanted = None if partitions is None else _by_topic(partitions)
        request = _fetch_request(group_id, wanted, require_stable)

        async def ask(node: int) -> dict[TopicPartition, Committed]:
            response: offset_fetch.OffsetFetchResponse = await self.cluster.request(
                ApiKey.OFFSET_FETCH, request, node=node, at_most=LAST_VERSION_WITH_NAMES
            )
            answer: Any = response.groups[0] if response.groups else response
            check(answer.error_code, f"offsets of group {group_id}")
            found: dict[TopicPartition, Committed] = {}
            for topic in answer.topics:
                for p in topic.partitions:
                    tp = TopicPartition(topic.name, p.partition_index)
                    check(p.error_code, f"the offset of group {group_id} in {tp}")
                    if p.committed_offset >= 0:
                        found[tp] = Committed(p.committed_offset, p.committed_leader_epoch, p.metadata or "")
            return found

        return await self.at_coordinator(group_id, ask)

    async def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int] | Mapping[TopicPartition, Committed],
        *,
        member: Membership = NOBODY,
        topic_ids: Mapping[str, bytes] = NO_IDS,
        timeout_ms: int | None = None,
    ) -> None:
        """In the name of a member; of nobody only while the group has no members: UNKNOWN_MEMBER_ID otherwise.

        `topic_ids` of all topics, where they are known. TopicMissingError for one that was deleted; what concerns others is committed then.
        """
        topics = [
            offset_commit.OffsetCommitRequestTopic(
                name=topic,
                topic_id=topic_ids.get(topic, ZERO_ID),
                partitions=[_to_commit(p, offsets[TopicPartition(topic, p)]) for p in partitions],
            )
            for topic, partitions in _by_topic(offsets).items()
        ]
        request = offset_commit.OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            topics=topics,
        )
        has_ids = all(topic.topic_id != ZERO_ID for topic in topics)
        names = {topic.topic_id: topic.name for topic in topics}

        async def ask(node: int) -> None:
            response: offset_commit.OffsetCommitResponse = await self.cluster.request(
                ApiKey.OFFSET_COMMIT, request, node=node, at_most=None if has_ids else LAST_VERSION_WITH_NAMES
            )
            missing: dict[str, BrokerError] = {}
            for answer in response.topics:
                topic = answer.name or names.get(answer.topic_id, answer.topic_id.hex())
                for p in answer.partitions:
                    about = f"committing for {topic}-{p.partition_index} in group {group_id}"
                    if p.error_code in _NO_SUCH_TOPIC:
                        missing[topic] = BrokerError(p.error_code, about)
                    else:
                        check(p.error_code, about)
            if missing:
                await self._raise_missing(missing, topic_ids)

        await self.at_coordinator(group_id, ask, timeout_ms=timeout_ms)

    async def _raise_missing(
        self, missing: Mapping[str, BrokerError], topic_ids: Mapping[str, bytes]
    ) -> None:
        """A coordinator may hear of a new topic late, which passes; a topic that was deleted does not come back."""
        known = (await self.cluster.refresh_metadata(missing)).topics
        for topic, error in missing.items():
            if known[topic].error_code or topic_ids.get(topic, ZERO_ID) not in (
                ZERO_ID,
                known[topic].topic_id,
            ):
                raise TopicMissingError(topic) from error
        raise next(iter(missing.values()))

    async def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget what is committed. GROUP_SUBSCRIBED_TO_TOPIC while members of the group read the topic."""
        topics = [
            offset_delete.OffsetDeleteRequestTopic(
                name=topic,
                partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=p) for p in numbers],
            )
            for topic, numbers in _by_topic(partitions).items()
        ]

        async def ask(node: int) -> None:
            response: offset_delete.OffsetDeleteResponse = await self.cluster.request(
                ApiKey.OFFSET_DELETE,
                offset_delete.OffsetDeleteRequest(group_id=group_id, topics=topics),
                node=node,
            )
            if response.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                raise GroupMissingError(group_id)
            check(response.error_code, f"deleting offsets of group {group_id}")
            for topic in response.topics:
                for p in topic.partitions:
                    about = f"deleting the offset of group {group_id} in {topic.name}-{p.partition_index}"
                    check(p.error_code, about)

        await self.at_coordinator(group_id, ask)


def _to_commit(partition: int, what: int | Committed) -> offset_commit.OffsetCommitRequestPartition:
    committed = what if isinstance(what, Committed) else Committed(what)
    return offset_commit.OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        committed_metadata=committed.metadata,
    )


def _fetch_request(
    group_id: str, wanted: Mapping[str, list[int]] | None, require_stable: bool
) -> offset_fetch.OffsetFetchRequest:
    """For one group in both shapes: versions up to 7 had no list of groups, and the codec writes what its version has."""
    single, grouped = None, None
    if wanted is not None:
        single = [
            offset_fetch.OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in wanted.items()
        ]
        grouped = [
            offset_fetch.OffsetFetchRequestTopics(name=t, partition_indexes=p) for t, p in wanted.items()
        ]
    return offset_fetch.OffsetFetchRequest(
        group_id=group_id,
        topics=single,
        groups=[offset_fetch.OffsetFetchRequestGroup(group_id=group_id, topics=grouped)],
        require_stable=require_stable,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for tp in partitions:
        grouped.setdefault(tp.topic, []).append(tp.partition)
    return grouped
