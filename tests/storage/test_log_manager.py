"""All logs of a broker over its directories: opening, failing, deleting, checkpoints, closing."""

from __future__ import annotations

import errno
import time
from dataclasses import replace
from random import Random

import pytest

from tests.storage.log_world import NOW_MS, SMALL, append, append_many, make_batch, read_all
from tidelog.storage.checkpoints import read_meta_properties, read_offsets
from tidelog.storage.disk import DiskError
from tidelog.storage.log_dirs import LogDirError
from tidelog.storage.log_manager import LogManager
from tidelog.storage.posix_disk import PosixDisk
from tidelog.testing.sim.clock import SimClock
from tidelog.testing.sim.disk import SimDisk

ID = bytes(range(16))
OTHER_ID = bytes(range(1, 17))


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(Random(1), clock=SimClock(NOW_MS))


def manager(disk: SimDisk, *dirs: str, opened: bool = True, **options: object) -> LogManager:
    made = LogManager(
        disk, SimClock(NOW_MS), Random(2), dirs or ("/a",), node_id=1, config_for=lambda topic: SMALL, **options  # type: ignore[arg-type]
    )  # fmt: skip
    if opened:
        made.open()
    return made


def checkpoint(logs: LogManager) -> None:
    work = logs.checkpoint()
    work.run()
    assert work.finish(NOW_MS) == {}


# ---- directories


def test_a_new_directory_gets_an_identity_that_stays(disk: SimDisk) -> None:
    logs = manager(disk, "/a", "/b")
    ids = logs.directory_ids
    assert len(set(ids.values())) == 2
    meta = read_meta_properties(disk, "/a/meta.properties")
    assert meta is not None and (meta.node_id, meta.cluster_id) == (1, logs.cluster_id)
    logs.close()
    again = manager(disk, "/a", "/b")
    assert (again.directory_ids, again.cluster_id) == (ids, logs.cluster_id)


def test_a_cluster_keeps_its_id_when_its_nodes_get_other_addresses(disk: SimDisk) -> None:
    """The id that is given comes from the addresses of the voters."""
    manager(disk, cluster_id="as-it-began").close()
    moved = manager(disk, "/a", "/new", cluster_id="by-new-addresses")
    assert moved.cluster_id == "as-it-began"
    assert [meta.cluster_id for meta in (d.meta for d in moved.dirs) if meta] == ["as-it-began"] * 2


def test_directories_of_another_node_or_cluster_are_refused(disk: SimDisk) -> None:
    manager(disk, cluster_id="mine").close()
    other = LogManager(disk, SimClock(), Random(2), ["/a"], node_id=2)
    with pytest.raises(LogDirError, match="belongs to node 1, this is node 2"):
        other.open()
    manager(disk, "/c", cluster_id="third").close()
    with pytest.raises(LogDirError, match="different clusters"):
        manager(disk, "/a", "/c")
    manager(disk, cluster_id="mine")  # refused starts leave nothing locked


def test_a_directory_in_use_is_refused(disk: SimDisk) -> None:
    manager(disk)
    with pytest.raises(LogDirError, match="in use by another broker"):
        manager(disk)


def test_partitions_go_where_the_fewest_are(disk: SimDisk) -> None:
    logs = manager(disk, "/a", "/b")
    for partition in range(4):
        logs.create("orders", partition, ID, SMALL)
    held = sorted(log.directory for log in logs.logs.values())
    assert [path[:2] for path in held] == ["/a", "/a", "/b", "/b"]


def test_a_directory_that_fails_at_start_is_offline_and_the_others_serve(disk: SimDisk) -> None:
    logs = manager(disk, "/a", "/b")
    for partition in range(4):
        append_many(logs.create("orders", partition, ID, SMALL), 3)
    logs.close()
    disk.fail("read", errno.EIO, matches=lambda path: path.startswith("/b/"), times=1000)
    again = manager(disk, "/a", "/b")
    assert list(again.offline_dirs) == ["/b"]
    assert len(again.logs) == 2
    assert again.create("orders", 9, ID, SMALL).directory == "/a/orders-9"
    again.close()
    disk.fail("read", errno.EIO, matches=lambda path: path.startswith("/"), times=1000)
    with pytest.raises(LogDirError, match="no log directory can be used"):
        manager(disk, "/a", "/b")


