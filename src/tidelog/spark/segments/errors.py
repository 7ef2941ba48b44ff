"""What can go wrong when segment files are read, in words for whoever asked for them."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.errors import CorruptDataError, TidelogError
from tidelog.storage import files


class SegmentsError(TidelogError):
    """The files cannot be read as they were asked for."""


class Harm(NamedTuple):
    """Bytes of a segment that hold no sound batch."""

    path: str
    position: int
    length: int
    first_offset: int
    end_offset: int
    """Offsets in [first_offset, end_offset) are lost, as far as they held records."""
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.path} is damaged at position {self.position} ({self.length} bytes, offsets {self.first_offset} to"
            f" {self.end_offset}, exclusive): {self.problem}"
        )


class DamagedSegmentError(SegmentsError, CorruptDataError):
    def __init__(self, harm: Harm) -> None:
        self.harm = harm
        super().__init__(
            f"{harm}. `tidelog log verify {files.parent(harm.path)}` shows all that is damaged;"
            " read another replica, or set onDamage to skip to read what is left"
        )

    def __reduce__(self) -> tuple[type[DamagedSegmentError], tuple[Harm]]:
        return type(self), (self.harm,)
