"""What one broker remembers of our fetches, so that a request names only what has changed (KIP-227).

The first request is whole. If the broker makes a session of it, the next ones carry its id, a rising epoch, the partitions that are new or whose offset has
moved, and those that are to be forgotten. A broker that has forgotten the session says so, and the next request is whole again. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tidelog.client.metadata import TopicPartition
from tidelog.wire.error_codes import ErrorCode

NO_SESSION: Final = 0
WHOLE_EPOCH: Final = 0
_FORGOTTEN: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)


class Asked(NamedTuple):
    """Of one partition, in one request."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    max_bytes: int


class SessionRequest(NamedTuple):
    session_id: int
    epoch: int
    partitions: Mapping[TopicPartition, Asked]
    forgotten: Mapping[TopicPartition, bytes]
    """With their topic ids."""


class FetchSession:
    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self._epoch = WHOLE_EPOCH
        self._remembered: dict[TopicPartition, Asked] = {}

    def request(self, wanted: Mapping[TopicPartition, Asked]) -> SessionRequest:
        """All that this broker is to send records of."""
        if self._epoch == WHOLE_EPOCH:
            self._remembered = dict(wanted)
            return SessionRequest(self.session_id, WHOLE_EPOCH, wanted, {})
        before = self._remembered
        changed = {tp: asked for tp, asked in wanted.items() if before.get(tp) != asked}
        forgotten = {
            tp: asked.topic_id
            for tp, asked in before.items()
            if tp not in wanted or wanted[tp].topic_id != asked.topic_id
        }
        self._remembered = dict(wanted)
        return SessionRequest(self.session_id, self._epoch, changed, forgotten)

    def answered(self, error_code: int, session_id: int) -> None:
        if error_code != ErrorCode.NONE:
            if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = NO_SESSION
            self._epoch = WHOLE_EPOCH
            return
        if session_id == NO_SESSION:
            self.session_id, self._epoch = NO_SESSION, WHOLE_EPOCH
            return
        if self._epoch == WHOLE_EPOCH or session_id != self.session_id:
            self.session_id, self._epoch = session_id, 1
        else:
            self._epoch = 1 if self._epoch == (1 << 31) - 1 else self._epoch + 1

    def unanswered(self) -> None:
        """Nobody knows what the broker remembers: begin anew, which ends the old session too."""
        self._epoch = WHOLE_EPOCH

    def remembered(self) -> Iterable[TopicPartition]:
        return self._remembered


def is_about_session(error_code: int) -> bool:
    return error_code in _FORGOTTEN
