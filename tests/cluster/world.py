"""Time and a network in a test's hand: nothing happens but what the test lets happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Handle:
    def __init__(self, at: float, callback: Callable[[], object]) -> None:
        self.at = at
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualLoop:
    """`Scheduler`, `Clock` and `Offload`: work that is offloaded is done when the test runs it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[Handle] = []
        self.offloaded: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def call_soon(self, callback: Callable[[], object], /) -> Handle:
        return self.call_later(0.0, callback)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Handle:
        handle = Handle(self.now + delay, callback)
        self._timers.append(handle)
        return handle

    def run(self, work: Callable[[], Any], done: Callable[[Any], None], /) -> None:
        self.offloaded.append((work, done))

    def finish(self, index: int = 0) -> None:
        """One piece of offloaded work is done."""
        work, done = self.offloaded.pop(index)
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - as the port says
            result = error
        done(result)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while due := sorted(
            (timer for timer in self._timers if timer.callback and timer.at <= end),
            key=lambda timer: timer.at,
        ):
            timer = due[0]
            self._timers.remove(timer)
            self.now = max(self.now, timer.at)
            assert timer.callback is not None
            timer.callback()
        self.now = end


class Question(NamedTuple):
    node_id: int
    request: Any
    answer: Callable[[Any | None], None]


class ManualPeers:
    def __init__(self) -> None:
        self.questions: list[Question] = []

    def ask(
        self, node_id: int, request: Any, answered: Callable[[Any | None], None], /, *, timeout_s: float
    ) -> None:
        self.questions.append(Question(node_id, request, answered))

    def take(self) -> Question:
        (question,) = self.questions
        self.questions.clear()
        return question