def test_a_directory_that_fails_later_takes_its_logs_along(disk: SimDisk) -> None:
    logs = manager(disk, "/a", "/b")
    for partition in range(4):
        logs.create("orders", partition, ID, SMALL)
    lost = logs.fail_dir("/b", DiskError("sync", "/b/x", OSError(errno.EIO, "I/O error")))
    assert len(lost) == len(logs.logs) == 2
    assert list(logs.offline_dirs) == ["/b"]
    logs.close()
    assert disk.exists("/a/.kafka_cleanshutdown")
    assert not disk.exists("/b/.kafka_cleanshutdown")


def test_a_partition_in_two_directories_is_for_the_operator_to_decide(disk: SimDisk) -> None:
    manager(disk, "/a", "/b").close()
    disk.make_dirs("/a/orders-0")
    disk.make_dirs("/b/orders-0")
    with pytest.raises(LogDirError, match=r"orders-0 is in more than one log directory: /a, /b"):
        manager(disk, "/a", "/b")


def test_a_partition_that_cannot_be_opened_is_left_alone(disk: SimDisk) -> None:
    logs = manager(disk)
    for partition in range(2):
        append(logs.create("orders", partition, ID, SMALL))
    logs.close()
    disk.open("/a/orders-0/partition.metadata").truncate(5)
    again = manager(disk)
    assert (list(again.failed_logs), list(again.logs)) == ([("orders", 0)], [("orders", 1)])
    with pytest.raises(ValueError, match="is there already"):
        again.create("orders", 0, ID, SMALL)
    again.close()
    assert disk.exists("/a/orders-0/00000000000000000000.log")
    assert not disk.exists("/a/.kafka_cleanshutdown")


# ---- stops


def test_a_clean_stop_is_believed_once(disk: SimDisk) -> None:
    logs = manager(disk)
    log = logs.create("orders", 0, ID, SMALL)
    append_many(log, 20)
    log.set_high_watermark(20)
    expected = read_all(log)
    logs.close(broker_epoch=7)
    disk = disk.crash("lose_unsynced")
    again = manager(disk)
    assert (again.stopped_cleanly, again.dirs[0].broker_epoch) == (True, 7)
    log = again.logs["orders", 0]
    assert (log.recovery.clean, log.high_watermark, log.recovery_point, log.topic_id) == (True, 20, 20, ID)
    assert read_all(log) == expected
    third = manager(disk.crash("lose_unsynced"))
    assert not third.stopped_cleanly
    assert not third.logs["orders", 0].recovery.clean
    assert read_all(third.logs["orders", 0]) == expected


def test_without_a_clean_stop_everything_synced_is_there(disk: SimDisk) -> None:
    logs = manager(disk)
    log = logs.create("orders", 0, ID, SMALL)
    append_many(log, 20)
    log.flush()
    append_many(log, 3)
    checkpoint(logs)
    again = manager(disk.crash("lose_unsynced"))
    log = again.logs["orders", 0]
    assert (log.log_end_offset, log.topic_id, again.stopped_cleanly) == (20, ID, False)


def test_an_unclean_close_promises_nothing(disk: SimDisk) -> None:
    logs = manager(disk)
    append(logs.create("orders", 0, ID, SMALL))
    logs.close(clean=False)
    assert not disk.exists("/a/.kafka_cleanshutdown")
    assert manager(disk).logs["orders", 0].log_end_offset == 1


def test_a_directory_whose_last_sync_fails_gets_no_marker(disk: SimDisk) -> None:
    logs = manager(disk, "/a", "/b")
    for partition in range(2):
        append(logs.create("orders", partition, ID, SMALL))
    disk.fail("sync", errno.EIO, matches=lambda path: path.startswith("/b/orders") and path.endswith(".log"))
    logs.close()
    assert disk.exists("/a/.kafka_cleanshutdown")
    assert not disk.exists("/b/.kafka_cleanshutdown")


def test_progress_is_told(disk: SimDisk) -> None:
    logs = manager(disk)
    for partition in range(3):
        logs.create("orders", partition, ID, SMALL)
    logs.close()
    told: list[tuple[int, int, str]] = []
    again = manager(disk, opened=False)
    again.open(progress=lambda done, total, log: told.append((done, total, log.name)))
    assert told == [(1, 3, "orders-0"), (2, 3, "orders-1"), (3, 3, "orders-2")]


def housekeep(logs: LogManager, now_ms: int) -> None:
    logs.tick(now_ms)
    disposal = logs.disposal(now_ms)
    if disposal is not None:
        disposal.run()
        assert logs.disposed(disposal) == {}


# ---- checkpoints and retention


