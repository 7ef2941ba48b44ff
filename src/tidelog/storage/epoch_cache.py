"""Which leader epoch begins at which offset: the log's memory of its leaders (KIP-101, KIP-279).

Pure: the caller stores `checkpoint_entries()` when `dirty` is set (checkpoints.py) and clears the flag. Truncation decisions rest
on this table (I25), so it never holds an epoch that does not begin above the one before, nor at a lower offset. It is
derivable from the batches of the log (I4).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1
_NO_EPOCH: Final = -2  # equals no epoch that anyone may ask about


class EpochEntry(NamedTuple):
    epoch: int
    start_offset: int


class LeaderEpochCache:
    __slots__ = ("_epochs", "_latest", "_starts", "dirty")

    def __init__(self, entries: Iterable[EpochEntry | tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._latest = _NO_EPOCH
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        self.dirty = False

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def latest_epoch(self) -> int | None:
        return self._epochs[-1] if self._epochs else None

    @property
    def latest(self) -> EpochEntry | None:
        return EpochEntry(self._epochs[-1], self._starts[-1]) if self._epochs else None

    @property
    def earliest(self) -> EpochEntry | None:
        return EpochEntry(self._epochs[0], self._starts[0]) if self._epochs else None

    def checkpoint_entries(self) -> list[EpochEntry]:
        return [EpochEntry(*pair) for pair in zip(self._epochs, self._starts, strict=True)]

    def assign(self, epoch: int, start_offset: int) -> None:
        """A batch of this epoch was appended at this offset. Nothing happens unless the epoch is new."""
        if epoch == self._latest and start_offset >= self._starts[-1]:
            return  # every append but the first of an epoch
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {epoch} cannot start at offset {start_offset}")
        # A log is truncated before it is appended to, so entries that contradict the new one are leftovers of a crash.
        keep = min(bisect_left(self._epochs, epoch), bisect_left(self._starts, start_offset))
        del self._epochs[keep:]
        del self._starts[keep:]
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self._latest = epoch
        self.dirty = True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(epoch, end offset) a follower of `epoch` must compare itself with (KIP-279).

        The answer's epoch is the largest known one at or below the asked one, its end is where the next epoch begins. An
        epoch from the future is unknown: (-1, -1). One from before this log begins ends where the log begins.
        """
        if epoch == UNDEFINED_EPOCH:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self._latest:
            return epoch, log_end_offset
        higher = bisect_right(self._epochs, epoch)
        if higher == len(self._epochs):
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if higher == 0:
            return epoch, self._starts[0]
        return self._epochs[higher - 1], self._starts[higher]

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch under which the record at `offset` was written; None below the first known start."""
        number = bisect_right(self._starts, offset) - 1
        return self._epochs[number] if number >= 0 else None

    def previous_epoch(self, epoch: int) -> int | None:
        """The largest known epoch below this one."""
        number = bisect_left(self._epochs, epoch) - 1
        return self._epochs[number] if number >= 0 else None

    def truncate_from_end(self, end_offset: int) -> None:
        """The log now ends at `end_offset`: forget epochs that begin there or later."""
        keep = bisect_left(self._starts, end_offset)
        if end_offset < 0 or keep == len(self._starts):
            return
        del self._epochs[keep:]
        del self._starts[keep:]
        self._latest = self._epochs[-1] if self._epochs else _NO_EPOCH
        self.dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now begins at `start_offset`: forget epochs that ended before, and let the one around it begin there."""
        current = bisect_right(self._starts, start_offset) - 1
        if current < 0 or (current == 0 and self._starts[0] == start_offset):
            return
        del self._epochs[:current]
        del self._starts[:current]
        self._starts[0] = start_offset
        self.dirty = True

    def clear(self) -> None:
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self._latest = _NO_EPOCH
            self.dirty = True
