"""Where requests wait: fetches for enough bytes, produces for their commit.

Waiting requests are woken by partitions and given up by a timer. Wake-ups are collected and looked at once per turn of the
loop: ten produce requests that arrive together wake a parked fetch once, and it leaves with all their data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tidelog.replication.partition import Partition
from tidelog.wire.error_codes import ErrorCode


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """The event loop, as far as waiting needs it. asyncio's loop satisfies it; so does the simulation's."""

    def call_soon(self, callback: Callable[[], object], /) -> object: ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> TimerHandle: ...


class FetchPurgatory:
    """Fetches that wait for `fetch.min.bytes` or their deadline."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._woken: list[ParkedFetch] = []
        self.parked = 0

    def park(
        self,
        partitions: Sequence[Partition],
        *,
        max_wait_ms: int,
        is_ready: Callable[[], bool],
        complete: Callable[[], None],
    ) -> ParkedFetch:
        """Wait until `is_ready` or `max_wait_ms` are over, then call `complete` once."""
        fetch = ParkedFetch(self, partitions, is_ready, complete)
        fetch.timer = self.scheduler.call_later(max_wait_ms / 1000, fetch.finish)
        for partition in partitions:
            partition.watch(fetch)
        self.parked += 1
        return fetch

    def schedule(self, fetch: ParkedFetch) -> None:
        self._woken.append(fetch)
        if len(self._woken) == 1:
            self.scheduler.call_soon(self._look)

    def _look(self) -> None:
        woken, self._woken = self._woken, []
        for fetch in woken:
            fetch.look()


class ParkedFetch:
    __slots__ = ("_complete", "_is_ready", "_partitions", "_purgatory", "_woken", "ended", "timer")

    def __init__(
        self,
        purgatory: FetchPurgatory,
        partitions: Sequence[Partition],
        is_ready: Callable[[], bool],
        complete: Callable[[], None],
    ) -> None:
        self._purgatory = purgatory
        self._partitions = partitions
        self._is_ready = is_ready
        self._complete = complete
        self._woken = False
        self.ended = False
        self.timer: TimerHandle | None = None

    def wake(self) -> None:
        if not self._woken and not self.ended:
            self._woken = True
            self._purgatory.schedule(self)

    def look(self) -> None:
        self._woken = False
        if not self.ended and self._is_ready():
            self.finish()

    def finish(self) -> None:
        if self._leave():
            self._complete()

    def cancel(self) -> None:
        """The client is gone: leave without completing."""
        self._leave()

    def _leave(self) -> bool:
        if self.ended:
            return False
        self.ended = True
        self._purgatory.parked -= 1
        if self.timer is not None:
            self.timer.cancel()
        for partition in self._partitions:
            partition.unwatch(self)
        return True


class CommitWait:
    """A produce request with acks=all that waits until each of its batches is committed, or its time is over.

    `add` each batch, then `arm`: `complete` is called once, never before `arm`.
    """

    __slots__ = ("_armed", "_complete", "_missing", "_next_ticket", "_timer")

    def __init__(self, complete: Callable[[], None]) -> None:
        self._missing: dict[int, Callable[[ErrorCode], None]] = {}
        self._next_ticket = 0
        self._complete = complete
        self._armed = False
        self._timer: TimerHandle | None = None

    def add(self, partition: Partition, last_offset: int, done: Callable[[ErrorCode], None]) -> None:
        """Wait for one batch; `done` gets NONE, or the code that says why it will not be acknowledged."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._missing[ticket] = done
        partition.when_committed(last_offset, lambda code: self._settle(ticket, code))

    def arm(self, scheduler: Scheduler, *, timeout_ms: int) -> None:
        self._armed = True
        if self._missing:
            self._timer = scheduler.call_later(timeout_ms / 1000, self._time_out)
        else:
            self._complete()

    def _settle(self, ticket: int, code: ErrorCode) -> None:
        done = self._missing.pop(ticket, None)
        if done is None:
            return  # timed out before
        done(code)
        if self._armed and not self._missing:
            if self._timer is not None:
                self._timer.cancel()
            self._complete()

    def _time_out(self) -> None:
        missing, self._missing = self._missing, {}
        for done in missing.values():
            done(ErrorCode.REQUEST_TIMED_OUT)
        self._complete()
