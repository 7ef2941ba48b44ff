"""What is said between the broker's loop and whoever cleans a log: the job, what became of each group of segments, and the end.

Plain values that can be sent to another process. Nothing here needs numba, so that a broker without compacted topics never loads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.storage.disk_space import AUTOMATIC
from tidelog.storage.log_config import LogConfig


class Source(NamedTuple):
    """A sealed, durable segment: the batches of offsets [base_offset, end_offset)."""

    base_offset: int
    end_offset: int  # where the next segment begins
    size: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What one cleaning may use."""

    map_bytes: int = 128 << 20
    load_factor: float = 0.9
    buffer_bytes: int = 512 << 10  # for reading and writing
    bytes_per_second: float = float("inf")
    reserve_bytes: int = AUTOMATIC  # of the volume: see `SpaceGuard`
    output_bytes_max: int = (1 << 31) - 1  # of a new segment: index entries hold no larger position


@dataclass(frozen=True, slots=True)
class CleanJob:
    """Everything that a cleaner must know. It reads sealed files and writes `.cleaned` ones, and nothing else."""

    name: str
    directory: str
    sources: tuple[Source, ...]  # all sealed segments from the first on, below the bound
    behind: tuple[Source, ...]  # the others; markers there may end what began below
    index_is_missing: bool  # the transaction index of the last of them, the active one
    first_dirty_offset: int
    config: LogConfig
    retained: tuple[int, ...] = ()  # last offsets of batches that producers are known from, rising
    fences: tuple[tuple[int, int], ...] = ()
    """Producer id and epoch of those that are known from a marker alone."""
    limits: Limits = field(default_factory=Limits)

    @property
    def end_offset(self) -> int:
        """Nothing at or above it is looked at (I31)."""
        return self.sources[-1].end_offset


class CleanedGroup(NamedTuple):
    """The `.cleaned` files of new segments are whole and synced: they may take the place of the old ones."""

    old: tuple[int, ...]  # base offsets of a run of segments
    new: tuple[int, ...]


class Rate(NamedTuple):
    """To a cleaning that is under way: how fast it may be from now on, reading and writing together."""

    bytes_per_second: float


class Progress(NamedTuple):
    bytes_read: int
    bytes_written: int


class Cleaned(NamedTuple):
    """All groups were swapped. Below `end_offset` the log is clean."""

    end_offset: int
    latest_horizon_ms: int  # when the last of the tombstones that stay may go; -1: there are none
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    null_keys: int
    opaque_batches: int
    passes_needed: bool  # the map was full: there is more to be cleaned


class Failure(NamedTuple):
    """Why a job ended early: the name of an exception, and what it said."""

    kind: str
    text: str
    disk_error: tuple[str, str, int] | None = None  # operation, path, error number


class CleaningInterrupted(Exception):
    """Somebody wanted it to end. Nothing is lost: the log is as it was after the last swap."""


class NoRoomToClean(Exception):
    """The volume has no room for another copy of the segments at hand."""
