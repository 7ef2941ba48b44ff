"""A producer's deciding parts among brokers that fail: virtual time, lost requests and answers, leaders that move, one seed for all of it.

Brokers judge sequence numbers as Kafka does: the last five batches of a producer and partition are remembered, a repeat is answered with its first offset, a
gap is refused. Connections keep their order and break; what was on them is lost, and nobody knows how much of it arrived.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tidelog.client.addresses import Address
from tidelog.client.errors import ConnectionLostError
from tidelog.client.metadata import BrokerInfo, ClusterMetadata, PartitionInfo, TopicInfo, TopicPartition
from tidelog.client.producer.accumulator import Accumulator
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.sender import Answer, Fate, Outgoing, Sender, SenderSettings
from tidelog.client.producer.sequences import Sequences
from tidelog.records.batch import read_header
from tidelog.records.record import iter_records
from tidelog.wire.error_codes import ErrorCode

TOPIC = "orders"


@dataclass
class Replicated:
    """A partition as its leaders, one after the other, see it."""

    values: list[bytes] = field(default_factory=list)
    remembered: dict[int, tuple[int, deque[tuple[int, int, int]]]] = field(default_factory=dict)
    """By producer id: its epoch, and (first, last sequence, base offset) of the last five batches."""

    def append(self, data: bytes, *, record_bytes_max: int) -> tuple[int, int]:
        """(error code, base offset), as a broker answers."""
        header = read_header(data)
        if len(data) > record_bytes_max and header.record_count > 1:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        records = [record.value or b"" for record in iter_records(data, 0, header)]
        base = len(self.values)
        if header.producer_id >= 0:
            code, offset = self._judge(
                header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence
            )
            if code or offset >= 0:
                return code, offset
            epoch, batches = self.remembered.get(header.producer_id, (-1, deque()))
            if header.producer_epoch > epoch:
                batches = deque()
            batches.append((header.base_sequence, header.last_sequence, base))
            while len(batches) > 5:
                batches.popleft()
            self.remembered[header.producer_id] = (header.producer_epoch, batches)
        self.values += records
        return 0, base

    def _judge(self, producer_id: int, epoch: int, first: int, last: int) -> tuple[int, int]:
        known, batches = self.remembered.get(producer_id, (-1, deque()))
        if epoch < known:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if epoch > known:
            # Of a producer that it has never heard of, a broker takes any number for the first.
            return (0, -1) if first == 0 or known < 0 else (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        for had_first, had_last, offset in batches:
            if (had_first, had_last) == (first, last):
                return 0, offset
        if batches and first != (batches[-1][1] + 1) % (1 << 31):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        return 0, -1


@dataclass(frozen=True)
class Trouble:
    """How often things go wrong, each a share."""

    lost_request: float = 0.0
    lost_answer: float = 0.0
    broker_error: float = 0.0
    leader_moves: float = 0.0
    slow: float = 0.0


class World:
    def __init__(
        self,
        seed: int,
        trouble: Trouble,
        *,
        partitions: int = 3,
        nodes: int = 2,
        idempotent: bool = True,
        max_in_flight: int = 5,
        batch_size: int = 400,
        buffer_memory: int = 20_000,
        broker_bytes_max: int = 1 << 20,
        delivery_timeout_ms: int = 20_000,
        retries: int = (1 << 31) - 1,
        make_sequences: Callable[[], Sequences] = Sequences,
        make_accumulator: Callable[..., Accumulator] = Accumulator,
    ) -> None:
        self.rng = Random(seed)
        self.trouble = trouble
        self.now = 0.0
        self._number = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.nodes = list(range(nodes))
        self.partitions = {TopicPartition(TOPIC, p): Replicated() for p in range(partitions)}
        self.leaders = {tp: self.rng.choice(self.nodes) for tp in self.partitions}
        self.accumulator = make_accumulator(
            batch_size=batch_size, linger_ms=self.rng.choice([0, 5, 50]), buffer_memory=buffer_memory
        )
        self.sequences = make_sequences() if idempotent else None
        self.sender = Sender(
            self.accumulator,
            self.sequences,
            SenderSettings(
                max_in_flight=max_in_flight,
                delivery_timeout_ms=delivery_timeout_ms,
                retries=retries,
                max_request_bytes=4_000,
            ),
            self.rng,
        )
        self._metadata = self._current_metadata()
        self._broker_bytes_max = broker_bytes_max
        self._on_the_wire: dict[int, list[Outgoing]] = {node: [] for node in self.nodes}
        self._lines: dict[int, float] = dict.fromkeys(
            self.nodes, 0.0
        )  # when the last message of a connection arrives
        self._connection: dict[int, int] = dict.fromkeys(self.nodes, 0)
        self._next_producer_id = 1000
        self.appended: dict[TopicPartition, list[bytes]] = {tp: [] for tp in self.partitions}
        self.places: dict[bytes, tuple[ProducerBatch, int]] = {}
        self.fates: dict[int, Fate] = {}
        self.memory_least = buffer_memory

    # ---- the world's side

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, call))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, call = heapq.heappop(self._events)
            call()
        self.now = until

    def _current_metadata(self) -> ClusterMetadata:
        infos = {
            tp.partition: PartitionInfo(tp.partition, leader, 0, (), (), (), 0)
            for tp, leader in self.leaders.items()
        }
        brokers = {node: BrokerInfo(node, Address("host", 9092 + node), None) for node in self.nodes}
        return ClusterMetadata(brokers=brokers, topics={TOPIC: TopicInfo(TOPIC, b"\1" * 16, False, 0, infos)})

    def _chance(self, share: float) -> bool:
        return self.rng.random() < share

    # ---- the producer's side

    def send(self, tp: TopicPartition, value: bytes) -> bool:
        """False if there is no room."""
        place = self.accumulator.append(tp, 1_700_000_000_000, None, value, (), self.now)
        self.memory_least = min(self.memory_least, self.accumulator.free)
        if place is None:
            return False
        self.appended[tp].append(value)
        self.places[value] = (place.batch, place.number)
        return True

    def look(self) -> None:
        self._note(self.sender.expire(self.now))
        while True:
            drained = self.sender.drain(self.now, self._metadata)
            if drained.topics_unknown:
                self.later(0.05, self._refresh)
            if drained.wants_producer_id and self.sequences is not None:
                self._next_producer_id += 1
                self.sequences.begin(self._next_producer_id, 0)
                continue
            if not drained.requests:
                return
            for outgoing in drained.requests:
                self._transmit(outgoing)

    def _refresh(self) -> None:
        self._metadata = self._current_metadata()

    def _transmit(self, outgoing: Outgoing) -> None:
        node = outgoing.node
        self._on_the_wire[node].append(outgoing)
        data = [(batch.tp, batch.seal(0, None)) for batch in outgoing.batches]
        delay = self.rng.uniform(0.001, 0.02) + (
            self.rng.uniform(0, 3) if self._chance(self.trouble.slow) else 0
        )
        self._lines[node] = arrives = max(self._lines[node], self.now + delay)
        connection = self._connection[node]
        if self._chance(self.trouble.lost_request):
            self.later(arrives - self.now, lambda: self._break(node, connection))
            return
        self.later(arrives - self.now, lambda: self._arrive(node, connection, outgoing, data))

    def _arrive(
        self, node: int, connection: int, outgoing: Outgoing, data: list[tuple[TopicPartition, bytes]]
    ) -> None:
        if connection != self._connection[node]:
            return  # it broke before the broker read this
        answers = {tp: self._judge(node, tp, batch) for tp, batch in data}
        if self._chance(self.trouble.lost_answer):
            self._break(node, connection)
            return
        delay = self.rng.uniform(0.001, 0.01)
        self._lines[node] = back = max(self._lines[node], self.now + delay)
        self.later(back - self.now, lambda: self._answer(node, connection, outgoing, answers))

    def _judge(self, node: int, tp: TopicPartition, batch: bytes) -> Answer:
        if self._chance(self.trouble.leader_moves):
            self.leaders[tp] = self.rng.choice(self.nodes)
        if self.leaders[tp] != node:
            return Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._chance(self.trouble.broker_error):
            # Either before or after the append: NOT_ENOUGH_REPLICAS_AFTER_APPEND means that it may be there.
            if self._chance(0.5):
                return Answer(ErrorCode.KAFKA_STORAGE_ERROR)
            self.partitions[tp].append(batch, record_bytes_max=self._broker_bytes_max)
            return Answer(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        return Answer(*self.partitions[tp].append(batch, record_bytes_max=self._broker_bytes_max))

    def _answer(
        self, node: int, connection: int, outgoing: Outgoing, answers: dict[TopicPartition, Answer]
    ) -> None:
        if connection != self._connection[node]:
            return
        self._on_the_wire[node].remove(outgoing)
        for _ in range(2 if self._chance(0.05) else 1):  # told twice, it means the same
            fates, stale = self.sender.answered(outgoing, answers, self.now)
            self._note(fates)
        if stale:
            self.later(0.01, self._refresh)
        self.later(0, self.look)

    def _break(self, node: int, connection: int) -> None:
        if connection != self._connection[node]:
            return
        self._connection[node] += 1
        lost, self._on_the_wire[node] = self._on_the_wire[node], []
        for outgoing in lost:
            fates, _ = self.sender.failed(outgoing, ConnectionLostError("gone"), self.now)
            self._note(fates)
        self.later(0.01, self._refresh)
        self.later(0, self.look)

    def _note(self, fates: list[Fate]) -> None:
        for fate in fates:
            assert id(fate.batch) not in self.fates, "a batch has one fate"
            self.fates[id(fate.batch)] = fate

    # ---- the end

    def settle(self) -> None:
        """Everything works again, and whatever is left is delivered."""
        self.trouble = Trouble()
        self.accumulator.hurry()
        for _ in range(400):
            self._refresh()
            self.look()
            self.run(self.now + 0.2)
            if not len(self.accumulator):
                return
        raise AssertionError(f"not delivered: {self.accumulator.unfinished}")

    def outcome(self, value: bytes) -> tuple[bool, TopicPartition, int]:
        """(delivered, partition, offset) of a record."""
        batch, number = self.places[value]
        fate = self.fates[id(batch)]
        while fate.parts:
            for part in fate.parts:
                if number < part.count:
                    batch = part
                    break
                number -= part.count
            fate = self.fates[id(batch)]
        return fate.error is None, batch.tp, fate.base_offset + number

    def check(self, *, once: bool = True) -> None:
        """Acknowledged is stored, where it was said to be; nothing is stored twice or out of order."""
        assert self.memory_least >= 0, "the buffer has a bound"
        assert self.accumulator.free == self.accumulator.buffer_memory, "memory is given back"
        for tp, replicated in self.partitions.items():
            stored = replicated.values
            if once:
                assert len(stored) == len(set(stored)), f"{tp}: stored twice"
                order = {value: number for number, value in enumerate(self.appended[tp])}
                numbers = [order[value] for value in stored]
                assert numbers == sorted(numbers), f"{tp}: out of order"
            for value in self.appended[tp]:
                delivered, where, offset = self.outcome(value)
                if delivered:
                    assert where == tp and value in stored, f"{value!r} was acknowledged and is not there"
                    if once:
                        assert stored[offset] == value, f"{value!r} is not where it was said to be"
