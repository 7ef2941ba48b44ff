"""A coordinator runtime over logs in memory that commit when the test says so, and a shard small enough to see through.

The shard keeps numbers by name. Its log holds real batches, so that loading reads what a broker's disk would hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidelog.coordinator.outcome import CoordinatorRecord, Now, Outcome, Waiter, answered
from tidelog.coordinator.runtime import Runtime
from tidelog.coordinator.timers import Timers
from tidelog.errors import CorruptDataError, RequestError
from tidelog.records.batch import HEADER_SIZE, NO_PRODUCER_ID, Buffer, read_header
from tidelog.records.builder import BatchBuilder
from tidelog.records.compression import Codec
from tidelog.records.control import build_end_transaction_marker
from tidelog.wire.error_codes import ErrorCode

NOBODYS = "nobody's"


def encoded(text: object) -> bytes:
    return json.dumps(text).encode()


def decode(key: Buffer, value: Buffer | None) -> CoordinatorRecord | None:
    try:
        name = json.loads(bytes(key))
        number = None if value is None else json.loads(bytes(value))
    except ValueError as error:
        raise CorruptDataError(str(error)) from error
    return None if name == NOBODYS else CoordinatorRecord(name, number)


@dataclass(slots=True)
class StoredLog:
    """Batches on a disk that outlives journals."""

    batches: list[bytes] = field(default_factory=list)
    end_offset: int = 0
    high_watermark: int = 0
    start_offset: int = 0

    def add(self, batch: bytes) -> int:
        self.batches.append(batch)
        self.end_offset = read_header(batch).next_offset
        return self.end_offset - 1

    def write(
        self,
        *records: tuple[object, object],
        codec: Codec = Codec.NONE,
        producer_id: int = NO_PRODUCER_ID,
    ) -> int:
        """One batch; `None` as value is a tombstone."""
        builder = BatchBuilder(
            codec=codec,
            base_offset=self.end_offset,
            producer_id=producer_id,
            producer_epoch=0 if producer_id != NO_PRODUCER_ID else -1,
            is_transactional=producer_id != NO_PRODUCER_ID,
        )
        for key, value in records:
            builder.append(0, encoded(key), None if value is None else encoded(value))
        return self.add(builder.build())

    def mark(self, producer_id: int, *, commit: bool) -> None:
        self.add(
            build_end_transaction_marker(
                commit=commit,
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=0,
                base_offset=self.end_offset,
            )
        )

    def commit_all(self) -> None:
        self.high_watermark = self.end_offset

    def truncate(self) -> None:
        """What was not committed is gone, as after a crash."""
        while self.batches and read_header(self.batches[-1]).base_offset >= self.high_watermark:
            self.batches.pop()
        self.end_offset = read_header(self.batches[-1]).next_offset if self.batches else 0


class FakeJournal:
    """Commits at once, or when told to; refuses what it is told to refuse."""

    def __init__(self, log: StoredLog, *, commits_at_once: bool = False) -> None:
        self.log = log
        self.commits_at_once = commits_at_once
        self.refusals: list[Exception] = []
        self.reads: list[int] = []
        self.waiting: list[tuple[int, Callable[[ErrorCode], None]]] = []

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    def append(self, records: Sequence[CoordinatorRecord], now: Now) -> int:
        if self.refusals:
            raise self.refusals.pop(0)
        offset = self.log.write(*records)
        if self.commits_at_once:
            self.commit()  # whoever waits for earlier ones is called from in here
        return offset

    def when_committed(self, offset: int, done: Callable[[ErrorCode], None]) -> None:
        if offset < self.log.high_watermark:
            done(ErrorCode.NONE)
        else:
            self.waiting.append((offset, done))

    def read(self, offset: int, max_bytes: int) -> Buffer:
        self.reads.append(offset)
        chunk = b""
        for batch in self.log.batches:
            if len(batch) < HEADER_SIZE or read_header(batch).last_offset >= offset:
                if chunk and len(chunk) + len(batch) > max_bytes:
                    break
                chunk += batch
        return chunk

    def commit(self, up_to: int | None = None) -> None:
        self.log.high_watermark = self.log.end_offset if up_to is None else up_to
        while self.waiting and self.waiting[0][0] < self.log.high_watermark:
            self.waiting.pop(0)[1](ErrorCode.NONE)

    def fail(self, code: ErrorCode) -> None:
        waiting, self.waiting = self.waiting, []
        for _, done in waiting:
            done(code)


class TinyShard:
    def __init__(self, partition: int = 0) -> None:
        self.partition = partition
        self.timers = Timers()
        self.numbers: dict[Any, Any] = {}
        self.staged: dict[int, dict[Any, Any]] = {}
        self.applied = 0
        self.parked: list[Waiter] = []
        self.outcomes = 0
        self.when_loaded: Callable[[TinyShard, Now], Outcome] | None = None

    def replay(self, record: CoordinatorRecord, producer_id: int = NO_PRODUCER_ID) -> None:
        self.applied += 1
        if record.key == "unreplayable":
            raise RuntimeError("a record that replay cannot stand")
        if producer_id != NO_PRODUCER_ID:
            self.staged.setdefault(producer_id, {})[record.key] = record.value
        elif record.value is None:
            self.numbers.pop(record.key, None)
        else:
            self.numbers[record.key] = record.value

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        staged = self.staged.pop(producer_id, {})
        if committed:
            self.numbers.update(staged)

    def loaded(self, now: Now) -> Outcome:
        return Outcome() if self.when_loaded is None else self.when_loaded(self, now)

    def persistent_state(self) -> dict[str, Any]:
        return {"numbers": self.numbers, "staged": self.staged}


class Told(NamedTuple):
    """An answer of the shard: what it says, and how much of the log it rests on."""

    text: object
    rests_on: int
    number: int


def tell(shard: TinyShard, text: object, records: int = 0) -> Told:
    shard.outcomes += 1
    return Told(text, shard.applied + records, shard.outcomes)


def put(*records: tuple[object, object], on_failed: Any = None) -> Callable[..., Outcome]:
    """Write these, and say "written"."""

    def handle(shard: TinyShard, waiter: Waiter, now: Now) -> Outcome:
        written = [CoordinatorRecord(*record) for record in records]
        outcome = Outcome(written, on_failed=on_failed)
        return outcome.answer(waiter, tell(shard, "written", len(written)))

    return handle


def get(name: object) -> Callable[..., Outcome]:
    return lambda shard, waiter, now: answered(waiter, tell(shard, shard.numbers.get(name)))


def park(shard: TinyShard, waiter: Waiter, now: Now) -> Outcome:
    """Answered by somebody else's outcome, as a JoinGroup is."""
    shard.parked.append(waiter)
    return Outcome()


