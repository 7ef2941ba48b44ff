"""A loaded shard at work: handlers one at a time, records to the log, answers when they are committed.

Owns the order of things for one coordinator partition:

1. A handler, a timer or the end of the load makes an outcome. Nothing else of the shard runs until it is dealt with.
2. Its records are appended as one batch and replayed at once. So the next handler finds them applied, though they may be lost yet.
3. Its answers wait until those records are committed; without records, until everything appended before is. So nobody is told of a state
   that a crash could take back. Answers leave in the order in which they were made.
4. Everybody who asked is answered once. A shard that is lost answers all who still wait; an answer to somebody who has one already goes
   nowhere.

A shard is lost when its state may differ from its log, or when nobody knows what the log holds: a commit failed, an append failed other
than harmlessly, replay raised. It never serves again; who hosts it loads another one from the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, NamedTuple

from tidelog.coordinator.outcome import Answer, Now, Outcome, Waiter, answered
from tidelog.coordinator.runtime_ports import HARMLESS, Deliver, Handler, Journal, Refuse, S, told
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode

_NOTHING: Final = -1


class _Waiting(NamedTuple):
    waiter: Waiter
    refuse: Refuse


class _Due(NamedTuple):
    """An answer, and the offset that must be committed before it leaves."""

    offset: int
    waiter: Waiter
    response: Any


class Hosted(Generic[S]):
    __slots__ = (
        "_appended", "_busy", "_committed", "_deliver", "_delivering", "_due", "_failed_answers", "_failure", "_journal", "_later",
        "_on_lost", "_waiting", "closed", "has_committed", "shard",
    )  # fmt: skip

    def __init__(
        self, shard: S, journal: Journal, deliver: Deliver, on_lost: Callable[[Hosted[S], str], None]
    ) -> None:
        self.shard = shard
        self.closed = False
        self.has_committed = False
        """Something that this shard wrote was committed: its log works."""
        self._journal = journal
        self._deliver = deliver
        self._on_lost = on_lost
        self._waiting: dict[int, _Waiting] = {}  # by identity, in the order of asking
        self._due: deque[_Due] = deque()
        self._appended = _NOTHING
        self._committed = _NOTHING
        self._busy = False
        self._delivering = False
        self._later: deque[Callable[[], object]] = deque()
        self._failure: str | None = None
        self._failed_answers: dict[int, ErrorCode] = {}

    # ---- what makes outcomes

    def begin(self, now: Now) -> None:
        """The log is replayed up to its end. What of it is not committed yet, nobody may hear of yet."""
        end = self._journal.end_offset
        if end > 0:
            self._appended = end - 1
            self._journal.when_committed(end - 1, partial(self._commit_ended, end - 1, False))
        self.run(lambda: self.shard.loaded(now), now)

    def submit(self, handler: Handler[S], waiter: Waiter, refuse: Refuse, now: Now) -> None:
        """Raises what a handler raises by mistake, after its waiter was told UNKNOWN_SERVER_ERROR."""
        if self.closed:
            self._deliver(waiter, refuse(ErrorCode.NOT_COORDINATOR))
            return
        if self._busy:
            self._later.append(partial(self.submit, handler, waiter, refuse, now))
            return
        assert id(waiter) not in self._waiting, "a waiter stands for one question at a time"
        self._waiting[id(waiter)] = _Waiting(waiter, refuse)
        self._busy = True
        try:
            try:
                outcome = handler(self.shard, waiter, now)
            except RequestError as refused:
                outcome = answered(waiter, refuse(refused.code))
            except Exception:
                self._act(answered(waiter, refuse(ErrorCode.UNKNOWN_SERVER_ERROR)), now, asked=True)
                raise
            self._act(outcome, now, asked=True)
        finally:
            self._end_turn()

    def run(self, work: Callable[[], Outcome | None], now: Now) -> bool:
        """Work that nobody asked for, and what comes of it. False: there was nothing to do.

        If it raises, what it would have done is not done and nobody is there to ask again: the shard is lost.
        """
        if self.closed:
            return False
        if self._busy:
            self._later.append(partial(self.run, work, now))
            return True
        self._busy = True
        try:
            try:
                outcome = work()
            except Exception as error:
                self._fail(error)
                raise
            if outcome is not None:
                self._act(outcome, now, asked=False)
        finally:
            self._end_turn()
        return outcome is not None

    def expire(self, now: Now) -> None:
        """Deadlines that are over, one after the other."""
        if self._busy:
            return  # in the middle of a turn: they are still due after it
        due = self.shard.timers.expire(now)
        while self.run(lambda: next(due, None), now):
            pass

    # ---- what becomes of them

    def _act(self, outcome: Outcome, now: Now, *, asked: bool) -> None:
        if self.closed:
            return  # by the handler, as it were: all who asked are answered, and the log is not ours any more
        try:
            if outcome.records:
                self._write(outcome, now, asked)
            else:
                self._queue(outcome)
        except Exception as error:
            self._fail(error)
            raise

    def _write(self, outcome: Outcome, now: Now, asked: bool) -> None:
        try:
            offset = self._journal.append(outcome.records, now)
        except RequestError as error:
            self._refused(outcome, error, now, asked)
            return
        self._appended = offset
        for record in outcome.records:
            self.shard.replay(record)
        self._queue(outcome)
        self._journal.when_committed(offset, partial(self._commit_ended, offset, True))

    def _refused(self, outcome: Outcome, error: RequestError, now: Now, asked: bool) -> None:
        """Nothing was written. Where whoever asked can be told so, that is all; a timer has nobody who would ask again."""
        code = told(error.code)
        if error.code in HARMLESS and outcome.on_failed is not None:
            instead = outcome.on_failed(code, now)
            assert not instead.records, "what happens instead of a write cannot be a write"
            self._queue(instead)
        elif error.code in HARMLESS and asked and outcome.answers:
            self._queue(Outcome(answers=self._as_refusals(outcome, code)))
        else:
            self._failed_answers = {id(answer.waiter): code for answer in outcome.answers}
            self._failure = f"the log refused a write: {error.code.name}: {error.message}"

    def _as_refusals(self, outcome: Outcome, code: ErrorCode) -> list[Answer]:
        asked = (self._waiting.get(id(answer.waiter)) for answer in outcome.answers)
        return [Answer(found.waiter, found.refuse(code)) for found in asked if found is not None]

    def _queue(self, outcome: Outcome) -> None:
        for answer in outcome.answers:
            self._due.append(_Due(self._appended, answer.waiter, answer.response))

    def _commit_ended(self, offset: int, own: bool, code: ErrorCode) -> None:
        if self.closed:
            return
        if code == ErrorCode.NONE:
            self._committed = max(self._committed, offset)
            self.has_committed |= own
        elif self._failure is None:
            self._failure = f"what was written up to offset {offset} was not committed: {code.name}"
        if not self._busy:
            self._end_turn()

    # ---- the end of a turn

    def _fail(self, error: Exception) -> None:
        self._failure = f"{type(error).__name__}: {error}"

    def _end_turn(self) -> None:
        self._busy = False
        if self._failure is not None and not self.closed:
            reason = self._failure
            self._close(lambda: self._on_lost(self, reason))
        else:
            self._deliver_due()
        while self._later and not self._busy:
            self._later.popleft()()

    def _deliver_due(self) -> None:
        """Whoever is answered may ask again before this returns: then the newer answers go behind the older ones."""
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._due and self._due[0].offset <= self._committed:
                due = self._due.popleft()
                if self._waiting.pop(id(due.waiter), None) is not None:
                    self._deliver(due.waiter, due.response)
        finally:
            self._delivering = False

    def close(self) -> None:
        """Serve no more; all who wait are sent away."""
        if not self.closed:
            self._close(lambda: None)

    def _close(self, announce: Callable[[], None]) -> None:
        self.closed = True
        waiting, self._waiting = self._waiting, {}
        self._due.clear()
        announce()  # first, so that who asks again at once is not sent here
        for key, (waiter, refuse) in waiting.items():
            self._deliver(waiter, refuse(self._failed_answers.get(key, ErrorCode.NOT_COORDINATOR)))
