"""What opening a log found and did: the broker's grounds for reporting, and for leaving the ISR (D10, I23).

Plain values, nothing else. An empty report of a clean stop is the rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes below the recovery point that are no valid batch, or are not there. They were fsynced once. Kept, not cut."""

    path: str
    position: int
    length: int
    first_offset: int  # offsets that cannot be served: [first_offset, end_offset)
    end_offset: int
    problem: str

    @property
    def end_position(self) -> int:
        return self.position + self.length

    def __str__(self) -> str:
        return (
            f"{self.path} is damaged at position {self.position} ({self.length} bytes, offsets {self.first_offset} to"
            f" {self.end_offset}, exclusive): {self.problem}"
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """Bytes above the recovery point that a crash tore: removed, because they were never promised."""

    path: str
    position: int
    length: int
    offset: int  # where the log ends now
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.path} was cut at position {self.position} ({self.length} bytes): {self.problem};"
            f" the log ends at offset {self.offset}"
        )


@dataclass(slots=True)
class RecoveryReport:
    topic: str
    partition: int
    directory: str
    clean: bool = True
    batches_checked: int = 0
    bytes_checked: int = 0
    deleted_segments: int = 0
    cuts: list[Cut] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    missing_committed: int = 0
    """Offsets between the log's end and the high watermark of the last checkpoint, if that lies behind it."""
    cache_forgotten: bool = False
    """A sync had failed before: what was read is what the disk has, not what the page cache had."""

    @property
    def lost_synced_data(self) -> bool:
        """Data that this replica was counted for is not readable any more: it must not keep its place in ISR or ELR."""
        return bool(self.damages)

    def lines(self) -> list[str]:
        """For the broker's log; empty when there is nothing to say."""
        found = [str(damage) for damage in self.damages]
        found.extend(str(cut) for cut in self.cuts)
        found.extend(f"{self.directory}/{name} was rebuilt from the log" for name in self.rebuilt)
        return found
