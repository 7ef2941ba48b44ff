"""Several nodes of one cluster on loopback, to be killed, stopped and paused one by one, whatever broker they run.

Owns what a test or a measurement may do to them, and waiting for what follows. Never knows what the nodes are: `kafka_cluster` and `tidelog_cluster` make them. No
process outlives the `with`.
"""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

from tools.peers.leaders import NO_LEADER, Led, active_controller, partitions_of
from tools.peers.process import Peer, PeerFailedError

T = TypeVar("T")

WAIT_SECONDS_MAX = 40.0
PORTS = (20_000, 32_000)


class NodeCluster:
    """`with … as cluster:` starts all nodes and waits until each serves clients. Nodes are numbered from 0."""

    def __init__(self, nodes: Sequence[Peer], controller_ports: Sequence[int]) -> None:
        """Every node is a broker and a controller, which other controllers find at the port of the same number."""
        self.nodes = nodes
        self.controller_ports = controller_ports
        self._paused: set[int] = set()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def __enter__(self) -> Self:
        try:
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda node: node.prepare(), self.nodes))
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

    def active_controller(self) -> int:
        """Its node, as soon as there is one."""
        return self.wait_for(lambda: next(self._active_controllers(), None), "there is an active controller")

    def _active_controllers(self) -> Iterator[int]:
        for number, node in enumerate(self.nodes):
            if node.is_running and number not in self._paused:
                with contextlib.suppress(OSError):
                    if active_controller(f"127.0.0.1:{self.controller_ports[number]}") == number:
                        yield number

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
