"""Checks one sealed segment, a little at a time: every batch, and the indexes beside it.

Disks forget. What was synced once is read again here before anybody needs it, and whatever is no sound batch any more is named by file,
position and offsets (I2). The CRC covers a batch from its attributes on. Base offset and leader epoch stand outside of it, and a client
cannot see that they lie; they are judged by the batches around them, the next segment's name and the leader epoch cache. A
single flipped bit in a log without gaps is therefore always found. (In a gap that compaction left, a base offset can change into another
one that nothing contradicts.) Harm may end within the base offset of the batch behind it, whose CRC then still holds: that batch is believed
only if its neighbours or the offset index say the same of it. Gaps are noted: where nothing was compacted, batches were lost without a trace of damage.

Memory is bounded by a chunk, whatever a header claims; `step` does a bounded piece of work. Nothing is changed here: what a finding means for
readers is in `damage`, what the broker does about it in `broker/scrubber`.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog.records.batch import (
    ATTRIBUTES_OFFSET,
    CURRENT_MAGIC,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    BatchHeader,
    read_header,
)
from tidelog.storage.batch_scan import Readable, find_valid_batch, sound_batch_at
from tidelog.storage.epoch_cache import EpochEntry
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.recovery_report import Damage
from tidelog.storage.scrub_indexes import IndexWalk
from tidelog.storage.time_index import TimeIndex

CHUNK_BYTES: Final = 256 << 10
BATCH_COST_MIN: Final = 1 << 10
"""A batch costs time however small it is: in `step`'s budget each counts at least this many bytes."""
DAMAGES_MAX: Final = 1000
"""More in one segment are told, and kept from readers, as if they were one."""
GAPS_MAX: Final = 100
_NOWHERE: Final = 1 << 63


class SegmentFacts(NamedTuple):
    """What the log knows of the segment, from the moment the check began."""

    base_offset: int
    end_offset: int  # where the next segment begins
    size: int
    log_start_offset: int
    epochs: Sequence[EpochEntry]


class Gap(NamedTuple):
    """Offsets [first_offset, end_offset) of which nothing is in the file; it goes on with others at `position`."""

    position: int
    first_offset: int
    end_offset: int


_Accepted = tuple[int, BatchHeader, int]
"""A batch that nothing spoke against so far: position, header, and the offset behind the batch before it."""


class _Run(NamedTuple):
    """Bytes from `position` on that hold no sound batch; the next sound one ends it."""

    position: int
    first_offset: int
    problem: str


class _Large(NamedTuple):
    """A batch that does not end in the chunk at hand: its CRC so far, and how many bytes are still to come."""

    header: BatchHeader
    crc: int
    missing: int


