"""What the traced broker is asked to do: everything whose answer is a promise, by librdkafka and by hand.

The clients remember what they were told, so that the trace's story of the same can be held against theirs.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.crash.traced import TracedBroker
from tools.peers.raw import RawConnection, build_batch, init_producer_id

SEGMENT_BYTES = 4000
PADDING = b"-" * 180
WAIT_SECONDS = 30.0
TICKS_SECONDS = 2.5  # housekeeping looks at everything once a second

SETTINGS = {
    "auto.create.topics.enable": "false",
    "log.retention.check.interval.ms": "1",
    "log.flush.offset.checkpoint.interval.ms": "1",
    "log.segment.delete.delay.ms": "1",
}


@dataclass(slots=True)
class Told:
    """What producers were told: where each of their records stands."""

    delivered: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


class Client:
    """An idempotent producer of librdkafka and an administrator, which outlive the broker's restarts."""

    def __init__(self, broker: TracedBroker) -> None:
        self.told = Told()
        self._broker = broker
        self._numbers = itertools.count()
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._broker.bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                # With five the broker may have forgotten the last batch that it has answered: it remembers five.
                "max.in.flight.requests.per.connection": 4,
                "linger.ms": 1,
                "batch.num.messages": 3,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 10,
                "log_level": 0,
            }
        )

    def forget_topics(self) -> None:
        """A new producer, for a topic that is not the one of before although it has its name."""
        self.flush()
        self._producer = self._new_producer()

    def send(self, topic: str, count: int, *, partition: int = 0) -> None:
        for _ in range(count):
            value = b"%s-%d %d %s" % (topic.encode(), partition, next(self._numbers), PADDING)
            self._producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.told.failed.append(str(error))
        else:
            key = (str(message.topic()), int(message.partition() or 0), int(message.offset() or 0))
            self.told.delivered[key] = bytes(message.value() or b"")

    def flush(self) -> None:
        left = self._producer.flush(WAIT_SECONDS)
        assert left == 0, f"{left} records are neither delivered nor refused"
        assert not self.told.failed, self.told.failed

    def wait_for_delivery(self) -> None:
        """Until one more record is delivered."""
        before = len(self.told.delivered)
        deadline = time.monotonic() + WAIT_SECONDS
        while len(self.told.delivered) == before:
            assert time.monotonic() < deadline, "nothing was delivered"
            self._producer.poll(0.01)

    def create(self, topic: str, partitions: int = 1, **settings: object) -> None:
        config = {"internal.segment.bytes": str(SEGMENT_BYTES)}
        config |= {name.replace("_", "."): str(value) for name, value in settings.items()}
        self._admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(WAIT_SECONDS)

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(WAIT_SECONDS)

    def add_partitions(self, topic: str, count: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, count)])[topic].result(WAIT_SECONDS)

    def delete_records(self, topic: str, before_offset: int) -> None:
        where = TopicPartition(topic, 0, before_offset)
        self._admin.delete_records([where])[where].result(WAIT_SECONDS)

    def configure(self, topic: str, name: str, value: str | None) -> None:
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._admin.incremental_alter_configs([resource])[resource].result(WAIT_SECONDS)

    def look(self, topic: str) -> None:
        """Ask for the end of the log and read its beginning, as a consumer does."""
        with RawConnection(self._broker.bootstrap) as connection:
            connection.list_offset(topic, -1)
            connection.fetch(topic, connection.list_offset(topic, -2))


def whole_life(broker: TracedBroker) -> Told:
    """Three processes of one broker: killed under load; recovered, loaded and stopped; started again and killed."""
    broker.start()
    client = Client(broker)
    client.create("orders", 3)
    client.create("trimmed")
    client.create("rolling", retention_bytes=6000)
    client.create("short")
    for _ in range(4):
        for partition in range(3):
            client.send("orders", 9, partition=partition)
        client.send("trimmed", 12)
        client.send("rolling", 15)
        client.flush()
        client.look("orders")
    client.send("short", 8)
    client.flush()
    client.delete("short")
    client.create("short", max_message_bytes=70_000)
    client.forget_topics()
    client.send("short", 6)
    client.configure("orders", "max.message.bytes", "200000")
    client.delete_records("trimmed", 30)
    client.add_partitions("orders", 4)
    client.send("orders", 6, partition=3)
    client.flush()
    deadline = time.monotonic() + TICKS_SECONDS
    while time.monotonic() < deadline:
        client.send("rolling", 3)
        client.flush()
        time.sleep(0.1)
    client.look("trimmed")
    _load_without_waiting(client)
    broker.kill()

    broker.start()
    client.flush()
    client.configure("orders", "max.message.bytes", None)
    client.delete_records("trimmed", 40)
    client.send("trimmed", 8)
    client.delete("short")
    client.send("orders", 20, partition=1)
    client.flush()
    assert broker.terminate() == 0

    broker.start()
    client.send("trimmed", 5)
    client.send("orders", 5, partition=2)
    client.flush()
    _load_without_waiting(client)
    broker.kill()
    # What is still on its way will never arrive, and need not.
    return client.told


def _load_without_waiting(client: Client) -> None:
    """More than is delivered by the time that the first delivery is heard of: a kill now mostly meets requests on their way."""
    for _ in range(5):
        for partition in range(3):
            client.send("orders", 3, partition=partition)
        client.send("trimmed", 3)
    client.wait_for_delivery()


def one_of_each(broker: TracedBroker) -> None:
    """One promise of each kind in a second or so, for the mutants."""
    broker.start()
    client = Client(broker)
    client.create("kept")
    with RawConnection(broker.bootstrap) as connection:
        producer_id, epoch = init_producer_id(connection)
        for number in range(12):
            batch = build_batch(
                [b"%d %s" % (number, PADDING)] * 3,
                timestamp_ms=int(time.time() * 1000),
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=3 * number,
            )
            assert connection.produce("kept", batch).error_code == 0
    client.delete_records("kept", 9)
    client.create("other")
    client.configure("other", "max.message.bytes", "70000")
    client.delete("other")
    broker.kill()
