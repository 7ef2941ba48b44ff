"""The network of a simulated cluster, as TCP has it: within a connection nothing is lost and nothing overtakes, and everything else may happen.

A message that cannot pass waits in its connection (a link that is cut, in one direction or both) until the link heals or somebody gives the connection up. A process that is killed
resets its connections, and its port refuses new ones; a machine without power says nothing, and is found out by timeouts or when it is back. What was sent on a connection that its client has given up may still
arrive, late, behind newer requests on the next one (KAFKA-17754). Implements `Peers` (`Lane`): one connection for each node that is asked, answers in the order of requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, Final, Protocol

from tidelog.records.batch import CRC_OFFSET, iter_headers
from tidelog.testing.sim.events import Event, EventHeap, Process
from tidelog.wire.codec import decode, encode
from tidelog.wire.messages.fetch import FetchResponse

CONNECT_TIMEOUT_S: Final = 1.0
_UNPROTECTED: Final = frozenset((*range(8), *range(12, 16)))
"""Bytes of a batch: its base offset and its leader epoch."""


@dataclass(slots=True)
class Weather:
    """How bad the network is. Seconds and probabilities."""

    delay: float = 0.001
    jitter: float = 0.003
    straggle: float = 0.0
    straggler_delay: float = 2.0
    late: float = 0.5
    """How likely it is that what was sent on a connection arrives after its client has given that up."""
    corruption: float = 0.0
    """Of the records in a fetch's answer, past every checksum but their own."""
    encoded: bool = False
    """Messages go through the wire codec."""


class Host(Protocol):
    """Somebody at an address."""

    @property
    def process(self) -> Process: ...

    def listens(self, lane: str, /) -> bool: ...

    def handle(self, connection: Connection, request: Any, respond: Callable[[Any], None], /) -> None: ...


class _Question:
    __slots__ = ("answered", "is_answered", "request", "response", "timer")

    def __init__(self, request: Any, answered: Callable[[Any | None], None]) -> None:
        self.request = request
        self.answered: Callable[[Any | None], None] | None = answered
        self.timer: Event | None = None
        self.is_answered = False
        self.response: Any = None

    def settle(self, response: Any | None) -> None:
        answered, self.answered = self.answered, None
        if self.timer is not None:
            self.timer.cancel()
        if answered is not None:
            answered(response)