class SegmentScrub:
    """`step` until `done`; then `damages` and `index_problem` say what was found. Everything may happen in one thread of any kind."""

    def __init__(
        self,
        file: Readable,
        facts: SegmentFacts,
        *,
        offset_index: OffsetIndex | None,
        time_index: TimeIndex | None,
    ) -> None:
        """The files are the caller's to close. An index is None where its file is missing."""
        self.file = file
        self.facts = facts
        self.done = False
        self.batches = 0
        self.damages: list[Damage] = []
        self.gaps: list[Gap] = []  # the first of them; a log that was never compacted has none
        self.epoch_conflicts = 0  # batches that agree with each other, and not with the leader epoch cache
        # By a weak reference: a cycle would keep the chunk and the files until the garbage collector looks, which is rare here.
        self._indexes = IndexWalk(weakref.proxy(self), offset_index, time_index)
        self._starts = [entry.start_offset for entry in facts.epochs]
        self._position = 0  # where the next batch should begin
        self._expected = facts.base_offset
        self._previous: _Accepted | None = None
        self._epoch, self._epoch_end = NO_LEADER_EPOCH - 1, 0  # what the cache says up to here
        self._wrong_epoch: _Accepted | None = None
        self._odd_epoch: int | None = None  # of the batch before, if it was at odds with the cache
        self._run: _Run | None = None
        self._promised: int | None = None  # where the damaged batch says that the next one begins
        self._in_doubt = (
            False  # the batch before stands right behind damage, and nothing confirmed its offsets yet
        )
        self._search_from: int | None = None
        self._large: _Large | None = None
        self._chunk = b""
        self._chunk_start = 0

    @property
    def index_problem(self) -> str | None:
        """Why the indexes must be written anew; None if they are right."""
        return self._indexes.problem

    def step(self, budget: int) -> int:
        """Check about `budget` bytes more; returns what it cost, in bytes. Raises DiskError."""
        spent = 0
        while spent < budget and not self.done:
            if self._search_from is not None:
                spent += self._search(self._search_from, budget - spent)
            elif self._large is not None:
                spent += self._read_on(self._large)
            else:
                spent += self._check_batches(budget - spent)
            if self._position >= self.facts.size and self._search_from is None:
                self._finish()
        return spent

    # ---- one batch after another

    def _check_batches(self, budget: int) -> int:
        chunk, chunk_start = self._chunk, self._chunk_start
        view = memoryview(chunk)
        position, end = self._position, self.facts.size
        spent = 0
        while spent < budget and position < end:
            at = position - chunk_start
            have = len(chunk) - at
            if have < HEADER_SIZE:
                self._position = position
                return spent + self._read_more(at)
            header = read_header(chunk, at)
            size = header[1] + LOG_OVERHEAD
            if header[3] != CURRENT_MAGIC or size < HEADER_SIZE or position + size > end:
                self._position = position
                problem = f"no record batch stands here: batch length {header[1]}, magic {header[3]}"
                self._unsound(header, problem)
                return spent + BATCH_COST_MIN
            if have < size:
                self._position = position
                self._large = _Large(header, crc32c(view[at + ATTRIBUTES_OFFSET :]), size - have)
                return spent + have
            crc = crc32c(view[at + ATTRIBUTES_OFFSET : at + size])
            if crc != header[4]:
                self._position = position
                self._fails_crc(header, crc)
                return spent + size
            self._sound(position, header)
            position += size
            spent += size if size > BATCH_COST_MIN else BATCH_COST_MIN
        self._position = position
        return spent

    def _read_more(self, at: int) -> int:
        """The next chunk behind what is left of this one, which is less than a header."""
        left = self._chunk[at:]
        start = self._chunk_start + len(self._chunk)
        data = self.file.read_at(min(CHUNK_BYTES, self.facts.size - start), start)
        self._chunk, self._chunk_start = left + data, self._position
        if not data and start < self.facts.size:
            self._ends_early(start)
        elif not data:
            self._unsound(None, f"{len(left)} bytes are no batch header")
        return BATCH_COST_MIN

    def _read_on(self, large: _Large) -> int:
        start = self._chunk_start + len(self._chunk)
        data = self.file.read_at(min(CHUNK_BYTES, self.facts.size - start), start)
        self._chunk, self._chunk_start = data, start
        if not data:
            self._large = None
            self._ends_early(start)
            return BATCH_COST_MIN
        crc = crc32c(memoryview(data)[: large.missing], large.crc)
        used = min(len(data), large.missing)
        if used < large.missing:
            self._large = large._replace(crc=crc, missing=large.missing - used)
        else:
            self._large = None
            if crc == large.header.crc:
                self._sound(self._position, large.header)
                self._position += large.header.size
            else:
                self._fails_crc(large.header, crc)
        return used

    def _finish(self) -> None:
        self._settle_doubt(self.facts.end_offset)
        self._settle_epoch(None)
        if self._run is not None:
            self._end_run(self.facts.size, self.facts.end_offset)
        elif self._expected < self.facts.end_offset:
            self._note_gap(self.facts.size, self._expected, self.facts.end_offset)
        self._indexes.finish()
        self.done = True

    # ---- what is wrong with a batch by itself

    def _fails_crc(self, header: BatchHeader, crc: int) -> None:
        self._unsound(
            header,
            f"the batch that says it holds offsets {header.base_offset} to {header.last_offset} fails its CRC:"
            f" {header.crc:#010x} is stored, {crc:#010x} is right for its bytes",
        )

    def _ends_early(self, size: int) -> None:
        """The file is shorter than it was when the segment was sealed."""
        self._settle_doubt(None)
        self._begin_run(
            self._position,
            f"the file ends at position {size}, {self.facts.size - size} bytes are missing",
        )
        self._position = self.facts.size

    def _unsound(self, header: BatchHeader | None, problem: str) -> None:
        """Go on where its length says, if a batch stands there that follows it in offsets too; else look for the next one."""
        position, facts = self._position, self.facts
        self._settle_doubt(None if header is None else header.base_offset)
        self._begin_run(position, problem)
        self._chunk, self._chunk_start = b"", position
        if header is not None and header.base_offset >= self._expected and header.size >= HEADER_SIZE:
            following = position + header.size
            if following == facts.size and header.next_offset == facts.end_offset:
                self._position = following
                return
            found = sound_batch_at(
                self.file,
                following,
                facts.size,
                first_offset=self._expected,
                last_offset=facts.end_offset - 1,
            )
            if found is not None and found.base_offset == header.next_offset:
                self._position = self._chunk_start = following
                self._promised = header.next_offset
                return
        self._search_from = position + 1

    def _search(self, start: int, budget: int) -> int:
        facts = self.facts
        stop = min(start + max(budget, BATCH_COST_MIN), facts.size)
        found = find_valid_batch(
            self.file,
            start,
            facts.size,
            first_offset=self._expected,
            last_offset=facts.end_offset - 1,
            search_end=stop,
        )
        if found is not None:
            self._position = self._chunk_start = found
            self._search_from = None
        elif stop < facts.size:
            self._search_from = stop
        else:
            self._position = facts.size
            self._search_from = None
        return (stop if found is None else found) - start + BATCH_COST_MIN

    # ---- what is wrong with a batch among others

    def _sound(self, position: int, header: BatchHeader) -> None:
        """Its bytes are what they were. Now the two fields that the CRC does not cover."""
        self.batches += 1
        base_offset = header[0]
        last_offset = base_offset + header[6]
        behind_damage = self._run is not None and base_offset != self._promised
        if self._in_doubt:
            self._settle_doubt(base_offset)
        expected = self._expected
        # What is damaged held at least one offset.
        if base_offset < expected + behind_damage or not base_offset <= last_offset < self.facts.end_offset:
            self._out_of_place(position, header)
            if self._run is not None:
                return
            expected = self._expected
        if self._run is not None:
            self._end_run(position, base_offset)
            self._in_doubt = behind_damage and not self._indexes.confirms(position, last_offset)
        elif base_offset > expected:
            self._note_gap(position, expected, base_offset)
        if header[2] != self._epoch or base_offset >= self._epoch_end:
            self._check_epoch(position, header, expected)
        self._previous = (position, header, expected)
        self._expected = last_offset + 1
        indexes = self._indexes
        if position >= indexes.next_position or last_offset >= indexes.next_offset:
            indexes.check(position, header)

    def _settle_doubt(self, next_offset: int | None) -> None:
        """Where the bytes behind a batch in doubt say that they begin decides whether it is believed."""
        if self._in_doubt and next_offset != self._expected:
            assert self._previous is not None
            self._take_back(
                self._previous, "nothing confirms the batch's offsets, and it stands behind damage"
            )
        self._in_doubt = False

    def _out_of_place(self, position: int, header: BatchHeader) -> None:
        """Two batches cannot both be right about their offsets. A run is open afterwards if this one is, or may be, wrong."""
        base_offset = header.base_offset
        if self._previous is not None and self._previous[2] <= base_offset < self._expected:
            _, before, expected = self._previous
            problem = (
                f"the batch says it holds offsets {before.base_offset} to {before.last_offset},"
                f" the next one begins at {base_offset}"
            )
            belongs_there = base_offset == expected + before.last_offset_delta + 1
            if belongs_there and header.last_offset < self.facts.end_offset:
                self._take_back(self._previous, problem)
                self._end_run(position, base_offset)
                self._expected = base_offset
                return
            if before.base_offset > expected:
                # It stands behind a gap: either of the two may be the wrong one.
                self._take_back(self._previous, problem)
                return
        self._begin_run(
            position,
            f"the batch says it holds offsets {base_offset} to {header.last_offset}; between its neighbours"
            f" there is room for {self._expected} to {self.facts.end_offset - 1}",
        )

    def _take_back(self, accepted: _Accepted, problem: str) -> None:
        """A batch that seemed right is not."""
        position, _, expected = accepted
        if self.gaps and self.gaps[-1].position == position:
            self.gaps.pop()
        self._wrong_epoch = None
        self._expected = expected
        if self.damages and self.damages[-1].end_position == position:
            joined = self.damages.pop()
            self._run = _Run(joined.position, joined.first_offset, joined.problem)
        else:
            self._run = _Run(position, expected, problem)
        self._previous = None

    def _check_epoch(self, position: int, header: BatchHeader, expected: int) -> None:
        """A batch at odds with the leader epoch cache is wrong if it is alone with that; otherwise the cache is, which is derived."""
        epoch, facts = header[2], self.facts
        number = bisect_right(self._starts, max(header[0], facts.log_start_offset)) - 1
        known = facts.epochs[number].epoch if number >= 0 else NO_LEADER_EPOCH
        is_odd = epoch not in (known, NO_LEADER_EPOCH) and header.last_offset >= facts.log_start_offset
        odd_before, self._odd_epoch = self._odd_epoch, epoch if is_odd else None
        self._settle_epoch(self._odd_epoch)
        if is_odd and epoch == odd_before:
            self.epoch_conflicts += 1
        elif is_odd:
            self._wrong_epoch = (position, header, expected)
            self._epoch_end = 0  # the next one must come here
        else:
            self._epoch = epoch
            self._epoch_end = self._starts[number + 1] if number + 1 < len(self._starts) else _NOWHERE

    def _settle_epoch(self, following: int | None) -> None:
        """What came behind the batch with the odd epoch decides: another with the same one, or not."""
        wrong, self._wrong_epoch = self._wrong_epoch, None
        if wrong is None:
            return
        position, header, _ = wrong
        if following == header.partition_leader_epoch:
            self.epoch_conflicts += 1
            return
        self._add(
            position,
            header.size,
            header.base_offset,
            header.next_offset,
            f"the batch of offsets {header.base_offset} to {header.last_offset} says leader epoch"
            f" {header.partition_leader_epoch}, which was not the leader's when it was written",
        )

    # ---- findings

    def _note_gap(self, position: int, first_offset: int, end_offset: int) -> None:
        if len(self.gaps) < GAPS_MAX:
            self.gaps.append(Gap(position, first_offset, end_offset))

    def _begin_run(self, position: int, problem: str) -> None:
        self._settle_epoch(None)
        if self._run is None:
            self._run = _Run(position, self._expected, problem)
        self._previous = self._promised = None

    def _end_run(self, position: int, next_offset: int) -> None:
        assert self._run is not None
        run, self._run = self._run, None
        self._add(run.position, position - run.position, run.first_offset, next_offset, run.problem)

    def _add(self, position: int, length: int, first_offset: int, end_offset: int, problem: str) -> None:
        if len(self.damages) == DAMAGES_MAX:
            last = self.damages.pop()
            length += position - last.position
            position, first_offset, problem = last.position, last.first_offset, last.problem
        self.damages.append(Damage(self.file.path, position, length, first_offset, end_offset, problem))

    def is_damaged(self, position: int) -> bool:
        """Whether a position in front of the check lies in damage."""
        run = self._run
        if run is not None and position >= run.position:
            return True
        return any(damage.position <= position < damage.end_position for damage in self.damages)

    def is_lost(self, offset: int) -> bool:
        """The same for an offset."""
        run = self._run
        if run is not None and offset >= run.first_offset:
            return True
        return any(damage.first_offset <= offset < damage.end_offset for damage in self.damages)
