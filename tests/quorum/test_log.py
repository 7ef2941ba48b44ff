"""Log and snapshots as one history: what is made of the two after a crash between them, and what a leader tells of where its log begins (I15, M16)."""

from __future__ import annotations

from random import Random

import pytest

from tidelog.errors import CorruptDataError
from tidelog.quorum.log import QuorumLog, open_history
from tidelog.quorum.snapshot_store import SnapshotStore
from tidelog.quorum.values import LogEnd, SnapshotId
from tidelog.records.batch import read_header
from tidelog.records.builder import BatchBuilder
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.recovery import open_log
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.quorum_node import encode_snapshot

DIRECTORY = "/data/__cluster_metadata-0"
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100, delete_policy=False, file_delete_delay_ms=0)


def opened(disk: SimDisk) -> Log:
    return open_log(disk, DIRECTORY, "__cluster_metadata", 0, config=CONFIG, now_ms=0)


def batch(offset: int, epoch: int) -> bytes:
    builder = BatchBuilder(base_offset=offset, partition_leader_epoch=epoch)
    builder.append(0, None, b"value")
    return builder.build()


def log_of(*epochs: int) -> Log:
    """One record for each epoch named, and all of it durable."""
    log = opened(SimDisk(Random(1)))
    for epoch in epochs:
        record = batch(log.log_end_offset, epoch)
        log.append_as_leader(record, read_header(record), leader_epoch=epoch, now_ms=0)
    log.flush()
    return log


def add_snapshot(log: Log, snapshot: SnapshotId) -> None:
    """As if it had been fetched, and the process had died right then."""
    store = SnapshotStore(log.disk, log.directory)
    store.write_part(snapshot, 0, encode_snapshot(bytes(16), snapshot.epoch, 0))
    store.install(snapshot)


def after_power_loss(log: Log) -> QuorumLog:
    disk = log.disk
    assert isinstance(disk, SimDisk)
    return open_history(opened(disk.crash("lose_unsynced")), now_ms=0)


def test_a_snapshot_within_the_log_changes_nothing() -> None:
    log = log_of(1, 1, 2, 2)
    add_snapshot(log, SnapshotId(3, 2))
    history = after_power_loss(log)
    assert (history.start_offset, history.end) == (0, LogEnd(2, 4))


def test_a_log_that_ends_before_its_snapshot_begins_where_that_ends() -> None:
    log = log_of(1, 1)
    add_snapshot(log, SnapshotId(9, 3))
    history = after_power_loss(log)
    assert (history.start_offset, history.end) == (9, LogEnd(3, 9))
    assert history.high_watermark == 9
    again = after_power_loss(history.log)
    assert (again.start_offset, again.end) == (9, LogEnd(3, 9))


def test_a_log_that_went_another_way_before_the_snapshot_ends_is_thrown_away() -> None:
    """Its records of epoch 1 were never committed: at offset 3 the quorum has records of epoch 2."""
    log = log_of(1, 1, 1, 1, 1, 1)
    add_snapshot(log, SnapshotId(4, 2))
    history = after_power_loss(log)
    assert (history.start_offset, history.end) == (4, LogEnd(2, 4))


def test_a_name_that_only_the_page_cache_knows_is_made_durable_before_the_log_is_thrown_away() -> None:
    log = log_of(1, 1)
    store = SnapshotStore(log.disk, log.directory)
    content = encode_snapshot(bytes(16), 3, 0)
    disk = log.disk
    assert isinstance(disk, SimDisk)
    path = store.path(SnapshotId(9, 3))
    file = disk.open(path, create=True)
    file.write_at([content], 0)
    file.sync()  # and killed before the directory was synced
    open_history(opened(disk.crash("keep_all")), now_ms=0)
    killed = disk.crash("keep_all")
    history = open_history(opened(killed), now_ms=0)
    assert history.end == LogEnd(3, 9)
    assert open_history(opened(killed.crash("lose_unsynced")), now_ms=0).end == LogEnd(3, 9)


def test_a_log_that_begins_behind_every_snapshot_is_refused() -> None:
    log = log_of(1, 1)
    log.truncate_fully_and_start_at(20, now_ms=0)
    add_snapshot(log, SnapshotId(9, 1))
    with pytest.raises(CorruptDataError, match="no snapshot covers"):
        after_power_loss(log)


def test_two_snapshots_are_kept_and_the_log_from_the_older_one_on() -> None:
    log = log_of(*[1] * 12)
    history = open_history(log, now_ms=0)
    log.set_high_watermark(12)
    for end_offset in (3, 6, 9):
        snapshot = SnapshotId(end_offset, 1)
        add_snapshot(log, snapshot)
        history.snapshot_taken(snapshot, now_ms=0)
    assert history.snapshots.known == [SnapshotId(6, 1), SnapshotId(9, 1)]
    assert history.start_offset == 6
    assert history.epoch_before_start() == 1
    assert not log.disk.exists(history.snapshots.path(SnapshotId(3, 1)))


def test_pieces_that_were_never_finished_go_at_the_next_start() -> None:
    log = log_of(1)
    store = SnapshotStore(log.disk, log.directory)
    store.write_part(SnapshotId(9, 1), 0, b"half")
    part = store.path(SnapshotId(9, 1)) + ".part"
    assert log.disk.exists(part)
    assert SnapshotStore(log.disk, log.directory).known == []
    assert not log.disk.exists(part)


@pytest.mark.parametrize("harm", ["cut", "flipped", "empty", "no footer"])
def test_a_snapshot_that_is_not_sound_is_not_installed(harm: str) -> None:
    log = log_of(1)
    store = SnapshotStore(log.disk, log.directory)
    content = bytearray(encode_snapshot(bytes(16), 1, 0))
    if harm == "cut":
        del content[-1:]
    elif harm == "flipped":
        content[len(content) // 2] ^= 1
    elif harm == "no footer":
        position = int.from_bytes(content[8:12], "big") + 12
        del content[position + int.from_bytes(content[position + 8 : position + 12], "big") + 12 :]
    else:
        content.clear()
    store.write_part(SnapshotId(9, 1), 0, bytes(content))
    with pytest.raises(CorruptDataError):
        store.install(SnapshotId(9, 1))
    assert store.known == []
    assert not log.disk.exists(store.path(SnapshotId(9, 1)) + ".part")


@pytest.mark.parametrize(
    ("epoch", "offset"),
    [(2, 5), (2, 3), (1, 4)],
    ids=["a gap", "an offset again", "an epoch that falls"],
)
def test_what_a_leader_sends_must_go_on_where_the_log_ends(epoch: int, offset: int) -> None:
    history = open_history(log_of(1, 1, 1, 2), now_ms=0)
    with pytest.raises(CorruptDataError):
        history.append_fetched(batch(offset, epoch), epoch=2, now_ms=0)
    with pytest.raises(CorruptDataError, match="in epoch 2"):
        history.append_fetched(batch(4, 3), epoch=2, now_ms=0)
    assert history.end == LogEnd(2, 4)
    history.append_fetched(batch(4, 2), epoch=2, now_ms=0)
    assert history.end == LogEnd(2, 5)


def test_a_log_is_never_cut_below_what_is_committed() -> None:
    log = log_of(1, 1, 1, 1)
    history = open_history(log, now_ms=0)
    log.set_high_watermark(3)
    history.truncate_to(3)
    with pytest.raises(AssertionError, match="below its high watermark"):
        history.truncate_to(2)
