"""What a history did to storage, and after how many disk operations: the yardstick for a disk that a crash has left.

Owns the books, not the judgement (`storage_checks`). Time is the number of operations that the simulated disk has recorded, so that a
crash after n of them knows what had been begun by then (it may be found) and what had been promised (it must be found). What is in a partition
is a `Version`: batches are only ever added to it. A truncation or a swap of segments makes the next version; until it is done,
a crash may leave either.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.records.batch import BatchHeader, read_header
from tidelog.records.record import iter_records
from tidelog.storage.checkpoints import TopicPartition
from tidelog.storage.log_config import LogConfig
from tidelog.storage.producer_state import ProducerState


class Stored(NamedTuple):
    """A batch as a reader sees it. The first 16 bytes are the broker's, so they are compared as numbers."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    payload: bytes


class Sent(NamedTuple):
    """A batch on its way into a log. Of a crash after `begun` operations or more it may be found."""

    stored: Stored
    header: BatchHeader  # with the offset and the epoch it got
    times: tuple[tuple[int, int], ...]  # (timestamp, offset) of its records
    begun: int


def stored(data: bytes | memoryview, position: int, header: BatchHeader) -> Stored:
    payload = bytes(data[position + 16 : position + header.size])
    return Stored(header.base_offset, header.last_offset, header.partition_leader_epoch, payload)


def sent(data: bytes, *, base_offset: int, leader_epoch: int, begun: int) -> Sent:
    header = read_header(data)._replace(base_offset=base_offset, partition_leader_epoch=leader_epoch)
    times = tuple(
        (record.timestamp, base_offset + number)
        for number, record in enumerate(iter_records(data, 0, read_header(data)))
    )
    return Sent(stored(data, 0, header), header, times, begun)


