"""Where requests wait: fetches for enough bytes, produces for their commit.

Waiting requests are woken by partitions and given up by a timer. Wake-ups are collected and looked at once per turn of the
loop: ten produce requests that arrive together wake a parked fetch once, and it leaves with all their data.

Budget: 270 µs of the whole process for a fetch that waits and the produce that wakes it, system calls and both answers included
(`bench/budgets.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tidelog.ports import Scheduler, TimerHandle
from tidelog.replication.partition import Partition
from tidelog.wire.error_codes import ErrorCode

PARTITIONS_PER_TURN = 2000
"""So many partitions of woken fetches are looked at in one turn of the loop, the rest in the next: a crowd of readers that each wait for
thousands of partitions must not keep everybody waiting at every record."""
WIDE = 100
"""Fewer partitions than these are looked at so quickly that nobody has to wait for it."""


HURRY_S: Final = 1.0
HURRIED_WAIT_MS: Final = 20


class FetchPurgatory:
    """Fetches that wait for `fetch.min.bytes` or their deadline."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._woken: list[ParkedFetch] = []
        self.parked = 0
        self._of_followers: set[ParkedFetch] = set()
        self._calming_down: TimerHandle | None = None

    def hurry_followers(self) -> None:
        """This broker leads more than before. Followers that wait here cannot ask for it, and nothing of it is committed before they do; for a moment none waits long, because some
        hear of the change later than others.
        """
        if self._calming_down is not None:
            self._calming_down.cancel()
        self._calming_down = self.scheduler.call_later(HURRY_S, self._calm_down)
        for fetch in list(self._of_followers):
            fetch.expire()

    def _calm_down(self) -> None:
        self._calming_down = None

    def park(
        self,
        partitions: Sequence[Partition],
        *,
        max_wait_ms: int,
        look: Callable[[], Callable[[], None] | None],
        complete: Callable[[], None],
        whole_log: bool = False,
        high_watermark: bool = False,
    ) -> ParkedFetch:
        """Wait until `look`, called whenever something happened, returns how to answer; or, after `max_wait_ms`, call `complete`.

        With `whole_log`, as followers wait, something has happened when anything was appended, committed or not; with `high_watermark`, also when more was
        committed.
        """
        if whole_log and self._calming_down is not None:
            max_wait_ms = min(max_wait_ms, HURRIED_WAIT_MS)
        fetch = ParkedFetch(self, partitions, look, complete)
        if whole_log:
            self._of_followers.add(fetch)
        fetch.timer = self.scheduler.call_later(max_wait_ms / 1000, fetch.expire)
        for partition in partitions:
            if whole_log:
                partition.watch_end(fetch)
            if high_watermark or not whole_log:
                partition.watch(fetch)
        self.parked += 1
        return fetch

    def left(self, fetch: ParkedFetch) -> None:
        self.parked -= 1
        self._of_followers.discard(fetch)

    def schedule(self, fetch: ParkedFetch) -> None:
        self._woken.append(fetch)
        if len(self._woken) == 1:
            self.scheduler.call_soon(self._look)

    def _look(self) -> None:
        woken, self._woken = self._woken, []
        left = PARTITIONS_PER_TURN
        for number, fetch in enumerate(woken):
            if left <= 0:
                self._look_on(woken[number:])
                return
            left -= fetch.width
            fetch.look()

    def _look_on(self, rest: list[ParkedFetch]) -> None:
        is_scheduled = bool(self._woken)  # by those who were woken meanwhile
        self._woken = rest + self._woken
        if not is_scheduled:
            self.scheduler.call_soon(self._look)


class ParkedFetch:
    __slots__ = (
        "_complete",
        "_expired",
        "_look",
        "_partitions",
        "_purgatory",
        "_woken",
        "ended",
        "timer",
        "width",
    )

    def __init__(
        self,
        purgatory: FetchPurgatory,
        partitions: Sequence[Partition],
        look: Callable[[], Callable[[], None] | None],
        complete: Callable[[], None],
    ) -> None:
        self._purgatory = purgatory
        self._partitions = partitions
        self._look = look
        self._complete = complete
        self._woken = False
        self._expired = False
        self.width = 1 + len(partitions)
        self.ended = False
        self.timer: TimerHandle | None = None

    def wake(self) -> None:
        if not self._woken and not self.ended:
            self._woken = True
            self._purgatory.schedule(self)

    def look(self) -> None:
        self._woken = False
        if self._expired:
            self.finish()
        elif not self.ended:
            answer = self._look()
            if answer is not None and self._leave():
                answer()

    def expire(self) -> None:
        """The time is over. Whoever waits for many partitions leaves in turn with the others: they may all expire at once."""
        if self.width < WIDE:
            self.finish()
        else:
            self._expired = True
            self.wake()

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
        self._purgatory.left(self)
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
