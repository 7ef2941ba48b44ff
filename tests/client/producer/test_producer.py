"""The producer against a broker: ours in-process, or any Kafka named by TIDELOG_TEST_BOOTSTRAP."""

from __future__ import annotations

import asyncio
import time

import pytest

from tidelog.client import Consumer, Producer, TopicPartition
from tidelog.client.admin import Admin, NewTopic
from tidelog.client.cluster import ClusterClient, PartitionMissingError
from tidelog.client.errors import (
    BrokerError,
    BufferExhaustedError,
    ClosedError,
    DeliveryFailedError,
    DeliveryTimedOutError,
    RecordTooLargeError,
    SettingsError,
)
from tidelog.client.partitioner import partition_for_key
from tidelog.client.producer.record import OutgoingRecord
from tidelog.client.serialization import to_json, to_utf8
from tidelog.client.settings import ProducerSettings


async def make_topic(bootstrap: str, name: str, partitions: int = 1, **configs: str) -> None:
    """Its records may be as old as a test wants: retention comes by every few minutes, in the middle of a test as well."""
    async with ClusterClient(bootstrap) as cluster:
        settings = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in configs.items()}
        await Admin(cluster).create_topics([NewTopic(name, partitions, 1, settings)])
        await cluster.topic(name, expected=True, at_least_partitions=partitions)


async def everything(
    bootstrap: str, topic: str, count: int
) -> dict[int, list[tuple[int, bytes | None, bytes | None]]]:
    """(offset, key, value) by partition, when `count` records are read."""
    found: dict[int, list[tuple[int, bytes | None, bytes | None]]] = {}
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(TopicPartition(topic, p) for p in await consumer.partitions_for(topic))
        async with asyncio.timeout(20):
            while sum(map(len, found.values())) < count:
                for record in await consumer.poll():
                    found.setdefault(record.partition, []).append((record.offset, record.key, record.value))
        assert await consumer.poll(timeout_ms=50) == []
    return found


async def test_a_record_is_where_its_delivery_says(bootstrap: str, topic_name: str) -> None:
    await make_topic(bootstrap, topic_name, 3)
    before_ms = time.time_ns() // 1_000_000
    async with Producer(bootstrap) as producer:
        deliveries = [await producer.send(topic_name, b"%d" % n, key=b"k%d" % n) for n in range(100)]
        places = [await delivery for delivery in deliveries]
        assert all(delivery.done() for delivery in deliveries)
    found = await everything(bootstrap, topic_name, 100)
    for n, place in enumerate(places):
        assert place.topic == topic_name
        assert place.partition == partition_for_key(b"k%d" % n, 3) == deliveries[n].partition
        assert found[place.partition][place.offset] == (place.offset, b"k%d" % n, b"%d" % n)
        assert before_ms <= place.timestamp_ms <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("acks", ["all", 1, 0])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_every_codec_with_all_acks(
    bootstrap: str, topic_name: str, acks: int | str, codec: str
) -> None:
    await make_topic(bootstrap, topic_name)
    async with Producer(
        bootstrap, acks=acks, enable_idempotence=acks == "all", compression_type=codec, linger_ms=20
    ) as producer:
        deliveries = [
            await producer.send(topic_name, b"value %d" % n * 20, headers=(("h", b"%d" % n),))
            for n in range(200)
        ]
        offsets = [(await delivery).offset for delivery in deliveries]
    assert offsets == ([-1] * 200 if acks == 0 else list(range(200)))
    found = await everything(bootstrap, topic_name, 200)
    assert [value for _, _, value in found[0]] == [b"value %d" % n * 20 for n in range(200)]


async def test_records_without_a_key_reach_all_partitions(bootstrap: str, topic_name: str) -> None:
    await make_topic(bootstrap, topic_name, 4)
    async with Producer(bootstrap, batch_size=1_000) as producer:
        for n in range(2_000):
            await producer.send(topic_name, b"%06d" % n)
    found = await everything(bootstrap, topic_name, 2_000)
    assert sorted(found) == [0, 1, 2, 3]
    assert all(
        values == sorted(values) for values in ([v for _, _, v in records] for records in found.values())
    )


