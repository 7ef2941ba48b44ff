"""Creating partitions, two brokers in turn: one topic with all of them, and many topics with a hundred each.

Kafka answers CreateTopics when its controller has written the records and makes the logs afterwards; Tidelog answers when they
serve. So the clock runs until every partition answers ListOffsets, for both.

Each round has brokers and directories of its own, and nothing is removed before the last one: for minutes after a deletion, ext4 walks over
the freed inodes whenever it makes a file, so whoever came after thousands of deletions would pay several times the price.
"""

from __future__ import annotations

import os
import time

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from rich.console import Console

from bench.results import Metric, Results
from bench.run import PEERS, rotated
from bench.scale_load import wait_until_served
from tools.peers.process import Peer
from tools.peers.raw import RawConnection

PARTITIONS_PER_TOPIC = 100
ANSWER_SECONDS_MAX = 120.0
WARM_UP_TOPICS, WARM_UP_PARTITIONS = 3, 200
SETTLE_SECONDS = 1.0


def measure(names: list[str], partitions: int, rounds: int, console: Console) -> Results:
    results = Results(baseline=names[0])
    peers: list[Peer] = []
    try:
        for number in range(rounds):
            for name in rotated(names, number):
                peer = PEERS[name]()
                peers.append(peer)
                measure_once(peer, name, partitions, results)
            console.print(f"round {number + 1} of {rounds}", highlight=False)
    finally:
        for peer in peers:
            peer.stop()
    return results


def measure_once(peer: Peer, name: str, partitions: int, results: Results) -> None:
    peer.start()
    for number in range(WARM_UP_TOPICS):
        create(peer, {f"warm-{number}": WARM_UP_PARTITIONS})
    many = partitions // PARTITIONS_PER_TOPIC
    shapes = {
        f"1 topic with {partitions} partitions": {"one": partitions},
        f"{many} topics with {PARTITIONS_PER_TOPIC} partitions": {
            f"many-{topic}": PARTITIONS_PER_TOPIC for topic in range(many)
        },
    }
    for what, topics in shapes.items():
        os.sync()  # nobody pays for what others left in the file system's journal
        time.sleep(SETTLE_SECONDS)
        answered, served = create(peer, topics)
        results.add(Metric(f"create {what}, until all serve", "s", False), name, served)
        results.add(Metric(f"create {what}, until the answer", "s", False), name, answered)
    peer.terminate()


def create(peer: Peer, topics: dict[str, int]) -> tuple[float, float]:
    """Seconds until the answer, and until every partition serves. All topics go into one CreateTopics request."""
    admin = AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 0, "socket.timeout.ms": 120_000})
    admin.list_topics(timeout=30)  # connected before the clock starts
    new = [NewTopic(topic, count, 1) for topic, count in topics.items()]
    with RawConnection(peer.bootstrap, timeout_seconds=ANSWER_SECONDS_MAX) as connection:
        began = time.perf_counter()
        for future in admin.create_topics(new, request_timeout=ANSWER_SECONDS_MAX).values():
            future.result(ANSWER_SECONDS_MAX)
        answered = time.perf_counter() - began
        for topic, count in topics.items():
            wait_until_served(connection, topic, range(count))
        return answered, time.perf_counter() - began
