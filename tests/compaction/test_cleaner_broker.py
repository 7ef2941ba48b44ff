"""A real broker compacts real files in a process of its own: while clients read and write, and whatever happens to that process.

Every test starts the worker, which loads numba: some seconds each, more the first time, when kernels are compiled.
"""

from __future__ import annotations

import logging
import os
import signal
import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.broker.conftest import code
from tests.compaction.broker_world import (
    KEYS,
    PATIENCE_SECONDS,
    SETTINGS,
    SMALL,
    Launch,
    World,
    keyed,
    leftovers,
    wait_until,
)
from tidelog.broker import cleaner
from tidelog.storage.checkpoints import decode_offsets
from tidelog.wire.messages import delete_topics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_new_consumer_reads_exactly_the_latest_value_of_each_key(launch: Launch) -> None:
    broker = launch(**SETTINGS, durability="fsync")
    World(broker, segment_ms="200")
    bootstrap = f"127.0.0.1:{broker.port}"
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "compression.type": "lz4"})
    expected = {}
    for number in range(5000):
        key, value = b"key %d" % (number * 7 % KEYS), b"value %d" % number
        producer.produce(
            "states", value, key, on_delivery=lambda error, _: pytest.fail(str(error)) if error else None
        )
        expected[key] = value
        if number % 1000 == 0:
            producer.flush(30)
            time.sleep(0.25)
    producer.flush(30)
    time.sleep(0.3)
    producer.produce(
        "states", b"the active segment", b"end"
    )  # seals the one before: it is older than segment.ms
    producer.flush(30)
    log = broker.broker.partitions.leader_of("states", 0).log
    wait_until(lambda: log.cleaned_to == log.active.base_offset >= 5000, "the log is clean")
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "new", "enable.auto.commit": False})
    consumer.assign([TopicPartition("states", 0, OFFSET_BEGINNING)])
    got: list[tuple[bytes | None, bytes | None]] = []
    while not got or got[-1][0] != b"end":
        message = consumer.poll(20)
        assert message is not None and message.error() is None
        got.append((message.key(), message.value()))
    consumer.close()
    assert len(got) == KEYS + 1, "no key twice"
    assert dict(got[:-1]) == expected


def test_a_tombstone_is_there_for_a_slow_consumer_and_gone_afterwards(launch: Launch) -> None:
    world = World(launch(**SETTINGS), delete_retention_ms="4000", segment_ms="50")
    world.put((b"a", b"1"), (b"b", b"1"))
    world.put((b"a", None))
    time.sleep(0.1)
    world.put((b"end", b""))
    world.wait_until_clean()
    cleaned_at = time.monotonic()
    slow = world.records()
    assert (b"a", None) in [(key, value) for _, key, value in slow]
    assert (b"a", b"1") not in [(key, value) for _, key, value in slow]
    wait_until(lambda: world.summary.cleanings >= 2, "the tombstone's time has come, and nobody has written")
    assert time.monotonic() - cleaned_at > 3
    assert [(key, value) for _, key, value in world.records()] == [(b"b", b"1"), (b"end", b"")]
    horizons = decode_offsets((world.directory.parent / "cleaner-horizon-checkpoint").read_bytes(), "")
    assert horizons == {}


def test_reading_and_writing_go_on_meanwhile(launch: Launch) -> None:
    broker = launch(**SETTINGS)
    world = World(broker)
    reader = broker.connect()
    world.fill(50)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while world.summary.cleanings < 3:
        assert time.monotonic() < deadline
        world.fill(20)
        found = world.records(reader)
        offsets = [offset for offset, _, _ in found]
        assert offsets == sorted(set(offsets))
        assert {key: value for _, key, value in found} == world.latest
    world.wait_until_clean()
    world.check()
    assert len(world.records()) < 5 * KEYS + 200
    assert not leftovers(world.directory)


def test_a_worker_that_is_killed_is_noticed_and_replaced(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cleaner, "TROUBLE_SECONDS_FIRST", 0.5)
    broker = launch(**SETTINGS, log_cleaner_io_max_bytes_per_second=300_000)
    world = World(broker)
    world.fill()
    wait_until(lambda: broker.broker.cleaner.progress, "a cleaning is under way")
    wait_until(lambda: leftovers(world.directory), "it has begun to write")
    (pid,) = broker.broker.cleaner.worker_pids
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: world.summary.workers_died == 1, "its death is noticed")
    world.check()
    wait_until(lambda: world.summary.cleanings >= 1, "it was done all the same")
    world.check()
    assert pid not in broker.broker.cleaner.worker_pids
    assert not leftovers(world.directory)
    assert sum("has died" in record.message for record in caplog.records) == 1


