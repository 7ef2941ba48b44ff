"""Which brokers the active controller hears from: a deadline for each, and what they last said about themselves.

Soft state: nothing of it is in the metadata log, and a new controller begins with a full session for everybody (`adopt`). Owns the
deadlines; that a broker is fenced when its own has passed is `service`'s business. Time is an argument, in seconds of a clock that never goes back.

A broker that is known to be gone (`cluster.missing_nodes` has found that nobody listens at its address) has no session left, whatever it had. A controller
that was itself stopped for a while (a pause, a machine without CPU) has heard nobody, and nobody is to blame: `overslept` gives that
time back, once between two heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.controller.image import MetadataImage

UNKNOWN_OFFSET = -1


class Session:
    """One run of one broker. `heard`: it has spoken to this controller. Offsets are those of the metadata log."""

    __slots__ = ("deadline", "epoch", "forgiven", "heard", "metadata_offset", "shutdown_offset")

    def __init__(self, epoch: int, deadline: float) -> None:
        self.epoch = epoch
        self.deadline = deadline
        self.heard = False
        self.forgiven = False
        self.metadata_offset = UNKNOWN_OFFSET
        self.shutdown_offset: int | None = None
        """What the others must know before this broker may stop."""


class SessionTable:
    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._sessions: dict[int, Session] = {}

    def adopt(self, image: MetadataImage, now: float, *, predecessor: int | None = None) -> None:
        """A controller becomes active: whoever is not fenced has a whole session to find it. Half of one has the node of the controller before, because the
        others have not heard from it for a while already; if it lives, it speaks to the new controller as soon as it hears of it.
        """
        self._sessions = {
            broker.broker_id: Session(
                broker.epoch,
                now + (self._timeout_s / 2 if broker.broker_id == predecessor else self._timeout_s),
            )
            for broker in image.brokers.values()
            if not broker.fenced
        }

    def touch(self, broker_id: int, epoch: int, now: float) -> Session:
        """The broker was heard, in the run that is registered."""
        session = self._sessions.get(broker_id)
        if session is None or session.epoch != epoch:
            session = self._sessions[broker_id] = Session(epoch, 0.0)
        session.heard = True
        session.forgiven = False
        session.deadline = now + self._timeout_s
        return session

    def get(self, broker_id: int) -> Session | None:
        return self._sessions.get(broker_id)

    def is_live(self, broker_id: int, epoch: int, now: float) -> bool:
        """Whether this run of the broker was heard lately. One that no heartbeat has come from is not taken for alive."""
        session = self._sessions.get(broker_id)
        return session is not None and session.epoch == epoch and session.heard and now < session.deadline

    def gone(self, broker_id: int, now: float) -> None:
        session = self._sessions.get(broker_id)
        if session is not None:
            session.deadline = min(session.deadline, now)

    def overslept(self, gap_s: float) -> None:
        for session in self._sessions.values():
            if not session.forgiven:
                session.forgiven = True
                session.deadline += gap_s

    def end(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)

    def expired(self, now: float) -> list[int]:
        """Whose deadline has passed, the longest silent first."""
        late = [
            (session.deadline, broker)
            for broker, session in self._sessions.items()
            if session.deadline <= now
        ]
        return [broker for _, broker in sorted(late)]

    def next_deadline(self) -> float | None:
        return min([session.deadline for session in self._sessions.values()], default=None)

    def lowest_offset(self, brokers: Iterable[int]) -> int | None:
        """How far all of these brokers know the metadata; None when there are none of them."""
        offsets = [
            session.metadata_offset if (session := self._sessions.get(broker)) is not None else UNKNOWN_OFFSET
            for broker in brokers
        ]
        return min(offsets, default=None)

    def __len__(self) -> int:
        return len(self._sessions)