class Connection:
    """Seen from the client's side it is open or not; the server's side hears of its end later, or when the link lets it."""

    __slots__ = (
        "arrives_at", "client", "connecting", "is_lost_here", "is_lost_there", "lane", "network", "on_lost", "questions", "returns_at",
        "server", "source", "stalled", "target", "unanswered", "when_closed",
    )  # fmt: skip

    def __init__(
        self,
        network: Network,
        source: int,
        target: int,
        lane: str,
        client: Process,
        on_lost: Callable[[int], None] | None,
    ) -> None:
        self.network = network
        self.source = source
        self.target = target
        self.lane = lane
        self.client = client
        self.on_lost = on_lost
        self.server: Process | None = None
        self.when_closed: Callable[[], None] | None = None
        self.questions: dict[_Question, None] = {}
        self.unanswered: deque[_Question] = deque()
        """At the server, in the order of their coming."""
        self.stalled: list[tuple[bool, Callable[[], None]]] = []
        self.arrives_at = network.heap.now + 2 * network.delay(source, target)  # the handshake
        self.returns_at = 0.0
        self.is_lost_here = False
        self.is_lost_there = False
        network.opened(self)
        self.connecting = client.call_later(CONNECT_TIMEOUT_S, self.give_up)

    # ---- the client's side

    def ask(self, question: _Question, timeout_s: float) -> None:
        self.questions[question] = None
        question.timer = self.client.call_later(timeout_s, self.give_up)
        self._to_server(partial(self._arrive, question))

    def give_up(self) -> None:
        """The client has waited too long for something: it closes the connection, and opens another when it has to ask again."""
        self.network.resets += 1
        if self.network.rng.random() < self.network.weather.late:
            self._to_server(self._close_there)
        else:
            self.is_lost_there = True  # what is under way meets a closed port
            self._to_server(self._closed_there)
        self._lose()

    def _lose(self) -> None:
        if self.is_lost_here:
            return
        self.is_lost_here = True
        self.connecting.cancel()
        self.network.closed(self)
        questions, self.questions = self.questions, {}
        for question in questions:
            question.settle(None)
        if self.on_lost is not None:
            self.on_lost(self.target)

    def _returned(self, question: _Question, response: Any) -> None:
        if not self.is_lost_here:
            self.questions.pop(question, None)
            question.settle(response)

    def reset_by_server(self) -> None:
        """The other side says that it knows nothing of this connection, or not any more."""
        self._to_client(self._lose)

    # ---- the server's side

    def _arrive(self, question: _Question) -> None:
        if self.is_lost_there or self.target in self.network.dark:
            return
        host = self.network.hosts.get(self.target)
        if (
            host is None
            or not host.process.alive
            or not host.listens(self.lane)
            or self.server not in (None, host.process)
        ):
            self.is_lost_there = True
            self._to_client(self._lose)
            return
        self.server = host.process
        self.connecting.cancel()
        self.unanswered.append(question)
        host.process.run(partial(host.handle, self, question.request, partial(self._respond, question)))

    def _respond(self, question: _Question, response: Any) -> None:
        if question.is_answered or self.is_lost_there:
            return
        question.is_answered, question.response = True, response
        while self.unanswered and self.unanswered[0].is_answered:
            ready = self.unanswered.popleft()
            arriving = self.network.arriving(ready.request, ready.response)
            self._to_client(partial(self._returned, ready, arriving))

    def _close_there(self) -> None:
        if not self.is_lost_there:
            self.is_lost_there = True
            self._closed_there()

    def _closed_there(self) -> None:
        closed, self.when_closed = self.when_closed, None
        if closed is not None and self.server is not None:
            self.server.run(closed)

    # ---- on the way

    def _to_server(self, deliver: Callable[[], None]) -> None:
        network = self.network
        heap = network.heap
        at = heap.now + network.delay(self.source, self.target)
        if at < self.arrives_at:
            at = self.arrives_at
        self.arrives_at = at
        heap.at(at, partial(self._pass_there, deliver))

    def _to_client(self, deliver: Callable[[], None]) -> None:
        network = self.network
        heap = network.heap
        at = heap.now + network.delay(self.target, self.source)
        if at < self.returns_at:
            at = self.returns_at
        self.returns_at = at
        heap.at(at, partial(self._pass_back, deliver))

    def _pass_there(self, deliver: Callable[[], None]) -> None:
        if (self.source, self.target) in self.network.cut:
            self._stall(True, deliver)
        else:
            deliver()

    def _pass_back(self, deliver: Callable[[], None]) -> None:
        if (self.target, self.source) in self.network.cut:
            self._stall(False, deliver)
        else:
            self.client.run(deliver)

    def _stall(self, to_server: bool, deliver: Callable[[], None]) -> None:
        self.network.stalls += 1
        self.stalled.append((to_server, deliver))
        self.network.stalled(self)

    def go_on(self) -> None:
        """A link has healed: what waited goes on, in its order; what still cannot pass waits again."""
        stalled, self.stalled = self.stalled, []
        for to_server, deliver in stalled:
            if to_server:
                self._to_server(deliver)
            else:
                self._to_client(deliver)


class Network:
    def __init__(self, heap: EventHeap, rng: Random) -> None:
        self.heap = heap
        self.rng = rng
        self.weather = Weather()
        self.hosts: dict[int, Host] = {}
        self.cut: set[tuple[int, int]] = set()
        self.slow: dict[tuple[int, int], float] = {}
        self.dark: set[int] = set()
        """Machines without power: nobody answers there, not even that nobody listens."""
        self.corrupted = self.resets = self.stalls = self.sent = 0
        self._open: dict[Connection, None] = {}
        self._stalled: dict[Connection, None] = {}

    def delay(self, source: int, target: int) -> float:
        rng, weather = self.rng, self.weather
        self.sent += 1
        seconds = weather.delay + rng.random() * weather.jitter
        if self.slow:
            seconds += self.slow.get((source, target), 0.0)
        if weather.straggle and rng.random() < weather.straggle:
            seconds += rng.random() * weather.straggler_delay
        return seconds

    def arriving(self, request: Any, response: Any) -> Any:
        """An answer as it arrives: now and then with a flipped bit among its records, sometimes through the codec."""
        if isinstance(response, FetchResponse) and self.rng.random() < self.weather.corruption:
            response = self._damaged(response)
        return transcoded(response) if self.weather.encoded else response

    def _damaged(self, response: FetchResponse) -> FetchResponse:
        for topic in response.responses:
            for data in topic.partitions:
                if isinstance(data.records, bytes) and len(data.records) > 70:
                    self.corrupted += 1
                    at = _noticeable(data.records, 61 + self.rng.randrange(len(data.records) - 61))
                    flipped = bytes((data.records[at] ^ 1,))
                    broken = replace(data, records=data.records[:at] + flipped + data.records[at + 1 :])
                    rest = [broken if other is data else other for other in topic.partitions]
                    topics = [
                        replace(each, partitions=rest) if each is topic else each
                        for each in response.responses
                    ]
                    return replace(response, responses=topics)
        return response

    # ---- connections

    def opened(self, connection: Connection) -> None:
        self._open[connection] = None

    def closed(self, connection: Connection) -> None:
        self._open.pop(connection, None)

    def stalled(self, connection: Connection) -> None:
        self._stalled[connection] = None

    def heal(self, links: set[tuple[int, int]]) -> None:
        self.cut -= links
        waiting, self._stalled = self._stalled, {}
        for connection in waiting:
            connection.go_on()

    def reset_some(self, rng: Random, node_id: int) -> int:
        """Connections of a node break, as behind a router that forgot them."""
        found = [each for each in self._open if node_id in (each.source, each.target)]
        broken = [each for each in found if rng.random() < 0.5]
        for connection in broken:
            connection.client.run(connection.give_up)
        return len(broken)

    def process_ended(self, process: Process, *, silently: bool) -> None:
        """Its kernel closes its connections, unless that has gone as well."""
        for connection in list(self._open):
            if connection.client is process:
                self.closed(connection)
                connection.is_lost_here = True
                if not silently:
                    connection._to_server(connection._close_there)
            elif connection.server is process and not silently:
                connection.reset_by_server()

    def process_started(self, node_id: int) -> None:
        """Whoever still sends to what was there before is told that it is gone."""
        self.dark.discard(node_id)
        for connection in list(self._open):
            if connection.target == node_id and connection.server is not None:
                self.heap.after(self.rng.random(), connection.reset_by_server)