def test_a_topic_that_is_deleted_and_made_again_meanwhile(
    launch: Launch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = launch(**SETTINGS, log_cleaner_io_max_bytes_per_second=300_000)
    world = World(broker)
    world.fill()
    wait_until(lambda: leftovers(world.directory), "a cleaning has begun to write")
    names = [delete_topics.DeleteTopicState(name="states")]
    answer = world.wire.ask(delete_topics.DeleteTopicsRequest(topics=names, timeout_ms=10_000))
    assert code(answer.responses[0]) == "NONE"
    world.topic = world.wire.create("states", **world.config)
    world.latest.clear()
    world.fill(30)
    wait_until(lambda: world.summary.interrupted, "the cleaning is given up")
    world.wait_until_clean()
    world.check()
    assert not leftovers(world.directory)
    assert world.summary.workers_died == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("clean", [True, False])
def test_a_broker_that_stops_meanwhile(launch: Launch, clean: bool) -> None:
    broker = launch(**SETTINGS, log_cleaner_io_max_bytes_per_second=300_000)
    world = World(broker)
    world.fill()
    wait_until(lambda: leftovers(world.directory), "a cleaning has begun to write")
    (pid,) = broker.broker.cleaner.worker_pids
    began = time.monotonic()
    broker.restart(clean=clean)
    assert time.monotonic() - began < 10
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    world.wire = broker.connect()
    assert not leftovers(world.directory)
    world.check()
    wait_until(lambda: world.summary.cleanings, "the next one cleans")
    world.check()


def test_what_is_clean_is_remembered(launch: Launch) -> None:
    broker = launch(**SETTINGS)
    world = World(broker)
    world.fill()
    world.wait_until_clean()
    offset = world.log.cleaned_to
    broker.restart()
    text = (world.directory.parent / "cleaner-offset-checkpoint").read_text()
    assert text == f"0\n1\nstates 0 {offset}\n", "in Kafka's form"
    assert world.log.cleaned_to == offset
    time.sleep(0.5)
    assert world.summary.cleanings == 0


def test_retention_goes_on_beside_it(launch: Launch) -> None:
    broker = launch(
        **SETTINGS, log_retention_check_interval_ms=50, log_flush_offset_checkpoint_interval_ms=100
    )
    world = World(broker, cleanup_policy="compact,delete", retention_bytes="60000")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while world.log.log_start_offset == 0 or world.summary.cleanings < 3:
        assert time.monotonic() < deadline, "one of both is not at work"
        world.fill(30)
        time.sleep(0.1)
    found = world.records()
    assert {key: value for _, key, value in found}.items() <= world.latest.items()
    assert found[-1][0] == world.log.log_end_offset - 1
    assert not broker.broker.logs.offline_dirs
    assert world.summary.failed == 0


def test_several_logs_at_once(launch: Launch) -> None:
    broker = launch(**SETTINGS, log_cleaner_threads=2, log_cleaner_io_max_bytes_per_second=400_000)
    wire = broker.connect()
    topics = [wire.create(name, **SMALL) for name in ("one", "two")]
    for topic in topics:
        for number in range(100):
            wire.produce(topic, keyed(*((b"%d" % key, b"%d" % number * 100) for key in range(5))))
    wait_until(lambda: len(broker.broker.cleaner.progress) == 2, "two are cleaned at the same time")
    assert len(set(broker.broker.cleaner.worker_pids)) == 2
    logs = [broker.broker.partitions.leader_of(topic.name, 0).log for topic in topics]
    wait_until(lambda: all(log.cleaned_to == log.active.base_offset for log in logs), "both are clean")


def test_a_worker_that_has_nothing_to_do_ends(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner, "IDLE_SECONDS", 0.3)
    broker = launch(**SETTINGS)
    world = World(broker)
    world.fill(50)
    wait_until(lambda: broker.broker.cleaner.worker_pids, "a worker was started")
    world.wait_until_clean()
    wait_until(lambda: not broker.broker.cleaner.worker_pids, "it has ended")
    world.fill(50)
    world.wait_until_clean()
    world.check()


def test_damage_stops_a_cleaning_and_is_told_once(launch: Launch, caplog: pytest.LogCaptureFixture) -> None:
    broker = launch(**SETTINGS, log_cleaner_enable="true", log_scrub_bytes_per_second=0)
    world = World(broker, min_compaction_lag_ms="2000")
    world.fill(60)
    path = world.directory / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    wait_until(lambda: world.summary.failed, "the cleaner has met it")
    assert world.summary.cleanings == 0
    told = [record.message for record in caplog.records if "cannot be compacted" in record.message]
    assert len(told) == 1 and str(path) in told[0] and "CRC" in told[0]
    assert path.read_bytes() == data, "nothing is replaced that cannot be read"


def test_without_numba_it_says_so_once(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cleaner, "missing_packages", lambda: ["numba"])
    broker = launch(log_cleaner_backoff_ms=20)
    world = World(broker)
    world.fill(50)

    def lines() -> list[str]:
        return [record.message for record in caplog.records if "numba" in record.message]

    wait_until(lines, "it says what is missing")
    time.sleep(0.5)
    told = lines()
    assert len(told) == 1 and "pip install --force-reinstall tidelog" in told[0]
    assert not broker.broker.cleaner.worker_pids


def test_it_can_be_turned_off(launch: Launch) -> None:
    broker = launch(log_cleaner_backoff_ms=20, log_cleaner_enable="false")
    world = World(broker)
    world.fill(50)
    time.sleep(0.5)
    assert world.summary.cleanings == 0 and not broker.broker.cleaner.worker_pids