def test_retention_runs_in_its_time_and_files_leave_after_the_checkpoint(disk: SimDisk) -> None:
    logs = manager(disk, retention_check_interval_ms=1000)
    log = logs.create("orders", 0, ID, replace(SMALL, retention_ms=0, file_delete_delay_ms=500))
    append_many(log, 10)
    log.set_high_watermark(10)
    assert logs.tick(NOW_MS + 999) == 0
    assert logs.tick(NOW_MS + 1000) > 0
    assert log.log_start_offset == 10
    first = "/a/orders-0/00000000000000000000.log"
    assert disk.exists(first)
    checkpoint(logs)
    assert read_offsets(disk, "/a/log-start-offset-checkpoint") == {("orders", 0): 10}
    assert not disk.exists(first) and disk.exists(first + ".deleted")
    housekeep(logs, NOW_MS + 499)
    assert disk.exists(first + ".deleted")
    housekeep(logs, NOW_MS + 500)  # not only when retention has its turn again
    assert not disk.exists(first + ".deleted")


def test_deleted_records_stay_deleted_after_a_checkpoint(disk: SimDisk) -> None:
    logs = manager(disk)
    log = logs.create("orders", 0, ID, SMALL)
    append_many(log, 10)
    log.flush()
    log.set_high_watermark(10)
    log.advance_log_start_offset(7)
    checkpoint(logs)
    again = manager(disk.crash("lose_unsynced")).logs["orders", 0]
    assert (again.log_start_offset, again.log_end_offset, again.high_watermark) == (7, 10, 10)


def test_one_checkpoint_at_a_time_and_a_failing_one_takes_its_directory_offline(disk: SimDisk) -> None:
    logs = manager(disk, "/a", "/b")
    for partition in range(2):
        logs.create("orders", partition, ID, SMALL)
    work = logs.checkpoint()
    with pytest.raises(RuntimeError, match="under way"):
        logs.checkpoint()
    disk.fail("write", errno.EIO, matches=lambda path: path.startswith("/b/"))
    work.run()
    assert list(work.finish(NOW_MS)) == ["/b"]
    assert list(logs.offline_dirs) == ["/b"]
    assert len(logs.logs) == 1
    checkpoint(logs)


def test_a_damaged_checkpoint_costs_time_not_data(disk: SimDisk) -> None:
    logs = manager(disk)
    log = logs.create("orders", 0, ID, SMALL)
    append_many(log, 10)
    logs.close()
    disk.remove("/a/.kafka_cleanshutdown")
    disk.open("/a/recovery-point-offset-checkpoint").truncate(3)
    again = manager(disk)
    assert again.logs["orders", 0].log_end_offset == 10
    assert "recovery-point-offset-checkpoint" in again.warnings[0]


# ---- partitions leave


