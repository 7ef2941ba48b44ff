"""The simulated network between the nodes of a quorum: requests and their answers, as bytes, each with a fate of its own.

Owns loss, delay, duplication and directed cuts. A request is answered once or given up; it may arrive twice, and late, so that requests overtake each other. What a
process that is gone would have got is lost with it. Everything goes through the wire codec: what is not in a message's version does not arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol

from tidelog.testing.sim.quorum_loop import Heap, ProcessLoop
from tidelog.wire.codec import decode, encode
from tidelog.wire.messages.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from tidelog.wire.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from tidelog.wire.messages.fetch import FetchRequest, FetchResponse
from tidelog.wire.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from tidelog.wire.messages.vote import VoteRequest, VoteResponse

VERSIONS: Final[dict[type[Any], int]] = {
    VoteRequest: 2,
    VoteResponse: 2,
    BeginQuorumEpochRequest: 1,
    BeginQuorumEpochResponse: 1,
    EndQuorumEpochRequest: 1,
    EndQuorumEpochResponse: 1,
    FetchRequest: 18,
    FetchResponse: 18,
    FetchSnapshotRequest: 1,
    FetchSnapshotResponse: 1,
}


class Process(Protocol):
    """A node as the network knows it."""

    id: int
    loop: ProcessLoop

    def handle(self, request: Any, answered: Callable[[Any], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class NetFaults:
    delay_ms: tuple[float, float] = (0.2, 2.0)
    loss: float = 0.0
    duplicates: float = 0.0
    late_s: float = 2.0
    """How late a duplicate may come."""


class SimNet:
    def __init__(self, heap: Heap, rng: Random, faults: NetFaults) -> None:
        self._heap = heap
        self._rng = rng
        self.faults = faults
        self.cuts: set[tuple[int, int]] = set()  # (from, to)
        self.processes: dict[int, Process] = {}
        self.on_message: Callable[[Process, int, Any], None] = lambda sender, to, message: None
        self.on_arrival: Callable[[Process, int, Any], None] = lambda receiver, sender, message: None

    def ask(
        self,
        sender: Process,
        to: int,
        request: Any,
        answered: Callable[[Any | None], None],
        *,
        timeout_s: float,
    ) -> None:
        is_open = True

        def answer(response: Any | None) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                answered(response)

        sender.loop.call_later(timeout_s, lambda: answer(None))
        self.on_message(sender, to, request)
        data = encode(request, VERSIONS[type(request)])
        copies = 2 if self._rng.random() < self.faults.duplicates else 1
        for copy in range(copies):
            delay = self._delay() + (self._rng.uniform(0, self.faults.late_s) if copy else 0.0)
            self._heap.after(delay, lambda: self._arrive(sender, to, type(request), data, answer))

    def _arrive(
        self, sender: Process, to: int, kind: type[Any], data: bytes, answer: Callable[[Any | None], None]
    ) -> None:
        if self._is_lost(sender.id, to):
            return
        receiver = self.processes.get(to)
        if receiver is None or not receiver.loop.is_alive:
            # Nobody listens: that is known at once.
            self._heap.after(self._delay(), lambda: sender.loop.call_soon(lambda: answer(None)))
            return

        def respond(response: Any) -> None:
            self.on_message(receiver, sender.id, response)
            content = encode(response, VERSIONS[type(response)])
            self._heap.after(
                self._delay(), lambda: self._return(receiver, sender, type(response), content, answer)
            )

        def handle() -> None:
            request = decode(kind, VERSIONS[kind], data)
            self.on_arrival(receiver, sender.id, request)
            receiver.handle(request, respond)

        receiver.loop.call_soon(handle)

    def _return(
        self,
        receiver: Process,
        sender: Process,
        kind: type[Any],
        data: bytes,
        answer: Callable[[Any | None], None],
    ) -> None:
        if not self._is_lost(receiver.id, sender.id):
            sender.loop.call_soon(lambda: answer(decode(kind, VERSIONS[kind], data)))

    def _delay(self) -> float:
        low, high = self.faults.delay_ms
        return self._rng.uniform(low, high) / 1000

    def _is_lost(self, sender: int, to: int) -> bool:
        return (sender, to) in self.cuts or self._rng.random() < self.faults.loss
