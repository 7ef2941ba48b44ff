"""The leader epoch cache against the log itself: one epoch per record, searched naively."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidelog.storage.epoch_cache import EpochEntry, LeaderEpochCache


class EpochModel(RuleBasedStateMachine):
    """The model is the epoch of every record in the log, plus the epochs assigned at its end without a record yet."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = LeaderEpochCache()
        self.starts: list[tuple[int, int]] = []
        self.log_start = 0
        self.epochs: dict[int, int] = {}  # offset -> epoch
        self.end = 0

    @rule(rise=st.integers(0, 3), count=st.integers(1, 4))
    def append(self, rise: int, count: int) -> None:
        epoch = (self.starts[-1][0] if self.starts else 0) + rise
        if not self.starts or epoch > self.starts[-1][0]:
            if self.starts and self.starts[-1][1] >= self.end:
                self.starts.pop()  # that leader wrote nothing
            self.starts.append((epoch, self.end))
        for _ in range(count):
            self.cache.assign(epoch, self.end)
            self.epochs[self.end] = epoch
            self.end += 1

    @rule(data=st.data())
    def truncate_end(self, data: st.DataObject) -> None:
        self.end = data.draw(st.integers(self.log_start, self.end))
        self.epochs = {offset: epoch for offset, epoch in self.epochs.items() if offset < self.end}
        self.starts = [entry for entry in self.starts if entry[1] < self.end]
        self.cache.truncate_from_end(self.end)

    @rule(data=st.data())
    def truncate_start(self, data: st.DataObject) -> None:
        if self.end == self.log_start:
            return
        self.log_start = data.draw(st.integers(self.log_start, self.end - 1))
        self.epochs = {offset: epoch for offset, epoch in self.epochs.items() if offset >= self.log_start}
        ended = [entry for entry in self.starts if entry[1] <= self.log_start]
        if ended:
            self.starts = [(ended[-1][0], self.log_start), *self.starts[len(ended) :]]
        self.cache.truncate_from_start(self.log_start)

    @rule(epoch=st.integers(0, 40))
    def ask(self, epoch: int) -> None:
        below = [e for e in set(self.epochs.values()) if e <= epoch]
        above = [offset for offset, e in self.epochs.items() if e > epoch]
        latest = max(self.epochs.values(), default=None)
        answer = self.cache.end_offset_for(epoch, self.end)
        if epoch == latest:
            assert answer == (epoch, self.end)
        elif not above:
            assert answer == (-1, -1)
        else:
            assert answer == (max(below) if below else epoch, min(above))

    @invariant()
    def same_as_the_log(self) -> None:
        assert self.cache.checkpoint_entries() == self.starts
        assert self.cache.latest_epoch == (self.starts[-1][0] if self.starts else None)
        assert len(self.cache) == len(self.starts)
        for offset, epoch in self.epochs.items():
            assert self.cache.epoch_for_offset(offset) == epoch
        assert LeaderEpochCache(self.cache.checkpoint_entries()).checkpoint_entries() == self.starts


TestEpochModel = EpochModel.TestCase
TestEpochModel.settings = settings(max_examples=80, stateful_step_count=25)


def cache() -> LeaderEpochCache:
    return LeaderEpochCache([(2, 10), (5, 30), (6, 45)])


def test_end_offsets_follow_kip_279() -> None:
    assert cache().end_offset_for(6, 60) == (6, 60)
    assert cache().end_offset_for(5, 60) == (5, 45)
    assert cache().end_offset_for(4, 60) == (2, 30)  # the largest epoch not above the asked one
    assert cache().end_offset_for(1, 60) == (1, 10)  # before everything known
    assert cache().end_offset_for(7, 60) == (-1, -1)
    assert cache().end_offset_for(-1, 60) == (-1, -1)
    assert LeaderEpochCache().end_offset_for(0, 60) == (-1, -1)


def test_only_changes_make_it_dirty() -> None:
    epochs = cache()
    assert not epochs.dirty
    epochs.assign(6, 46)
    epochs.truncate_from_end(60)
    epochs.truncate_from_start(10)
    assert not epochs.dirty
    epochs.assign(7, 60)
    assert epochs.dirty
    for change in (
        lambda e: e.truncate_from_end(45),
        lambda e: e.truncate_from_start(11),
        LeaderEpochCache.clear,
    ):
        epochs = cache()
        change(epochs)
        assert epochs.dirty


def test_contradicting_entries_give_way_to_the_newest() -> None:
    for epoch, offset, expected in (
        (5, 20, [(2, 10), (5, 20)]),
        (4, 50, [(2, 10), (4, 50)]),
        (9, 30, [(2, 10), (9, 30)]),
        (9, 5, [(9, 5)]),
        (6, 44, [(2, 10), (5, 30), (6, 44)]),
    ):
        epochs = cache()
        epochs.assign(epoch, offset)
        assert epochs.checkpoint_entries() == expected


def test_edges() -> None:
    epochs = cache()
    assert epochs.latest == EpochEntry(6, 45)
    assert epochs.earliest == EpochEntry(2, 10)
    assert epochs.epoch_for_offset(9) is None
    assert epochs.previous_epoch(6) == 5
    assert epochs.previous_epoch(2) is None
    for bad in ((-1, 5), (3, -1)):
        with pytest.raises(ValueError, match="cannot start"):
            epochs.assign(*bad)
        with pytest.raises(ValueError, match="cannot start"):
            LeaderEpochCache().assign(*bad)
    epochs.clear()
    assert (epochs.latest, epochs.earliest, epochs.latest_epoch) == (None, None, None)
