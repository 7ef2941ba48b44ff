"""Incremental fetch sessions (KIP-227): the broker remembers which partitions a reader wants.

A reader's first request asks for a session (id 0, epoch 0) and names all its partitions. From then on it sends only what
changed, and the broker answers only with partitions that have something to say: data, an error, or a moved watermark.

States of a request, by the session id and epoch it carries:

    id 0, epoch -1      sessionless: every partition named, every partition answered
    any id, epoch 0     a new session, full request and answer; a session under that id is closed first
    id n, epoch -1      close session n, full request and answer
    id n, epoch e > 0   incremental: e must be the epoch that session n expects next

The number of sessions is bounded (`max.incremental.fetch.session.cache.slots`), and so is that of the partitions in them. A full cache makes room only by evicting a
session that has been silent for `min.incremental.fetch.session.eviction.ms`, or one that is smaller and has had its turn;
otherwise the reader is simply served without a session, which every client understands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.ports import Rng
from tidelog.wire.error_codes import ErrorCode

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION = 0
INT32_MAX = 2**31 - 1


SESSION_PARTITIONS_MAX = 500_000
"""Partitions remembered in all sessions together, some 300 bytes each. Whoever comes beyond is served without a session."""


class PartitionKey(NamedTuple):
    """A partition as its session knows it: by topic name before version 13, by topic id (and an empty name) from then on.

    An id stays a key when its topic is deleted and has no name any more, so that a reader can still forget it.
    """

    topic: str
    topic_id: bytes
    partition: int


@dataclass(slots=True)
class FetchTarget:
    """What a reader wants of one partition."""

    key: PartitionKey
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    name: str = ""
    """The topic's name as far as it is known. A session keeps it when the topic is gone."""


@dataclass(slots=True)
class _Remembered:
    """A partition of a session, with what its reader was told last."""

    target: FetchTarget
    high_watermark: int = -1
    log_start_offset: int = -1
    last_error: int = 0


class FetchSession:
    __slots__ = ("by_id", "created_at", "epoch", "id", "last_used", "partitions")

    def __init__(self, session_id: int, *, by_id: bool, now: float) -> None:
        self.id = session_id
        self.by_id = by_id
        self.epoch = 1
        self.created_at = now
        self.last_used = now
        self.partitions: dict[PartitionKey, _Remembered] = {}

    def update(self, targets: Iterable[FetchTarget], forgotten: Iterable[PartitionKey]) -> None:
        for target in targets:
            known = self.partitions.get(target.key)
            if known is None:
                self.partitions[target.key] = _Remembered(target)
            else:
                target.name = target.name or known.target.name
                known.target = target
        for key in forgotten:
            self.partitions.pop(key, None)

    def targets(self) -> list[FetchTarget]:
        return [remembered.target for remembered in self.partitions.values()]

    def must_answer(
        self,
        key: PartitionKey,
        *,
        has_records: bool,
        error: int,
        diverging: bool,
        high_watermark: int,
        log_start_offset: int,
        preferred: bool = False,
    ) -> bool:
        """Whether an incremental answer has to mention this partition; remembers what it will say.

        A partition that had data moves to the end of the line, so that one busy partition does not use up every answer's
        size limit ahead of the others.
        """
        known = self.partitions.get(key)
        if known is None:
            return True
        changed = (
            has_records
            or error != 0
            or diverging
            or preferred
            or known.high_watermark != high_watermark
            or known.log_start_offset != log_start_offset
            or known.last_error != error
        )
        known.high_watermark = high_watermark
        known.log_start_offset = log_start_offset
        known.last_error = error
        if has_records:
            del self.partitions[key]
            self.partitions[key] = known
        return changed


class FetchContext(NamedTuple):
    """How one fetch request is to be served."""

    targets: list[FetchTarget]
    session: FetchSession | None
    incremental: bool
    """Only partitions for which `session.must_answer` are answered."""

    @property
    def session_id(self) -> int:
        return self.session.id if self.session is not None else NO_SESSION


class SessionError(Exception):
    """The request's session is not ours or not where it thinks it is; the client starts a new one."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class FetchSessionCache:
    def __init__(
        self, rng: Rng, *, slots_max: int, eviction_ms: int, partitions_max: int = SESSION_PARTITIONS_MAX
    ) -> None:
        self._rng = rng
        self.partitions_max = partitions_max
        self.slots_max = slots_max
        self.eviction_seconds = eviction_ms / 1000
        # In order of use, least recently used first: eviction looks only at the front.
        self._sessions: dict[int, FetchSession] = {}
        self.partitions = 0  # in all sessions together
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FetchSession]:
        return iter(self._sessions.values())

    def resolve(
        self,
        *,
        session_id: int,
        epoch: int,
        by_id: bool,
        targets: list[FetchTarget],
        forgotten: list[PartitionKey],
        now: float,
    ) -> FetchContext:
        """Find the session a request belongs to, or make one; raises SessionError."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._forget(session_id)
            if epoch == FINAL_EPOCH:
                return FetchContext(targets, None, incremental=False)
            return FetchContext(targets, self._create(targets, by_id=by_id, now=now), incremental=False)
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise SessionError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise SessionError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        before = len(session.partitions)
        session.update(targets, forgotten)
        self.partitions += len(session.partitions) - before
        session.epoch = 1 if epoch == INT32_MAX else epoch + 1
        session.last_used = now
        del self._sessions[session_id]
        if not session.partitions:
            # Nothing left to watch: the session ends, and the empty full answer tells the client so.
            return FetchContext([], None, incremental=False)
        if self.partitions > self.partitions_max and len(session.partitions) > before:
            # It may have what it asked for once more; then it starts over, and is served without a session.
            self.partitions -= len(session.partitions)
            return FetchContext(session.targets(), session, incremental=True)
        self._sessions[session_id] = session
        return FetchContext(session.targets(), session, incremental=True)

    def _create(self, targets: list[FetchTarget], *, by_id: bool, now: float) -> FetchSession | None:
        if not targets or not self._make_room(len(targets), now):
            return None
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = 1 + self._rng.randrange(INT32_MAX)
        session = FetchSession(session_id, by_id=by_id, now=now)
        session.update(targets, ())
        self._sessions[session_id] = session
        self.partitions += len(session.partitions)
        return session

    def _make_room(self, size: int, now: float) -> bool:
        if self.partitions + size > self.partitions_max:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now - oldest.last_used <= self.eviction_seconds:
                return False
            self._evict(oldest)
            return self._make_room(size, now)
        if len(self._sessions) < self.slots_max:
            return True
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now - oldest.last_used > self.eviction_seconds:
            return self._evict(oldest)
        smallest = min(self._sessions.values(), key=lambda session: len(session.partitions))
        if len(smallest.partitions) < size and now - smallest.created_at > self.eviction_seconds:
            return self._evict(smallest)
        return False

    def _evict(self, session: FetchSession) -> bool:
        self._forget(session.id)
        self.evictions += 1
        return True

    def _forget(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partitions -= len(session.partitions)
