"""What goes wrong while a real broker compacts costs no record and no client anything: the log stays as it was, and is cleaned later."""

from __future__ import annotations

import errno
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.broker.conftest import OwnBroker, code
from tests.compaction.broker_world import SETTINGS, Launch, World, leftovers, wait_until
from tidelog.broker import cleaner, scrubber
from tidelog.storage import segment_swap
from tidelog.storage.disk import DiskError
from tidelog.storage.segment_swap import SegmentSwap
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HANG_SECONDS = 5.0
BROKER = 4  # the kind of resource


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner, "TROUBLE_SECONDS_FIRST", 0.3)


def fail_once(monkeypatch: pytest.MonkeyPatch, name: str, error: Callable[[], Exception]) -> list[str]:
    """The next call of this step of a swap fails; afterwards all is well. Returns where it is noted."""
    real, failed = getattr(SegmentSwap, name), list[str]()

    def step(swap: SegmentSwap) -> None:
        if not failed:
            failed.append(name)
            raise error()
        real(swap)

    monkeypatch.setattr(segment_swap.SegmentSwap, name, step)
    return failed


def told(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.message for record in caplog.records if text in record.message]


def begun(broker: OwnBroker, monkeypatch: pytest.MonkeyPatch) -> World:
    """A cleaning is under way, by a worker that is given little time to say something; it has had all it wants to compile."""
    world = World(broker)
    world.fill(20)
    world.wait_until_clean()
    world.summary.cleanings = 0
    monkeypatch.setattr(cleaner, "HANG_SECONDS", HANG_SECONDS)
    world.fill()
    wait_until(lambda: leftovers(world.directory), "it has begun to write")
    return world


def test_a_worker_that_hangs_is_replaced(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = launch(**SETTINGS, log_cleaner_io_max_bytes_per_second=300_000)
    world = begun(broker, monkeypatch)
    (pid,) = broker.broker.cleaner.worker_pids
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: world.summary.workers_died == 1, "its silence is noticed")
    world.check()
    wait_until(lambda: world.summary.cleanings >= 1, "it was done all the same")
    world.check()
    assert pid not in broker.broker.cleaner.worker_pids
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert len(told(caplog, "has said nothing for 5 s")) == 1
    assert not leftovers(world.directory)


def test_a_worker_that_hangs_when_it_is_told_to_stop(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = launch(**SETTINGS, log_cleaner_io_max_bytes_per_second=300_000)
    world = begun(broker, monkeypatch)
    (pid,) = broker.broker.cleaner.worker_pids
    real, cancelled = cleaner.CleanerProcess.cancel, list[int]()

    async def cancel(worker: Any, *seconds: float) -> None:
        cancelled.append(worker.pid)
        os.kill(worker.pid, signal.SIGSTOP)
        await real(worker, *seconds)

    monkeypatch.setattr(cleaner.CleanerProcess, "cancel", cancel)
    set_up(broker, "states", 2, "cleanup.policy", "delete")
    wait_until(lambda: cancelled, "the job is taken back")
    wait_until(lambda: pid not in broker.broker.cleaner.worker_pids, "it is not waited for")
    wait_until(lambda: not broker.broker.cleaner._cleanings, "the log is free again")
    world.check()


def set_up(broker: OwnBroker, name: str, kind: int, setting: str, value: str) -> None:
    change = AlterableConfig(name=setting, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])
    answer = broker.connect().ask(IncrementalAlterConfigsRequest(resources=[resource]))
    assert code(answer.responses[0]) == "NONE", answer


def test_a_throttle_that_is_changed_meanwhile(launch: Launch) -> None:
    broker = launch(**SETTINGS, log_cleaner_io_max_bytes_per_second=2_000)
    world = World(broker)
    world.fill()
    wait_until(lambda: broker.broker.cleaner.progress, "a cleaning is under way")
    time.sleep(1)
    assert world.summary.cleanings == 0, "at this rate it takes minutes"
    set_up(broker, "", BROKER, "log.cleaner.io.max.bytes.per.second", "1e9")
    began = time.monotonic()
    wait_until(lambda: world.summary.cleanings, "it goes on at the new rate")
    assert time.monotonic() - began < 20
    world.check()


@pytest.mark.parametrize("step", ["_prepare", "_commit"])
def test_no_room_for_a_swap_is_no_failing_disk(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    failed = fail_once(monkeypatch, step, lambda: DiskError("write", "x", OSError(errno.ENOSPC, "no space")))
    world = World(launch(**SETTINGS))
    world.fill()
    world.wait_until_clean()
    assert failed
    world.check()
    assert len(told(caplog, "cannot be compacted")) == 1
    assert not leftovers(world.directory)


def test_a_swap_that_fails_half_way_is_completed_by_the_next_start(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = fail_once(
        monkeypatch, "_let_old_go", lambda: DiskError("rename", "x", OSError(errno.EIO, "a bad disk"))
    )
    broker = launch(**SETTINGS, dirs=2)
    world = World(broker)
    log = world.log
    world.fill(40)
    wait_until(lambda: failed, "the swap has failed")
    wait_until(lambda: log not in broker.broker.logs.logs.values(), "the directory is offline")
    latest = dict(world.latest)
    broker.restart(clean=False)
    world.wire = broker.connect()
    assert not leftovers(world.directory)
    assert {key: value for _, key, value in world.records()} == latest
    world.latest = latest
    world.fill(40)
    world.wait_until_clean()
    world.check()


def test_a_file_that_is_missing_when_a_log_is_judged(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, asked = cleaner.unknown_times, list[str]()

    def unknown_times(log: Any) -> Any:
        asked.append(log.name)
        if len(asked) == 1:
            raise FileNotFoundError("00000000000000000000.timeindex")
        return real(log)

    monkeypatch.setattr(cleaner, "unknown_times", unknown_times)
    world = World(launch(**SETTINGS), min_compaction_lag_ms="1")
    world.fill()
    world.wait_until_clean()
    world.check()
    (line,) = told(caplog, "cannot be judged")
    assert "states-0" in line and "00000000000000000000.timeindex" in line


def test_the_scrub_goes_on_beside_it(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It reads the files that the cleaner replaces: none of them is damaged, and none is read under another's name."""
    monkeypatch.setattr(scrubber, "LOOK_SECONDS", 0.02)
    settings = {
        "log_initial_task_delay_ms": 0,
        "log_scrub_interval_ms": 1,
        "log_scrub_bytes_per_second": 1 << 30,
    }
    broker = launch(**SETTINGS, **settings)
    world = World(broker)
    for _ in range(8):
        world.fill(40)
        time.sleep(0.2)
    wait_until(lambda: broker.broker.scrubber.summary().rounds > 3, "the scrub has been through")
    world.wait_until_clean()
    world.check()
    summary = broker.broker.scrubber.summary()
    assert world.summary.cleanings > 1
    assert not summary.damages
    assert not [record.message for record in caplog.records if record.levelno >= logging.WARNING]
