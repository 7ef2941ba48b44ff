"""What clients notice when a node of a cluster goes: writers that never stop, and watchers of the nodes that are left.

Owns the writers' settings, which are the same for every peer, and the clock: all times are of this process. A writer has one partition and a client of its own, so that no
partition waits for another's. Gaps are measured between acknowledgements, so what the client itself takes to find the new leader is part of them.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Self

import confluent_kafka

from tools.peers.leaders import NO_LEADER, LeaderWatch, active_controller

WRITER: Final = {
    "enable.idempotence": True,
    "linger.ms": 0,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "topic.metadata.refresh.sparse": True,
    "delivery.timeout.ms": 120_000,
    "socket.timeout.ms": 5000,
    "log_level": 0,
}
"""librdkafka tries again after 100 ms and more if it is left to itself: that would be most of what is measured. And for an answer of a node that stands still it waits for a minute: no cluster can tell it
that its leader was replaced, because it asks nobody else meanwhile. Five seconds are more than a cluster needs to replace one, so that a leader that waits for another node is not given up.
"""
WRITE_EVERY_S: Final = 0.02
"""So seldom that three brokers on two cores are not busy with it: no gap is a queue."""
LOOK_EVERY_S: Final = 0.01
NEWCOMER_S: Final = 30.0


class Writer:
    """Writes one small record after the other to one partition, without waiting, and notes when each was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **WRITER})
        self._topic = topic
        self.partition = partition
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer-{partition}")
        self.acknowledged: list[float] = []
        self.failures: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.perf_counter()
        while not self._ends.is_set():
            with contextlib.suppress(BufferError):
                self._producer.produce(
                    self._topic, b"x" * 100, partition=self.partition, on_delivery=self._delivered
                )
            due += WRITE_EVERY_S
            # At least once per write, and until the next one is due.
            self._producer.poll(0)
            while (left := due - time.perf_counter()) > 0:
                self._producer.poll(left)
        self._producer.flush(5)

    def _delivered(self, error: object, _message: object) -> None:
        if error is None:
            self.acknowledged.append(time.perf_counter())
        else:
            self.failures.append(str(error))

    def gap_after(self, moment: float) -> float:
        """The longest time between two acknowledgements of which the second came after `moment`."""
        times = list(self.acknowledged)
        return max((b - a for a, b in itertools.pairwise(times) if b > moment), default=float("inf"))

    def is_writing_since(self, moment: float, *, records: int) -> bool:
        """Whether so many records were acknowledged after `moment`, and the last one a moment ago."""
        recent = self.acknowledged[-records:]
        return len(recent) == records and recent[0] > moment and time.perf_counter() - recent[-1] < 0.1


class Writers:
    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.each = [Writer(bootstrap, topic, number) for number in range(partitions)]

    def __enter__(self) -> Self:
        for writer in self.each:
            writer.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        for writer in self.each:
            writer.stop()

    @property
    def failures(self) -> list[str]:
        return [failure for writer in self.each for failure in writer.failures]

    def worst_gap(self, partitions: Sequence[int], moment: float) -> float:
        return max((self.each[number].gap_after(moment) for number in partitions), default=0.0)

    def wait_until_steady(self, since: float, *, seconds: float, records: int = 20) -> None:
        """Every partition takes records again, a third of a second of them."""
        deadline = time.perf_counter() + seconds
        while not all(writer.is_writing_since(since, records=records) for writer in self.each):
            if time.perf_counter() > deadline:
                stuck = [w.partition for w in self.each if not w.is_writing_since(since, records=records)]
                raise TimeoutError(f"partitions {stuck} take no records {seconds:.0f} s after a node went")
            time.sleep(0.02)


class Watch:
    """Asks the nodes that are left, in threads, until each question was answered with yes once; remembers when that was."""

    def __init__(self) -> None:
        self._ends = threading.Event()
        self._threads: list[threading.Thread] = []
        self._seen: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def for_leaders(self, bootstraps: Sequence[str], topic: str, led: Mapping[int, int]) -> None:
        """`detected`: some node names, for each of these partitions, another leader than this one."""
        for bootstrap in bootstraps:
            self._begin("detected", partial(_leaders_changed, bootstrap, topic, led))

    def for_controller(self, addresses: Sequence[str]) -> None:
        """`controller`: some node says that it is the active one."""
        for address in addresses:
            self._begin("controller", partial(partial, _is_active, address))

    def for_newcomer(self, bootstraps: Sequence[str], topic: str, led: Sequence[int]) -> None:
        """`newcomer`: a client that begins when leaders are `detected` has written to each of these partitions."""
        self._begin("newcomer", lambda: partial(self._write_once, ",".join(bootstraps), topic, led))

    def _write_once(self, bootstrap: str, topic: str, led: Sequence[int]) -> bool:
        if "detected" not in self._seen:
            return False
        # Without a producer id, which librdkafka looks for every half a second, beginning before it is connected.
        plain = WRITER | {"bootstrap.servers": bootstrap, "enable.idempotence": False}
        producer = confluent_kafka.Producer(plain)
        for partition in led:
            producer.produce(topic, b"x" * 100, partition=partition)
        return producer.flush(NEWCOMER_S) == 0

    def when(self, what: str) -> float | None:
        return self._seen.get(what)

    def _begin(self, what: str, connect: Callable[[], Callable[[], bool]]) -> None:
        thread = threading.Thread(target=self._look, args=(what, connect))
        self._threads.append(thread)
        thread.start()

    def _look(self, what: str, connect: Callable[[], Callable[[], bool]]) -> None:
        look: Callable[[], bool] | None = None
        while not self._ends.is_set() and what not in self._seen:
            try:
                look = look or connect()
                if look():
                    self._seen.setdefault(what, time.perf_counter())
            except OSError:
                look = None
            self._ends.wait(LOOK_EVERY_S)


def _is_active(address: str) -> bool:
    return active_controller(address) is not None


def _leaders_changed(bootstrap: str, topic: str, led: Mapping[int, int]) -> Callable[[], bool]:
    watch = LeaderWatch(bootstrap, topic)

    def look() -> bool:
        found = watch.look()
        return all(found[number].leader not in (before, NO_LEADER) for number, before in led.items())

    return look
