"""What batches of a replica owe each other: offsets without holes, producers' sequences without repeats, epochs that never fall.

One batch after the other, in the order of the files; memory is a little for each producer. Pure: files are read elsewhere (`tidelog.spark.segments`), Spark brings the rows.

A gap in the offsets is not always a loss. Compaction removes batches, and where a checkpoint says that the log was compacted beyond the gap, or batches around show that records were removed from them, it is the
likely cause. Markers of transactions have offsets of their own and are batches like others. Where bytes are damaged, the damage is reported, not the gap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

SEQUENCES: Final = 1 << 31
PRODUCERS_MAX: Final = 100_000
"""Producers remembered for each partition; those that were silent longest are forgotten first."""
SEEN_MAX: Final = 64
"""Sequences of a producer that are remembered, to tell a repeat from numbers that begin anew."""
FINDINGS_MAX: Final = 1000
"""Of a kind and a partition; more are counted."""

Kind = Literal["damage", "gaps", "duplicates", "epochs", "indexes", "replicas"]
KINDS: Final[tuple[Kind, ...]] = ("damage", "gaps", "duplicates", "epochs", "indexes", "replicas")
Severity = Literal["error", "note"]


class Finding(NamedTuple):
    kind: Kind
    severity: Severity
    """error: something is wrong or lost; note: worth knowing, and as it should be."""
    replica: str
    topic: str
    partition: int
    segment: str | None
    position: int | None
    first_offset: int | None
    end_offset: int | None
    what: str


class BatchRow(NamedTuple):
    """A batch, by its header."""

    segment: str
    position: int
    base_offset: int
    last_offset: int
    records: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    crc: int
    is_control: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What other files say of the log."""

    replica: str
    topic: str
    partition: int
    log_start_offset: int
    high_watermark: int | None = None
    cleaned_to: int | None = None
    epochs: tuple[tuple[int, int], ...] | None = None
    """(epoch, start offset), rising."""
    harmed: tuple[tuple[int, int], ...] = ()
    """Offsets [first, end) that stand in damaged bytes."""


@dataclass(slots=True)
class _Producer:
    epoch: int
    next_sequence: int
    next_offset: int
    """Behind its last batch."""
    seen: OrderedDict[int, tuple[int, int, int]] = field(default_factory=OrderedDict)
    """First sequence → offset, sequence behind the last, CRC."""


