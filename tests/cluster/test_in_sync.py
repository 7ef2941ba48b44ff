"""Too few replicas in sync, and elections that lose data: what real clients see of both.

Three brokers in this process (`tidelog.testing.Cluster`), and topics with two replicas on brokers 0 and 1, so that either can be lost while the controllers go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.cluster.processes import QUICK, wait_until
from tidelog.client.blocking import Consumer as OwnConsumer
from tidelog.client.blocking import Producer as OwnProducer
from tidelog.client.errors import BrokerError
from tidelog.client.metadata import TopicPartition as OwnPartition
from tidelog.testing import Cluster
from tidelog.wire.error_codes import ErrorCode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TOPIC = "orders"
AT_ONCE_SECONDS = 10.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(
        brokers=3,
        config={
            "broker.session.timeout.ms": 2000,
            "broker.heartbeat.interval.ms": 300,
            "replica.lag.time.max.ms": 2000,
        },
    ) as made:
        yield made


def make_topic(cluster: Cluster, **config: str) -> None:
    """Replicas on 0, which is to lead, and 1."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **QUICK})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(TOPIC, 1, replica_assignment=[[0, 1]], config=settings)])[TOPIC].result(30)
    wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0, 1}, "both are in sync")
    assert cluster.leader_of(TOPIC, 0) == 0


class Outcome:
    """Of one record: where it went, or what was said instead."""

    def __init__(self, cluster: Cluster, value: bytes, settings: Mapping[str, object]) -> None:
        self.error: KafkaError | None = None
        self.offset: int | None = None
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, **QUICK, **settings}
        )
        self._producer.produce(TOPIC, value, partition=0, on_delivery=self._delivered)

    def _delivered(self, error: KafkaError | None, message: confluent_kafka.Message) -> None:
        self.error = error
        self.offset = None if error is not None else message.offset()

    @property
    def is_known(self) -> bool:
        self._producer.poll(0)
        return self.error is not None or self.offset is not None

    def wait(self) -> Outcome:
        wait_until(lambda: self.is_known, "an answer", 60)
        return self


def send(cluster: Cluster, value: bytes, **settings: object) -> Outcome:
    return Outcome(cluster, value, {name.replace("_", "."): each for name, each in settings.items()})


def send_once(cluster: Cluster, value: bytes, *, acks: str) -> Outcome:
    """Whatever the broker says is the end of it."""
    return send(cluster, value, acks=acks, retries=0).wait()


