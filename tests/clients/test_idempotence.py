"""A batch that comes twice is stored once, and answered with where it was stored."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from tests.clients.libraries.confluent import ConfluentLibrary
from tools.peers.raw import RawConnection, build_batch, init_producer_id

OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.fixture
def topic(bootstrap: str, new_topic_name: Callable[[str], str]) -> str:
    name = new_topic_name("idempotent")
    ConfluentLibrary().create_topic(bootstrap, name)
    return name


def test_each_of_the_last_five_batches_answers_with_its_own_offset(bootstrap: str, topic: str) -> None:
    with RawConnection(bootstrap) as connection:
        producer_id, epoch = init_producer_id(connection)
        batches = [
            build_batch(
                [b"a", b"b", b"c"],
                timestamp_ms=now_ms(),
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=3 * number,
            )
            for number in range(7)
        ]
        for number, batch in enumerate(batches):
            assert connection.produce(topic, batch) == (0, 3 * number)
        for number in range(2, 7):
            assert connection.produce(topic, batches[number]) == (0, 3 * number)
        # Older than the five remembered: its place is forgotten, and it is not stored again.
        assert connection.produce(topic, batches[0]).error_code == OUT_OF_ORDER_SEQUENCE_NUMBER
        assert connection.list_offset(topic, -1) == 21


def test_a_gap_in_the_sequence_and_an_old_epoch_are_refused(bootstrap: str, topic: str) -> None:
    with RawConnection(bootstrap) as connection:
        producer_id, epoch = init_producer_id(connection)

        def batch(sequence: int, batch_epoch: int) -> bytes:
            return build_batch(
                [b"x"],
                timestamp_ms=now_ms(),
                producer_id=producer_id,
                producer_epoch=batch_epoch,
                base_sequence=sequence,
            )

        assert connection.produce(topic, batch(0, epoch + 1)) == (0, 0)
        assert connection.produce(topic, batch(2, epoch + 1)).error_code == OUT_OF_ORDER_SEQUENCE_NUMBER
        assert connection.produce(topic, batch(1, epoch)).error_code == INVALID_PRODUCER_EPOCH
        assert connection.list_offset(topic, -1) == 1


def test_producer_ids_are_never_given_twice(bootstrap: str) -> None:
    with RawConnection(bootstrap) as connection:
        ids = [init_producer_id(connection)[0] for _ in range(50)]
    assert len(set(ids)) == 50
    assert min(ids) >= 0


def test_an_idempotent_producer_with_five_requests_in_flight(bootstrap: str, topic: str) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 10}
    )
    for number in range(5000):
        producer.produce(topic, b"%d" % number, partition=0)
        producer.poll(0)
    assert producer.flush(30) == 0
    rows = ConfluentLibrary().read(bootstrap, topic, start=0, count=5000)
    assert [row.value for row in rows] == [b"%d" % number for number in range(5000)]
