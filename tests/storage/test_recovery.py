"""Opening a log after any kind of stop: what is kept, what is cut, what is reported, what comes back (I2, I3, I4, I6)."""

from __future__ import annotations

from random import Random

import pytest

from tests.storage.log_world import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    Stored,
    append,
    append_many,
    make_batch,
    open_orders,
    producers_of,
    read_all,
)
from tidelog.errors import CorruptDataError
from tidelog.records.batch import HEADER_SIZE
from tidelog.storage.disk import read_file
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.recovery import open_log
from tidelog.testing.sim.disk import SimDisk

ONE_SEGMENT = LogConfig(index_interval_bytes=200)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(Random(1))


def filled(disk: SimDisk, count: int = 20, config: LogConfig = SMALL) -> tuple[Log, list[Stored]]:
    """A flushed log with idempotent batches under two leader epochs."""
    log = open_orders(disk, config)
    for number in range(count):
        batch = make_batch(
            (NOW_MS + number,), producer_id=1 + number % 2, producer_epoch=0, sequence=number // 2
        )
        append(log, batch, leader_epoch=number // 12)
    log.flush()
    return log, read_all(log)


def answers(log: Log) -> dict[str, object]:
    """Everything a log can be asked."""
    return {
        "batches": read_all(log),
        "offsets": [
            read_all(log, start=offset)[0].base_offset
            for offset in range(log.log_start_offset, log.log_end_offset)
        ],
        "times": [log.offset_for_timestamp(NOW_MS + number) for number in range(-1, 25)],
        "latest": log.max_timestamp_offset(),
        "epochs": log.epochs.checkpoint_entries(),
        "producers": producers_of(log.producers),
        "ends": (log.log_start_offset, log.log_end_offset),
    }


# ---- torn ends


def test_a_torn_last_batch_is_cut_wherever_it_was_torn(disk: SimDisk) -> None:
    log, batches = filled(disk, 6, ONE_SEGMENT)
    path = log.active.file.path
    whole = read_file(disk, path)
    start = len(whole) - len(batches[-1].payload) - 16
    for size in range(start, len(whole)):
        for garbage in (b"", bytes(100), b"\xff" * 100):
            torn = disk.crash("keep_all")
            torn.open(path).truncate(size)
            torn.open(path).write_at((garbage,), size)
            if read_file(torn, path).startswith(whole):
                continue  # the lost bytes were zeroes
            again = open_orders(torn, ONE_SEGMENT, recovery_point=3)
            assert read_all(again) == batches[:5]
            assert torn.file_size(path) == start
            assert [cut.position for cut in again.recovery.cuts] == (
                [start] if size > start or garbage else []
            )
            assert not again.recovery.damages


def test_what_follows_a_torn_segment_above_the_recovery_point_goes_too(disk: SimDisk) -> None:
    log, batches = filled(disk)
    middle = log.segments[1]
    disk.flip_bit(middle.file.path, middle.size - 1)
    crashed = disk.crash("keep_all")
    again = open_orders(crashed, recovery_point=2)
    assert again.log_end_offset == log.segments[2].base_offset - 1
    assert read_all(again) == batches[: again.log_end_offset]
    assert len(again.recovery.cuts) == 1 + len(log.segments) - 2
    assert not any(
        name.startswith(f"{log.segments[2].base_offset:020d}") for name in crashed.list_dir(DIRECTORY)
    )


def test_a_missing_tail_of_a_sealed_segment_is_not_papered_over(disk: SimDisk) -> None:
    """The batches end where the file does, so only the next segment's name tells that something is gone."""
    log, batches = filled(disk)
    first = log.segments[0]
    last = batches[log.segments[1].base_offset - 1]
    disk.open(first.file.path).truncate(first.size - len(last.payload) - 16)
    again = open_orders(disk.crash("keep_all"), recovery_point=0)
    assert read_all(again) == batches[: last.base_offset]
    assert "are missing before it" in again.recovery.lines()[0]


def test_a_batch_of_an_older_epoch_behind_the_end_is_a_leftover(disk: SimDisk) -> None:
    log, _ = filled(disk, 6, ONE_SEGMENT)
    path = log.active.file.path
    append(log, make_batch(), leader_epoch=5)
    size = disk.file_size(path)
    disk.open(path).write_at((make_batch(base_offset=7, leader_epoch=3),), size)
    again = open_orders(disk.crash("keep_all"), ONE_SEGMENT)
    assert again.log_end_offset == 7
    assert "leader epoch 3 after 5" in again.recovery.lines()[0]


# ---- damage below the recovery point


@pytest.mark.parametrize("where", ["payload", "header"])
def test_damage_in_synced_data_is_kept_and_reported_and_what_follows_stays(disk: SimDisk, where: str) -> None:
    log, batches = filled(disk)
    victim = batches[2]
    position = log.segments[0].find(victim.base_offset)[0]  # type: ignore[index]
    path = log.segments[0].file.path
    if where == "payload":
        disk.flip_bit(path, position + 70)
    else:
        disk.corrupt(path, position, b"\xee" * 40)
    before = read_file(disk, path)
    again = open_orders(disk.crash("keep_all"), recovery_point=4)
    damage = again.recovery.damages[0]
    assert (damage.path, damage.position, damage.first_offset) == (path, position, 2)
    assert damage.end_offset == 3
    assert again.recovery.lost_synced_data
    assert read_file(again.disk, path) == before  # type: ignore[arg-type]
    assert again.log_end_offset == log.log_end_offset
    assert read_all(again, start=3) == batches[3:]
    if where == "header":
        with pytest.raises(CorruptDataError):
            again.read(2, 1, end_offset=20)


def test_harm_that_ends_within_the_next_base_offset_gives_no_offset_to_another_batch(disk: SimDisk) -> None:
    """The CRC does not cover it: zeroed, the second batch seems to be the first."""
    log, batches = filled(disk)
    second = log.segments[0].find(batches[1].base_offset)[0]  # type: ignore[index]
    disk.corrupt(log.segments[0].file.path, 0, bytes(second + 8))
    again = open_orders(disk.crash("keep_all"), recovery_point=4)
    damage = again.recovery.damages[0]
    assert (damage.first_offset, damage.end_offset) == (0, batches[2].base_offset)
    assert read_all(again, start=damage.end_offset) == batches[2:]


def test_an_active_segment_that_ends_in_damage_gets_a_successor_and_no_offset_twice(disk: SimDisk) -> None:
    log, batches = filled(disk, 6, ONE_SEGMENT)
    path = log.active.file.path
    position = log.active.find(4)[0]  # type: ignore[index]
    disk.corrupt(path, position, bytes(log.active.size - position))
    crashed = disk.crash("keep_all")
    again = open_orders(crashed, ONE_SEGMENT, recovery_point=6)
    assert again.log_end_offset == 6
    assert [segment.base_offset for segment in again.segments] == [0, 6]
    assert (again.recovery.damages[0].first_offset, again.recovery.damages[0].end_offset) == (4, 6)
    assert read_all(again, end=4) == batches[:4]
    assert append(again, leader_epoch=5).base_offset == 6
    # The broker may decide to fetch the damaged part again from another replica.
    assert again.truncate_to(4)
    assert (again.log_end_offset, read_all(again)) == (4, batches[:4])
    assert append(again, leader_epoch=5).base_offset == 4


def test_a_file_that_ends_before_synced_data_is_reported(disk: SimDisk) -> None:
    log, batches = filled(disk, 6, ONE_SEGMENT)
    disk.open(log.active.file.path).truncate(log.active.find(4)[0])  # type: ignore[index]
    crashed = disk.crash("keep_all")
    again = open_orders(crashed, ONE_SEGMENT, recovery_point=6)
    assert again.recovery.lost_synced_data
    assert (again.log_end_offset, again.recovery_point) == (4, 4)
    # What is appended now was never synced: the old recovery point must not vouch for it after the next crash.
    append(again, leader_epoch=5)
    torn = crashed.crash("keep_all")
    torn.open(log.active.file.path).truncate(again.active.size - 1)
    third = open_orders(torn, ONE_SEGMENT, recovery_point=6)
    assert (third.log_end_offset, third.recovery.damages) == (4, [])
    assert read_all(third) == batches[:4]


def test_a_marker_of_a_clean_stop_is_not_believed_against_the_files(disk: SimDisk) -> None:
    log, _ = filled(disk, 6, ONE_SEGMENT)
    log.close_cleanly()
    disk.open(log.active.file.path).truncate(log.active.size - 3)
    again = open_orders(disk, ONE_SEGMENT, clean=True, recovery_point=6)
    assert not again.recovery.clean
    assert again.recovery.lost_synced_data


@pytest.mark.parametrize("mask", [0xFF, 0x01, 0x04, 0x80])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("indexed", [False, True], ids=["short", "indexed"])
def test_a_byte_of_a_header_costs_one_batch_and_no_other(
    disk: SimDisk, clean: bool, indexed: bool, mask: int
) -> None:
    """Wherever in the header it is. What stands behind it stays readable, and nothing that is appended later is written over it."""
    config = ONE_SEGMENT if indexed else LogConfig()
    log = open_orders(disk, config)
    append_many(log, 20)
    log.flush()
    batches = read_all(log)
    log.close_cleanly()
    path = log.active.file.path
    if not indexed:  # as a small log is left that never had indexes
        for name in disk.list_dir(DIRECTORY):
            if not name.endswith(".log"):
                disk.remove(f"{DIRECTORY}/{name}")
    whole = read_file(disk, path)
    position = sum(len(batch.payload) + 16 for batch in batches[:10])
    for byte in range(HEADER_SIZE):
        harmed = disk.crash("keep_all")
        harmed.open(path).write_at([bytes([whole[position + byte] ^ mask])], position + byte)
        again = open_orders(harmed, config, clean=clean, recovery_point=len(batches))
        for known in (not (clean and indexed), True):  # a clean start looks at the end of a log only
            assert again.log_end_offset >= len(batches), byte
            for number, batch in enumerate(batches):
                if number != 10 and known:
                    assert read_all(again, start=number, end=number + 1) == [batch], (byte, number)
            append(again, make_batch(value=b"new"))
            again.flush()
            again.close_cleanly()
            again = open_orders(harmed, config, clean=False, recovery_point=again.log_end_offset)


@pytest.mark.parametrize("epochs", [(-1, -1, 0, 1), (0, -1, 0, 1), (-1, 0, -1, -1)])
def test_batches_without_a_leader_epoch_contradict_nobody(disk: SimDisk, epochs: tuple[int, ...]) -> None:
    """Old releases wrote none. A small log is opened by its batches, after a clean stop and after any other."""
    batches = [make_batch(base_offset=number, leader_epoch=epoch) for number, epoch in enumerate(epochs)]
    disk.make_dir("/data")
    disk.make_dir(DIRECTORY)
    disk.open(f"{DIRECTORY}/00000000000000000000.log", create=True).write_at(batches, 0)
    for clean in (True, False):
        log = open_orders(disk.crash("keep_all"), LogConfig(), clean=clean, recovery_point=len(epochs))
        assert (log.log_end_offset, log.recovery.damages) == (len(epochs), [])
        assert log.recovery.clean == clean
        assert all(entry[0] >= 0 for entry in log.epochs.checkpoint_entries())


# ---- derived files


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "kind", [".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint"]
)
@pytest.mark.parametrize("harm", ["removed", "emptied", "torn", "flipped"])
def test_derived_files_come_back(disk: SimDisk, clean: bool, kind: str, harm: str) -> None:
    log, _ = filled(disk)
    expected = answers(log)
    log.close_cleanly()
    for name in disk.list_dir(DIRECTORY):
        path = f"{DIRECTORY}/{name}"
        size = disk.file_size(path)
        if not name.endswith(kind):
            continue
        if harm == "removed":
            disk.remove(path)
        elif harm == "emptied":
            disk.open(path).truncate(0)
        elif harm == "torn":
            disk.open(path).truncate(size - size // 3)
        elif size:
            disk.flip_bit(path, size // 2)
    if harm == "flipped" and kind == "leader-epoch-checkpoint":
        pytest.skip("Kafka's text format has no checksum: one digit for another cannot be seen")
    again = open_orders(disk, clean=clean, recovery_point=20)
    assert answers(again) == expected
    assert not again.recovery.damages


def test_everything_but_the_logs_may_go(disk: SimDisk) -> None:
    log, _ = filled(disk)
    expected = answers(log)
    log.close_cleanly()
    for name in disk.list_dir(DIRECTORY):
        if not name.endswith(".log"):
            disk.remove(f"{DIRECTORY}/{name}")
    for clean in (True, False):
        assert answers(open_orders(disk.crash("keep_all"), clean=clean, recovery_point=20)) == expected


def test_the_last_of_several_snapshots_may_be_broken(disk: SimDisk) -> None:
    log, _ = filled(disk)
    log.close_cleanly()
    snapshots = [name for name in disk.list_dir(DIRECTORY) if name.endswith(".snapshot")]
    assert len(snapshots) > 2
    for name in snapshots[1:]:
        disk.flip_bit(f"{DIRECTORY}/{name}", 12)
    again = open_orders(disk, clean=True, recovery_point=20)
    assert producers_of(again.producers) == producers_of(log.producers)


def test_a_snapshot_of_data_that_is_gone_is_removed(disk: SimDisk) -> None:
    log, _ = filled(disk, 6, ONE_SEGMENT)
    position = log.active.find(3)[0]  # type: ignore[index]
    log.close_cleanly()
    disk.open(log.active.file.path).truncate(position)
    open_orders(disk, ONE_SEGMENT)
    assert not disk.exists(f"{DIRECTORY}/{6:020d}.snapshot")


# ---- leftovers


def test_leftovers_are_put_away(disk: SimDisk) -> None:
    log, batches = filled(disk)
    log.close_cleanly()
    junk = [
        "00000000000000000003.log.deleted",
        "00000000000000000003.index.deleted",
        "00000000000000000009.log.cleaned",
        "leader-epoch-checkpoint.tmp",
        "00000000000000000777.index",
        "00000000000000000777.timeindex",
    ]
    for name in (*junk, "notes.txt"):
        disk.open(f"{DIRECTORY}/{name}", create=True).write_at((b"x" * 80,), 0)
    again = open_orders(disk, clean=True, recovery_point=20)
    assert read_all(again) == batches
    names = disk.list_dir(DIRECTORY)
    assert not set(junk) & set(names)
    assert "notes.txt" in names


def swap_ready(disk: SimDisk) -> tuple[list[Stored], list[int]]:
    """The output of a cleaner that merged the first two segments, ready to replace them."""
    log, batches = filled(disk)
    log.close_cleanly()
    bases = [segment.base_offset for segment in log.segments]
    merged = b"".join(read_file(disk, segment.file.path) for segment in log.segments[:2])
    file = disk.open(f"{DIRECTORY}/{0:020d}.log.swap", create=True)
    file.write_at((merged,), 0)
    file.sync()
    disk.sync_dir(DIRECTORY)
    return batches, bases


def test_a_finished_swap_is_completed(disk: SimDisk) -> None:
    batches, bases = swap_ready(disk)
    again = open_orders(disk, clean=True, recovery_point=20)
    assert read_all(again) == batches
    assert [segment.base_offset for segment in again.segments] == [bases[0], *bases[2:]]


def test_a_crash_while_a_swap_is_completed_changes_nothing(disk: SimDisk) -> None:
    """I32: whatever survives, the next start finds old or new segments, never a mix or a gap."""
    batches, _ = swap_ready(disk)
    before = disk.crash("lose_unsynced")
    before.start_recording()
    open_orders(before, clean=True, recovery_point=20)
    count = 0
    for state in before.crash_states(subsets_up_to=4):
        count += 1
        assert read_all(open_orders(state.disk, clean=True, recovery_point=20)) == batches, state.label
    assert count > 20


def test_an_unfinished_split_is_thrown_away(disk: SimDisk) -> None:
    """KAFKA-6264: a `.swap` above a `.cleaned` is half of a split; the old segments are still whole."""
    batches, bases = swap_ready(disk)
    disk.rename(f"{DIRECTORY}/{0:020d}.log.swap", f"{DIRECTORY}/{bases[1]:020d}.log.swap")
    disk.open(f"{DIRECTORY}/{0:020d}.log.cleaned", create=True)
    again = open_orders(disk, clean=True, recovery_point=20)
    assert read_all(again) == batches
    assert [segment.base_offset for segment in again.segments] == bases


# ---- cost, identity


def test_a_clean_start_reads_next_to_nothing(disk: SimDisk) -> None:
    log, _ = filled(disk, 2000, LogConfig(segment_bytes=20_000, index_interval_bytes=500))
    log.close_cleanly()
    read = 0
    original = disk._maybe_fail

    def counting(operation: str, path: str) -> None:
        nonlocal read
        read += operation == "read"
        original(operation, path)

    disk._maybe_fail = counting  # type: ignore[method-assign]
    again = open_orders(disk, log.config, clean=True, recovery_point=2000)
    assert again.log_end_offset == 2000
    assert len(again.segments) > 5
    assert read < 15


def test_a_topic_of_another_id_is_not_opened(disk: SimDisk) -> None:
    mine, other = bytes(range(16)), bytes(range(1, 17))
    log = open_log(disk, DIRECTORY, "orders", 0, config=SMALL, now_ms=NOW_MS, topic_id=mine)
    assert log.topic_id == mine
    assert open_orders(disk).topic_id == mine
    with pytest.raises(CorruptDataError, match="another topic of this name"):
        open_log(disk, DIRECTORY, "orders", 0, config=SMALL, now_ms=NOW_MS, topic_id=other)


def test_an_unreadable_note_of_a_truncation_is_not_guessed_at(disk: SimDisk) -> None:
    filled(disk)
    disk.open(f"{DIRECTORY}/truncation-intent", create=True).write_at((b"0\nsomething 12\n",), 0)
    with pytest.raises(CorruptDataError, match="truncation-intent"):
        open_orders(disk)


def test_deleted_records_do_not_come_back_when_the_rest_is_lost(disk: SimDisk) -> None:
    log = open_orders(disk)
    append_many(log, 1)
    log.flush()
    append_many(log, 3)
    log.set_high_watermark(4)
    log.advance_log_start_offset(3)
    again = open_orders(disk.crash("lose_unsynced"), log_start_offset=3)
    assert (again.log_start_offset, again.log_end_offset, read_all(again)) == (3, 3, [])
    assert append(again).base_offset == 3
