"""Producer state: retries are recognised, gaps refused, stale producers and coordinators fenced (I39, I40, I43)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidelog.errors import RequestError
from tidelog.records.batch import BatchHeader
from tidelog.storage.producer_snapshot import decode_snapshot, encode_snapshot
from tidelog.storage.producer_state import CompletedTransaction, Duplicate, ProducerState
from tidelog.wire.error_codes import ErrorCode

LAST = 2**31 - 1


def header(
    producer_id: int,
    epoch: int,
    sequence: int,
    count: int = 1,
    *,
    transactional: bool = False,
    timestamp: int = 1000,
) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        batch_length=100,
        partition_leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=0x10 if transactional else 0,
        last_offset_delta=count - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )


class Partition:
    """A log that keeps only what it must answer: offsets."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.end = 0

    def send(self, batch: BatchHeader) -> tuple[int, bool]:
        """(first offset, was it a duplicate)"""
        duplicate = self.state.check(batch)
        if duplicate is not None:
            assert duplicate.last_offset - duplicate.first_offset == batch.last_offset_delta
            return duplicate.first_offset, True
        first = self.end
        self.end += batch.last_offset_delta + 1
        self.state.append(batch, first, self.end - 1)
        self.state.end_offset = self.end
        return first, False

    def end_transaction(
        self, producer_id: int, epoch: int, *, aborted: bool = False, coordinator: int = 0, version: int = 0
    ) -> CompletedTransaction | None:
        self.state.check_marker(
            producer_id, producer_epoch=epoch, coordinator_epoch=coordinator, transaction_version=version
        )
        offset = self.end
        self.end += 1
        return self.state.append_marker(
            producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator,
            aborted=aborted,
            offset=offset,
            timestamp=1000,
        )

    def refuses(self, batch: BatchHeader) -> ErrorCode:
        with pytest.raises(RequestError) as refusal:
            self.state.check(batch)
        return refusal.value.code


# -- rule by rule -------------------------------------------------------------------------------------------------------


def test_a_batch_without_producer_id_leaves_no_trace() -> None:
    partition = Partition()
    partition.send(header(-1, -1, -1))
    partition.send(header(-1, -1, -1))
    assert len(partition.state) == 0