def read(cluster: Cluster) -> list[bytes | None]:
    """Everything that a consumer may see now, by both libraries, which must agree."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "g",
            "enable.auto.commit": False,
            **QUICK,
        }
    )
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=30)
        consumer.assign([TopicPartition(TOPIC, 0, low)])
        found: list[bytes | None] = []
        deadline = time.monotonic() + 30
        while len(found) < high - low and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append(message.value())
        message = consumer.poll(1.0)
        assert message is None or message.error() is not None, "more than the high watermark allows"
    finally:
        consumer.close()
    with OwnConsumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as own:
        own.assign([OwnPartition(TOPIC, 0)])
        own.seek_to_beginning()
        again: list[bytes | None] = []
        while (records := own.poll(timeout_ms=1000)) or len(again) < len(found):
            again += [record.value for record in records]
            assert time.monotonic() < deadline + 30
    assert again == found
    return found


def test_below_min_insync_replicas_nothing_is_committed_and_all_recovers_by_itself(cluster: Cluster) -> None:
    make_topic(cluster, min_insync_replicas="2")
    assert send_once(cluster, b"before", acks="all").offset == 0
    cluster.kill(1)
    wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0}, "the dead one is not in sync")

    # acks=all is refused, by whichever client.
    refused = send_once(cluster, b"refused", acks="all")
    assert refused.error is not None and refused.error.code() == KafkaError.NOT_ENOUGH_REPLICAS
    with OwnProducer(cluster.bootstrap_servers, retries=0, enable_idempotence=False) as producer:
        delivery = producer.send(TOPIC, b"refused, too", partition=0)
        with pytest.raises(BrokerError) as failure:
            delivery.result(30)
        assert failure.value.code == ErrorCode.NOT_ENOUGH_REPLICAS

    # acks=1 is taken, and nobody can see it.
    assert send_once(cluster, b"taken", acks="1").offset == 1
    assert read(cluster) == [b"before"]

    # Who may try again is answered when enough are in sync, and only then.
    patient = send(cluster, b"patient", acks="all", enable_idempotence=True, delivery_timeout_ms=120_000)
    time.sleep(1.0)
    assert not patient.is_known
    cluster.restart(1)
    assert patient.wait().error is None
    wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0, 1}, "both are in sync again")
    assert patient.offset == 2
    assert read(cluster) == [b"before", b"taken", b"patient"]


def test_a_record_that_loses_its_replicas_on_the_way_is_told_of(cluster: Cluster) -> None:
    """Enough were in sync when it was written, and too few when it should have been acknowledged: it may or may not survive."""
    make_topic(cluster, min_insync_replicas="2")
    assert send_once(cluster, b"before", acks="all").offset == 0
    cluster.pause(1)
    halfway = send_once(cluster, b"halfway", acks="all")
    assert halfway.error is not None
    assert halfway.error.code() == KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert read(cluster) == [b"before"]
    cluster.resume(1)
    wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0, 1}, "both are in sync again")
    assert send_once(cluster, b"after", acks="all").offset == 2
    assert read(cluster) == [b"before", b"halfway", b"after"]


def lose_the_only_one_in_sync(cluster: Cluster) -> None:
    """Broker 0 acknowledges a record that 1 does not have, and dies. Broker 1 comes back without it."""
    assert send_once(cluster, b"both have it", acks="all").offset == 0
    cluster.kill(1)
    wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0}, "the dead one is not in sync")
    assert send_once(cluster, b"one has it", acks="all").offset == 1
    cluster.kill(0)
    cluster.restart(1)


def test_without_unclean_elections_a_partition_waits_for_a_member(cluster: Cluster) -> None:
    make_topic(cluster, min_insync_replicas="1")
    lose_the_only_one_in_sync(cluster)
    waiting = send(cluster, b"waits", acks="all", enable_idempotence=True, delivery_timeout_ms=120_000)
    wait_until(lambda: cluster.leader_of(TOPIC, 0) == -1, "nobody leads", AT_ONCE_SECONDS)
    for _ in range(30):
        assert cluster.leader_of(TOPIC, 0) == -1
        assert not waiting.is_known
        time.sleep(0.1)
    cluster.restart(0)
    wait_until(lambda: cluster.leader_of(TOPIC, 0) == 0, "the member leads again", AT_ONCE_SECONDS)
    assert waiting.wait().offset == 2
    wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0, 1}, "both are in sync again")
    assert read(cluster) == [b"both have it", b"one has it", b"waits"]


def test_with_unclean_elections_a_partition_comes_back_at_once_and_the_loss_is_told(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    make_topic(cluster, min_insync_replicas="1", unclean_leader_election_enable="true")
    with caplog.at_level(logging.WARNING, "tidelog.controller"):
        lose_the_only_one_in_sync(cluster)
        wait_until(lambda: cluster.leader_of(TOPIC, 0) == 1, "somebody leads", AT_ONCE_SECONDS)
    told = [record.getMessage() for record in caplog.records if f"{TOPIC}-0" in record.getMessage()]
    assert any("unclean" in text and "broker 1" in text for text in told), told
    assert read(cluster) == [b"both have it"]
    assert send_once(cluster, b"goes on", acks="all").offset == 1
    # The one that had more follows: what only it had is gone, everywhere.
    cluster.restart(0)
    wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0, 1}, "both are in sync again")
    assert read(cluster) == [b"both have it", b"goes on"]