def _noticeable(records: bytes, at: int) -> int:
    """Where a flipped bit can be found out: base offset and leader epoch of a batch are covered by no checksum of Kafka's format. Then its CRC is hit instead."""
    start = max(position for position, _ in iter_headers(records) if position <= at)
    return start + CRC_OFFSET if at - start in _UNPROTECTED else at


class Knock:
    """An attempt to make a connection and let go of it: `cluster.missing_nodes.Listens`. True: it was taken; False: refused; None: nobody has answered in time.

    A kernel answers for its processes: it takes connections for one that is paused, unless the whole machine is.
    """

    __slots__ = ("_answered", "_client", "_lane", "_network", "_source", "_target", "_timer")

    def __init__(
        self,
        network: Network,
        client: Process,
        source: int,
        target: int,
        lane: str,
        answered: Callable[[bool | None], None],
    ) -> None:
        self._network = network
        self._client = client
        self._source = source
        self._target = target
        self._lane = lane
        self._answered: Callable[[bool | None], None] | None = answered
        self._timer = client.call_later(CONNECT_TIMEOUT_S, partial(self._answer, None))
        network.heap.after(network.delay(source, target), self._arrive)

    def _arrive(self) -> None:
        network, target = self._network, self._target
        if (self._source, target) in network.cut or target in network.dark:
            return
        host = network.hosts.get(target)
        taken = False
        if host is not None and host.process.alive:
            if host.process.is_paused and network.rng.random() < 0.5:
                return
            taken = host.listens(self._lane)
        network.heap.after(network.delay(target, self._source), partial(self._return, taken))

    def _return(self, taken: bool) -> None:
        if (self._target, self._source) not in self._network.cut:
            self._client.run(partial(self._answer, taken))

    def _answer(self, taken: bool | None) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            self._timer.cancel()
            answered(taken)


class Lane:
    """One node's connections of one kind. Implements `Peers`. `on_lost` hears of a node whose connection broke or was refused."""

    def __init__(
        self,
        network: Network,
        own_id: int,
        process: Process,
        name: str,
        on_lost: Callable[[int], None] | None = None,
    ) -> None:
        self._network = network
        self._own_id = own_id
        self._process = process
        self._name = name
        self._on_lost = on_lost
        self._connections: dict[int, Connection] = {}

    def ask(
        self, node_id: int, request: Any, answered: Callable[[Any | None], None], /, *, timeout_s: float
    ) -> None:
        connection = self._connections.get(node_id)
        if connection is None or connection.is_lost_here:
            connection = self._connections[node_id] = Connection(
                self._network, self._own_id, node_id, self._name, self._process, self._on_lost
            )
        if self._network.weather.encoded:
            request = transcoded(request)
        connection.ask(_Question(request, answered), timeout_s)


def transcoded(message: Any) -> Any:
    """As it is after the wire: what its version has no room for is gone."""
    kind = type(message)
    schema = getattr(kind, "SCHEMA", None)
    if schema is None or schema.versions is None:
        return message
    version = schema.versions[1]
    return decode(kind, version, encode(message, version))
