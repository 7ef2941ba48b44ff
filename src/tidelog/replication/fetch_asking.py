"""What a leader remembers of a follower's fetches, seen from the follower: a request names only what has changed (KIP-227).

The first request of a session is whole. Whatever makes it doubtful that the leader remembers the same (an error, no answer) begins a new
one. The leader's side is `fetch_session`.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from tidelog.replication.fetch_session import INITIAL_EPOCH, INT32_MAX, NO_SESSION
from tidelog.wire.error_codes import ErrorCode

SESSION_ERRORS: Final = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)


class Key(NamedTuple):
    topic_id: bytes
    partition: int


Wanted: TypeAlias = tuple[int, ...]
"""All that a request says of one partition: what differs from it is said again."""


class Asking(NamedTuple):
    session_id: int
    epoch: int
    changed: list[Key]
    forgotten: list[Key]


class AskingSession:
    __slots__ = ("_epoch", "_remembered", "_session_id")

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._remembered: dict[Key, Wanted] = {}

    def ask(self, wanted: dict[Key, Wanted]) -> Asking:
        """Keeps `wanted`."""
        before = self._remembered if self._epoch != INITIAL_EPOCH else {}
        self._remembered = wanted
        changed = [key for key, said in wanted.items() if before.get(key) != said]
        forgotten = [] if before.keys() <= wanted.keys() else [key for key in before if key not in wanted]
        return Asking(self._session_id, self._epoch, changed, forgotten)

    def answered(self, session_id: int) -> None:
        """Without an error. Session 0: the leader does not want to remember anything."""
        if session_id == NO_SESSION:
            self.begin_anew()
        elif session_id != self._session_id or self._epoch == INITIAL_EPOCH:
            self._session_id, self._epoch = session_id, 1
        else:
            self._epoch = 1 if self._epoch == INT32_MAX else self._epoch + 1

    def begin_anew(self) -> None:
        """The next request is whole; it names the session, if there was one, so that the leader can forget it."""
        self._epoch = INITIAL_EPOCH
