"""Creating partitions, two brokers in turn: one topic with all of them, and many topics with a hundred each.

Kafka answers CreateTopics when its controller has written the records and makes the logs afterwards; Tidelog answers when they
serve. So the clock runs until every partition answers ListOffsets, for both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from rich.console import Console

from bench.results import Metric, Results
from bench.run import PEERS, rotated
from bench.scale_load import wait_until_served
from tools.peers.process import Peer
from tools.peers.raw import RawConnection

PARTITIONS_PER_TOPIC = 100
ANSWER_SECONDS_MAX = 120.0
WARM_UP_PARTITIONS = 200
SETTLE_SECONDS = 1.0

Names = Callable[[], dict[str, int]]


def measure(names: list[str], partitions: int, rounds: int, console: Console) -> Results:
    results = Results(baseline=names[0])
    peers = {name: PEERS[name]() for name in names}
    try:
        for name, peer in peers.items():
            console.print(f"starting and warming up {name}", highlight=False)
            peer.start()
            for number in range(2):
                create_and_delete(peer, {f"warm-{number}": WARM_UP_PARTITIONS})
            peer.pause()
        many = partitions // PARTITIONS_PER_TOPIC
        for number in range(rounds):
            shapes = {
                f"1 topic with {partitions} partitions": {f"one-{number}": partitions},
                f"{many} topics with {PARTITIONS_PER_TOPIC} partitions": {
                    f"many-{number}-{topic}": PARTITIONS_PER_TOPIC for topic in range(many)
                },
            }
            for what, wanted in shapes.items():
                for name in rotated(names, number):
                    peers[name].resume()
                    answered, served = create_and_delete(peers[name], wanted)
                    peers[name].pause()
                    results.add(Metric(f"create {what}, until all serve", "s", False), name, served)
                    results.add(Metric(f"create {what}, until the answer", "s", False), name, answered)
            console.print(f"round {number + 1} of {rounds}", highlight=False)
    finally:
        for peer in peers.values():
            peer.stop()
    return results


def create_and_delete(peer: Peer, topics: dict[str, int]) -> tuple[float, float]:
    """Seconds until the answer, and until every partition serves. All topics go into one CreateTopics request."""
    admin = AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 0, "socket.timeout.ms": 120_000})
    admin.list_topics(timeout=30)  # connected before the clock starts
    new = [
        NewTopic(topic, count, 1, config={"file.delete.delay.ms": "100"}) for topic, count in topics.items()
    ]
    with RawConnection(peer.bootstrap, timeout_seconds=ANSWER_SECONDS_MAX) as connection:
        began = time.perf_counter()
        for future in admin.create_topics(new, request_timeout=ANSWER_SECONDS_MAX).values():
            future.result(ANSWER_SECONDS_MAX)
        answered = time.perf_counter() - began
        for topic, count in topics.items():
            wait_until_served(connection, topic, range(count))
        served = time.perf_counter() - began
    for future in admin.delete_topics(list(topics), request_timeout=ANSWER_SECONDS_MAX).values():
        future.result(ANSWER_SECONDS_MAX)
    wait_until_gone(peer)
    return answered, served


def wait_until_gone(peer: Peer) -> None:
    """One peer's deletions must not run in the other's time."""
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while any(path.is_dir() and not path.name.startswith("__") for path in peer.log_dir.iterdir()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{peer.name} has not removed its deleted partitions")
        time.sleep(0.1)
    os.sync()  # nor in the file system's journal
    time.sleep(SETTLE_SECONDS)
