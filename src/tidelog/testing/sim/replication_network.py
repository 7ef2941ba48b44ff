"""The network between nodes: requests and answers that are late, lost, doubled, out of order or cut off in one direction.

Implements `Peers`. An answer that will never come is None after the timeout, or soon if nobody listens at the other end. Harsher than
TCP on purpose: two requests between the same nodes may overtake each other, as they do on two connections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Protocol

from tidelog.testing.sim.events import EventHeap, Process
from tidelog.wire.messages.fetch import FetchResponse


@dataclass(slots=True)
class Weather:
    """How bad the network is. Seconds and probabilities."""

    delay: float = 0.002
    jitter: float = 0.004
    straggle: float = 0.0
    straggler_delay: float = 3.0
    loss: float = 0.0
    duplication: float = 0.0
    corruption: float = 0.0


class Node(Protocol):
    """Somebody at an address."""

    @property
    def process(self) -> Process: ...

    def handle(self, source: int, request: Any, respond: Callable[[Any], None], /) -> None: ...


class Network:
    def __init__(self, heap: EventHeap, rng: Random) -> None:
        self.heap = heap
        self.rng = rng
        self.weather = Weather()
        self.nodes: dict[int, Node] = {}
        self.cut: set[tuple[int, int]] = set()  # (from, to): nothing arrives
        self.slow: dict[tuple[int, int], float] = {}
        self.lost = self.duplicated = self.corrupted = self.sent = 0

    def send(self, source: int, target: int, deliver: Callable[[], object], *, may_double: bool) -> None:
        rng, weather = self.rng, self.weather
        self.sent += 1
        if (source, target) in self.cut or rng.random() < weather.loss:
            self.lost += 1
            return
        copies = 1
        if may_double and rng.random() < weather.duplication:
            self.duplicated += 1
            copies = 2
        for _ in range(copies):
            delay = weather.delay + rng.random() * weather.jitter + self.slow.get((source, target), 0.0)
            if rng.random() < weather.straggle:
                delay += rng.random() * weather.straggler_delay
            self.heap.after(delay, deliver)

    def damaged(self, response: Any) -> Any:
        """An answer as it arrives: now and then with a flipped bit among its records."""
        if not isinstance(response, FetchResponse) or self.rng.random() >= self.weather.corruption:
            return response
        for topic in response.responses:
            for data in topic.partitions:
                if isinstance(data.records, bytes) and len(data.records) > 70:
                    self.corrupted += 1
                    at = 61 + self.rng.randrange(len(data.records) - 61)
                    flipped = bytes((data.records[at] ^ 1,))
                    broken = replace(data, records=data.records[:at] + flipped + data.records[at + 1 :])
                    rest = [broken if other is data else other for other in topic.partitions]
                    return replace(response, responses=[replace(topic, partitions=rest)])
        return response


class NetworkPeers:
    """One node's way to the others, for one process."""

    def __init__(self, network: Network, own_id: int, process: Process) -> None:
        self._network = network
        self._own_id = own_id
        self._process = process

    def ask(
        self, node_id: int, request: Any, answered: Callable[[Any | None], None], /, *, timeout_s: float
    ) -> None:
        network, own_id, process = self._network, self._own_id, self._process
        settled = False

        def settle(response: Any | None) -> None:
            nonlocal settled
            if not settled:
                settled = True
                timer.cancel()
                answered(response)

        timer = process.call_later(timeout_s, lambda: settle(None))

        def respond(response: Any) -> None:
            arrived = network.damaged(response)
            network.send(node_id, own_id, lambda: process.run(lambda: settle(arrived)), may_double=False)

        def deliver() -> None:
            node = network.nodes.get(node_id)
            if node is None or not node.process.alive:
                # Nobody listens: the other side says so.
                network.send(node_id, own_id, lambda: process.run(lambda: settle(None)), may_double=False)
                return
            node.process.run(lambda: node.handle(own_id, request, respond))

        network.send(own_id, node_id, deliver, may_double=True)
