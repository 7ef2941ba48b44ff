"""A broker's life with many partitions: created, written, read, idle, stopped, started, killed under load, started again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.load import LoadError
from bench.scale_load import (
    Watch,
    end_offsets,
    fetch_from_each,
    open_descriptors,
    produce_to_each,
    wait_until_served,
)
from tools.peers.process import Peer
from tools.peers.raw import RawConnection, build_batch

MB = 1e6
TOPICS = 10
IDLE_SECONDS = 5.0
LOAD_SECONDS = 2.0
ANSWER_SECONDS_MAX = 300.0

Row = dict[str, float]


def measure(peer: Peer, partitions: int, say: Callable[[str], None], *, restarts: int = 0) -> Row:
    """One figure per name, with its unit in the name. The peer is started and stopped in here."""
    topics = [f"scale-{number}" for number in range(TOPICS)]
    each = list(range(partitions // TOPICS))
    row: Row = {}
    peer.start()
    try:
        row["start, empty [s]"] = peer.startup_seconds
        row["RSS, empty [MB]"] = peer.rss_bytes() / MB
        with Watch(peer.pid, peer.bootstrap) as watch:
            row["create [s]"] = timed(lambda: create(peer.bootstrap, topics, len(each)))
        row["longest wait while creating [ms]"] = watch.wait_max * 1000
        row["RSS, created [MB]"] = peer.rss_bytes() / MB
        say(f"{partitions} partitions created in {row['create [s]']:.1f} s")
        with Watch(peer.pid, peer.bootstrap) as watch:
            row["produce one to each, raw [s]"] = timed(lambda: produce_raw(peer.bootstrap, topics, each))
            row["fetch one from each, raw [s]"] = timed(lambda: fetch_raw(peer.bootstrap, topics, each))
            row["produce one to each, librdkafka [s]"] = timed(
                lambda: produce_client(peer.bootstrap, topics, each)
            )
            row["fetch all from each, librdkafka [s]"] = timed(
                lambda: fetch_client(peer.bootstrap, topics, each, records=2 * partitions)
            )
        row["longest wait under this load [ms]"] = watch.wait_max * 1000
        row["RSS, written and read [MB]"] = peer.rss_bytes() / MB
        row["descriptors, most [1]"] = watch.descriptors_max
        idle(peer, row)
        row["clean stop [s]"] = timed(peer.terminate)
        peer.start()
        row["start after clean stop [s]"] = peer.startup_seconds
        row["descriptors after start [1]"] = open_descriptors(peer.pid)
        row["RSS after start [MB]"] = peer.rss_bytes() / MB
        for _ in range(restarts):
            peer.terminate()
            peer.start()
        if restarts:
            row[f"start after {restarts} more restarts [s]"] = peer.startup_seconds
        kill_under_load(peer, topics, each)
        peer.start()
        row["start after kill -9 under load [s]"] = peer.startup_seconds
        check_all_there(peer.bootstrap, topics, each, at_least=2)
        row["fetch one from each after that, raw [s]"] = timed(
            lambda: fetch_raw(peer.bootstrap, topics, each)
        )
        row["delete [s]"] = timed(lambda: delete(peer.bootstrap, topics))
    finally:
        peer.stop()
    return row


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def create(bootstrap: str, topics: list[str], partitions: int) -> None:
    """One CreateTopics for each topic, each waited for until all its partitions serve."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 300_000})
    with RawConnection(bootstrap, timeout_seconds=ANSWER_SECONDS_MAX) as connection:
        for topic in topics:
            new = NewTopic(topic, partitions, 1, config={"file.delete.delay.ms": "100"})
            admin.create_topics([new], request_timeout=ANSWER_SECONDS_MAX)[topic].result(ANSWER_SECONDS_MAX)
            wait_until_served(connection, topic, range(partitions))


def delete(bootstrap: str, topics: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 300_000})
    futures = admin.delete_topics(topics, request_timeout=ANSWER_SECONDS_MAX)
    for future in futures.values():
        future.result(ANSWER_SECONDS_MAX)


def produce_raw(bootstrap: str, topics: list[str], partitions: list[int]) -> None:
    batch = build_batch([b"x" * 100], timestamp_ms=int(time.time() * 1000))
    with RawConnection(bootstrap, timeout_seconds=ANSWER_SECONDS_MAX) as connection:
        for topic in topics:
            produce_to_each(connection, topic, partitions, batch)


def fetch_raw(bootstrap: str, topics: list[str], partitions: list[int]) -> None:
    with RawConnection(bootstrap, timeout_seconds=ANSWER_SECONDS_MAX) as connection:
        for topic in topics:
            fetch_from_each(connection, topic, partitions)


def produce_client(bootstrap: str, topics: list[str], partitions: list[int]) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "log_level": 0}
        | {"queue.buffering.max.messages": 1_000_000, "message.timeout.ms": 300_000}
    )
    failed: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failed.append(error)

    for topic in topics:
        for partition in partitions:
            producer.produce(topic, b"y" * 100, partition=partition, on_delivery=delivered)
        producer.poll(0)
    left = producer.flush(ANSWER_SECONDS_MAX)
    if left or failed:
        raise LoadError(f"{left} records were not answered and {len(failed)} refused: {failed[:1]}")


def fetch_client(bootstrap: str, topics: list[str], partitions: list[int], *, records: int) -> None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "scale", "log_level": 0}
        | {"enable.auto.commit": False, "auto.offset.reset": "error"}
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for topic in topics for number in partitions])
        got = 0
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while got < records:
            for message in consumer.consume(1000, 1.0):
                if message.error() is not None:
                    raise LoadError(f"the consumer got {message.error()}")
                got += 1
            if time.monotonic() > deadline:
                raise LoadError(f"read {got} of {records} records in {ANSWER_SECONDS_MAX} s")
    finally:
        consumer.close()


def idle(peer: Peer, row: Row) -> None:
    """Nothing is asked of the broker but the probe's small requests; then nothing at all."""
    with Watch(peer.pid, peer.bootstrap) as watch:
        time.sleep(IDLE_SECONDS)
    row["longest wait while idle [ms]"] = watch.wait_max * 1000
    cpu = peer.cpu_seconds()
    time.sleep(IDLE_SECONDS)
    row["CPU while idle [%]"] = (peer.cpu_seconds() - cpu) / IDLE_SECONDS * 100


def kill_under_load(peer: Peer, topics: list[str], partitions: list[int]) -> None:
    """kill -9 while somebody writes to every partition in turn."""
    stop = threading.Event()

    def load() -> None:
        batch = build_batch([b"z" * 100], timestamp_ms=int(time.time() * 1000))
        try:
            with RawConnection(peer.bootstrap) as connection:
                while not stop.is_set():
                    for topic in topics:
                        produce_to_each(connection, topic, partitions, batch)
        except OSError:
            return  # the broker is gone, as planned

    thread = threading.Thread(target=load)
    thread.start()
    time.sleep(LOAD_SECONDS)
    peer.kill()
    stop.set()
    thread.join()


def check_all_there(bootstrap: str, topics: list[str], partitions: list[int], *, at_least: int) -> None:
    with RawConnection(bootstrap, timeout_seconds=ANSWER_SECONDS_MAX) as connection:
        for topic in topics:
            short = [end for end in end_offsets(connection, topic, partitions) if end < at_least]
            if short:
                raise LoadError(f"{len(short)} partitions of {topic} lost acknowledged records")
