"""What a broker may say of its logs after each kind of stop (D10, I23): judged by what the run before wrote down, the machine's boot id and what recovery found."""

from __future__ import annotations

import errno
import random

import pytest

from tests.storage.log_world import append_many
from tidelog.storage import broker_run, files
from tidelog.storage.broker_run import BrokerRun, lost_by_failed_sync, lost_by_restart, lost_in_log
from tidelog.storage.checkpoints import TopicPartition
from tidelog.storage.disk import DiskError
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.log_manager import LogManager
from tidelog.storage.recovery_report import Damage, RecoveryReport
from tidelog.storage.run_ledger import Registered
from tidelog.testing.sim.clock import SimClock
from tidelog.testing.sim.disk import SimDisk

KEY: TopicPartition = ("orders", 0)
ID = bytes(range(16))
FIRST, SECOND, THIRD = (bytes([number]) * 16 for number in (1, 2, 3))


# ---- the judgement


@pytest.mark.parametrize(
    ("before", "clean", "boot_id", "lost"),
    [
        (BrokerRun("a", in_memory=True), False, "a", False),
        (BrokerRun("a", in_memory=True), False, "b", True),
        (BrokerRun("a", in_memory=False), False, "b", False),
        (BrokerRun("a", in_memory=True), True, "b", False),
        # A machine without a boot id may have restarted each time.
        (BrokerRun(None, in_memory=True), False, None, True),
        (BrokerRun(None, in_memory=False), False, None, False),
        (BrokerRun("a", in_memory=True), False, None, True),
        # A loss that nobody was told of is still one, however the broker stopped meanwhile.
        (BrokerRun("a", loss="records"), True, "a", True),
        (BrokerRun("a", loss="records"), False, "a", True),
        # A directory of a release that wrote nothing down.
        (None, True, "a", False),
        (None, False, "a", True),
    ],
)
def test_what_a_stop_may_have_taken(
    before: BrokerRun | None, clean: bool, boot_id: str | None, lost: bool
) -> None:
    assert (lost_by_restart(before, clean=clean, boot_id=boot_id) is not None) == lost


def test_a_failed_sync_takes_what_was_counted_in_memory_only() -> None:
    assert lost_by_failed_sync(BrokerRun("a", in_memory=True), "orders-0") is not None
    assert lost_by_failed_sync(BrokerRun("a", in_memory=False), "orders-0") is None
    assert lost_by_failed_sync(None, "orders-0") is not None


def test_what_recovery_did_not_find() -> None:
    sound = RecoveryReport(*KEY, "/a/orders-0", clean=False)
    assert lost_in_log(sound, same_life=True) is None
    damaged = RecoveryReport(*KEY, "/a/orders-0", damages=[Damage("/a/orders-0/0.log", 0, 9, 0, 1, "rot")])
    assert lost_in_log(damaged, same_life=False) is not None
    short = RecoveryReport(*KEY, "/a/orders-0", missing_committed=3)
    assert lost_in_log(short, same_life=True) is not None
    # After a reboot only what was synced was promised; a replica that was not in sync may have known of more.
    assert lost_in_log(short, same_life=False) is None
    forgotten = RecoveryReport(*KEY, "/a/orders-0", missing_committed=3, cache_forgotten=True)
    assert lost_in_log(forgotten, same_life=True) is None


def test_the_file_is_read_as_it_was_written_and_never_half() -> None:
    run = BrokerRun("b-1", in_memory=True, epoch=7, incarnations=(FIRST, SECOND), loss="a sentence")
    data = broker_run.encode(run)
    assert broker_run.decode(data, "f") == run
    assert broker_run.decode(broker_run.encode(BrokerRun()), "f") == BrokerRun()
    for end in range(len(data)):
        with pytest.raises(Exception, match="says nothing of a run"):
            broker_run.decode(data[:end], "f")
    with pytest.raises(Exception, match="says nothing of a run"):
        broker_run.decode(data.replace(b"true", b"null"), "f")


# ---- a broker's directories