def test_sequences_must_follow() -> None:
    partition = Partition()
    partition.send(header(1, 0, 0, 3))
    partition.send(header(1, 0, 3, 2))
    assert partition.refuses(header(1, 0, 6)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.refuses(header(1, 0, 4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.send(header(1, 0, 5)) == (5, False)


def test_the_last_five_batches_are_recognised_and_no_more() -> None:
    partition = Partition()
    for sequence in range(6):
        partition.send(header(1, 0, sequence, timestamp=sequence))
    assert partition.refuses(header(1, 0, 0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for sequence in range(1, 6):
        assert partition.state.check(header(1, 0, sequence)) == Duplicate(sequence, sequence, sequence)
    # The same first sequence but another length is not a retry.
    assert partition.refuses(header(1, 0, 3, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unknown_producer_may_begin_anywhere() -> None:
    partition = Partition()
    assert partition.send(header(1, 4, 1234)) == (0, False)
    assert partition.refuses(header(1, 4, 1236)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_around() -> None:
    partition = Partition()
    partition.send(header(1, 0, LAST - 1, 1))
    partition.send(header(1, 0, LAST, 1))
    assert partition.send(header(1, 0, 0, 2)) == (2, False)
    assert partition.send(header(1, 0, LAST, 1)) == (1, True)

    partition = Partition()
    partition.send(header(2, 0, LAST - 1, 5))  # sequences LAST-1, LAST, 0, 1, 2
    assert partition.send(header(2, 0, LAST - 1, 5)) == (0, True)
    assert partition.refuses(header(2, 0, 0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.send(header(2, 0, 3)) == (5, False)


def test_a_new_epoch_begins_at_zero_and_fences_the_old() -> None:
    partition = Partition()
    partition.send(header(1, 3, 0, 4))
    assert partition.refuses(header(1, 4, 4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    partition.send(header(1, 4, 0))
    assert partition.refuses(header(1, 3, 4)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert (
        partition.refuses(header(1, 3, 0, 4)) is ErrorCode.INVALID_PRODUCER_EPOCH
    )  # not even as a duplicate
    assert partition.send(header(1, 4, 1)) == (5, False)


def test_replicas_take_the_leaders_word() -> None:
    """What is in the leader's log is applied unchecked, whatever its sequence or epoch."""
    state = ProducerState()
    state.append(header(1, 5, 10), 0, 0)
    state.append(header(1, 5, 99), 1, 1)
    state.append(header(1, 4, 7), 2, 2)
    entry = state.get(1)
    assert entry is not None
    assert (entry.producer_epoch, entry.last_sequence, entry.last_offset) == (4, 7, 2)


def test_refusals_carry_the_numbers() -> None:
    partition = Partition()
    partition.send(header(77, 3, 0, 4))
    with pytest.raises(
        RequestError, match=r"producer 77 epoch 3 sent sequence 9, expected is 4 .*epoch 3, sequence 3"
    ):
        partition.state.check(header(77, 3, 9))
    with pytest.raises(RequestError, match=r"producer 77 has epoch 2, the partition has seen epoch 3"):
        partition.state.check(header(77, 2, 4))


# -- transactions -------------------------------------------------------------------------------------------------------


def test_the_first_unstable_offset_waits_for_marker_and_high_watermark() -> None:
    partition = Partition()
    state = partition.state
    partition.send(header(9, 0, 0))
    assert state.first_unstable_offset is None
    partition.send(header(1, 0, 0, 2, transactional=True))  # 1, 2
    partition.send(header(2, 0, 0, 1, transactional=True))  # 3
    partition.send(header(1, 0, 2, 1, transactional=True))  # 4
    assert state.first_unstable_offset == 1
    assert partition.end_transaction(2, 0, aborted=True) == (2, 3, 5, True)
    assert state.first_unstable_offset == 1
    completed = partition.end_transaction(1, 0)
    assert completed == CompletedTransaction(1, 1, 6, False)
    assert state.first_undecided_offset is None
    assert state.first_unstable_offset == 1  # both markers may still be lost with this leader
    state.high_watermark_moved(6)
    assert state.first_unstable_offset == 1  # marker 6 is not below 6
    state.high_watermark_moved(7)
    assert state.first_unstable_offset is None


def test_the_transaction_index_entry_records_the_last_stable_offset() -> None:
    partition = Partition()
    partition.send(header(1, 0, 0, transactional=True))
    partition.send(header(2, 0, 0, transactional=True))
    first = partition.end_transaction(1, 0, aborted=True)
    assert first is not None
    assert partition.state.last_stable_offset_after(first) == 1  # producer 2 is still open from there
    second = partition.end_transaction(2, 0, aborted=True)
    assert second is not None
    assert partition.state.last_stable_offset_after(second) == 4


def test_a_marker_for_nothing_completes_nothing_but_fences() -> None:
    partition = Partition()
    assert partition.end_transaction(1, 5, coordinator=3) is None
    assert partition.state.first_unstable_offset is None
    assert partition.refuses(header(1, 4, 0)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert partition.refuses(header(1, 5, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.send(header(1, 5, 0)) == (1, False)


def test_data_outside_an_open_transaction_is_refused() -> None:
    partition = Partition()
    partition.send(header(1, 0, 0, transactional=True))
    assert partition.refuses(header(1, 0, 1)) is ErrorCode.INVALID_TXN_STATE
    assert partition.send(header(1, 0, 0, transactional=True)) == (0, True)
    partition.end_transaction(1, 0)
    partition.send(header(1, 0, 1))


def test_stale_markers_are_fenced() -> None:
    partition = Partition()
    partition.send(header(1, 7, 0, transactional=True))
    with pytest.raises(RequestError) as refusal:
        partition.end_transaction(1, 6)
    assert refusal.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    partition.end_transaction(1, 7, coordinator=4)
    with pytest.raises(RequestError) as refusal:
        partition.end_transaction(1, 7, coordinator=3)
    assert refusal.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert partition.end_transaction(1, 7, coordinator=4) is None


def test_from_version_two_on_a_marker_must_raise_the_epoch() -> None:
    """A late marker of the previous transaction must not end the one that is open now (KIP-890)."""
    partition = Partition()
    partition.send(header(1, 7, 0, transactional=True))
    with pytest.raises(RequestError) as refusal:
        partition.end_transaction(1, 7, version=2)
    assert refusal.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert partition.end_transaction(1, 8, version=2) is not None
    assert partition.end_transaction(1, 8, version=2) is None  # the retry of that marker
    partition.send(header(1, 8, 0, transactional=True))
    partition = Partition()
    partition.send(header(1, 32767, 0, transactional=True))
    assert partition.end_transaction(1, 32767, version=2) is not None  # there is no higher epoch


# -- forgetting ---------------------------------------------------------------------------------------------------------


def test_silent_producers_expire_unless_their_transaction_is_open() -> None:
    partition = Partition()
    partition.send(header(1, 0, 0, timestamp=100))
    partition.send(header(2, 0, 0, timestamp=101))
    partition.send(header(3, 0, 0, timestamp=100, transactional=True))
    assert partition.state.expire(1100, 1000) == 1
    assert [entry.producer_id for entry in partition.state] == [2, 3]
    assert partition.send(header(1, 0, 55)) == (3, False)


def test_producers_outlive_their_deleted_records() -> None:
    partition = Partition()
    partition.send(header(1, 0, 0, 5))
    partition.state.log_start_moved(5)
    assert partition.send(header(1, 0, 0, 5)) == (0, True)
    partition.state.log_start_moved(9)
    assert partition.state.end_offset == 9


def test_reload_restores_open_transactions_in_offset_order() -> None:
    partition = Partition()
    for producer_id in (5, 3, 4):
        partition.send(header(producer_id, 0, 0, transactional=True))
    copy = ProducerState()
    copy.reload(decode_snapshot(encode_snapshot(reversed(list(partition.state))), "f"), partition.end)
    assert (copy.first_unstable_offset, copy.end_offset) == (0, 3)
    copy.append_marker(5, producer_epoch=0, coordinator_epoch=0, aborted=False, offset=3, timestamp=1)
    copy.high_watermark_moved(4)
    assert copy.first_unstable_offset == 1
    copy.reload([], 0)
    assert (len(copy), copy.first_unstable_offset, copy.end_offset) == (0, None, 0)


def test_the_check_is_cheap() -> None:
    """Budget 1.5 µs per in-order batch; ten times that here, for a busy machine."""
    partition = Partition()
    partition.send(header(1, 0, 0))
    batch = header(1, 0, 1)
    check = partition.state.check
    best = float("inf")
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(1000):
            check(batch)
        best = min(best, time.perf_counter() - begin)
    assert best / 1000 < 15e-6


# -- any history --------------------------------------------------------------------------------------------------------


@dataclass
class Known:
    """What the model remembers: every batch of the epoch, and where the open transaction began."""

    epoch: int
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # first sequence, count, first offset
    open_since: int | None = None


class ProducerModel(RuleBasedStateMachine):
    """Producers that send, retry, skip and come back with new epochs, restarts in between; against whole histories."""

    ids = st.integers(1, 3)

    def __init__(self) -> None:
        super().__init__()
        self.partition = Partition()
        self.known: dict[int, Known] = {}
        self.unreplicated: list[tuple[int, int]] = []  # first offset, marker

    def next_sequence(self, known: Known) -> int:
        if not known.batches:
            return 0
        first, count, _ = known.batches[-1]
        return (first + count) % 2**31

    def expect(self, batch: BatchHeader) -> tuple[int, bool] | ErrorCode:
        known = self.known.get(batch.producer_id)
        count = batch.last_offset_delta + 1
        if known is None:
            return self.partition.end, False
        if batch.producer_epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        same = batch.producer_epoch == known.epoch
        for first, size, offset in reversed(known.batches[-5:] if same else []):
            if (first, size) == (batch.base_sequence, count):
                return offset, True
        if batch.base_sequence != (self.next_sequence(known) if same else 0):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if known.open_since is not None and not batch.attributes & 0x10:
            return ErrorCode.INVALID_TXN_STATE
        return self.partition.end, False

    def deliver(self, batch: BatchHeader) -> None:
        expected = self.expect(batch)
        if isinstance(expected, ErrorCode):
            assert self.partition.refuses(batch) is expected
            return
        assert self.partition.send(batch) == expected
        offset, duplicate = expected
        if duplicate:
            return
        known = self.known.setdefault(batch.producer_id, Known(batch.producer_epoch))
        if batch.producer_epoch != known.epoch:
            known.epoch, known.batches = batch.producer_epoch, []
        known.batches.append((batch.base_sequence, batch.last_offset_delta + 1, offset))
        if batch.attributes & 0x10 and known.open_since is None:
            known.open_since = offset

    @rule(producer_id=ids, count=st.integers(1, 4), transactional=st.booleans())
    def send_next(self, producer_id: int, count: int, transactional: bool) -> None:
        known = self.known.get(producer_id)
        epoch, sequence = (known.epoch, self.next_sequence(known)) if known else (0, LAST - 5)
        self.deliver(header(producer_id, epoch, sequence, count, transactional=transactional))

    @rule(producer_id=ids, back=st.integers(1, 7), transactional=st.booleans())
    def retry(self, producer_id: int, back: int, transactional: bool) -> None:
        known = self.known.get(producer_id)
        if known and len(known.batches) >= back:
            first, count, _ = known.batches[-back]
            self.deliver(header(producer_id, known.epoch, first, count, transactional=transactional))

    @rule(
        producer_id=ids,
        epoch=st.integers(0, 4),
        sequence=st.one_of(st.integers(0, 8), st.integers(LAST - 8, LAST)),
        count=st.integers(1, 4),
    )
    def send_anything(self, producer_id: int, epoch: int, sequence: int, count: int) -> None:
        self.deliver(header(producer_id, epoch, sequence, count))

    @rule(producer_id=ids, aborted=st.booleans(), bump=st.booleans())
    def end_transaction(self, producer_id: int, aborted: bool, bump: bool) -> None:
        known = self.known.setdefault(producer_id, Known(0))
        if bump:
            known.epoch, known.batches = known.epoch + 1, []
        marker = self.partition.end
        completed = self.partition.end_transaction(producer_id, known.epoch, aborted=aborted)
        if known.open_since is None:
            assert completed is None
            return
        assert completed == (producer_id, known.open_since, marker, aborted)
        self.unreplicated.append((known.open_since, marker))
        known.open_since = None

    @rule(lag=st.integers(0, 5))
    def replicate(self, lag: int) -> None:
        high_watermark = max(0, self.partition.end - lag)
        self.partition.state.high_watermark_moved(high_watermark)
        self.unreplicated = [pair for pair in self.unreplicated if pair[1] >= high_watermark]

    @rule()
    def restart(self) -> None:
        entries = decode_snapshot(encode_snapshot(self.partition.state), "f")
        self.partition.state.reload(entries, self.partition.end)
        self.unreplicated = []

    @invariant()
    def nothing_unstable_is_exposed(self) -> None:
        starts = [known.open_since for known in self.known.values() if known.open_since is not None]
        starts += [first for first, _ in self.unreplicated]
        assert self.partition.state.first_unstable_offset == min(starts, default=None)


TestProducerModel = ProducerModel.TestCase
TestProducerModel.settings = settings(max_examples=80, stateful_step_count=40)