@dataclass(slots=True)
class Version:
    """One state of a partition's content. Every pair is (operations, offset): since then, this."""

    begun: int
    done: int | None  # None: still under way
    first_offset: int = 0
    batches: list[Sent] = field(default_factory=list)
    written: list[tuple[int, int]] = field(
        default_factory=list
    )  # appends returned: a kill loses nothing below
    synced: list[tuple[int, int]] = field(
        default_factory=list
    )  # flushes returned: a power cut loses nothing below
    durable_starts: list[tuple[int, int]] = field(default_factory=list)  # deleted for good below
    allowed_starts: list[tuple[int, int]] = field(default_factory=list)  # policy or a client let this much go
    producers_from: int = 0  # batches below it are not what producers are known from
    replaces: Version | None = None  # a swap of segments is under way: what comes in now belongs to both

    def floor(self, operations: int, *, with_cache: bool = False) -> int:
        """Everything below must be found."""
        promised = _latest_max(self.synced, operations, self.first_offset)
        return max(promised, _latest_max(self.written, operations, 0)) if with_cache else promised

    def durable_start(self, operations: int) -> int:
        return _latest_max(self.durable_starts, operations, self.first_offset)

    def allowed_start(self, operations: int) -> int:
        return _latest_max(self.allowed_starts, operations, self.first_offset)

    def visible(self, start: int, end: int) -> list[Stored]:
        return [batch.stored for batch in self.batches if start <= batch.stored.last_offset < end]

    def ends(self) -> set[int]:
        """Where the log may end."""
        return {self.first_offset, *(batch.stored.last_offset + 1 for batch in self.batches)}

    def first_at(self, timestamp: int, start: int, end: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record as late as `timestamp` within [start, end)."""
        for batch in self.batches:
            for time, offset in batch.times:
                if time >= timestamp and start <= offset < end:
                    return time, offset
        return None

    def producers(self, end: int) -> ProducerState:
        state = ProducerState()
        for batch in self.batches:
            if self.producers_from <= batch.stored.last_offset < end and batch.header.producer_id >= 0:
                state.append(batch.header, batch.stored.base_offset, batch.stored.last_offset)
        return state

    def size_from(self, offset: int) -> int:
        return sum(batch.header.size for batch in self.batches if batch.stored.base_offset >= offset)


@dataclass(slots=True)
class Incarnation:
    """One life of a partition, from its creation to its deletion; a topic of the same name made later is another."""

    key: TopicPartition
    topic_id: bytes
    config: LogConfig
    begun: int
    versions: list[Version]
    created: int | None = None
    removing: int | None = None
    removed: int | None = None
    cache_unsound: int | None = None  # since a sync of its files failed, the page cache vouches for nothing

    @property
    def current(self) -> Version:
        return self.versions[-1]

    def candidates(self, operations: int) -> list[Version]:
        """What a crash after so many operations may leave, newest first."""
        found: list[Version] = []
        for version in reversed(self.versions):
            if version.begun <= operations:
                found.append(version)
                if version.done is not None and version.done <= operations:
                    break
        return found

    def keeps_cache(self, operations: int, *, killed: bool) -> bool:
        """What was written is there, synced or not."""
        return killed and (self.cache_unsound is None or operations < self.cache_unsound)

    def may_be_there(self, operations: int) -> bool:
        return self.begun <= operations and (self.removed is None or operations < self.removed)

    def must_be_there(self, operations: int, *, killed: bool) -> bool:
        """A partition is made without a sync: a power cut may take it until its first flush is done, a kill may not."""
        return self.is_complete(operations, killed=killed) and (
            self.removing is None or operations <= self.removing
        )

    def is_complete(self, operations: int, *, killed: bool) -> bool:
        """All that a partition is made of must be found, its id included."""
        if (
            self.keeps_cache(operations, killed=killed)
            and self.created is not None
            and self.created <= operations
        ):
            return True
        return any(
            any(at <= operations and (not number or at > version.begun) for at, _ in version.synced)
            or any(at <= operations and offset > 0 for at, offset in version.durable_starts)
            or (number > 0 and version.done is not None and version.done <= operations)
            for number, version in enumerate(self.versions)
        )


class Ledger:
    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, list[Incarnation]] = {}
        self.sent_to: dict[bytes, set[bytes]] = {}  # topic id -> every payload addressed to it
        self._obligations: list[int] = []

    def judged_by(self, operations: int) -> int:
        """Equal for crashes of which the same is demanded; what may be found besides only grows."""
        return bisect_right(self._obligations, operations)

    def incarnation(self, key: TopicPartition) -> Incarnation:
        return self.partitions[key][-1]

    def version(self, key: TopicPartition) -> Version:
        return self.incarnation(key).current

    def topic_id_at(self, topic: str, operations: int) -> bytes | None:
        """What the metadata would say: the newest topic of that name which was being made by then."""
        found = [
            (incarnation.begun, incarnation.topic_id)
            for (name, _), lives in self.partitions.items()
            for incarnation in lives
            if name == topic and incarnation.begun <= operations
        ]
        return max(found)[1] if found else None

    # ---- partitions

    def creating(self, key: TopicPartition, topic_id: bytes, config: LogConfig, now: int) -> None:
        first = Version(now, now)
        self.partitions.setdefault(key, []).append(Incarnation(key, topic_id, config, now, [first]))
        self.sent_to.setdefault(topic_id, set())

    def created(self, key: TopicPartition, now: int) -> None:
        self.incarnation(key).created = now
        self._owe(now)

    def removing(self, key: TopicPartition, now: int) -> None:
        self.incarnation(key).removing = now

    def removed(self, key: TopicPartition, now: int) -> None:
        self.incarnation(key).removed = now
        self._owe(now)

    def sync_failed(self, key: TopicPartition, now: int) -> None:
        incarnation = self.incarnation(key)
        if incarnation.cache_unsound is None:
            incarnation.cache_unsound = now

    # ---- content

    def _growing(self, key: TopicPartition) -> list[Version]:
        current = self.version(key)
        return (
            [current] if current.replaces is None or current.done is not None else [current, current.replaces]
        )

    def sending(self, key: TopicPartition, batch: Sent) -> None:
        incarnation = self.incarnation(key)
        for version in self._growing(key):
            version.batches.append(batch)
        self.sent_to[incarnation.topic_id].add(batch.stored.payload)

    def refused(self, key: TopicPartition, now: int) -> None:
        """The last batch did not get in. Its bytes may have touched the disk, and are sure to be gone after the next sync."""
        self.cutting(key, self.version(key).batches[-1].stored.base_offset, now)

    def written(self, key: TopicPartition, end_offset: int, now: int) -> None:
        for version in self._growing(key):
            version.written.append((now, end_offset))

    def synced(self, key: TopicPartition, end_offset: int, now: int) -> None:
        for version in self._growing(key):
            version.synced.append((now, end_offset))
            if version.done is None and version.replaces is None:
                version.done = now
        self._owe(now)

    def may_start_at(self, key: TopicPartition, offset: int, now: int) -> None:
        for version in self._growing(key):
            version.allowed_starts.append((now, offset))

    def starts_durably_at(self, key: TopicPartition, offset: int, now: int) -> None:
        for version in self._growing(key):
            version.durable_starts.append((now, offset))
        self._owe(now)

    def cutting(self, key: TopicPartition, end_offset: int, now: int) -> None:
        """A truncation begins: nothing at or above `end_offset` will remain."""
        before = self.version(key)
        kept = [batch for batch in before.batches if batch.stored.last_offset < end_offset]
        end = kept[-1].stored.last_offset + 1 if kept else before.first_offset
        self._replacing(key, before, kept, end, now)

    def replacing(self, key: TopicPartition, batches: list[Sent], now: int) -> None:
        """Segments are being swapped: the same offsets, in other batches."""
        before = self.version(key)
        self._replacing(key, before, batches, 1 << 62, now)
        self.version(key).replaces = before
        self.sent_to[self.incarnation(key).topic_id].update(batch.stored.payload for batch in batches)

    def starting_anew(self, key: TopicPartition, offset: int, now: int) -> None:
        """The log is being emptied, to begin at `offset`."""
        self.incarnation(key).versions.append(
            Version(now, None, offset, allowed_starts=[(now, offset)], producers_from=offset)
        )

    def undone(self, key: TopicPartition, now: int) -> None:
        """The swap of segments that is under way will not be: the version before it stays. What it wrote may lie about."""
        replaced = self.version(key).replaces
        assert replaced is not None
        self.incarnation(key).versions.pop()
        self._owe(now)

    def settled(self, key: TopicPartition, now: int) -> None:
        """The newest version is there to stay."""
        self.version(key).done = now
        self._owe(now)

    def _replacing(
        self, key: TopicPartition, before: Version, batches: list[Sent], end_offset: int, now: int
    ) -> None:
        floor = before.floor(now)
        self.incarnation(key).versions.append(
            Version(
                now,
                None,
                before.first_offset,
                list(batches),
                written=[(at, min(offset, end_offset)) for at, offset in before.written],
                synced=[(now, min(floor, end_offset))] if before.synced else [],
                durable_starts=list(before.durable_starts),
                allowed_starts=list(before.allowed_starts),
                producers_from=before.producers_from,
            )
        )

    def _owe(self, now: int) -> None:
        insort(self._obligations, now)


def _latest_max(pairs: list[tuple[int, int]], operations: int, least: int) -> int:
    return max((offset for at, offset in pairs if at <= operations), default=least)