async def test_tombstones_explicit_partitions_and_times(bootstrap: str, topic_name: str) -> None:
    await make_topic(bootstrap, topic_name, 3)
    async with Producer(bootstrap) as producer:
        assert await producer.partitions_for(topic_name) == [0, 1, 2]
        place = await producer.send_and_wait(
            topic_name, None, key=b"gone", partition=2, timestamp_ms=1_700_000_000_000
        )
        assert (place.partition, place.timestamp_ms) == (2, 1_700_000_000_000)
        with pytest.raises(PartitionMissingError, match="partitions 0 to 2"):
            await producer.send(topic_name, b"x", partition=3)
    assert await everything(bootstrap, topic_name, 1) == {2: [(0, b"gone", None)]}


async def test_serializers_interceptors_and_partitioners_of_ones_own(bootstrap: str, topic_name: str) -> None:
    await make_topic(bootstrap, topic_name, 2)

    def trace(record: OutgoingRecord) -> OutgoingRecord:
        return record._replace(headers=(*record.headers, ("trace", b"42")))

    async with Producer(
        bootstrap,
        key_serializer=to_utf8,
        value_serializer=to_json,
        interceptors=[trace],
        partitioner=lambda topic, key, value, count: 1,
    ) as producer:
        await producer.send(topic_name, {"dish": "crêpe"}, key="table 7", headers=(("h", None),))
    async with Consumer(bootstrap) as consumer:
        consumer.assign([TopicPartition(topic_name, 1)])
        consumer.seek_to_beginning()
        (record,) = await consumer.poll(timeout_ms=5_000)
    assert (record.key, record.value) == (b"table 7", '{"dish":"crêpe"}'.encode())
    assert record.headers == (("h", None), ("trace", b"42"))


async def test_what_is_no_bytes_is_said_to_be_so(bootstrap: str, topic_name: str) -> None:
    await make_topic(bootstrap, topic_name)
    async with Producer(bootstrap) as producer:
        with pytest.raises(TypeError, match=r"the value of a record for .* is str, not bytes.*serializer"):
            await producer.send(topic_name, "text")
        with pytest.raises(TypeError, match="the key"):
            await producer.send(topic_name, b"", key=7)
        await producer.send(topic_name, b"goes on")
    assert await everything(bootstrap, topic_name, 1) == {0: [(0, None, b"goes on")]}


async def test_a_batch_too_large_for_its_topic_is_taken_apart(bootstrap: str, topic_name: str) -> None:
    await make_topic(bootstrap, topic_name, max_message_bytes="2000")
    async with Producer(bootstrap, batch_size=100_000, linger_ms=50) as producer:
        deliveries = [await producer.send(topic_name, b"%04d" % n * 25) for n in range(300)]
        assert [(await delivery).offset for delivery in deliveries] == list(range(300))
        with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
            await producer.send_and_wait(topic_name, b"x" * 3_000)
        assert (await producer.send_and_wait(topic_name, b"goes on")).offset == 300


