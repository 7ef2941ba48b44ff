"""What the producer sends next, and what an answer means: the deciding half of the sender.

`drain` collects, for every broker that may have another request, the first batch of each partition that it leads; `answered`, `failed` and `expire`
turn what happened into fates. A batch ends in exactly one fate: delivered, failed, or split into parts that have fates of their own. Order within a
partition is kept by the queues, by one request at a time where there are no sequence numbers to rely on (`max.in.flight.requests.per.connection=1`), and
by the broker where there are (`sequences`). Pure: time, chance, metadata and answers are arguments; sockets are `producer.py`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog.client.backoff import pause_ms
from tidelog.client.errors import BrokerError, ClientError, DeliveryTimedOutError
from tidelog.client.metadata import ClusterMetadata, TopicPartition
from tidelog.client.producer.accumulator import Accumulator
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.sequences import Sequences
from tidelog.ports import Rng
from tidelog.wire.error_codes import ErrorCode

_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_NOT_IN_SEQUENCE: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)
_ABOUT_LEADERS: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REPLICA_NOT_AVAILABLE,
)
UNKNOWN_OFFSET: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderSettings:
    max_in_flight: int = 5
    max_request_bytes: int = 1_048_576
    delivery_timeout_ms: int = 120_000
    retries: int = (1 << 31) - 1
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000


class Outgoing(NamedTuple):
    """One Produce request: at most one batch of each partition."""

    serial: int
    node: int
    batches: list[ProducerBatch]


class Answer(NamedTuple):
    """What a broker said of one batch."""

    error_code: int
    base_offset: int = UNKNOWN_OFFSET
    log_append_time_ms: int = -1
    message: str | None = None


class Fate(NamedTuple):
    """`error` is None for a batch that was delivered, unless it has `parts`, which go on in its place."""

    batch: ProducerBatch
    error: ClientError | None = None
    base_offset: int = UNKNOWN_OFFSET
    log_append_time_ms: int = -1
    parts: tuple[ProducerBatch, ...] = ()


@dataclass(slots=True)
class Drained:
    requests: list[Outgoing] = field(default_factory=list)
    topics_unknown: set[str] = field(default_factory=set)
    """Batches wait for leaders of these."""
    wants_producer_id: bool = False


class Sender:
    def __init__(
        self, accumulator: Accumulator, sequences: Sequences | None, settings: SenderSettings, rng: Rng
    ) -> None:
        """Without `sequences` the producer is not idempotent."""
        self._accumulator = accumulator
        self._sequences = sequences
        self._settings = settings
        self._rng = rng
        self._serial = 0
        self._open: set[int] = set()  # serials of requests without an answer
        self._in_flight: dict[int, int] = {}
        self._muted: set[TopicPartition] = set()
        self._mutes = sequences is None and settings.max_in_flight == 1
        self._last_errors: dict[ProducerBatch, ClientError] = {}

    # ---- out

    def drain(
        self, now: float, metadata: ClusterMetadata, *, is_paused: Callable[[int], bool] = lambda node: False
    ) -> Drained:
        """Take what can be sent now. Brokers that `is_paused` (no connection, a full socket) get nothing."""
        drained = Drained()
        if self._sequences is not None:
            self._sequences.renumber()
        open_requests: dict[int, Outgoing] = {}
        room: dict[int, int] = {}
        for tp in self._accumulator.due(now):
            leader = metadata.leader_of(tp)
            if leader is None:
                drained.topics_unknown.add(tp.topic)
                continue
            node = leader.leader
            if self._in_flight.get(node, 0) >= self._settings.max_in_flight or is_paused(node):
                continue
            batch = self._accumulator.head(tp)
            if batch is None or tp in self._muted:
                continue
            if self._sequences is not None and not self._sequences.may_send(batch):
                drained.wants_producer_id = drained.wants_producer_id or not self._sequences.is_ready
                continue
            if node in open_requests and batch.size > room[node]:
                continue  # with the next request
            self._put_on_the_wire(batch)
            if node not in open_requests:
                self._serial += 1
                open_requests[node] = Outgoing(self._serial, node, [])
            open_requests[node].batches.append(batch)
            room[node] = room.get(node, self._settings.max_request_bytes) - batch.size
        for outgoing in open_requests.values():
            self._open.add(outgoing.serial)
            self._in_flight[outgoing.node] = self._in_flight.get(outgoing.node, 0) + 1
        drained.requests = list(open_requests.values())
        return drained

    def _put_on_the_wire(self, batch: ProducerBatch) -> None:
        self._accumulator.take(batch.tp)
        if self._sequences is not None:
            self._sequences.stamp(batch)
        batch.on_the_wire = True
        batch.attempts += 1
        if self._mutes:
            self._muted.add(batch.tp)

    # ---- back

    def answered(
        self, outgoing: Outgoing, answers: Mapping[TopicPartition, Answer], now: float
    ) -> tuple[list[Fate], set[str]]:
        """Fates, and topics whose leaders are not who we thought. A second answer to the same request means nothing."""
        if not self._came_back(outgoing):
            return [], set()
        fates: list[Fate] = []
        stale: set[str] = set()
        for batch in outgoing.batches:
            answer = answers.get(batch.tp)
            if answer is None:
                error: ClientError = BrokerError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"writing to {batch.tp}",
                    "the broker's answer leaves it out",
                )
                fates += self._fails(batch, error, now, refused=False)
                continue
            if answer.error_code in _ABOUT_LEADERS:
                stale.add(batch.tp.topic)
            fates += self._judge(batch, answer, now)
        return fates, stale

    def failed(self, outgoing: Outgoing, error: ClientError, now: float) -> tuple[list[Fate], set[str]]:
        """No answer will come; the broker may have the batches, or not."""
        if not self._came_back(outgoing):
            return [], set()
        fates: list[Fate] = []
        for batch in outgoing.batches:
            if error.retriable:
                fates += self._try_again(batch, error, now)
            else:
                fates += self._fails(batch, error, now, refused=False)
        return fates, {batch.tp.topic for batch in outgoing.batches}

    def _came_back(self, outgoing: Outgoing) -> bool:
        """False if it had before."""
        if outgoing.serial not in self._open:
            return False
        self._open.remove(outgoing.serial)
        self._in_flight[outgoing.node] -= 1
        if not self._in_flight[outgoing.node]:
            del self._in_flight[outgoing.node]
        for batch in outgoing.batches:
            batch.on_the_wire = False
            self._muted.discard(batch.tp)
        return True

    def _judge(self, batch: ProducerBatch, answer: Answer, now: float) -> Iterable[Fate]:
        code = answer.error_code
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            if self._sequences is not None:
                self._sequences.resolved(batch)
            if not self._finish(batch):
                return ()
            return (Fate(batch, None, answer.base_offset, answer.log_append_time_ms),)
        if not self._accumulator.is_unfinished(batch):
            return ()
        error = BrokerError(code, f"writing to {batch.tp}", answer.message)
        if code in _TOO_LARGE and batch.count > 1:
            return self._split(batch)
        if self._sequences is not None and code in _NOT_IN_SEQUENCE:
            if self._sequences.is_first(batch):
                self._sequences.out_of_order(batch)
            return self._try_again(batch, error, now)
        if error.retriable:
            return self._try_again(batch, error, now)
        return self._fails(batch, error, now, refused=True)

    def _split(self, batch: ProducerBatch) -> Iterable[Fate]:
        parts = self._accumulator.split(batch, max(1, batch.size // 2))
        if self._sequences is not None:
            self._sequences.was_split(batch, parts)
        self._last_errors.pop(batch, None)
        return (Fate(batch, parts=tuple(parts)),)

    def _try_again(self, batch: ProducerBatch, error: ClientError, now: float) -> Iterable[Fate]:
        if not self._accumulator.is_unfinished(batch):
            return ()
        if batch.attempts > self._settings.retries:
            error.add_note(f"given up after {batch.attempts} attempts (retries={self._settings.retries})")
            return self._fails(batch, error, now, refused=False)
        if now - batch.created > self._settings.delivery_timeout_ms / 1000:
            return self._give_up(batch, error)
        self._last_errors[batch] = error
        self._pause(batch, now)
        return ()

    def _pause(self, batch: ProducerBatch, now: float) -> None:
        settings = self._settings
        pause = pause_ms(
            self._rng,
            max(0, batch.attempts - 1),
            first_ms=settings.retry_backoff_ms,
            max_ms=settings.retry_backoff_max_ms,
        )
        batch.ready_at = now + pause / 1000
        self._accumulator.put_back(batch)

    def _fails(
        self, batch: ProducerBatch, error: ClientError, now: float, *, refused: bool
    ) -> Iterable[Fate]:
        if self._sequences is not None:
            if refused:
                self._sequences.refused(batch)
            else:
                self._sequences.given_up(batch)
        if not self._finish(batch):
            return ()
        error.add_note(f"{batch.count} records for {batch.tp} were not delivered")
        return (Fate(batch, error),)

    def _finish(self, batch: ProducerBatch) -> bool:
        """False if it had met its fate before."""
        self._last_errors.pop(batch, None)
        if not self._accumulator.is_unfinished(batch):
            return False
        self._accumulator.forget(batch)
        return True

    # ---- time

    def expire(self, now: float) -> list[Fate]:
        """Batches that are not delivered within `delivery.timeout.ms`."""
        fates: list[Fate] = []
        for batch in self._accumulator.created_before(now - self._settings.delivery_timeout_ms / 1000):
            fates += self._give_up(batch, self._last_errors.get(batch))
        return fates

    def _give_up(self, batch: ProducerBatch, last: ClientError | None) -> Iterable[Fate]:
        why = f"the last error was: {last}" if last is not None else _why_unsent(batch)
        error = DeliveryTimedOutError(
            f"{batch.tp}: not delivered within delivery.timeout.ms={self._settings.delivery_timeout_ms}"
            f" ({batch.attempts} attempts; {why})"
        )
        return self._fails(batch, error, 0.0, refused=False)

    def next_look_at(self) -> float | None:
        """When `drain` or `expire` may have something to do, if nothing happens before."""
        moments = [
            moment for moment in (self._accumulator.next_due_at(), self._next_expiry()) if moment is not None
        ]
        return min(moments, default=None)

    def _next_expiry(self) -> float | None:
        oldest = self._accumulator.oldest
        return None if oldest is None else oldest.created + self._settings.delivery_timeout_ms / 1000

    def fail_all(self, error: Callable[[ProducerBatch], ClientError]) -> list[Fate]:
        """The producer ends: whatever is not delivered now never will be."""
        fates: list[Fate] = []
        for batch in self._accumulator.unfinished:
            fates += self._fails(batch, error(batch), 0.0, refused=False)
        return fates


def _why_unsent(batch: ProducerBatch) -> str:
    if batch.on_the_wire:
        return "the broker has not answered"
    return "it was never sent: its partition had no leader that could be reached, or earlier batches were not answered"
