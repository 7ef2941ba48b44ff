"""What a partition remembers of its producers: the last five batches of each, its epoch, its open transaction.

Owns the decision whether a batch is new, a retry or out of order (I39, I40), and the first unstable offset that `read_committed`
readers may not pass. Pure: no disk, no clock. `check…` decides and changes nothing; `append…` records what the log has accepted
and refuses nothing, so a follower or a recovery that replays the leader's log arrives at the leader's state (I4).

Rules, as Kafka 4 has them, for a batch of a client:

    producer unknown here                        accepted with any sequence (its batches may be gone through retention),
                                                   unless its first batch found the disk full: then that one comes first
    epoch older than the remembered one          INVALID_PRODUCER_EPOCH
    same epoch, same first and last sequence     duplicate: answered with the offsets of the first time
      as one of the last five batches
    same epoch, sequence follows the last        accepted; 0 follows 2147483647
    newer epoch                                  accepted with sequence 0
    not transactional while a transaction        INVALID_TXN_STATE
      of this producer is open
    anything else                                OUT_OF_ORDER_SEQUENCE_NUMBER
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from tidelog.records.batch import BatchHeader

REMEMBERED_BATCHES: Final = 5
NO_SEQUENCE: Final = -1
NO_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1
NO_COORDINATOR: Final = -1

_SEQUENCE_MASK: Final = 0x7FFFFFFF
_TRANSACTIONAL: Final = 0x10
_MAX_PRODUCER_EPOCH: Final = 32767
_REFUSED_MAX: Final = 1000  # producers whose first batch was refused that are remembered


class Duplicate(NamedTuple):
    """The batch is in the log already, at these offsets: answer as if it had just been appended."""

    first_offset: int
    last_offset: int
    timestamp: int


class CompletedTransaction(NamedTuple):
    """A marker ended a transaction that had data here. If aborted it belongs into the transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class BatchMetadata(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & _SEQUENCE_MASK

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """One producer, as this partition knows it."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "last_timestamp",
        "next_sequence",
        "producer_epoch",
        "producer_id",
        "transaction_first_offset",
    )

    def __init__(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.batches: deque[BatchMetadata] = deque(maxlen=REMEMBERED_BATCHES)
        self.next_sequence = 0
        self.coordinator_epoch = NO_COORDINATOR
        self.last_timestamp = NO_TIMESTAMP
        self.transaction_first_offset = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def enter_epoch(self, producer_epoch: int) -> None:
        if producer_epoch != self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.batches.clear()
            self.next_sequence = 0

    def remember(self, batch: BatchMetadata) -> None:
        self.batches.append(batch)
        self.next_sequence = (batch.last_sequence + 1) & _SEQUENCE_MASK
        self.last_timestamp = batch.timestamp


class ProducerState:
    """Single writer. `end_offset` is the log offset up to which batches are reflected here; the log moves it."""

    __slots__ = ("_decided", "_first_unstable", "_open", "_producers", "_refused", "_stale", "end_offset")

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}
        # Producer id -> epoch and sequence of a first batch that the disk had no room for.
        self._refused: dict[int, tuple[int, int]] = {}
        # First offset -> producer id of open transactions. The log grows at its end, so insertion order is offset order.
        self._open: dict[int, int] = {}
        # Ended transactions whose marker is not below the high watermark yet, in the order of their markers.
        self._decided: list[CompletedTransaction] = []
        self._first_unstable: int | None = None
        self._stale = False
        self.end_offset = 0

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self._producers.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._producers.get(producer_id)

    # -- data batches ----------------------------------------------------------------------------------------------

    def check(self, header: BatchHeader) -> Duplicate | None:
        """Decide about a client's data batch: None to append it, Duplicate to answer it, RequestError to refuse it."""
        entry = self._producers.get(header.producer_id)
        if entry is None:
            if self._refused:
                self._check_follows_refused(header)
            return None
        if (
            header.base_sequence == entry.next_sequence
            and header.producer_epoch == entry.producer_epoch
            and (entry.transaction_first_offset < 0 or header.attributes & _TRANSACTIONAL)
        ):
            return None
        return _judge(entry, header)

    def refused(self, header: BatchHeader) -> None:
        """A batch that `check` let pass could not be stored for want of space.

        A producer that is not known here may begin with any sequence. If the batch behind the refused one, which is on its way
        already, were taken for its first, the refused one could never come back; the client might even think it stored (I39).
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        if producer_id < 0 or producer_id in self._producers:
            return
        if self._refused.get(producer_id, (-1, 0))[0] < epoch:
            if len(self._refused) >= _REFUSED_MAX:
                del self._refused[next(iter(self._refused))]
            self._refused[producer_id] = (epoch, header.base_sequence)

    def _check_follows_refused(self, header: BatchHeader) -> None:
        epoch, sequence = self._refused.get(header.producer_id, (header.producer_epoch, header.base_sequence))
        if header.producer_epoch == epoch and header.base_sequence != sequence:
            raise RequestError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence}; {sequence} was refused and comes first",
            )

    def append(self, header: BatchHeader, first_offset: int, last_offset: int) -> None:
        """A data batch is in the log at these offsets, which need not be the header's. No-op without a producer id."""
        producer_id = header.producer_id
        if producer_id < 0:
            return
        epoch = header.producer_epoch
        entry = self._producers.get(producer_id)
        if entry is None:
            entry = self._producers[producer_id] = ProducerEntry(producer_id, epoch)
            self._refused.pop(producer_id, None)
        elif entry.producer_epoch != epoch:
            entry.enter_epoch(epoch)
        delta = last_offset - first_offset
        last_sequence = (header.base_sequence + delta) & _SEQUENCE_MASK
        timestamp = header.max_timestamp
        entry.batches.append(BatchMetadata(last_sequence, last_offset, delta, timestamp))
        entry.next_sequence = (last_sequence + 1) & _SEQUENCE_MASK
        entry.last_timestamp = timestamp
        if header.attributes & _TRANSACTIONAL and entry.transaction_first_offset < 0:
            entry.transaction_first_offset = first_offset
            self._open[first_offset] = producer_id
            self._stale = True

    # -- transaction markers ---------------------------------------------------------------------------------------

    def check_marker(
        self, producer_id: int, *, producer_epoch: int, coordinator_epoch: int, transaction_version: int = 0
    ) -> None:
        """Refuse a marker of a stale producer epoch or of a deposed coordinator (I43).

        From transaction version 2 on each transaction has its own epoch and its marker carries the next one, so an equal epoch
        is a late marker, unless nothing is open (a retry of the marker that ended it) or epochs are used up.
        """
        entry = self._producers.get(producer_id)
        if entry is None:
            return
        current = entry.producer_epoch
        late = producer_epoch < current
        if transaction_version >= 2 and producer_epoch == current:
            late = entry.transaction_first_offset >= 0 and producer_epoch != _MAX_PRODUCER_EPOCH
        if late:
            raise RequestError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"marker of producer {producer_id} has epoch {producer_epoch}, the partition has seen epoch {current}",
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise RequestError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"marker of producer {producer_id} is from coordinator epoch {coordinator_epoch}, the partition has seen"
                f" {entry.coordinator_epoch}",
            )

    def append_marker(
        self,
        producer_id: int,
        *,
        producer_epoch: int,
        coordinator_epoch: int,
        aborted: bool,
        offset: int,
        timestamp: int,
    ) -> CompletedTransaction | None:
        """An end-transaction marker is in the log at `offset`. None if it ended nothing that has data here."""
        entry = self._producers.get(producer_id)
        if entry is None:
            entry = self._producers[producer_id] = ProducerEntry(producer_id, producer_epoch)
        entry.enter_epoch(producer_epoch)
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = timestamp
        first_offset = entry.transaction_first_offset
        if first_offset < 0:
            return None
        entry.transaction_first_offset = NO_OFFSET
        completed = CompletedTransaction(producer_id, first_offset, offset, aborted)
        del self._open[first_offset]
        self._decided.append(completed)
        self._stale = True
        return completed

    def last_stable_offset_after(self, completed: CompletedTransaction) -> int:
        """The last stable offset once this marker is committed: what its entry in the transaction index records."""
        return next(iter(self._open), completed.last_offset + 1)

    @property
    def first_undecided_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        return next(iter(self._open), None)

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction begins that is open, or whose marker is not below the high watermark yet."""
        if self._stale:
            starts = [decided.first_offset for decided in self._decided]
            starts.extend(offset for offset in (self.first_undecided_offset,) if offset is not None)
            self._first_unstable = min(starts, default=None)
            self._stale = False
        return self._first_unstable

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Markers below the high watermark are committed: their transactions hold no reader back any more."""
        decided = self._decided
        if not decided or decided[0].last_offset >= high_watermark:
            return
        committed = 1
        while committed < len(decided) and decided[committed].last_offset < high_watermark:
            committed += 1
        del decided[:committed]
        self._stale = True

    def log_start_moved(self, log_start_offset: int) -> None:
        """Records below are gone. Producers stay known: a retry of a deleted batch is still a duplicate (I39)."""
        self.high_watermark_moved(log_start_offset)
        self.end_offset = max(self.end_offset, log_start_offset)

    # -- expiry, reload --------------------------------------------------------------------------------------------

    def expire(self, now_ms: int, producer_id_expiration_ms: int) -> int:
        """Forget producers without an open transaction that have been silent this long. Returns how many."""
        expired = [
            entry.producer_id
            for entry in self._producers.values()
            if is_expired(entry, now_ms, producer_id_expiration_ms)
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def reload(self, entries: Iterable[ProducerEntry], end_offset: int) -> None:
        """Start over from a snapshot (or from nothing) taken at `end_offset`; the caller replays the log from there."""
        self._producers = {entry.producer_id: entry for entry in entries}
        open_transactions = [
            (entry.transaction_first_offset, entry.producer_id)
            for entry in self._producers.values()
            if entry.transaction_first_offset >= 0
        ]
        self._open = dict(sorted(open_transactions))
        self._decided.clear()
        self._stale = True
        self.end_offset = end_offset


def is_expired(entry: ProducerEntry, now_ms: int, producer_id_expiration_ms: int) -> bool:
    return entry.transaction_first_offset < 0 and now_ms - entry.last_timestamp >= producer_id_expiration_ms


def _judge(entry: ProducerEntry, header: BatchHeader) -> Duplicate | None:
    """The rules above in full, for a batch that is not simply the next one."""
    sequence, epoch = header.base_sequence, header.producer_epoch
    if epoch == entry.producer_epoch:
        last_sequence = (sequence + header.last_offset_delta) & _SEQUENCE_MASK
        for batch in reversed(entry.batches):
            if batch.last_sequence == last_sequence and batch.first_sequence == sequence:
                return Duplicate(batch.first_offset, batch.last_offset, batch.timestamp)
    if epoch < entry.producer_epoch:
        raise RequestError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {entry.producer_id} has epoch {epoch}, the partition has seen epoch {entry.producer_epoch}",
        )
    expected = entry.next_sequence if epoch == entry.producer_epoch else 0
    if sequence != expected:
        raise RequestError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {entry.producer_id} epoch {epoch} sent sequence {sequence}, expected is {expected}"
            f" (last seen: epoch {entry.producer_epoch}, sequence {entry.last_sequence})",
        )
    if entry.transaction_first_offset >= 0 and not header.attributes & _TRANSACTIONAL:
        raise RequestError(
            ErrorCode.INVALID_TXN_STATE,
            f"producer {entry.producer_id} has a transaction open since offset {entry.transaction_first_offset}, but sent a"
            " batch outside of it",
        )
    return None