class PartitionCheck:
    """`next` with every batch of a replica in the order of its segments and positions, then `finish`. Both yield what they find."""

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self._next_offset: int | None = None
        self._epoch = -1
        self._odd_epoch: int | None = None
        self._was_compacted = False
        self._gaps: list[tuple[BatchRow | None, int, int]] = []
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        self._starts = [start for _, start in expected.epochs or ()]
        self._counts: dict[Kind, int] = {}

    def next(self, row: BatchRow) -> Iterator[Finding]:
        if row.records < row.last_offset - row.base_offset + 1:
            self._was_compacted = True
        yield from self._offsets(row)
        yield from self._epochs(row)
        if row.producer_id >= 0 and not row.is_control and row.base_sequence >= 0:
            yield from self._sequence(row)

    def finish(self) -> Iterator[Finding]:
        expected = self._expected
        end = expected.log_start_offset if self._next_offset is None else self._next_offset
        for row, first, last in self._gaps:
            yield from self._gap(row, first, last)
        water = expected.high_watermark
        if water is not None and water > end and not self._is_harmed(end, water):
            yield from self._found(
                "gaps",
                "error",
                None,
                end,
                water,
                f"the log was committed up to offset {water} and ends at {end}: its end is lost",
            )
        for kind, count in self._counts.items():
            if count > FINDINGS_MAX:
                yield self._finding(
                    kind,
                    "error",
                    None,
                    None,
                    None,
                    f"{count - FINDINGS_MAX} more of this kind are not listed",
                )

    # ---- offsets

    def _offsets(self, row: BatchRow) -> Iterator[Finding]:
        expected = self._expected
        before = self._next_offset
        if before is None:
            if row.base_offset > expected.log_start_offset:
                self._gaps.append((row, expected.log_start_offset, row.base_offset))
        elif row.base_offset > before:
            self._gaps.append((row, before, row.base_offset))
        elif row.base_offset < before:
            yield from self._found(
                "duplicates",
                "error",
                row,
                row.base_offset,
                min(before, row.last_offset + 1),
                f"the batch of offsets {row.base_offset} to {row.last_offset} stands behind one that ends at {before - 1}: these offsets are there twice",
            )
        self._next_offset = max(before or 0, row.last_offset + 1)
        if len(self._gaps) > FINDINGS_MAX:  # a compacted log has one for each batch that went
            for each in self._gaps:
                yield from self._gap(*each)
            self._gaps.clear()

    def _gap(self, row: BatchRow | None, first: int, end: int) -> Iterator[Finding]:
        first = max(first, self._expected.log_start_offset)
        if first >= end or self._is_harmed(first, end):
            return
        cleaned_to = self._expected.cleaned_to
        if (cleaned_to is not None and end <= cleaned_to) or (cleaned_to is None and self._was_compacted):
            yield from self._found(
                "gaps", "note", row, first, end, f"{end - first} offsets were removed by compaction"
            )
        else:
            yield from self._found(
                "gaps",
                "error",
                row,
                first,
                end,
                f"{end - first} offsets are missing, and the log was not compacted there: a hole",
            )

    def _is_harmed(self, first: int, end: int) -> bool:
        return any(low < end and first < high for low, high in self._expected.harmed)

    # ---- epochs

    def _epochs(self, row: BatchRow) -> Iterator[Finding]:
        epoch = row.leader_epoch
        if epoch < self._epoch:
            yield from self._found(
                "epochs",
                "error",
                row,
                row.base_offset,
                row.last_offset + 1,
                f"leader epoch {epoch} follows {self._epoch}: epochs of a log never fall",
            )
        self._epoch = max(self._epoch, epoch)
        if self._expected.epochs is None or row.last_offset < self._expected.log_start_offset or epoch < 0:
            return
        number = bisect_right(self._starts, max(row.base_offset, self._expected.log_start_offset)) - 1
        known = self._expected.epochs[number][0] if number >= 0 else -1
        if epoch == known:
            self._odd_epoch = None
        elif epoch != self._odd_epoch:  # one finding for each run of them
            self._odd_epoch = epoch
            says = f"epoch {known}" if known >= 0 else "no epoch"
            yield from self._found(
                "epochs",
                "error",
                row,
                row.base_offset,
                row.last_offset + 1,
                f"from here on batches are of leader epoch {epoch}; leader-epoch-checkpoint has {says} for offset {row.base_offset}",
            )

    # ---- producers

    def _sequence(self, row: BatchRow) -> Iterator[Finding]:
        count = row.last_offset - row.base_offset + 1
        behind = (row.base_sequence + count) % SEQUENCES
        producer = self._producers.get(row.producer_id)
        if producer is None or producer.epoch != row.producer_epoch:
            producer = self._producers[row.producer_id] = _Producer(
                row.producer_epoch, behind, row.last_offset + 1
            )
            if len(self._producers) > PRODUCERS_MAX:
                self._producers.popitem(last=False)
        else:
            earlier = producer.seen.get(row.base_sequence)
            if row.base_sequence == producer.next_sequence:
                producer.next_sequence = behind
            elif earlier is not None and earlier[1] == behind:
                same = "with the same bytes" if earlier[2] == row.crc else "with other bytes"
                yield from self._found(
                    "duplicates",
                    "error",
                    row,
                    row.base_offset,
                    row.last_offset + 1,
                    f"producer {row.producer_id} (epoch {row.producer_epoch}) has sequences {row.base_sequence} to {(behind - 1) % SEQUENCES} at offset"
                    f" {earlier[0]} already, {same}: a retry was stored twice",
                )
                return
            elif (row.base_sequence - producer.next_sequence) % SEQUENCES < SEQUENCES // 2:
                yield from self._missing(row, producer)
                producer.next_sequence = behind
            elif row.base_sequence == 0:
                producer.seen.clear()  # forgotten by the broker meanwhile, the producer began anew
                producer.next_sequence = behind
            else:
                yield from self._found(
                    "duplicates",
                    "error",
                    row,
                    row.base_offset,
                    row.last_offset + 1,
                    f"producer {row.producer_id} (epoch {row.producer_epoch}) goes back to sequence {row.base_sequence}, {producer.next_sequence} was next:"
                    " records may be there twice",
                )
                return
            self._producers.move_to_end(row.producer_id)
            producer.next_offset = row.last_offset + 1
        producer.seen[row.base_sequence] = (row.base_offset, behind, row.crc)
        if len(producer.seen) > SEEN_MAX:
            producer.seen.popitem(last=False)

    def _missing(self, row: BatchRow, producer: _Producer) -> Iterator[Finding]:
        """Batches that were never appended. Where offsets are missing too, or bytes are damaged, that is told instead."""
        cleaned_to = self._expected.cleaned_to
        if self._was_compacted or (cleaned_to is not None and row.base_offset <= cleaned_to):
            return
        if self._is_harmed(producer.next_offset, row.base_offset) or any(
            end > producer.next_offset for _, _, end in self._gaps
        ):
            return
        wanted = producer.next_sequence
        count = (row.base_sequence - wanted) % SEQUENCES
        yield from self._found(
            "gaps",
            "error",
            row,
            row.base_offset,
            row.base_offset,
            f"producer {row.producer_id} (epoch {row.producer_epoch}) goes on with sequence {row.base_sequence}, {wanted} was next: {count} records of it are missing before offset {row.base_offset}",
        )

    # ---- findings

    def _found(
        self,
        kind: Kind,
        severity: Severity,
        row: BatchRow | None,
        first: int | None,
        end: int | None,
        what: str,
    ) -> Iterator[Finding]:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if self._counts[kind] <= FINDINGS_MAX:
            yield self._finding(kind, severity, row, first, end, what)

    def _finding(
        self,
        kind: Kind,
        severity: Severity,
        row: BatchRow | None,
        first: int | None,
        end: int | None,
        what: str,
    ) -> Finding:
        expected = self._expected
        return Finding(
            kind,
            severity,
            expected.replica,
            expected.topic,
            expected.partition,
            None if row is None else row.segment,
            None if row is None else row.position,
            first,
            end,
            what,
        )


def check_partition(expected: Expected, rows: Iterable[BatchRow]) -> list[Finding]:
    """All of it at once, for those whose batches are in a list."""
    check = PartitionCheck(expected)
    return [*(found for row in rows for found in check.next(row)), *check.finish()]


# ---- replicas


class Side(NamedTuple):
    """One replica of two that are compared."""

    replica: str
    log_start_offset: int
    committed_end: int
    cleaned_to: int | None


def common_range(one: Side, other: Side) -> tuple[int, int]:
    """Offsets that both must have alike: committed in both, deleted in none, and compacted in none (each compacts for itself)."""
    start = max(one.log_start_offset, other.log_start_offset, one.cleaned_to or 0, other.cleaned_to or 0)
    return start, max(start, min(one.committed_end, other.committed_end))
