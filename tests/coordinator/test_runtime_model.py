"""Any sequence of requests, commits that come late or never, refusals, and leaders that come and go.

Three promises: everybody is answered exactly once, in order, and not before a crash could no longer take back what the answer rests on;
what a shard holds is what its log says, at every step (I36).
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.coordinator.runtime_world import (
    FakeJournal,
    Question,
    StoredLog,
    TinyShard,
    Told,
    World,
    get,
    park,
    put,
    release,
    reloaded,
)
from tidelog.coordinator.outcome import Now, Outcome, answered
from tidelog.wire.error_codes import ErrorCode as E

PARTITIONS = st.integers(0, 1)
NAMES = st.sampled_from("abc")
NUMBERS = st.none() | st.integers(0, 9)
RECORDS = st.lists(st.tuples(NAMES, NUMBERS), max_size=3)
REFUSALS = st.sampled_from(
    [E.MESSAGE_TOO_LARGE, E.NOT_ENOUGH_REPLICAS, E.NOT_LEADER_OR_FOLLOWER, E.KAFKA_STORAGE_ERROR]
)


class Coordinators(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(lead=False, chunk_bytes=200)
        self.world.on_answer = self.check_answer
        self.logs = [StoredLog(), StoredLog()]
        self.journals: list[FakeJournal | None] = [None, None]
        self.epochs = [-1, -1]
        self.asked: list[tuple[int, Question]] = []
        self.partition_of: dict[int, int] = {}
        self.latest: dict[int, int] = {}  # of the answers of each shard, by the shard's identity
        self.shards: list[TinyShard] = []
        self.world.make_shard = self.make_shard
        self.asks_again = False

    def make_shard(self, partition: int) -> TinyShard:
        shard = TinyShard(partition)
        self.shards.append(shard)
        return shard

    def ask(self, partition: int, handler: Callable[..., Outcome]) -> None:
        def seen(shard: TinyShard, waiter: Question, now: Now) -> Outcome:
            self.partition_of[id(waiter)] = partition
            return handler(shard, waiter, now)

        self.asked.append((partition, self.world.ask(seen, partition)))

    def check_answer(self, question: Question) -> None:
        assert len(question.answers) == 1
        answer = question.answers[0]
        if not isinstance(answer, Told):
            return
        partition = self.partition_of[id(question)]
        assert answer.rests_on <= self.logs[partition].high_watermark
        serving = self.world.runtime.shard(partition)
        assert serving is not None
        assert answer.number > self.latest.get(id(serving), 0)
        self.latest[id(serving)] = answer.number
        if self.asks_again:
            self.asks_again = False
            self.ask(partition, get("a"))

    # ---- requests

    @rule(partition=PARTITIONS, records=RECORDS, careful=st.booleans())
    def write(self, partition: int, records: list[tuple[str, int | None]], careful: bool) -> None:
        def handler(shard: TinyShard, waiter: Question, now: Now) -> Outcome:
            def failed(code: E, now: Now) -> Outcome:
                return answered(waiter, code)

            return put(*records, on_failed=failed if careful else None)(shard, waiter, now)

        self.ask(partition, handler)

    @rule(partition=PARTITIONS, name=NAMES)
    def read(self, partition: int, name: str) -> None:
        self.ask(partition, get(name))

    @rule(partition=PARTITIONS)
    def wait(self, partition: int) -> None:
        self.ask(partition, park)

    @rule(partition=PARTITIONS, records=RECORDS)
    def let_go(self, partition: int, records: list[tuple[str, int | None]]) -> None:
        self.ask(partition, release(*records))

    @rule(partition=PARTITIONS, delay_ms=st.integers(0, 3000), records=RECORDS, name=NAMES)
    def plan(self, partition: int, delay_ms: int, records: list[tuple[str, int | None]], name: str) -> None:
        def handler(shard: TinyShard, waiter: Question, now: Now) -> Outcome:
            shard.timers.schedule(name, now.ms + delay_ms, lambda now: release(*records)(shard, None, now))
            return get(name)(shard, waiter, now)

        self.ask(partition, handler)

    @rule()
    def ask_again_when_answered(self) -> None:
        self.asks_again = True

    # ---- the log

    @rule(partition=PARTITIONS, part=st.integers(1, 4))
    def commit(self, partition: int, part: int) -> None:
        journal, log = self.journals[partition], self.logs[partition]
        if journal is not None:
            behind = log.end_offset - log.high_watermark
            journal.commit(log.end_offset - behind // part * (part - 1))

    @rule(partition=PARTITIONS, at_once=st.booleans())
    def change_when_it_commits(self, partition: int, at_once: bool) -> None:
        journal = self.journals[partition]
        if journal is not None:
            journal.commits_at_once = at_once

    @rule(partition=PARTITIONS)
    def fail_to_commit(self, partition: int) -> None:
        journal = self.journals[partition]
        if journal is not None:
            journal.fail(E.NOT_LEADER_OR_FOLLOWER)

    @rule(code=REFUSALS, partition=PARTITIONS)
    def refuse(self, code: E, partition: int) -> None:
        journal = self.journals[partition]
        if journal is not None and not journal.refusals:
            self.world.journal = journal
            self.world.refuse_next(code)

    # ---- leadership and time

    @rule(partition=PARTITIONS, truncate=st.booleans())
    def lead(self, partition: int, truncate: bool) -> None:
        self.resign(partition)
        if truncate:
            self.logs[partition].truncate()
        self.epochs[partition] += 1
        journal = self.journals[partition] = FakeJournal(self.logs[partition])
        self.world.runtime.become_leader(partition, self.epochs[partition], journal)

    @rule(partition=PARTITIONS)
    def resign(self, partition: int) -> None:
        self.epochs[partition] += 1
        self.world.runtime.resign(partition, self.epochs[partition])
        self.journals[partition] = None

    @rule(partition=PARTITIONS, by=st.integers(0, 2))
    def hear_old_news(self, partition: int, by: int) -> None:
        epoch = self.epochs[partition] - by
        self.world.runtime.become_leader(partition, epoch, FakeJournal(StoredLog()))
        self.world.runtime.resign(partition, epoch - 1)

    @rule()
    def load_some(self) -> None:
        self.world.runtime.load_some(self.world.now)

    @rule()
    def load(self) -> None:
        self.world.load()

    @rule(ms=st.integers(0, 5000))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    # ---- what must hold

    @invariant()
    def what_a_shard_holds_is_what_its_log_says(self) -> None:
        for partition, log in enumerate(self.logs):
            shard = self.world.runtime.shard(partition)
            if shard is not None:
                assert shard.persistent_state() == reloaded(log).persistent_state()

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """Who is not answered waits for a commit or for somebody else, and a shard is there that knows of it."""
        for partition, question in self.asked:
            if question.answers:
                continue
            shard, journal = self.world.runtime.shard(partition), self.journals[partition]
            assert shard is not None
            assert journal is not None
            assert question in shard.parked or journal.waiting

    def teardown(self) -> None:
        self.asks_again = False
        for partition in (0, 1):
            self.resign(partition)
        assert all(len(question.answers) == 1 for _, question in self.asked)


TestCoordinators = Coordinators.TestCase
TestCoordinators.settings = settings(max_examples=60, stateful_step_count=40)
