"""The clients without an event loop: the same, from any thread."""

from __future__ import annotations

import threading
import time

import pytest

from tests.client.consumer.test_consumer import new_group
from tidelog.client import TopicPartition
from tidelog.client.blocking import Consumer, Producer
from tidelog.client.errors import (
    BrokerUnreachableError,
    ClosedError,
    DeliveryFailedError,
    RecordTooLargeError,
)
from tidelog.testing import Cluster


def test_what_is_sent_from_many_threads_is_read(bootstrap: str, topic_name: str) -> None:
    with Producer(bootstrap, linger_ms=1) as producer:

        def send(thread: int) -> None:
            for n in range(500):
                producer.send(topic_name, b"%d:%d" % (thread, n), partition=0)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        last = producer.send(topic_name, b"last").result(timeout=10)
        assert last.offset == 2_000 and producer.partitions_for(topic_name) == [0]
    seen: dict[bytes, list[int]] = {}
    with Consumer(bootstrap, group_id=new_group(), auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic_name])
        for number, record in enumerate(consumer):
            if number == 2_000:
                assert record.value == b"last"
                break
            thread, _, n = (record.value or b"").partition(b":")
            seen.setdefault(thread, []).append(int(n))
        tp = TopicPartition(topic_name, 0)
        assert consumer.position(tp) == 2_001 and consumer.lag(tp) == 0
        consumer.commit()
        assert consumer.committed([tp])[tp].offset == 2_001  # type: ignore[union-attr]
        consumer.seek(tp, 1_999)
        assert len(consumer.poll(timeout_ms=5_000)) == 2
        assert consumer.assignment() == {tp} and consumer.subscription() == {topic_name}
    assert seen == {b"%d" % thread: list(range(500)) for thread in range(4)}, "in the order of each thread"


def test_errors_reach_whoever_asks(bootstrap: str, topic_name: str) -> None:
    with Producer(bootstrap) as producer:
        too_large = producer.send(topic_name, bytes(2 << 20))
        with pytest.raises(RecordTooLargeError):
            too_large.result(10)
        assert too_large.done()
    with pytest.raises(ClosedError):
        producer.send(topic_name, b"x")
    with pytest.raises(BrokerUnreachableError), Producer("127.0.0.1:1", max_block_ms=100):
        pass


def test_what_could_not_be_sent_is_told_by_flush_and_close_if_nobody_asked(
    bootstrap: str, topic_name: str
) -> None:
    with Producer(bootstrap) as producer:
        producer.send(topic_name, "text without a serializer")
        producer.send(topic_name, b"fine")
        with pytest.raises(DeliveryFailedError, match="1 records could not be sent; the first: "):
            producer.flush()
        producer.flush()  # each is told of once
        with pytest.raises(RecordTooLargeError):
            producer.send(topic_name, bytes(2 << 20)).result(10)
        producer.flush()  # somebody has heard of it
        producer.send(topic_name, bytes(2 << 20))
        with pytest.raises(DeliveryFailedError, match=r"max\.request\.size"):
            producer.close()


def test_waiting_can_be_interrupted(bootstrap: str, topic_name: str) -> None:
    with Producer(bootstrap, linger_ms=2_000) as producer:
        delivery = producer.send(topic_name, b"lingers")
        with pytest.raises(TimeoutError):
            delivery.result(timeout=0.1)
        assert delivery.result(timeout=10).offset == 0


def test_a_poll_waits_for_records_and_a_close_from_elsewhere_ends_an_iteration(
    bootstrap: str, topic_name: str
) -> None:
    with Producer(bootstrap) as producer:
        producer.send_and_wait(topic_name, b"0")
        with Consumer(bootstrap, group_id=new_group()) as consumer:
            consumer.subscribe([topic_name])
            assert consumer.poll(timeout_ms=1_000) == []
            threading.Timer(0.3, lambda: producer.send(topic_name, b"1")).start()
            assert [record.value for record in consumer.poll(timeout_ms=10_000)] == [b"1"]
            threading.Timer(0.3, consumer.close).start()
            assert list(consumer) == []


def test_parallel_with_plain_functions(bootstrap: str, topic_name: str) -> None:
    with Producer(bootstrap) as producer:
        for n in range(40):
            producer.send(topic_name, b"%d" % n)
        producer.flush()
        seen: list[int] = []
        with Consumer(bootstrap, group_id=new_group(), auto_offset_reset="earliest") as consumer:
            consumer.subscribe([topic_name])

            def handle(record: object) -> None:
                time.sleep(0.05)
                seen.append(1)

            def close_when_done() -> None:
                while len(seen) < 40:
                    time.sleep(0.01)
                consumer.close()

            watcher = threading.Thread(target=close_when_done)
            watcher.start()
            began = time.monotonic()
            consumer.parallel(handle, order_by=None, workers=20)
            watcher.join()
            assert time.monotonic() - began < 2 * 40 * 0.05 / 2, "several at a time"


def test_both_outlive_a_restart_of_the_broker(topic_name: str) -> None:
    with (
        Cluster(topics={topic_name: 1}) as cluster,
        Producer(cluster.bootstrap_servers, linger_ms=1) as producer,
        Consumer(
            cluster.bootstrap_servers, group_id="g", auto_offset_reset="earliest", fetch_max_wait_ms=50
        ) as consumer,
    ):
        consumer.subscribe([topic_name])
        got: list[int] = []
        for n in range(1_500):
            producer.send(topic_name, b"%d" % n)
            if n == 500:
                cluster.restart()
        producer.flush()
        deadline = time.monotonic() + 60
        while len(got) < 1_500 and time.monotonic() < deadline:
            got += [int(record.value or b"") for record in consumer.poll(timeout_ms=500)]
        assert got == list(range(1_500))