class Machine:
    """A disk, and brokers that are started on it."""

    def __init__(self, *dirs: str) -> None:
        self.disk = SimDisk(random.Random(1))
        self.boot = 1
        self.dirs = dirs or ("/a",)
        self.in_memory = True
        self.incarnation = 0
        self.logs: LogManager

    def open(self) -> LogManager:
        logs = LogManager(self.disk, SimClock(), random.Random(2), self.dirs, node_id=1, cluster_id="c")
        logs.open_directories()
        logs.ledger.begin(f"boot-{self.boot}")
        self.logs = logs
        return logs

    def load(self) -> LogManager:
        self.logs.load()
        self.incarnation += 1
        self.logs.ledger.loaded([KEY], in_memory=self.in_memory, incarnation_id=self.incarnation_id)
        return self.logs

    def start(self, *, epoch: int | None = None) -> LogManager:
        self.open()
        self.load()
        if epoch is not None:
            self.logs.ledger.registered(epoch)
        return self.logs

    @property
    def incarnation_id(self) -> bytes:
        return bytes([self.incarnation]) * 16

    @property
    def loss(self) -> str | None:
        return self.logs.ledger.loss

    def kill(self) -> None:
        self.disk = self.disk.crash("keep_all")

    def lose_power(self) -> None:
        self.disk = self.disk.crash("lose_unsynced")
        self.boot += 1


def with_log(machine: Machine) -> Log:
    log = machine.logs.create(*KEY, ID, LogConfig())
    append_many(log, 5)
    return log


def test_a_new_broker_has_lost_nothing_and_claims_nothing() -> None:
    machine = Machine()
    logs = machine.start()
    assert machine.loss is None
    assert logs.ledger.previous_epoch(None) == -1


def test_killed_it_claims_the_epoch_that_it_was_registered_with() -> None:
    machine = Machine()
    machine.start(epoch=7)
    with_log(machine)
    machine.kill()
    logs = machine.start()
    assert machine.loss is None
    # Whatever the metadata at hand says of it: that may be older than the last registration.
    assert logs.ledger.previous_epoch(None) == 7
    assert logs.ledger.previous_epoch(Registered(THIRD, 3)) == 7


def test_a_registration_whose_answer_was_not_noted_is_known_by_its_incarnation() -> None:
    machine = Machine()
    machine.start(epoch=7)
    machine.kill()
    machine.start()  # registers with epoch 9, and dies at that moment
    second = machine.incarnation_id
    machine.kill()
    logs = machine.start()
    assert logs.ledger.previous_epoch(Registered(second, 9)) == 9
    assert logs.ledger.previous_epoch(Registered(THIRD, 6)) == 7
    assert logs.ledger.previous_epoch(Registered(THIRD, 11)) == -1, (
        "a run that it knows nothing of came later"
    )


def test_a_restored_copy_claims_nothing_once_it_has_heard_of_the_run_after_it() -> None:
    machine = Machine()
    machine.start(epoch=7)
    machine.kill()
    copy = machine.disk.crash("keep_all")
    machine.start(epoch=9)
    registered = Registered(machine.incarnation_id, 9)
    machine.disk = copy
    ledger = machine.start().ledger
    assert ledger.previous_epoch(None) == 7  # which the controller does not believe
    assert ledger.previous_epoch(registered) == -1


def test_after_a_reboot_the_loss_is_remembered_until_it_is_told() -> None:
    machine = Machine()
    machine.start(epoch=7)
    with_log(machine)
    machine.lose_power()
    for _ in range(3):  # dies again and again before anybody could be told, on a machine that goes on running
        machine.start()
        assert machine.loss is not None
        machine.kill()
    logs = machine.start()
    logs.close(broker_epoch=-1)  # not even a clean stop makes it forget
    machine.start()
    assert machine.loss is not None
    machine.logs.ledger.registered(9)
    assert machine.loss is None
    machine.kill()
    logs = machine.start()
    assert machine.loss is None
    assert logs.ledger.previous_epoch(None) == 9


@pytest.mark.parametrize("step", ["read", "loaded", "registered"])
def test_a_second_power_cut_at_any_step_changes_nothing(step: str) -> None:
    machine = Machine()
    machine.start(epoch=7)
    with_log(machine)
    machine.lose_power()
    machine.open()
    if step != "read":
        machine.load()
    if step == "registered":
        machine.logs.ledger.registered(9)
        machine.in_memory = False
    machine.lose_power()
    machine.start()
    assert machine.loss is not None, "and in the last case it is a new one: it counted in memory again"


