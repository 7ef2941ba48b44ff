"""How much a log directory may still take: records are refused before the disk is full, so that everything else goes on (I7).

A reserve of the volume is kept from records. Deleting a topic, moving a log start, a checkpoint, an index, a clean stop: all of them
write a little, and they are what frees a full disk or keeps it from doing harm. A directory that has only its reserve left stays online
and serves readers; appends are refused with KAFKA_STORAGE_ERROR, which producers retry, and go on by themselves when there is room.

An append costs one comparison: the guard hands out an allowance, and asks the volume again when it is used up. The allowance is at
most half of what is left and a small part of the reserve, so that other writers (indexes, a second log directory, other programs) are
seen in time.

The guard decides about space only. It writes nothing, and what to do when the disk is full all the same is `full_disk`'s business.
"""

from __future__ import annotations

from typing import Final

from tidelog.errors import RequestError
from tidelog.storage.disk import Disk, DiskError
from tidelog.wire.error_codes import ErrorCode

AUTOMATIC: Final = -1
AUTOMATIC_BYTES_MAX: Final = 1 << 30
AUTOMATIC_BYTES_MIN: Final = 4 << 20
AUTOMATIC_SHARE: Final = 20  # one twentieth of the volume

ALLOWANCE_BYTES_MAX: Final = 16 << 20
ALLOWANCE_SHARE: Final = 8  # of the reserve: more of it is not gone when another program takes all the room
ASK_AGAIN_MS: Final = 200  # a crowd of refused producers does not ask the volume more often
QUIET_MS: Final = 10_000  # appends count as going on when none has been refused for this long
_NO_LIMIT: Final = float("inf")
_UNKNOWN: Final = 1 << 62


class SpaceGuard:
    """One per log directory; without a directory it guards nothing. `reserve_bytes`: `AUTOMATIC`, or 0 for no reserve at all.

    Whoever appends compares with `allowance`, calls `claim` if that does not suffice, and takes off what it writes.
    """

    __slots__ = (
        "_asked_ms", "_disk", "_free_bytes", "_kept_bytes", "_path", "_refused_ms", "_reserve_bytes", "_told", "allowance",
        "reason", "refusals",
    )  # fmt: skip

    def __init__(self, disk: Disk | None = None, path: str = "", reserve_bytes: int = 0) -> None:
        self._disk = disk
        self._path = path
        self._asked_ms: int | None = None
        self._free_bytes = self._kept_bytes = 0  # when the volume was last asked
        self._refused_ms: int | None = None
        self._told = False
        self.refusals = 0  # since appends were last going on
        self.reason = ""  # of the last refusal
        self.keep_free(reserve_bytes)

    def keep_free(self, reserve_bytes: int) -> None:
        """Set the reserve, at any time."""
        self._reserve_bytes = reserve_bytes
        self._asked_ms = None
        self.allowance: float = 0 if self._guards else _NO_LIMIT

    def claim(self, size: int, now_ms: int) -> None:
        """Raise the allowance to `size` or more, or RequestError. DiskError when the volume itself does not answer."""
        if not self._guards:
            self.allowance = _NO_LIMIT
            return
        if size <= self._spare_bytes or self._answer_is_old(now_ms):
            self._ask(now_ms)
        spare_bytes = self._spare_bytes
        if size > spare_bytes:
            self.reason = (
                f"log directory {self._path} has {self._free_bytes} bytes left, and {self._kept_bytes} of its volume are kept"
                " free for deletions and metadata (log.dir.reserve.bytes): free some, or delete topics"
            )
            self._refused(now_ms)
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, self.reason)
        self.allowance = max(
            size, min(spare_bytes // 2, self._kept_bytes // ALLOWANCE_SHARE, ALLOWANCE_BYTES_MAX)
        )

    def ran_out(self, error: DiskError, now_ms: int) -> None:
        """The disk was full before the guard knew. The next append asks first."""
        self.reason = f"{error}. Log directory {self._path} is full: free some space, or delete topics"
        self._refused(now_ms)
        self._asked_ms = None
        self.allowance = 0

    def news(self, now_ms: int) -> str | None:
        """A line for the broker's log when appends begin to be refused, and one when that is over. Asked about once a second."""
        if self._refused_ms is None:
            return None
        if not self._told:
            self._told = True
            return f"appends are refused until there is room: {self.reason}"
        if abs(now_ms - self._refused_ms) < QUIET_MS or not self._has_room(now_ms):
            return None
        line = (
            f"log directory {self._path} has room again; {self.refusals} appends have been refused meanwhile"
        )
        self._refused_ms, self._told, self.refusals = None, False, 0
        return line

    @property
    def has_room(self) -> bool:
        """No append has been refused lately."""
        return self._refused_ms is None

    def _refused(self, now_ms: int) -> None:
        self.refusals += 1
        self._refused_ms = now_ms

    # ---- the volume

    @property
    def _guards(self) -> bool:
        return self._reserve_bytes != 0 and self._disk is not None

    @property
    def _spare_bytes(self) -> int:
        return self._free_bytes - self._kept_bytes

    def _answer_is_old(self, now_ms: int) -> bool:
        """The clock may jump: then the volume is asked once too often."""
        return self._asked_ms is None or not 0 <= now_ms - self._asked_ms < ASK_AGAIN_MS

    def _has_room(self, now_ms: int) -> bool:
        if not self._guards:
            return True
        try:
            self._ask(now_ms)
        except DiskError:
            return False  # the next append meets it, too, and the directory goes offline
        return self._spare_bytes > 0

    def _ask(self, now_ms: int) -> None:
        assert self._disk is not None
        try:
            total_bytes, self._free_bytes = self._disk.volume_bytes(self._path)
        except FileNotFoundError as error:
            raise DiskError("statvfs", self._path, error) from error
        self._asked_ms = now_ms
        if total_bytes <= 0:  # some file systems do not say: a write that fails must do
            self._free_bytes = _UNKNOWN
        self._kept_bytes = self._reserve_bytes
        if self._reserve_bytes == AUTOMATIC:
            share = total_bytes // AUTOMATIC_SHARE
            self._kept_bytes = max(AUTOMATIC_BYTES_MIN, min(AUTOMATIC_BYTES_MAX, share))