async def test_flush_waits_for_everything_and_tells_what_nobody_asked_about(
    bootstrap: str, topic_name: str
) -> None:
    await make_topic(bootstrap, topic_name, max_message_bytes="2000")
    async with Producer(bootstrap, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        delivery = await producer.send(topic_name, b"lingers")
        await producer.flush()
        assert delivery.done() and (await delivery).offset == 0
        await producer.send(topic_name, b"x" * 5_000)
        with pytest.raises(DeliveryFailedError, match=r"1 records were not delivered.*MESSAGE_TOO_LARGE"):
            await producer.flush()
        await producer.flush()  # told once


async def test_a_buffer_that_is_full_makes_send_wait_and_then_fail() -> None:
    """No broker answers: the first record waits for its topic, and so does everything behind it."""

    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    server = await asyncio.start_server(silence, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Exception, match=r"did not answer|no answer"):
        async with Producer(
            f"127.0.0.1:{port}", request_timeout_ms=200, max_block_ms=500, delivery_timeout_ms=1_000
        ):
            pass
    server.close()


async def test_memory_is_exhausted_with_an_error_that_names_the_settings(
    bootstrap: str, topic_name: str
) -> None:
    await make_topic(bootstrap, topic_name)
    async with Producer(
        bootstrap, buffer_memory=5_000, batch_size=1_000, linger_ms=5, max_block_ms=100
    ) as producer:
        await producer.send_and_wait(topic_name, b"the topic is known")
        producer.accumulator.free = 0  # as if brokers took nothing
        with pytest.raises(BufferExhaustedError, match=r"max.block.ms=100.*buffer.memory=5000"):
            await producer.send(topic_name, b"no room")
        producer.accumulator.free = 5_000
        # More than fits goes through, a piece at a time.
        for n in range(200):
            await producer.send(topic_name, b"%04d" % n * 25)
    assert len((await everything(bootstrap, topic_name, 201))[0]) == 201


async def test_records_that_are_too_large_are_refused_by_name(bootstrap: str, topic_name: str) -> None:
    await make_topic(bootstrap, topic_name)
    async with Producer(bootstrap) as producer:
        with pytest.raises(RecordTooLargeError, match=r"max\.request\.size=1048576"):
            await producer.send(topic_name, bytes(2 << 20))
    async with Producer(bootstrap, buffer_memory=1_000) as producer:
        with pytest.raises(RecordTooLargeError, match=r"buffer\.memory=1000"):
            await producer.send(topic_name, bytes(2_000))


async def test_a_topic_that_does_not_exist(bootstrap: str) -> None:
    async with Producer(bootstrap, max_block_ms=300) as producer:
        with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
            await producer.send("no/such*topic", b"x")


async def test_a_closed_producer_says_so(bootstrap: str, topic_name: str) -> None:
    producer = Producer(bootstrap)
    await producer.close()
    with pytest.raises(ClosedError):
        await producer.send(topic_name, b"x")


async def test_delivery_times_out_with_the_reason(topic_name: str) -> None:
    from tidelog.testing import Cluster

    with Cluster(topics={topic_name: 1}) as cluster:
        producer = Producer(
            cluster.bootstrap_servers,
            delivery_timeout_ms=700,
            request_timeout_ms=300,
            linger_ms=0,
            retry_backoff_ms=20,
        )
        await producer.start()
        await producer.send_and_wait(topic_name, b"there")
        await asyncio.to_thread(cluster.stop)
        delivery = await producer.send(topic_name, b"not there any more")
        with pytest.raises(DeliveryTimedOutError, match=r"delivery\.timeout\.ms=700"):
            await delivery
        await producer.close()


def test_settings_are_checked_by_name() -> None:
    with pytest.raises(SettingsError, match=r"acks is all, 1 or 0"):
        ProducerSettings(acks="some")
    with pytest.raises(SettingsError, match=r"enable\.idempotence"):
        ProducerSettings(acks=1)
    with pytest.raises(SettingsError, match=r"delivery\.timeout\.ms=10"):
        ProducerSettings(delivery_timeout_ms=10)
    with pytest.raises(SettingsError, match=r"compression\.type is one of"):
        ProducerSettings(compression_type="rar")
    with pytest.raises(SettingsError, match=r"batch\.size is a number"):
        ProducerSettings(batch_size="many")  # type: ignore[arg-type]
    servers, settings = ProducerSettings.configured(
        {"bootstrap.servers": ["a:1", "b:2"], "linger.ms": "20", "enable.idempotence": "false", "acks": "1"}
    )
    assert (servers, settings.linger_ms, settings.enable_idempotence, settings.required_acks) == (
        "a:1,b:2",
        20,
        False,
        1,
    )
    with pytest.raises(SettingsError, match=r"linger\.milliseconds is no setting"):
        ProducerSettings.configured({"bootstrap.servers": "a:1", "linger.milliseconds": 5})
    with pytest.raises(SettingsError, match=r"bootstrap\.servers is missing"):
        ProducerSettings.configured({"linger.ms": 5})