def test_who_counts_only_what_is_synced_loses_nothing_by_a_reboot() -> None:
    machine = Machine()
    machine.in_memory = False
    machine.start(epoch=7)
    with_log(machine).flush()
    machine.lose_power()
    logs = machine.start()
    assert machine.loss is None
    assert logs.logs[KEY].log_end_offset == 5


def test_before_something_is_counted_in_memory_that_is_written_down() -> None:
    machine = Machine()
    machine.in_memory = False
    logs = machine.start(epoch=7)
    assert logs.ledger.count_in_memory()
    machine.lose_power()
    machine.start()
    assert machine.loss is not None


def test_what_cannot_be_written_down_is_not_done() -> None:
    machine = Machine()
    machine.in_memory = False
    logs = machine.start(epoch=7)
    machine.disk.fail("write", matches=lambda path: files.BROKER_RUN in path, code=errno.ENOSPC)
    assert not logs.ledger.count_in_memory()
    assert not logs.offline_dirs, "a full disk is no broken one"


def test_damage_below_the_recovery_point_is_a_loss_in_any_durability() -> None:
    machine = Machine()
    machine.in_memory = False
    logs = machine.start(epoch=7)
    log = with_log(machine)
    log.flush()
    checkpoint = logs.checkpoint()
    checkpoint.run()
    checkpoint.finish(0)
    path = log.active.file.path
    machine.kill()
    file = machine.disk.open(path)
    file.write_at([b"\xff"], 70)
    file.close()
    machine.start()
    assert machine.loss is not None
    assert "damaged" in machine.loss


def test_a_log_that_ends_before_its_high_watermark_on_a_running_machine() -> None:
    machine = Machine()
    logs = machine.start(epoch=7)
    log = with_log(machine)
    log.flush()
    append_many(log, 5)
    log.set_high_watermark(10)
    checkpoint = logs.checkpoint()
    checkpoint.run()
    checkpoint.finish(0)
    path, whole = log.active.file.path, log.active.size
    machine.kill()
    machine.disk.open(path).truncate(whole - 10)
    machine.start()
    assert machine.loss is not None
    assert "high watermark" in machine.loss


def test_after_a_failed_sync_what_was_counted_because_it_was_cached_is_lost() -> None:
    """The same machine goes on, and the page cache would still show the records: the note says that it lies."""
    machine = Machine()
    machine.start(epoch=7)
    log = with_log(machine)
    machine.disk.fail("sync", matches=lambda path: path.endswith(".log"))
    with pytest.raises(DiskError):
        log.flush()
    machine.kill()
    machine.open()
    machine.logs.load()  # removes the note
    machine.kill()
    machine.start()
    assert machine.loss is not None


def test_a_partition_whose_directory_is_gone_is_a_loss() -> None:
    machine = Machine()
    logs = machine.start(epoch=7)
    with_log(machine).flush()
    checkpoint = logs.checkpoint()
    checkpoint.run()
    checkpoint.finish(0)
    machine.kill()
    machine.disk.remove_tree("/a/orders-0")
    machine.start()
    assert machine.loss is not None


def test_a_directory_that_fails_is_a_loss_and_one_that_is_added_is_none() -> None:
    machine = Machine()
    machine.start(epoch=7)
    machine.kill()
    machine.dirs = ("/a", "/b")
    logs = machine.start(epoch=9)
    machine.kill()
    assert machine.loss is None
    logs = machine.start()
    assert logs.ledger.previous_epoch(None) == 9
    machine.kill()
    machine.disk.fail("sync directory", matches=lambda path: path == "/b")
    machine.start()
    assert machine.loss is not None
    machine.logs.ledger.registered(11)
    machine.kill()
    logs = machine.start()
    assert logs.ledger.previous_epoch(None) == -1, "the two are not of the same run"


def test_a_damaged_file_counts_as_a_loss() -> None:
    machine = Machine()
    machine.start(epoch=7)
    machine.kill()
    file = machine.disk.open(f"/a/{files.BROKER_RUN}")
    file.write_at([b"#"], 0)
    file.close()
    machine.start()
    assert machine.loss is not None
