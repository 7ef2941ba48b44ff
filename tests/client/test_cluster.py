"""Leaders, retries and bootstrap: against scripts where timing matters, against a broker where truth does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidelog.client.cluster import (
    ClusterClient,
    PartitionMissingError,
    TopicMissingError,
)
from tidelog.client.errors import BrokerError, BrokerUnreachableError, ConnectionLostError
from tidelog.client.metadata import TopicPartition
from tidelog.client.offsets import LATEST, list_offsets
from tidelog.client.settings import ClientSettings
from tidelog.records.batch import read_header
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.init_producer_id import InitProducerIdResponse
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

FAST = ClientSettings(retry_backoff_ms=1, retry_backoff_max_ms=2, request_timeout_ms=2_000)


class Script:
    """A one-broker cluster with topic `t` of two partitions; produce and list-offsets answers come from lists."""

    def __init__(self, versions: Any) -> None:
        self.versions = versions
        self.port = 0
        self.produce_answers: list[Any] = []
        self.list_answers: list[int] = []
        self.batches: list[tuple[int, bytes]] = []
        self.metadata_requests = 0
        self.offset = 0

    def __call__(self, header: Any, body: Any) -> Any:
        if header.api_key == ApiKey.API_VERSIONS:
            return self.versions(
                METADATA=(0, 12), PRODUCE=(0, 12), LIST_OFFSETS=(1, 9), INIT_PRODUCER_ID=(0, 4)
            )
        if header.api_key == ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdResponse(producer_id=77, producer_epoch=0)
        if header.api_key == ApiKey.METADATA:
            self.metadata_requests += 1
            return self.metadata(body)
        if header.api_key == ApiKey.LIST_OFFSETS:
            code = self.list_answers.pop(0)
            partition = ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=5)
            return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[partition])])
        data = body.topic_data[0].partition_data[0]
        self.batches.append((data.index, bytes(data.records)))
        scripted = self.produce_answers.pop(0) if self.produce_answers else ErrorCode.NONE
        if not isinstance(scripted, ErrorCode):
            return scripted
        answer = PartitionProduceResponse(index=data.index, error_code=scripted, base_offset=self.offset)
        if scripted == ErrorCode.NONE:
            self.offset += read_header(data.records).record_count
        return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[answer])])

    def metadata(self, body: Any) -> MetadataResponse:
        partitions = [
            MetadataResponsePartition(partition_index=i, leader_id=0, replica_nodes=[0], isr_nodes=[0])
            for i in (0, 1)
        ]
        names = ["t"] if body.topics is None else [t.name for t in body.topics]
        topics = [
            MetadataResponseTopic(name=name, partitions=partitions)
            if name == "t"
            else MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            for name in names
        ]
        brokers = [MetadataResponseBroker(node_id=0, host="127.0.0.1", port=self.port)]
        return MetadataResponse(brokers=brokers, controller_id=0, topics=topics)


@pytest.fixture
def script(versions: Any) -> Script:
    return Script(versions)


def run(fake_broker: Any, script: Script, scenario: Any, settings: ClientSettings = FAST) -> None:
    async def connected(broker: Any) -> None:
        script.port = broker.port
        async with ClusterClient(f"127.0.0.1:{broker.port}", settings) as cluster:
            await scenario(cluster)

    fake_broker(script, connected)


def test_a_wrong_address_fails_at_once_and_names_every_server() -> None:
    async def scenario() -> None:
        with pytest.raises(BrokerUnreachableError, match=r"127.0.0.1:1: .*127.0.0.1:2: "):
            async with ClusterClient("127.0.0.1:1,127.0.0.1:2"):
                pass

    asyncio.run(asyncio.wait_for(scenario(), 5))


def test_bootstrap_goes_on_to_the_next_server(fake_broker: Any, script: Script) -> None:
    async def connected(broker: Any) -> None:
        script.port = broker.port
        async with ClusterClient(["127.0.0.1:1", f"127.0.0.1:{broker.port}"]) as cluster:
            assert list(cluster.metadata.brokers) == [0]

    fake_broker(script, connected)


def test_a_leader_that_moved_is_looked_up_again(fake_broker: Any, script: Script) -> None:
    script.list_answers = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NONE]

    async def scenario(cluster: ClusterClient) -> None:
        found = await list_offsets(cluster, {TopicPartition("t", 0): LATEST})
        assert found[TopicPartition("t", 0)].offset == 5

    run(fake_broker, script, scenario)
    assert script.list_answers == []
    assert script.metadata_requests >= 4


def test_an_error_that_will_not_pass_is_raised_at_once(fake_broker: Any, script: Script) -> None:
    script.list_answers = [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NONE]

    async def scenario(cluster: ClusterClient) -> None:
        with pytest.raises(BrokerError, match=r"t-0.*TOPIC_AUTHORIZATION_FAILED"):
            await list_offsets(cluster, {TopicPartition("t", 0): LATEST})

    run(fake_broker, script, scenario)
    assert len(script.list_answers) == 1


def test_retries_end_with_the_deadline_and_the_last_error(fake_broker: Any, script: Script) -> None:
    script.list_answers = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 10_000

    async def scenario(cluster: ClusterClient) -> None:
        with pytest.raises(BrokerError, match="NOT_LEADER_OR_FOLLOWER") as raised:
            await list_offsets(cluster, {TopicPartition("t", 0): LATEST}, timeout_ms=60)
        assert any("gave up after 60 ms" in text for text in raised.value.__notes__)

    run(fake_broker, script, scenario)


def test_missing_topics_and_partitions_are_told_apart(fake_broker: Any, script: Script) -> None:
    async def scenario(cluster: ClusterClient) -> None:
        with pytest.raises(TopicMissingError, match="topic nosuch"):
            await cluster.topic("nosuch")
        with pytest.raises(TopicMissingError, match="topic nosuch"):
            await cluster.by_leader([TopicPartition("nosuch", 0)])
        with pytest.raises(PartitionMissingError, match=r"t-7.*partitions 0 to 1"):
            await cluster.by_leader([TopicPartition("t", 7)])

    run(fake_broker, script, scenario)


def test_a_change_whose_answer_is_lost_is_not_repeated(
    fake_broker: Any, script: Script, versions: Any, hang_up: object
) -> None:
    from tidelog.client.admin import Admin, NewTopic

    asked = 0

    def answer(header: Any, body: Any) -> Any:
        nonlocal asked
        if header.api_key == ApiKey.API_VERSIONS:
            return versions(METADATA=(0, 12), CREATE_TOPICS=(2, 7))
        if header.api_key == ApiKey.CREATE_TOPICS:
            asked += 1
            return hang_up
        return script.metadata(body)

    async def connected(broker: Any) -> None:
        script.port = broker.port
        async with ClusterClient(f"127.0.0.1:{broker.port}", FAST) as cluster:
            with pytest.raises(ConnectionLostError) as raised:
                await Admin(cluster).create_topics([NewTopic("new")])
            assert "may or may not" in raised.value.__notes__[0]

    fake_broker(answer, connected)
    assert asked == 1
