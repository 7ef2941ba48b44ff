"""What the outside world knows of a simulated quorum's log: what was committed, by whom it was seen, what clients were told.

Owns the truth that nodes are compared with. A batch is noted when the first node reports it as committed, and must be the same for everybody after that (I12). The digest
of everything below an offset stands for the state that a snapshot at that offset has to hold (I15).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from tidelog.records.batch import BatchHeader, iter_headers

EMPTY_DIGEST = bytes(16)


class Violation(AssertionError):
    """An invariant does not hold. Names it."""


class CommittedBatch(NamedTuple):
    epoch: int
    crc: int
    next_offset: int


def next_digest(digest: bytes, batch: bytes) -> bytes:
    return blake2b(digest + batch, digest_size=16).digest()


class Ledger:
    def __init__(self) -> None:
        self.batches: dict[int, CommittedBatch] = {}
        self.digests: dict[int, bytes] = {0: EMPTY_DIGEST}
        self.epochs: dict[int, int] = {}  # of the batch that ends at an offset
        self.end_offset = 0
        self._ends: dict[
            int, int
        ] = {}  # epoch → where the committed log ended when somebody last added to it in that epoch
        self._contents: dict[int, bytes] = {}  # of the batch that ends at an offset

    def committed_before(self, epoch: int) -> int:
        """Where the log ended that was committed in earlier epochs. A node may be told late that it won an old one."""
        return max((end_offset for known, end_offset in self._ends.items() if known < epoch), default=0)

    def note(self, node_id: int, epoch: int, records: bytes) -> int:
        """A node says, in this epoch, that these are committed. Returns where they end."""
        end_offset = 0
        for position, header in iter_headers(records):
            found = CommittedBatch(header.partition_leader_epoch, header.crc, header.next_offset)
            known = self.batches.get(header.base_offset)
            if known is None:
                self._add(header, found, records[position : position + header.size])
                self._ends[epoch] = self.end_offset
            elif known != found:
                raise Violation(
                    f"I12: node {node_id} has {found} committed at offset {header.base_offset}, where {known} was committed before"
                )
            end_offset = found.next_offset
        return end_offset

    def _add(self, header: BatchHeader, found: CommittedBatch, batch: bytes) -> None:
        if header.base_offset != self.end_offset:
            raise Violation(
                f"I12: {found} was committed at {header.base_offset}, in the middle of other batches"
            )
        self.batches[header.base_offset] = found
        self.digests[header.next_offset] = next_digest(self.digests[header.base_offset], batch)
        self.epochs[header.next_offset] = header.partition_leader_epoch
        self.end_offset = header.next_offset
        self._contents[header.next_offset] = batch

    def acknowledge(self, node_id: int, end_offset: int, value: bytes) -> None:
        """A client was told that its value is committed. What is committed stays (`note`), so this is the moment to look."""
        if value not in self._contents.get(end_offset, b""):
            raise Violation(
                f"I14: node {node_id} acknowledges {value!r} before offset {end_offset}, where it was not committed"
            )
