"""Three nodes of Apache Kafka on loopback, to be killed, stopped and paused one by one: the referee of failovers.

Owns how the nodes find each other (each is broker and controller), what a test may do to them, and waiting for what follows. Nodes have small heaps and the serial collector,
and hear of each other's death sooner than stock ones: such a cluster judges, it is never measured. With `stock=True` it has Kafka's own settings and Java options, to be measured.
No process outlives the `with`.
"""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

from tools.peers.kafka import SERVER_OPTIONS, KafkaPeer, class_path
from tools.peers.leaders import NO_LEADER, Led, partitions_of
from tools.peers.maven import java
from tools.peers.process import PeerFailedError

T = TypeVar("T")

WAIT_SECONDS_MAX = 40.0
PORTS = (20_000, 32_000)
OFFSETS_TOPIC = "__consumer_offsets"
NODE_OPTIONS = (
    "-Xms96m",
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
)
JUDGING = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "4000",
    # Else what a paused leader or controller was asked keeps the others waiting for half a minute.
    "replica.socket.timeout.ms": "3000",
    "controller.socket.timeout.ms": "3000",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "offsets.topic.num.partitions": "1",  # so that one broker coordinates every group
    "group.initial.rebalance.delay.ms": "0",
}


class _Node(KafkaPeer):
    def __init__(
        self,
        node_id: int,
        *,
        port: int,
        controller_ports: list[int],
        overrides: dict[str, str],
        java_options: tuple[str, ...],
    ) -> None:
        super().__init__(name=f"kafka node {node_id}", port=port)
        self._java_options = java_options
        self._controller_port = controller_ports[node_id]
        voters = (f"{number}@127.0.0.1:{each}" for number, each in enumerate(controller_ports))
        copies = str(len(controller_ports))
        self._overrides = {
            "node.id": str(node_id),
            "controller.quorum.voters": ",".join(voters),
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "share.coordinator.state.topic.replication.factor": copies,
            **overrides,
        }

    def command(self) -> list[str]:
        return [
            java(),
            *self._java_options,
            "-cp",
            class_path(self.version),
            "kafka.Kafka",
            str(self._properties_path),
        ]


class KafkaCluster:
    """`with KafkaCluster() as cluster:` starts all nodes and waits until each serves clients. Nodes are numbered from 0."""

    def __init__(
        self, brokers: int = 3, overrides: dict[str, str] | None = None, *, stock: bool = False
    ) -> None:
        ports = free_ports(2 * brokers)
        self.nodes = [
            _Node(
                number,
                port=ports[number],
                controller_ports=ports[brokers:],
                overrides=({} if stock else JUDGING) | (overrides or {}),
                java_options=SERVER_OPTIONS if stock else NODE_OPTIONS,
            )
            for number in range(brokers)
        ]
        self._paused: set[int] = set()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def __enter__(self) -> KafkaCluster:
        try:
            with ThreadPoolExecutor() as pool:
                list(pool.map(_Node.prepare, self.nodes))
            for node in self.nodes:
                node.launch()
            for number in range(len(self.nodes)):
                self._wait_until_up(number)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """All at once and without goodbyes: nobody needs what they hold."""
        for node in self.nodes:
            node.kill()
        for node in self.nodes:
            node.stop()  # takes its directory away

    # -- what happens to a node -------------------------------------------------------------------------------------

    def kill(self, node: int) -> None:
        self.nodes[node].kill()
        self._paused.discard(node)

    def stop(self, node: int) -> None:
        """SIGTERM: it hands its partitions over before it goes."""
        self.nodes[node].terminate()
        self._paused.discard(node)

    def pause(self, node: int) -> None:
        """It keeps its connections and answers nothing."""
        self.nodes[node].pause()
        self._paused.add(node)

    def resume(self, node: int) -> None:
        self._paused.discard(node)
        self.nodes[node].resume()

    def start(self, node: int) -> None:
        self.nodes[node].launch()
        self._wait_until_up(node)

    def heal(self) -> None:
        """Every node is up again, whatever happened to it."""
        for node in list(self._paused):
            self.resume(node)
        dead = [number for number, node in enumerate(self.nodes) if not node.is_running]
        for node in dead:
            self.nodes[node].launch()
        for node in dead:
            self._wait_until_up(node)

    def _wait_until_up(self, number: int) -> None:
        node = self.nodes[number]

        def is_up() -> bool:
            if not node.is_running:
                raise PeerFailedError(f"{node.name} ended while starting:\n{node.output_tail()}")
            return node.is_ready()

        self.wait_until(is_up, f"{node.name} serves clients")

    # -- who leads --------------------------------------------------------------------------------------------------

    def partitions(self, topic: str) -> dict[int, Led]:
        """As the first node that answers knows it; none if nobody does, or the topic is not there (yet)."""
        return next(self._views(topic), {})

    def _views(self, topic: str) -> Iterator[dict[int, Led]]:
        """What each node that is well knows: one that was away a moment ago knows what was."""
        for number, node in enumerate(self.nodes):
            if node.is_running and number not in self._paused:
                with contextlib.suppress(OSError):
                    yield partitions_of(node.bootstrap, topic)

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Its node, as soon as there is one that is running."""

        def leader() -> int | None:
            led = self.partitions(topic).get(partition)
            if led is None or led.leader == NO_LEADER or led.leader in self._paused:
                return None
            return led.leader if self.nodes[led.leader].is_running else None

        return self.wait_for(leader, f"{topic}-{partition} has a leader")

    def coordinator(self) -> int:
        """The node that coordinates every group."""
        return self.leader_of(OFFSETS_TOPIC)

    def wait_until_in_sync(self, topic: str) -> None:
        """Every partition has all its replicas in sync, and all nodes know it."""

        def are_in_sync() -> bool:
            views = list(self._views(topic))
            return bool(views) and all(
                view and all(len(led.isr) == len(led.replicas) for led in view.values()) for view in views
            )

        self.wait_until(are_in_sync, f"the replicas of {topic} are in sync")

    # -- waiting ----------------------------------------------------------------------------------------------------

    def wait_until(self, holds: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS_MAX) -> None:
        self.wait_for(lambda: holds() or None, what, seconds)

    def wait_for(self, find: Callable[[], T | None], what: str, seconds: float = WAIT_SECONDS_MAX) -> T:
        """What `find` finds, as soon as it is not None."""
        until = time.monotonic() + seconds
        while (found := find()) is None:
            if time.monotonic() > until:
                tails = "\n".join(f"{node.name}:\n{node.output_tail(8)}" for node in self.nodes)
                raise PeerFailedError(f"not within {seconds:.0f} s: {what}\n{tails}")
            time.sleep(0.05)
        return found


def free_ports(count: int) -> list[int]:
    """Below those that the kernel gives to connections: else, while a node is down, one that looks for it could take its port, or even find itself there."""
    ports: dict[int, None] = {}
    while len(ports) < count:
        port = random.randrange(*PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports[port] = None
    return list(ports)