def release(*records: tuple[object, object]) -> Callable[..., Outcome]:
    """Write these; all who are parked hear of it, then whoever asked."""

    def handle(shard: TinyShard, waiter: Waiter | None, now: Now) -> Outcome:
        outcome = Outcome([CoordinatorRecord(*record) for record in records])
        parked, shard.parked = shard.parked, []
        for each in [*parked, waiter]:
            if each is not None:
                outcome.answer(each, tell(shard, "released", len(records)))
        return outcome

    return handle


class Question:
    """Compared by identity, like the waiters of a broker."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers: list[Any] = []

    def __repr__(self) -> str:
        return self.name

    @property
    def answer(self) -> Any:
        (only,) = self.answers
        return only.text if isinstance(only, Told) else only


class World:
    """One runtime; `log` and `journal` are those of partition 0."""

    def __init__(self, *, commits_at_once: bool = False, lead: bool = True, **options: Any) -> None:
        self.ms = 1000
        self.given: list[Question] = []
        self.lost: list[tuple[int, str]] = []
        self.asked = 0
        self.on_answer: Callable[[Question], None] = lambda question: None
        self.make_shard: Callable[[int], TinyShard] = TinyShard
        self.runtime: Runtime[TinyShard] = Runtime(
            lambda partition: self.make_shard(partition),
            decode,
            self._deliver,
            on_lost=lambda partition, reason: self.lost.append((partition, reason)),
            **options,
        )
        self.log = StoredLog()
        self.journal = FakeJournal(self.log, commits_at_once=commits_at_once)
        if lead:
            self.runtime.become_leader(0, 0, self.journal)
            self.load()

    @property
    def now(self) -> Now:
        return Now(self.ms, 1_700_000_000_000 + self.ms)

    @property
    def shard(self) -> TinyShard:
        shard = self.runtime.shard(0)
        assert shard is not None, "partition 0 does not serve"
        return shard

    def load(self) -> None:
        while self.runtime.load_some(self.now):
            pass

    def ask(self, handler: Callable[..., Outcome], partition: int = 0) -> Question:
        self.asked += 1
        question = Question(f"question {self.asked}")
        self.runtime.submit(partition, handler, question, lambda code: code, self.now)
        return question

    def pass_time(self, ms: int) -> None:
        self.ms += ms
        self.runtime.expire(self.now)

    def refuse_next(self, code: ErrorCode) -> None:
        self.journal.refusals.append(RequestError(code))

    def _deliver(self, waiter: Waiter, response: Any) -> None:
        waiter.answers.append(response)
        self.given.append(waiter)
        self.on_answer(waiter)


def reloaded(log: StoredLog) -> TinyShard:
    """A fresh shard that has replayed the log from its bytes."""
    world = World(lead=False)
    world.runtime.become_leader(0, 0, FakeJournal(log))
    world.load()
    return world.shard
