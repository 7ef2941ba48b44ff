"""Records that wait to be sent: a queue of batches per partition, bounded by `buffer.memory`.

The last batch of a queue takes records until one does not fit (`batch.size`). A batch may go when it is full, when another stands behind it, when
`linger.ms` is over, when memory is short, or when somebody flushes. What is due is kept in a set and a heap of times, so that a look at a
thousand quiet partitions costs nothing. Memory is taken for a record before it is encoded and given back when its batch is done: the sum never
exceeds the bound. Pure: time is an argument; who leads a partition, and whether it may be sent to, is the sender's business.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tidelog.client.errors import RecordTooLargeError
from tidelog.client.metadata import TopicPartition
from tidelog.client.producer.batch import ProducerBatch, size_bound
from tidelog.records.batch import HEADER_SIZE, Buffer
from tidelog.records.record import Headers


class Place(NamedTuple):
    """Where a record went."""

    batch: ProducerBatch
    number: int
    batch_is_full: bool
    """Something can be sent that could not before."""


class Accumulator:
    def __init__(
        self,
        *,
        batch_size: int,
        linger_ms: int,
        buffer_memory: int,
        max_request_size: int = 1 << 30,
        new_done: Callable[[], Any] = lambda: None,
    ) -> None:
        self.buffer_memory = buffer_memory
        self.free = buffer_memory
        self._batch_size = batch_size
        self._record_max = min(max_request_size, buffer_memory) - HEADER_SIZE
        self._max_request_size = max_request_size
        self._linger = linger_ms / 1000
        self._new_done = new_done
        self._queues: dict[TopicPartition, deque[ProducerBatch]] = {}
        self._due: dict[TopicPartition, None] = {}  # in the order in which they became due
        self._times: list[tuple[float, TopicPartition]] = []
        self._made = 0
        self._unfinished: dict[ProducerBatch, None] = {}  # queued or on the wire
        self._hurried: set[ProducerBatch] = set()  # somebody waits for them in `flush`
        self._is_short = False

    def __len__(self) -> int:
        """Batches whose fate is not known."""
        return len(self._unfinished)

    @property
    def unfinished(self) -> list[ProducerBatch]:
        """The oldest first."""
        return list(self._unfinished)

    @property
    def oldest(self) -> ProducerBatch | None:
        return next(iter(self._unfinished), None)

    def is_unfinished(self, batch: ProducerBatch) -> bool:
        return batch in self._unfinished

    # ---- records in

    def append(
        self,
        tp: TopicPartition,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        now: float,
    ) -> Place | None:
        """None if there is no memory for it now; whatever can be sent then becomes due, to make room. RecordTooLargeError if there never will be."""
        bound = size_bound(key, value, headers)
        if bound > self._record_max:
            raise self._too_large(tp, bound + HEADER_SIZE)
        queue = self._queues.get(tp)
        batch = queue[-1] if queue else None
        is_full = False
        if batch is not None and (batch.is_closed or batch.size + bound > self._batch_size):
            batch = None
            is_full = True
        needed = bound if batch is not None else bound + HEADER_SIZE
        if needed > self.free:
            self._is_short = True
            self._due.update(dict.fromkeys(self._queues))
            return None
        self.free -= needed
        if batch is None:
            batch = self._new_batch(tp, now)
            batch.ready_at = now + self._linger
            if queue is None:
                queue = self._queues[tp] = deque()
            queue.append(batch)
            self._unfinished[batch] = None
            if is_full or self._linger == 0:
                self._due[tp] = None
                is_full = True
            else:
                heapq.heappush(self._times, (batch.ready_at, tp))
        batch.reserved += needed
        number = batch.append(timestamp, key, value, headers)
        if batch.size >= self._batch_size and not is_full:
            self._due[tp] = None
            is_full = True
        return Place(batch, number, is_full)

    def _new_batch(self, tp: TopicPartition, now: float) -> ProducerBatch:
        self._made += 1
        return ProducerBatch(tp, now, order=(self._made,), done=self._new_done())

    def append_batch(
        self,
        tp: TopicPartition,
        payload: memoryview,
        count: int,
        times: tuple[int, int],
        compressed: Buffer | None,
        now: float,
    ) -> ProducerBatch | None:
        """A batch whose records somebody else has encoded, behind room for the header, with its first and its latest timestamp. None if there is no memory for it now."""
        needed = len(payload)
        if needed > self._record_max + HEADER_SIZE and count == 1:
            raise self._too_large(tp, needed)
        if needed > self.free:
            self._is_short = True
            self._due.update(dict.fromkeys(self._queues))
            return None
        self.free -= needed
        batch = self._new_batch(tp, now)
        batch.reserved = needed
        batch.payload, batch.compressed, batch.count, batch.is_closed = payload, compressed, count, True
        batch.base_timestamp, batch.max_timestamp = times
        self._queues.setdefault(tp, deque()).append(batch)
        self._unfinished[batch] = None
        self._due[tp] = None
        return batch

    def _too_large(self, tp: TopicPartition, size: int) -> RecordTooLargeError:
        name, limit = "max.request.size", self._max_request_size
        if size <= limit:
            name, limit = "buffer.memory", self.buffer_memory
        return RecordTooLargeError(
            f"a record for {tp} takes up to {size} bytes, more than {name}={limit}; raise it (and the topic's max.message.bytes), or send less in one record"
        )

    # ---- batches out

    def due(self, now: float) -> Iterator[TopicPartition]:
        """Partitions whose first batch may go, in the order in which they became due. The queues may change meanwhile."""
        times = self._times
        while times and times[0][0] <= now:
            self._due[heapq.heappop(times)[1]] = None
        for tp in list(self._due):
            head = self.head(tp)
            if head is not None and self._may_go(head, now):
                yield tp
            else:
                del self._due[tp]
                if head is not None:
                    heapq.heappush(times, (head.ready_at, tp))

    def next_due_at(self) -> float | None:
        """When `due` may say more than now, if nothing is appended until then."""
        return self._times[0][0] if self._times else None

    def _may_go(self, batch: ProducerBatch, now: float) -> bool:
        if now >= batch.ready_at:
            return True
        if batch.attempts:
            return False  # it failed, and waits before the next try
        return (
            len(self._queues[batch.tp]) > 1
            or batch.size >= self._batch_size
            or self._is_short
            or batch in self._hurried
        )

    def head(self, tp: TopicPartition) -> ProducerBatch | None:
        queue = self._queues.get(tp)
        return queue[0] if queue else None

    def waiting(self, tp: TopicPartition) -> int:
        """Batches in its queue."""
        queue = self._queues.get(tp)
        return len(queue) if queue else 0

    def take(self, tp: TopicPartition) -> ProducerBatch:
        """The head goes on the wire, or to its end. From here on it takes no more records."""
        queue = self._queues[tp]
        batch = queue.popleft()
        batch.is_closed = True
        self._due.pop(tp, None)
        if queue:
            self._due[tp] = None  # the next one is looked at, too, after all others have had their turn
        else:
            del self._queues[tp]
        return batch

    def put_back(self, batch: ProducerBatch) -> None:
        """It is to be sent again at `ready_at`, before everything that was appended later."""
        self._insert(batch)
        heapq.heappush(self._times, (batch.ready_at, batch.tp))

    def _insert(self, batch: ProducerBatch) -> None:
        queue = self._queues.setdefault(batch.tp, deque())
        place = 0
        while place < len(queue) and queue[place].order < batch.order:
            place += 1
        queue.insert(place, batch)

    def split(self, batch: ProducerBatch, bytes_max: int) -> list[ProducerBatch]:
        """A batch that is too large for the broker in parts, in its place. Sequence numbers go on as they were: they count records."""
        parts: list[ProducerBatch] = []
        part: ProducerBatch | None = None
        for timestamp, key, value, headers in batch.records():
            if part is None or part.size + size_bound(key, value, headers) > bytes_max:
                order = (*batch.order, len(parts))
                part = ProducerBatch(batch.tp, batch.created, order=order, done=self._new_done())
                if batch.is_stamped:
                    sequence = (batch.base_sequence + sum(p.count for p in parts)) & 0x7FFFFFFF
                    part.stamp(batch.producer_id, batch.producer_epoch, sequence)
                part.is_closed = True
                parts.append(part)
            part.append(timestamp, key, value, headers)
        share, rest = divmod(batch.reserved, len(parts))
        for number, part in enumerate(parts):
            part.reserved = share + (rest if number == 0 else 0)
            part.attempts = batch.attempts
        if batch in self._hurried:
            self._hurried.remove(batch)
            self._hurried.update(parts)
        in_order: dict[ProducerBatch, None] = {}
        for unfinished in self._unfinished:
            in_order.update(dict.fromkeys(parts if unfinished is batch else (unfinished,)))
        self._unfinished = in_order
        for part in parts:
            self._insert(part)
        self._due[batch.tp] = None
        return parts

    def forget(self, batch: ProducerBatch) -> None:
        """Its fate is known: its memory is free."""
        if batch not in self._unfinished:
            return
        del self._unfinished[batch]
        self._hurried.discard(batch)
        self.free += batch.reserved
        batch.reserved = 0
        self._is_short = False
        queue = self._queues.get(batch.tp)
        if queue and batch in queue:
            queue.remove(batch)
            if not queue:
                del self._queues[batch.tp]
                self._due.pop(batch.tp, None)

    # ---- hurry

    def hurry(self) -> list[ProducerBatch]:
        """Everything appended so far goes as soon as it can. Returns what to wait for."""
        batches = list(self._unfinished)
        self._hurried.update(batches)
        self._due.update(dict.fromkeys(self._queues))
        return batches

    def created_before(self, moment: float) -> Iterable[ProducerBatch]:
        """Unfinished batches, on the wire or not, that are older."""
        oldest = self.oldest
        if oldest is None or oldest.created > moment:
            return
        for batch in self.unfinished:
            if batch.created > moment:
                return
            yield batch
