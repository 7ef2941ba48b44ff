"""What a leader knows of one follower, from its fetches in this leader epoch and from nothing else.

A fetch at an offset says: everything below it is in my log, and in `durability=fsync` on my disk. A new leader epoch begins with knowing
nothing (I21): what a follower had under an earlier leader it may have cut off since.

"In sync" is about time (`replica.lag.time.max.ms`), and the time that counts is when the follower had last *caught up* with the leader's
end, not when it last fetched: one that fetches all the time and never arrives is late (M34).
"""

from __future__ import annotations

from typing import Final

UNKNOWN_OFFSET: Final = -1
UNKNOWN_BROKER_EPOCH: Final = -1


class RemoteReplica:
    """Times are the leader's monotonic seconds."""

    __slots__ = (
        "_leader_end_at_fetch",
        "broker_epoch",
        "broker_id",
        "caught_up_at",
        "fetched_at",
        "has_caught_up",
        "is_joining",
        "log_end_offset",
        "log_start_offset",
        "told_high_watermark",
    )

    def __init__(self, broker_id: int, *, caught_up_at: float) -> None:
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.log_start_offset = UNKNOWN_OFFSET
        self.log_end_offset = UNKNOWN_OFFSET
        self.told_high_watermark = UNKNOWN_OFFSET
        """The last one that an answer has carried to it."""
        self.caught_up_at = caught_up_at
        self.fetched_at = caught_up_at
        self.has_caught_up = False
        """In this leader epoch. For people: what is in sync goes by `caught_up_at`."""
        self.is_joining = False
        """Not in the ISR, in time, and free to join: the high watermark waits for it. As of its last fetch, or a later look."""
        self._leader_end_at_fetch = 0

    @property
    def has_fetched(self) -> bool:
        """In this leader epoch."""
        return self.log_end_offset != UNKNOWN_OFFSET

    def fetched(
        self, offset: int, *, log_start_offset: int, leader_end: int, broker_epoch: int, now: float
    ) -> None:
        """It asks for what comes at `offset`. It has caught up now if that is our end; and had when it fetched before, if it has
        by now all that we had then.
        """
        if offset >= leader_end:
            self.caught_up_at = max(self.caught_up_at, now)
            self.has_caught_up = True
        elif self.has_fetched and offset >= self._leader_end_at_fetch:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
            self.has_caught_up = True
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self.fetched_at = now
        self._leader_end_at_fetch = leader_end

    def is_in_time(self, leader_end: int, *, now: float, lag_seconds_max: float) -> bool:
        return self.log_end_offset == leader_end or now - self.caught_up_at <= lag_seconds_max


def new_remotes(
    broker_ids: tuple[int, ...], in_sync: tuple[int, ...], *, now: float, lag_seconds_max: float
) -> dict[int, RemoteReplica]:
    """At the beginning of a leader epoch. Members of the ISR get the whole lag time to show that they are; others count as late."""
    late = now - lag_seconds_max - 1
    return {
        broker_id: RemoteReplica(broker_id, caught_up_at=now if broker_id in in_sync else late)
        for broker_id in broker_ids
    }