def test_a_flush_that_finds_its_partition_deleted_is_no_failing_disk(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread may look at any moment, also between the directory's renaming and whatever the loop does next."""
    logs = manager(disk)
    log = logs.create("orders", 0, ID, SMALL)
    append(log)
    ticket = log.begin_flush()
    assert ticket is not None
    rename = disk.rename

    def rename_and_flush(source: str, target: str) -> None:
        rename(source, target)
        ticket.run()

    monkeypatch.setattr(disk, "rename", rename_and_flush)
    logs.delete("orders", 0)
    assert ticket.done


def test_a_deleted_partition_is_gone_at_once_and_its_files_later(disk: SimDisk) -> None:
    logs = manager(disk)
    log = logs.create("orders", 0, ID, replace(SMALL, file_delete_delay_ms=500))
    append_many(log, 3)
    ticket = log.begin_flush()
    assert ticket is not None
    logs.delete("orders", 0)
    ticket.run()  # a flush under way neither fails nor brings anything back
    assert logs.logs == {}
    doomed = [name for name in disk.list_dir("/a") if name.endswith("-delete")]
    assert len(doomed) == 1 and doomed[0].startswith("orders-0.")
    housekeep(logs, NOW_MS + 499)
    assert disk.is_dir(f"/a/{doomed[0]}")
    housekeep(logs, NOW_MS + 500)
    assert not disk.is_dir(f"/a/{doomed[0]}")


def test_what_waited_for_deletion_goes_after_a_crash(disk: SimDisk) -> None:
    logs = manager(disk)
    append(logs.create("orders", 0, ID, SMALL))
    logs.delete("orders", 0)
    again = manager(disk.crash("lose_unsynced"))
    assert again.logs == {}
    housekeep(again, NOW_MS)
    assert not [name for name in again.disk.list_dir("/a") if name.endswith("-delete")]


@pytest.mark.parametrize("mode", ["keep_all", "lose_unsynced"])
def test_a_partition_made_again_under_its_old_name_owes_nothing_to_old_checkpoints(
    disk: SimDisk, mode: str
) -> None:
    logs = manager(disk)
    old = logs.create("orders", 0, ID, SMALL)
    append_many(old, 30)
    old.flush()
    old.set_high_watermark(30)
    old.advance_log_start_offset(25)
    checkpoint(logs)
    logs.delete("orders", 0)
    new = logs.create("orders", 0, OTHER_ID, SMALL)
    append_many(new, 40)
    new.flush()
    append_many(new, 2)
    again = manager(disk.crash(mode)).logs["orders", 0]  # type: ignore[arg-type]
    assert (again.topic_id, again.log_start_offset, again.recovery.damages) == (OTHER_ID, 0, [])
    assert again.log_end_offset == (42 if mode == "keep_all" else 40)
    assert again.high_watermark == 0


def test_a_partition_nobody_claims_is_kept_aside(disk: SimDisk) -> None:
    logs = manager(disk)
    append(logs.create("orders", 0, ID, SMALL))
    path = logs.set_aside("orders", 0)
    assert path.endswith("-stray") and disk.is_dir(path)
    again = manager(disk.crash("lose_unsynced"))
    assert again.logs == {}
    housekeep(again, NOW_MS + 10**9)
    assert again.disk.exists(f"{path}/00000000000000000000.log") or again.disk.is_dir(path)
    assert "set aside" in again.warnings[0]


# ---- the metadata log


def test_the_metadata_log_is_not_a_users_partition_but_is_closed_and_checkpointed(disk: SimDisk) -> None:
    logs = manager(disk, "/a", "/b")
    metadata = logs.open_metadata_log()
    assert metadata is logs.open_metadata_log()
    append_many(metadata, 5)
    metadata.flush()
    assert logs.logs == {}
    checkpoint(logs)
    assert read_offsets(disk, "/a/recovery-point-offset-checkpoint") == {("__cluster_metadata", 0): 5}
    logs.close()
    again = manager(disk.crash("lose_unsynced"), "/a", "/b")
    assert again.logs == {}
    assert again.open_metadata_log().log_end_offset == 5
    assert again.open_metadata_log().directory == "/a/__cluster_metadata-0"


# ---- real files


def test_many_partitions_open_quickly_on_real_files(tmp_path: object) -> None:
    logs = LogManager(
        PosixDisk(max_open_files=16), SimClock(NOW_MS), Random(3), [f"{tmp_path}/data"], node_id=1
    )
    logs.open()
    batch = make_batch()
    for partition in range(60):
        append(logs.create("orders", partition, ID, SMALL), batch)
    logs.close()
    started = time.perf_counter()
    again = LogManager(
        PosixDisk(max_open_files=16), SimClock(NOW_MS), Random(3), [f"{tmp_path}/data"], node_id=1
    )
    again.open()
    elapsed = time.perf_counter() - started
    assert len(again.logs) == 60
    assert all(log.log_end_offset == 1 for log in again.logs.values())
    assert elapsed < 1, f"{elapsed / 60 * 1e3:.2f} ms per partition"
    again.close()


def test_of_two_logs_of_one_partition_the_metadata_chooses(disk: SimDisk) -> None:
    first = manager(disk, "/a")
    append(first.create("orders", 0, ID, SMALL))
    first.close()
    second = manager(disk, "/b", cluster_id=first.cluster_id)
    append_many(second.create("orders", 0, OTHER_ID, SMALL), 5)
    second.close()
    both = manager(disk, "/a", "/b", opened=False)
    both.open_directories()
    both.load(topic_id_of=lambda topic: OTHER_ID)
    assert both.logs["orders", 0].log_end_offset == 5
    (kept,) = [name for name in disk.list_dir("/a") if name.endswith("-stray")]
    assert "earlier topic of that name" in both.warnings[0] and kept in both.warnings[0]


def test_a_file_that_cannot_be_removed_takes_its_directory_offline(disk: SimDisk) -> None:
    logs = manager(disk, "/a", "/b")
    logs.create("orders", 0, ID, replace(SMALL, file_delete_delay_ms=0))
    logs.delete("orders", 0)
    disk.fail("remove", times=1)
    disposal = logs.disposal(NOW_MS + 1)
    assert disposal is not None
    disposal.run()
    assert list(logs.disposed(disposal)) == ["/a"]
    assert list(logs.offline_dirs) == ["/a"]
