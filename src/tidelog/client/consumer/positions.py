"""Where a consumer is in each partition that it reads, and what it holds of it.

A partition has two offsets: `position`, the next record that the application gets, and `fetch_offset`, the next one to ask a broker for; between them lie chunks
that were fetched ahead, a bounded number of bytes. Whatever moves a position (a seek, a reset, a truncated log) makes a new `version`, and answers to
older questions are dropped: no record of before can slip in after it. Offsets only move forwards by records that were handed out.

What a partition wants before it can be fetched from, in this order:

    COMMITTED   its group may know where it was
    RESET       nobody does: `auto.offset.reset` decides, or a seek to the beginning, the end or a time
    VALIDATE    it has a new leader, whose log may be shorter than what was read (KIP-320)

Pure: time is an argument; who leads a partition is asked elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from tidelog.client.consumer.records import Chunk, ConsumerRecord
from tidelog.client.metadata import ZERO_ID, TopicPartition

NO_EPOCH: Final = -1
CHUNKS_AHEAD: Final = 2
"""Of one partition: one that is being read, and one behind it."""
EARLIEST: Final = -2
LATEST: Final = -1


class Want(Enum):
    COMMITTED = "committed offset"
    RESET = "reset"
    VALIDATE = "validation"


class Spot(NamedTuple):
    """An offset and the leader epoch of the record before it, NO_EPOCH where that is not known."""

    offset: int
    leader_epoch: int = NO_EPOCH


NOWHERE: Final = Spot(-1)


class PartitionState:
    __slots__ = (
        "ask_at",
        "at_leader_until",
        "buffered_bytes",
        "chunks",
        "epoch",
        "fetch_offset",
        "high_watermark",
        "is_paused",
        "last_stable_offset",
        "log_start_offset",
        "position",
        "preferred_node",
        "preferred_until",
        "ready",
        "reset_to",
        "topic_id",
        "tp",
        "validated_epoch",
        "version",
        "want",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.topic_id = ZERO_ID  # of the topic that its offsets are from, once something was fetched
        self.version = 0
        self.position: int | None = None
        self.epoch = NO_EPOCH
        self.fetch_offset = -1
        self.want: Want | None = Want.COMMITTED
        self.reset_to: int | None = None  # a time, EARLIEST or LATEST; None: as auto.offset.reset says
        self.ask_at = 0.0
        self.is_paused = False
        self.chunks: deque[Chunk] = deque()
        self.ready: list[ConsumerRecord] = []  # decoded of the first chunk, the next one last
        self.buffered_bytes = 0
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1
        self.validated_epoch = NO_EPOCH
        self.preferred_node, self.preferred_until = -1, 0.0
        self.at_leader_until = 0.0  # the replica that its leader names could not be reached

    @property
    def has_records(self) -> bool:
        return bool(self.ready or self.chunks)

    def move_to(self, spot: Spot) -> None:
        self.drop()
        self.position = self.fetch_offset = spot.offset
        self.epoch = spot.leader_epoch
        self.want = None
        self.reset_to = None
        self.validated_epoch = NO_EPOCH

    def wants(self, want: Want, *, reset_to: int | None = None) -> None:
        """It cannot be read before that is known. What was fetched ahead is dropped: also a new leader may not have it."""
        self.drop()
        if want is Want.VALIDATE:
            assert self.position is not None
            self.fetch_offset = self.position
        else:
            self.position = None
        self.want, self.reset_to = want, reset_to
        self.ask_at = 0.0

    def drop(self) -> None:
        self.version += 1
        self.chunks.clear()
        self.ready = []
        self.buffered_bytes = 0

    def take(self, chunk: Chunk) -> None:
        """Fetched bytes. `fetch_offset` goes on behind them, also where nothing in them is for the application."""
        self.fetch_offset = chunk.next_offset
        self.chunks.append(chunk)
        self.buffered_bytes += chunk.size


class Positions:
    def __init__(self, *, bytes_ahead: int) -> None:
        """`bytes_ahead`: of all partitions together, fetched and not yet handed out."""
        self.states: dict[TopicPartition, PartitionState] = {}
        self._bytes_ahead = bytes_ahead
        self._turns: deque[TopicPartition] = deque()

    def __contains__(self, tp: object) -> bool:
        return tp in self.states

    # ---- which partitions

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions that were read before go on as they are."""
        wanted = dict.fromkeys(partitions)
        self.states = {tp: self.states.get(tp) or PartitionState(tp) for tp in wanted}
        self._turns = deque(tp for tp in self._turns if tp in wanted)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            if tp not in self.states:
                self.states[tp] = PartitionState(tp)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        self.states = {tp: state for tp, state in self.states.items() if tp not in gone}
        self._turns = deque(tp for tp in self._turns if tp not in gone)

    # ---- what to fetch

    @property
    def buffered_bytes(self) -> int:
        return sum(state.buffered_bytes for state in self.states.values())

    def fetchable(self) -> list[PartitionState]:
        """Partitions to ask for: not those that are paused, that want something else first, or of which enough lies here."""
        if self.buffered_bytes >= self._bytes_ahead:
            # A partition with nothing here is asked for all the same: others' records must not starve it.
            return [state for state in self._readable() if not state.has_records]
        return [state for state in self._readable() if len(state.chunks) < CHUNKS_AHEAD]

    def _readable(self) -> Iterable[PartitionState]:
        return (state for state in self.states.values() if state.want is None and not state.is_paused)

    def wanting(self, want: Want, now: float) -> list[PartitionState]:
        return [state for state in self.states.values() if state.want is want and now >= state.ask_at]

    def next_ask_at(self, now: float) -> float | None:
        """When a partition that waits after a failure is to be asked about again."""
        return min(
            (s.ask_at for s in self.states.values() if s.want is not None and s.ask_at > now), default=None
        )

    def take(self, tp: TopicPartition, version: int, chunk: Chunk) -> bool:
        """False if the partition has moved since it was asked for, or the chunk does not continue what is here."""
        state = self.states.get(tp)
        if state is None or state.version != version or chunk.next_offset <= state.fetch_offset:
            return False
        state.take(chunk)
        if tp not in self._turns:
            self._turns.append(tp)
        return True

    # ---- what to hand out

    @property
    def has_records(self) -> bool:
        return any(not self.states[tp].is_paused and self.states[tp].has_records for tp in self._turns)

    def next_records(self, count: int) -> list[ConsumerRecord]:
        """Up to `count` records; one partition after the other, each from where it was. RecordError leaves the position before the bad batch."""
        found: list[ConsumerRecord] = []
        for _ in range(len(self._turns)):
            tp = self._turns.popleft()
            state = self.states[tp]
            if not state.is_paused:
                try:
                    self._read(state, count, found)
                except BaseException:
                    self._turns.append(tp)
                    if found:
                        return found  # the error comes again when it is this partition's turn
                    raise
            if state.has_records:
                # Who has more goes on first next time: its records are here, and one batch of a partition is not torn apart for long.
                self._turns.append(tp)
            if len(found) >= count:
                break
        return found

    def _read(self, state: PartitionState, count: int, found: list[ConsumerRecord]) -> None:
        while len(found) < count and state.has_records:
            if not state.ready:
                chunk = state.chunks[0]
                records = chunk.next_batch()
                if records is None:
                    state.chunks.popleft()
                    state.buffered_bytes -= chunk.size
                    # Offsets without records for us (markers, aborted data, gaps at its end) are passed over, and may be of a later epoch.
                    if state.position is None or chunk.next_offset > state.position:
                        state.position, state.epoch = chunk.next_offset, chunk.last_epoch
                    continue
                state.ready = records[::-1]
            take = min(count - len(found), len(state.ready))
            handed = state.ready[-take:][::-1]
            del state.ready[-take:]
            found += handed
            last = handed[-1]
            state.position, state.epoch = last.offset + 1, last.leader_epoch

    def next_chunk(self) -> tuple[PartitionState, Chunk] | None:
        """A whole chunk for whoever reads columns; what is decoded of one already must be taken with `next_records` first."""
        for _ in range(len(self._turns)):
            tp = self._turns.popleft()
            state = self.states[tp]
            if state.is_paused or state.ready or not state.chunks:
                if state.has_records:
                    self._turns.append(tp)
                continue
            chunk = state.chunks.popleft()
            state.buffered_bytes -= chunk.size
            if state.chunks:
                self._turns.append(tp)
            return state, chunk
        return None

    # ---- positions

    def offsets(self) -> dict[TopicPartition, Spot]:
        return {
            tp: Spot(state.position, state.epoch)
            for tp, state in self.states.items()
            if state.position is not None
        }

    def new_leader(self, tp: TopicPartition, leader_epoch: int) -> None:
        """The metadata shows another epoch: before more is fetched, is what was read still in the log?"""
        state = self.states.get(tp)
        if state is None or state.position is None or leader_epoch <= state.validated_epoch:
            return
        if state.epoch == NO_EPOCH:  # nothing was handed out that could be compared
            if state.validated_epoch != NO_EPOCH:
                state.drop()
                state.fetch_offset = state.position
            state.validated_epoch = leader_epoch
        elif state.want is None:
            state.wants(Want.VALIDATE)

    def validated(self, tp: TopicPartition, version: int, leader_epoch: int, end: Spot) -> Spot | None:
        """What the leader says of our epoch: `end` is where it ends there. Returns where the log was cut, if it was; NOWHERE if the leader cannot tell."""
        state = self.states.get(tp)
        if (
            state is None
            or state.version != version
            or state.want is not Want.VALIDATE
            or state.position is None
        ):
            return None
        if end.offset < 0 or end.leader_epoch < 0:
            return NOWHERE
        if end.offset < state.position or end.leader_epoch < state.epoch:
            # A log that has our offsets from an earlier leader may be longer than what we read: nothing of it is passed over.
            return Spot(min(end.offset, state.position), end.leader_epoch)
        state.want, state.validated_epoch = None, leader_epoch
        return None
