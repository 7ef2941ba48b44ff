"""What transactions mean for a cleaner: whose data was aborted, and which markers are still needed.

Owns the verdicts about transactional and control batches, as a cleaner meets them from the beginning of a log on. Data of an aborted transaction
goes. A marker is never compared with anything by its key (I30); it may go when no batch of its transaction was met before it, not even an empty one,
and then only after the delete horizon that this makes it get. So the batches that are met decide, not what is left of them: a
marker outlives its transaction's last batch by a whole cleaning, and a crash between two swaps never leaves a batch without its marker.

Entries of the transaction index follow their markers: those of transactions of which something was met go into the new segment's index.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tidelog.errors import CorruptDataError
from tidelog.records import columnar_kernels as columns
from tidelog.records.batch import CONTROL_FLAG, DELETE_HORIZON_FLAG
from tidelog.records.compaction import Chunk
from tidelog.records.compaction_kernels import DISCARD, ENDS_NOTHING, MARKER, NO_RECORD, RETAIN
from tidelog.records.control import ControlType
from tidelog.storage import files
from tidelog.storage.cleaner_job import CleanJob, Source
from tidelog.storage.disk import Disk
from tidelog.storage.txn_index import AbortedTransaction, TxnIndex

_ENDINGS: Final = (ControlType.ABORT, ControlType.COMMIT)


class AbortedTransactions:
    """Which batches of a producer were aborted, by the ranges that the transaction indexes hold."""

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        for aborted in sorted(transactions, key=lambda aborted: aborted.first_offset):
            self._by_producer.setdefault(aborted.producer_id, []).append(aborted)

    def covering(self, producer_id: int, offset: int) -> AbortedTransaction | None:
        """The aborted transaction of a producer that holds this offset, its marker included."""
        listed = self._by_producer.get(producer_id)
        if listed is None:
            return None
        number = bisect_right(listed, offset, key=lambda aborted: aborted.first_offset) - 1
        return listed[number] if number >= 0 and offset <= listed[number].last_offset else None


def aborted_in(
    disk: Disk, job: CleanJob, chunks_of: Callable[[Source], Iterator[Chunk]]
) -> AbortedTransactions:
    """From the indexes of all segments: the marker of a transaction may stand behind the bound.

    If one of them is missing or broken, from the batches: it takes one more look at the whole log, and is right all the same (I4). Kafka makes
    an index only for a segment in which a transaction was aborted.
    """
    segments = (*job.sources, *job.behind)
    found = None if job.index_is_missing else _listed(disk, job.directory, segments)
    if found is None:
        found = list(_derived(chunk for source in segments for chunk in chunks_of(source)))
    return AbortedTransactions(found)


def _listed(disk: Disk, directory: str, segments: Sequence[Source]) -> list[AbortedTransaction] | None:
    found: list[AbortedTransaction] = []
    for source in segments:
        path = files.segment_path(directory, source.base_offset, files.TXN_INDEX)
        is_active = (
            source is segments[-1]
        )  # it has no file before it needs one, and may be written to just now
        if not disk.exists(path):
            if is_active:
                continue
            return None
        index = TxnIndex(disk, path, source.base_offset)
        try:
            if not is_active:
                index.check()
            found.extend(index)
        except CorruptDataError:
            return None
        finally:
            index.close()
    return found


def _derived(chunks: Iterable[Chunk]) -> Iterator[AbortedTransaction]:
    """What the indexes would hold."""
    begun: dict[int, int] = {}  # producer id -> first offset of its open transaction; the oldest first
    for chunk in chunks:
        rows = chunk.in_transactions
        types = chunk.control_types if rows else []
        for row in rows:
            producer_id = int(chunk.table[row, columns.PRODUCER_ID])
            offset = int(chunk.table[row, columns.BASE_OFFSET])
            if not chunk.table[row, columns.ATTRIBUTES] & CONTROL_FLAG:
                begun.setdefault(producer_id, offset)
            elif types[row] in _ENDINGS and producer_id in begun:
                first_offset = begun.pop(producer_id)
                if types[row] == ControlType.ABORT:
                    stable_offset = next(iter(begun.values()), offset + 1)
                    yield AbortedTransaction(producer_id, first_offset, offset, stable_offset)


class Judged(NamedTuple):
    verdicts: Any  # for `filter_chunk`
    still_aborted: list[tuple[int, AbortedTransaction]]  # by the number of the marker's batch in the chunk


class Judge:
    """Looks at the batches of a log in their order, one chunk after the other."""

    def __init__(
        self,
        aborted: AbortedTransactions,
        *,
        now_ms: int,
        retained: Collection[int] = (),
        fences: Mapping[int, int] | None = None,
    ) -> None:
        self._aborted = aborted
        self.now_ms = now_ms
        self._retained = np.array(sorted(retained), np.int64)
        self._fences = dict(fences or {})
        self._met: set[int] = set()  # producers of whose open transaction a batch was met

    def judge(self, chunk: Chunk) -> Judged:
        verdicts = chunk.no_verdicts()
        still_aborted: list[tuple[int, AbortedTransaction]] = []
        rows = chunk.in_transactions
        if rows:
            types = chunk.control_types
            fields = chunk.table[rows][
                :,
                [
                    columns.ATTRIBUTES,
                    columns.PRODUCER_ID,
                    columns.PRODUCER_EPOCH,
                    columns.BASE_OFFSET,
                    columns.BASE_TIMESTAMP,
                ],
            ].tolist()
            for row, (attributes, producer_id, epoch, offset, base_timestamp) in zip(
                rows, fields, strict=True
            ):
                if not attributes & CONTROL_FLAG:
                    self._met.add(producer_id)
                    if self._aborted.covering(producer_id, offset) is not None:
                        verdicts[row] = DISCARD
                    continue
                met = producer_id in self._met
                verdicts[row] = self._judge_control(
                    types[row],
                    attributes,
                    base_timestamp,
                    met=met,
                    fences=self._fences.get(producer_id) == epoch,
                )
                if types[row] in _ENDINGS:
                    self._met.discard(producer_id)
                    aborted = self._aborted.covering(producer_id, offset)
                    if met and types[row] == ControlType.ABORT and aborted is not None:
                        still_aborted.append((row, aborted))
        if len(self._retained):
            last_offsets = chunk.column(columns.LAST_OFFSET)
            places = np.minimum(np.searchsorted(self._retained, last_offsets), len(self._retained) - 1)
            verdicts[(self._retained[places] == last_offsets) & ~chunk.is_control] |= RETAIN
        return Judged(verdicts, still_aborted)

    def _judge_control(
        self, kind: int, attributes: int, base_timestamp: int, *, met: bool, fences: bool
    ) -> int:
        if kind == NO_RECORD:
            return RETAIN if fences else 0  # emptied by Kafka's cleaner: its transaction is gone
        if kind not in _ENDINGS or met or fences:
            return MARKER
        horizon_passed = attributes & DELETE_HORIZON_FLAG and base_timestamp <= self.now_ms
        return MARKER | ENDS_NOTHING | (DISCARD if horizon_passed else 0)


def rows_without_keys(chunk: Chunk, verdicts: Any) -> Any:
    """Batches whose keys do not belong into the map: control batches (M22), and data that was aborted."""
    return chunk.is_control | (verdicts & DISCARD != 0)
