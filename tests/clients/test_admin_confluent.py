"""librdkafka's admin client, call by call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.clients.libraries.confluent import ConfluentLibrary
from tests.clients.rows import Row


@pytest.fixture
def admin(bootstrap: str) -> Any:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def topic(admin: Any, new_topic_name: Callable[[str], str]) -> str:
    name = new_topic_name("admin")
    admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "3600000"})])[name].result(30)
    return name


def config_of(admin: Any, topic: str) -> dict[str, Any]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return dict(admin.describe_configs([resource])[resource].result(30))


def test_create_describe_and_delete(admin: Any, topic: str) -> None:
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    assert [partition.id for partition in described.partitions] == [0, 1]
    assert all(partition.leader.id == partition.replicas[0].id for partition in described.partitions)
    assert all(
        [node.id for node in partition.isr] == [partition.leader.id] for partition in described.partitions
    )
    assert str(described.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA"
    assert topic in admin.list_topics(timeout=30).topics

    admin.delete_topics([topic])[topic].result(30)
    with pytest.raises(KafkaException) as refused:
        admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    assert refused.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_topic_made_again_is_another_topic(admin: Any, topic: str) -> None:
    before = admin.describe_topics(TopicCollection([topic]))[topic].result(30).topic_id
    admin.delete_topics([topic])[topic].result(30)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    after = admin.describe_topics(TopicCollection([topic]))[topic].result(30).topic_id
    assert str(before) != str(after)


@pytest.mark.parametrize(
    ("new_topic", "code"),
    [
        (NewTopic("not/allowed", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("..", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("x" * 250, 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("too-many-replicas", 1, 3), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("no-partitions", 0, 1), KafkaError.INVALID_PARTITIONS),
        (NewTopic("unknown-config", 1, 1, config={"no.such.setting": "1"}), KafkaError.INVALID_CONFIG),
        (NewTopic("bad-config", 1, 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
        (NewTopic("bad-policy", 1, 1, config={"cleanup.policy": "forget"}), KafkaError.INVALID_CONFIG),
    ],
    ids=lambda part: part.topic[:20] if isinstance(part, NewTopic) else "",
)
def test_what_cannot_be_created_is_refused(admin: Any, new_topic: Any, code: int) -> None:
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([new_topic])[new_topic.topic].result(30)
    assert refused.value.args[0].code() == code
    assert new_topic.topic not in admin.list_topics(timeout=30).topics


def test_a_topic_that_exists_and_validate_only(
    admin: Any, topic: str, new_topic_name: Callable[[str], str]
) -> None:
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS

    imagined = new_topic_name("imagined")
    admin.create_topics([NewTopic(imagined, 1, 1)], validate_only=True)[imagined].result(30)
    assert imagined not in admin.list_topics(timeout=30).topics


def test_more_partitions(bootstrap: str, admin: Any, topic: str) -> None:
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    assert [partition.id for partition in described.partitions] == [0, 1, 2, 3, 4]
    with pytest.raises(KafkaException) as refused:
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    assert refused.value.args[0].code() == KafkaError.INVALID_PARTITIONS


def test_configs_incrementally(admin: Any, topic: str) -> None:
    before = config_of(admin, topic)
    assert before["retention.ms"].value == "3600000"
    assert before["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert before["segment.bytes"].value == "1073741824"
    assert before["segment.bytes"].source == ConfigSource.DEFAULT_CONFIG.value

    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("segment.bytes", "2097152", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ],
    )
    admin.incremental_alter_configs([change])[change].result(30)
    after = config_of(admin, topic)
    assert after["segment.bytes"].value == "2097152"
    assert after["cleanup.policy"].value == "delete,compact"
    assert after["retention.ms"].value == "604800000"

    bad = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("segment.ms", "5000", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("retention.ms", "-7", incremental_operation=AlterConfigOpType.SET),
        ],
    )
    with pytest.raises(KafkaException) as refused:
        admin.incremental_alter_configs([bad])[bad].result(30)
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert config_of(admin, topic)["segment.ms"].value == "604800000", "a refused request must change nothing"


def test_configs_the_old_way_replace_everything(admin: Any, topic: str) -> None:
    change = ConfigResource(ResourceType.TOPIC, topic, set_config={"max.message.bytes": "2000000"})
    admin.alter_configs([change])[change].result(30)
    after = config_of(admin, topic)
    assert after["max.message.bytes"].value == "2000000"
    assert after["retention.ms"].value == "604800000", "AlterConfigs resets what it does not name"


def test_broker_configs(admin: Any) -> None:
    broker_id = next(iter(admin.list_topics(timeout=30).brokers))
    resource = ConfigResource(ResourceType.BROKER, str(broker_id))
    configs = admin.describe_configs([resource])[resource].result(30)
    assert configs["node.id"].value == str(broker_id)
    assert configs["node.id"].is_read_only
    assert configs["num.partitions"].value == "1"
    assert {"advertised.listeners", "log.retention.hours", "auto.create.topics.enable"} <= set(configs)


def write(bootstrap: str, topic: str, count: int, *, first_ms: int) -> None:
    rows = [Row(None, b"%d" % number, (), first_ms + number) for number in range(count)]
    ConfluentLibrary().write(bootstrap, topic, rows, codec="none", acks="all")


def test_delete_records(bootstrap: str, admin: Any, topic: str) -> None:
    write(bootstrap, topic, 100, first_ms=int(time.time() * 1000))
    where = TopicPartition(topic, 0, 40)
    assert admin.delete_records([where])[where].result(30).low_watermark == 40
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "watermarks"})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30) == (40, 100)
    consumer.close()
    rows = ConfluentLibrary().read(bootstrap, topic, start=0, count=60)
    assert [row.value for row in rows] == [b"%d" % number for number in range(40, 100)]

    beyond = TopicPartition(topic, 0, 101)
    with pytest.raises(KafkaException) as refused:
        admin.delete_records([beyond])[beyond].result(30)
    assert refused.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE


def test_list_offsets(bootstrap: str, admin: Any, topic: str) -> None:
    first_ms = int(time.time() * 1000) - 10_000
    write(bootstrap, topic, 100, first_ms=first_ms)
    ConfluentLibrary().write(
        bootstrap, topic, [Row(None, b"late", (), first_ms + 5)], codec="none", acks="all"
    )
    where = TopicPartition(topic, 0)

    def offset(spec: Any) -> tuple[int, int]:
        found = admin.list_offsets({where: spec})[where].result(30)
        return found.offset, found.timestamp

    assert offset(OffsetSpec.earliest())[0] == 0
    assert offset(OffsetSpec.latest())[0] == 101
    assert offset(OffsetSpec.max_timestamp()) == (99, first_ms + 99)
    assert offset(OffsetSpec.for_timestamp(first_ms + 42)) == (42, first_ms + 42)
    assert offset(OffsetSpec.for_timestamp(first_ms + 100))[0] == -1


def test_describe_cluster(bootstrap: str, admin: Any) -> None:
    cluster = admin.describe_cluster().result(30)
    assert cluster.cluster_id
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [bootstrap]
    assert cluster.controller.id == cluster.nodes[0].id
