"""The admin clients of kafka-python and aiokafka, which ask with other versions than librdkafka does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.structs import TopicPartition as AioTopicPartition
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.errors import TopicAlreadyExistsError

from tests.clients.libraries.kafka_python import KafkaPythonLibrary
from tests.clients.rows import Row


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


@pytest.fixture
def topic(admin: Any, new_topic_name: Callable[[str], str]) -> str:
    name = new_topic_name("admin")
    admin.create_topics([NewTopic(name, num_partitions=2, replication_factor=1)])
    return name


def write_hundred(bootstrap: str, topic: str) -> int:
    first_ms = int(time.time() * 1000) - 10_000
    rows = [Row(None, b"%d" % number, (), first_ms + number) for number in range(100)]
    KafkaPythonLibrary().write(bootstrap, topic, rows, codec="none", acks="all")
    return first_ms


def test_topics_and_partitions(admin: Any, topic: str) -> None:
    assert topic in admin.list_topics()
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    admin.create_partitions({topic: NewPartitions(3)})
    (described,) = admin.describe_topics([topic])
    assert sorted(part["partition_index"] for part in described["partitions"]) == [0, 1, 2]
    (partitions,) = admin.describe_topic_partitions([topic])["topics"]
    assert partitions["name"] == topic
    assert len(partitions["partitions"]) == 3
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()


def topic_config(admin: Any, topic: str) -> dict[str, str]:
    """Name to value of everything DescribeConfigs says about a topic."""
    answer = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    entries = answer["topic"][topic] if isinstance(answer, dict) else answer[0]["configs"]
    return {name: entry["value"] for name, entry in entries.items()}


@pytest.mark.parametrize("incremental", [True, False], ids=["incremental", "legacy"])
def test_configs(admin: Any, topic: str, incremental: bool) -> None:
    change = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "7200000"})
    admin.alter_configs([change], incremental=incremental)
    assert topic_config(admin, topic)["retention.ms"] == "7200000"
    assert topic_config(admin, topic)["segment.bytes"] == "1073741824"


def test_list_config_resources(admin: Any, topic: str) -> None:
    assert topic in admin.list_config_resources(["TOPIC"])["topic"]


def test_offsets_and_delete_records(bootstrap: str, admin: Any, topic: str) -> None:
    first_ms = write_hundred(bootstrap, topic)
    where = TopicPartition(topic, 0)
    admin.delete_records({where: 30})

    def offset(spec: int) -> int:
        return int(admin.list_partition_offsets({where: spec})[where].offset)

    assert offset(-2) == 30, "earliest"
    assert offset(-1) == 100, "latest"
    assert offset(-3) == 99, "the record with the largest timestamp"
    assert offset(first_ms + 50) == 50


def test_cluster_and_log_dirs(bootstrap: str, admin: Any, topic: str) -> None:
    write_hundred(bootstrap, topic)
    cluster = admin.describe_cluster()
    assert [f"{broker['host']}:{broker['port']}" for broker in cluster["brokers"]] == [bootstrap]
    text = repr(admin.describe_log_dirs())
    assert topic in text


def test_the_inferred_broker_release_is_the_one_advertised(admin: Any) -> None:
    """kafka-python reads the release from the table of API versions: it must look like one real release."""
    node_id = admin.describe_cluster()["brokers"][0]["broker_id"]
    assert admin.get_broker_version_data(node_id).broker_version == (4, 3)


def test_aiokafka_admin(bootstrap: str, new_topic_name: Callable[[str], str]) -> None:
    asyncio.run(_aiokafka_admin(bootstrap, new_topic_name("aio")))


async def _aiokafka_admin(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([AioNewTopic(topic, num_partitions=1, replication_factor=1)])
        assert topic in await admin.list_topics()
        await admin.create_partitions({topic: AioNewPartitions(2)})
        (described,) = await admin.describe_topics([topic])
        assert len(described["partitions"]) == 2

        resource = AioConfigResource(AioConfigResourceType.TOPIC, topic, configs={"retention.ms": "7200000"})
        await admin.alter_configs([resource])
        (answer,) = await admin.describe_configs([AioConfigResource(AioConfigResourceType.TOPIC, topic)])
        entries = {entry[0]: entry[1] for entry in answer.resources[0][4]}
        assert entries["retention.ms"] == "7200000"

        await asyncio.to_thread(write_hundred, bootstrap, topic)
        where = AioTopicPartition(topic, 0)
        assert await admin.delete_records({where: RecordsToDelete(before_offset=10)}) == {where: 10}
        assert (await admin.describe_cluster())["cluster_id"]
        await admin.delete_topics([topic])
        assert topic not in await admin.list_topics()
    finally:
        await admin.close()
