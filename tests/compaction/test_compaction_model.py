"""Any history of keyed records, tombstones and transactions, and any sequence of cleanings, held against a list of what was sent.

I28: the latest committed value of every key survives, order and offsets unchanged. I29: a tombstone outlives `delete.retention.ms` after it
became clean, and no deleted key comes back. I30: a marker stays while anything of its transaction does, and until its horizon. I31:
nothing at or above the bound is touched. I33: what a read_committed consumer gets is what it got before, modulo superseded keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.compaction.compaction_world import RETENTION_MS, Raw, World
from tidelog.records.compaction import SLOT_BYTES
from tidelog.records.compression import Codec
from tidelog.records.record import Record
from tidelog.storage import files
from tidelog.storage.cleaner_job import Limits
from tidelog.storage.cleaner_plan import cleanable
from tidelog.storage.producer_state import ProducerState
from tidelog.storage.replay import apply_stored, stored_batches
from tidelog.testing.sim.storage_checks import producers_of

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"a longer key of more than sixteen bytes"])
VALUES = st.sampled_from([None, b"", b"1", b"2" * 120])
ENTRIES = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4)
IDEMPOTENT = (11, 12)
TRANSACTIONAL = (21, 22)


@dataclass
class Transaction:
    producer: int
    offsets: list[int] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)
    marker: int | None = None
    committed: bool = False
    empty_since: int | None = None  # the first cleaning that found nothing of it began then


class Sent:
    """One record, as it was sent."""

    def __init__(self, record: Record, transaction: Transaction | None) -> None:
        self.record = record
        self.transaction = transaction
        self.clean_since: int | None = None

    @property
    def is_committed(self) -> bool:
        return self.transaction is None or self.transaction.committed


class Compaction(RuleBasedStateMachine):
    world: World

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.sent: dict[int, Sent] = {}
        self.open: dict[int, Transaction] = {}
        self.ended: list[Transaction] = []

    # ---- what happens

    def _note(
        self, base: int, entries: list[tuple[bytes, bytes | None]], transaction: Transaction | None
    ) -> None:
        for number, (key, value) in enumerate(entries):
            record = Record(base + number, self.world.now_ms, key, value, (("h", b"x"),))
            self.sent[base + number] = Sent(record, transaction)
            if transaction is not None:
                transaction.offsets.append(base + number)

    @rule(
        entries=ENTRIES, codec=st.sampled_from(list(Codec)), producer=st.sampled_from((-1, -1, *IDEMPOTENT))
    )
    def put(self, entries: list[tuple[bytes, bytes | None]], codec: Codec, producer: int) -> None:
        self._note(self.world.put(*entries, codec=codec, producer=producer), entries, None)

    @rule(entries=ENTRIES, codec=st.sampled_from(list(Codec)), producer=st.sampled_from(TRANSACTIONAL))
    def put_in_transaction(
        self, entries: list[tuple[bytes, bytes | None]], codec: Codec, producer: int
    ) -> None:
        transaction = self.open.setdefault(producer, Transaction(producer))
        base = self.world.put(*entries, codec=codec, producer=producer, transactional=True)
        transaction.bases.append(base)
        self._note(base, entries, transaction)

    @precondition(lambda self: self.open)
    @rule(commit=st.booleans(), data=st.data())
    def end_transaction(self, commit: bool, data: st.DataObject) -> None:
        producer = data.draw(st.sampled_from(sorted(self.open)))
        transaction = self.open.pop(producer)
        transaction.marker = self.world.end_transaction(producer, commit=commit)
        transaction.committed = commit
        self.ended.append(transaction)

    @rule()
    def seal(self) -> None:
        self.world.seal()

    @rule(milliseconds=st.sampled_from([1, RETENTION_MS // 2, RETENTION_MS]))
    def time_passes(self, milliseconds: int) -> None:
        self.world.clock.advance(milliseconds)

    @rule(clean=st.booleans(), lose_indexes=st.booleans())
    def restart(self, clean: bool, lose_indexes: bool) -> None:
        """Without transaction indexes the cleaner must come to the same results (I4)."""
        self.world.restart(clean=clean, losing=files.TXN_INDEX if lose_indexes else "")

    @rule(
        slots=st.sampled_from([2, 3, 4, 1000]),
        output_bytes_max=st.sampled_from([300, 1 << 30]),
        buffer_bytes=st.sampled_from([0, 500, 1 << 20]),
    )
    def clean(self, slots: int, output_bytes_max: int, buffer_bytes: int) -> None:
        world, log = self.world, self.world.log
        found = cleanable(log, world.now_ms)
        before = world.batches()
        committed_before = world.committed()
        for transaction in self.ended:
            if transaction.empty_since is None and not self._batches_of(transaction, before):
                transaction.empty_since = world.now_ms
        cleaned = world.clean(
            Limits(map_bytes=slots * SLOT_BYTES, output_bytes_max=output_bytes_max, buffer_bytes=buffer_bytes)
        )
        if cleaned is None:
            return
        after = world.batches()
        i31_nothing_above_the_bound_is_touched(before, after, found.end_offset)
        assert cleaned.end_offset <= found.end_offset <= log.last_stable_offset
        self._i33_only_superseded_records_are_gone(committed_before, cleaned.end_offset)
        self._i29_tombstones_stay_long_enough(before, after)
        self._i30_markers_stay_long_enough(before, after)
        for offset, sent in self.sent.items():
            if offset < cleaned.end_offset and sent.clean_since is None:
                sent.clean_since = world.now_ms
        self._it_was_worth_it(cleaned.end_offset)
        if slots > 4:
            assert cleaned.end_offset == found.end_offset and not cleaned.passes_needed

    # ---- what must hold after a cleaning

    def _batches_of(self, transaction: Transaction, batches: list[Raw]) -> list[int]:
        return [raw.header.base_offset for raw in batches if raw.header.base_offset in transaction.bases]

    def _i33_only_superseded_records_are_gone(self, before: list[Record], end_offset: int) -> None:
        after = self.world.committed()
        kept = {record.offset for record in after}
        assert after == [record for record in before if record.offset in kept]
        for record in before:
            if record.offset in kept:
                continue
            later = [
                sent
                for offset, sent in self.sent.items()
                if offset > record.offset and sent.record.key == record.key and sent.is_committed
            ]
            superseded = any(sent.record.offset < end_offset for sent in later)
            assert record.offset < end_offset
            assert superseded or record.value is None, f"{record} is gone"

    def _i29_tombstones_stay_long_enough(self, before: list[Raw], after: list[Raw]) -> None:
        kept = {record.offset for raw in after if not raw.header.is_control for record in raw.records}
        for raw in before:
            for record in raw.records if not raw.header.is_control else ():
                sent = self.sent[record.offset]
                if record.offset in kept or record.value is not None or not sent.is_committed:
                    continue
                if self._latest(record.key, below=self.world.log.cleaned_to) is not sent:
                    continue
                assert sent.clean_since is not None, f"{record} went with the cleaning that met it first"
                assert self.world.now_ms - sent.clean_since >= RETENTION_MS, f"{record} went too early"

    def _i30_markers_stay_long_enough(self, before: list[Raw], after: list[Raw]) -> None:
        there = {raw.header.base_offset for raw in after if raw.header.is_control}
        was_there = {raw.header.base_offset for raw in before if raw.header.is_control}
        for transaction in self.ended:
            marker = transaction.marker
            if marker in was_there and marker not in there:
                assert transaction.empty_since is not None, "a marker went with its data, or before it"
                assert self.world.now_ms - transaction.empty_since >= RETENTION_MS

    def _it_was_worth_it(self, end_offset: int) -> None:
        """Below the end each key is there once, and nothing of an aborted transaction."""
        keys: list[bytes | None] = []
        for record in self.world.records():
            if record.offset < end_offset:
                assert self.sent[record.offset].is_committed
                keys.append(record.key)
        assert len(keys) == len(set(keys))

    def _latest(self, key: bytes | None, *, below: int) -> Sent | None:
        found = [
            sent
            for offset, sent in self.sent.items()
            if offset < below and sent.record.key == key and sent.is_committed
        ]
        return found[-1] if found else None

    # ---- what must hold at any time

    @invariant()
    def i28_the_latest_committed_value_of_each_key_is_there(self) -> None:
        log = self.world.log
        stable = log.last_stable_offset
        found = self.world.committed()
        assert all(self.sent[record.offset].record == record for record in found), "order, offsets, contents"
        assert [record.offset for record in found] == sorted({record.offset for record in found})
        latest = {record.key: record for record in found}
        for key in {sent.record.key for sent in self.sent.values()}:
            sent = self._latest(key, below=stable)
            if sent is not None and sent.record.value is not None:
                assert latest.get(key) == sent.record
            elif sent is not None:
                assert latest.get(key) in (None, sent.record), "a deleted key is back"

    @invariant()
    def i30_no_batch_is_without_its_marker(self) -> None:
        batches = self.world.batches()
        markers = {raw.header.base_offset for raw in batches if raw.header.is_control}
        for transaction in self.ended:
            assert transaction.marker in markers or not self._batches_of(transaction, batches)

    @invariant()
    def i39_producers_are_known_from_the_batches_alone(self) -> None:
        log = self.world.log
        state = ProducerState()
        for segment, position, header in stored_batches(log.segments, 0, log.log_end_offset):
            apply_stored(state, segment, position, header)
        derived, known = producers_of(state), producers_of(log.producers)
        for producer, (epoch, next_sequence, batches) in known.items():
            assert derived[producer][:2] == (epoch, next_sequence)
            # Timestamps aside: that of a rebuilt batch is the latest of what stayed in it.
            assert [batch[:3] for batch in derived[producer][2]] == [batch[:3] for batch in batches]
        assert state.first_undecided_offset == log.producers.first_undecided_offset

    @invariant()
    def the_log_is_where_it_was(self) -> None:
        log = self.world.log
        assert log.log_start_offset == 0
        assert log.cleaned_to <= log.last_stable_offset
        assert not [
            name
            for name in self.world.disk.list_dir(self.world.directory)
            if ".cleaned" in name or ".swap" in name
        ]


def i31_nothing_above_the_bound_is_touched(before: list[Raw], after: list[Raw], bound: int) -> None:
    def above(batches: list[Raw]) -> list[bytes]:
        return [raw.data for raw in batches if raw.header.base_offset >= bound]

    assert above(before) == above(after)


Compaction.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestCompaction = Compaction.TestCase
