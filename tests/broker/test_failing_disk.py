"""Disks that fail or fill up under a running broker: what clients hear, what goes on, and what is there afterwards (I7).

Real files; the faults come from `FaultyDisk`. Each fault strikes the directory of one partition, of one directory or of two. Whatever it is,
nobody hears UNKNOWN_SERVER_ERROR, the other directory goes on, no sync is tried twice, and after a restart with a sound disk everything
acknowledged is there once, in order. What a failed sync did not make durable is really gone by then.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.broker.conftest import NOW_MS, OwnBroker, Topic, Wire, batch, code
from tidelog.broker.node_shell import StartError
from tidelog.controller.image import ResourceType
from tidelog.records.batch import iter_headers
from tidelog.records.record import iter_records
from tidelog.storage import cold_read
from tidelog.storage.disk import DiskError
from tidelog.testing.faulty_disk import FaultyDisk, FaultyFile
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

SOON_SECONDS = 10.0
PRODUCER_ID = 4711
SEGMENT_MS = 1000  # a batch whose records are later than that begins a new segment


class World:
    """A broker with one or two log directories, a partition in each, and an idempotent producer that remembers what it was told."""

    def __init__(self, broker: OwnBroker, disk: FaultyDisk) -> None:
        self.broker, self.disk = broker, disk
        self.dirs = broker.properties["log.dirs"].split(",")
        self.two = len(self.dirs) == 2
        self.wire = broker.connect()
        config = {"segment_ms": str(SEGMENT_MS), "index_interval_bytes": "0"}
        self.topic: Topic = self.wire.create("t", len(self.dirs), **config)
        homes = [
            str(Path(broker.broker.partitions.leader_of("t", index).log.directory).parent)
            for index in range(len(self.dirs))
        ]
        self.ill = homes.index(self.dirs[-1])
        self.well = 1 - self.ill
        self.acknowledged: dict[bytes, int] = {}
        self.sent = 0

    def of_ill(self, ending: str) -> Callable[[str], bool]:
        """Files of the partition that meets the fault."""
        return lambda path: f"{self.dirs[-1]}/t-{self.ill}" in path and path.endswith(ending)

    def next_batch(self, *, rolls: bool = False) -> tuple[bytes, bytes]:
        """The producer's next batch. It has to send it until it is acknowledged."""
        value = b"record %d" % self.sent
        timestamp = NOW_MS + self.sent + (2 * SEGMENT_MS if rolls else 0)
        return value, batch(
            value, timestamp=timestamp, producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=self.sent
        )

    def produce(self, *, rolls: bool = False, wire: Wire | None = None) -> str:
        """Send the next batch; the error it gets. A refused one is the next one again."""
        value, records = self.next_batch(rolls=rolls)
        answer = (wire or self.wire).produce(self.topic, records, partition=self.ill)
        if not answer.error_code:
            assert answer.base_offset == self.sent
            self.acknowledged[value] = answer.base_offset
            self.sent += 1
        else:
            assert answer.base_offset == -1
        return code(answer)

    def read(self) -> dict[bytes, int]:
        """Everything in the partition; a value that is there twice fails."""
        wire = self.broker.connect()
        found: dict[bytes, int] = {}
        offset, end = 0, wire.offset_at(self.topic, -1, partition=self.ill).offset
        while offset < end:
            data = bytes(wire.fetch(self.topic, offset, partition=self.ill).records)
            for position, header in iter_headers(data):
                for record in iter_records(data, position, header):
                    value = bytes(record.value or b"")
                    assert value not in found, "stored twice"
                    found[value] = record.offset
                offset = header.next_offset
        return found

    def check_offline(self) -> None:
        """The directory is offline and says so everywhere; the other goes on. With one directory, the broker ends."""
        assert self.produce() == "KAFKA_STORAGE_ERROR"
        wire = self.wire
        assert code(wire.fetch(self.topic, partition=self.ill)) == "KAFKA_STORAGE_ERROR"
        described = {p.partition_index: p for p in wire.metadata("t").topics[0].partitions}
        ill = described[self.ill]
        assert (code(ill), ill.leader_id, ill.offline_replicas) == ("LEADER_NOT_AVAILABLE", -1, [0])
        assert self.dir_errors()[-1] == "KAFKA_STORAGE_ERROR"
        assert self.broker.broker.failed.is_set() != self.two
        self.check_other()

    def check_online(self) -> None:
        """The directory is full and no more than that: readers are served, and the other directory does not notice."""
        assert self.dir_errors()[-1] == "NONE"
        assert not self.broker.broker.failed.is_set()
        described = {p.partition_index: p for p in self.wire.metadata("t").topics[0].partitions}
        assert (code(described[self.ill]), described[self.ill].leader_id) == ("NONE", 0)
        assert self.read() == self.acknowledged
        self.check_other()

    def check_other(self) -> None:
        if self.two:
            assert self.dir_errors()[0] == "NONE"
            before = self.wire.offset_at(self.topic, -1, partition=self.well).offset
            answer = self.wire.produce(self.topic, batch(b"well"), partition=self.well)
            assert (code(answer), answer.base_offset) == ("NONE", before)
            assert b"well" in bytes(self.wire.fetch(self.topic, before, partition=self.well).records)

    def dir_errors(self) -> list[str]:
        results = self.wire.ask(DescribeLogDirsRequest(topics=None)).results
        by_dir = {result.log_dir: code(result) for result in results}
        return [by_dir[path] for path in self.dirs]

    def go_on(self) -> None:
        """The producer's refused batch is taken now, and so are the next ones."""
        for rolls in (False, True, False):
            assert self.produce(rolls=rolls) == "NONE"
        assert self.read() == self.acknowledged

    def check_after_restart(self) -> None:
        """A sound disk, which lost what it failed to sync: all that was acknowledged is there, and the producer goes on."""
        syncs = dict(self.disk.syncs)
        self.broker.stop()
        for path, count in self.disk.syncs.items():
            if path in self.failed_syncs:
                assert count == syncs[path], f"{path} was synced again after a failure"
        self.disk.heal()
        self.disk.lose()
        self.broker.start()
        self.wire = self.broker.connect()
        self.check_other()
        found = self.read()
        assert found.items() >= self.acknowledged.items()
        assert len(found) <= self.sent + 1, "at most the one that was not acknowledged is there, too"
        self.go_on()

    @property
    def failed_syncs(self) -> set[str]:
        return {attempt.path for attempt in self.disk.failures if attempt.operation.startswith("sync")}


@pytest.fixture(params=[1, 2], ids=["one-dir", "two-dirs"])
def world(request: pytest.FixtureRequest, launch: Any, disk: FaultyDisk) -> Iterator[World]:
    world = World(launch(disk=disk, dirs=request.param, durability="fsync"), disk)
    for _ in range(3):
        assert world.produce() == "NONE"
    yield world
    disk.heal()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


# ---- full


class NoRoom(NamedTuple):
    name: str
    operations: tuple[str, ...]
    ending: str
    rolls: bool = False
    partial_bytes: int = 0
    number: int = errno.ENOSPC


NO_ROOM = [
    NoRoom("append", ("write",), ".log"),
    NoRoom("half-an-append", ("write",), ".log", partial_bytes=30),
    NoRoom("index", ("write",), ".index"),
    NoRoom("time-index", ("write",), ".timeindex", partial_bytes=5),
    NoRoom("roll-log", ("create",), ".log", rolls=True),
    NoRoom("roll-index", ("create",), ".timeindex", rolls=True),
    NoRoom("roll-snapshot", ("create", "write"), ".snapshot", rolls=True, partial_bytes=3),
    NoRoom("quota", ("write",), ".log", number=errno.EDQUOT),
]


@pytest.mark.parametrize("case", NO_ROOM, ids=lambda case: case.name)
def test_no_room_for_a_batch(world: World, case: NoRoom) -> None:
    """It is refused, and taken as soon as there is room: without a restart."""
    fault = world.disk.fail(
        *case.operations,
        code=case.number,
        matches=world.of_ill(case.ending),
        partial_bytes=case.partial_bytes,
    )
    for _ in range(3):
        assert world.produce(rolls=case.rolls) == "KAFKA_STORAGE_ERROR"
    assert fault.struck >= 3
    world.check_online()
    world.disk.heal()
    world.go_on()
    world.check_after_restart()


def test_a_restart_on_a_full_disk(world: World) -> None:
    """Records that are there are served; new ones are refused."""
    world.disk.fail("create", "write", code=errno.ENOSPC, matches=world.of_ill(""))
    assert world.produce() == "KAFKA_STORAGE_ERROR"
    world.broker.restart()
    world.wire = world.broker.connect()
    assert world.produce() == "KAFKA_STORAGE_ERROR"
    world.check_online()
    world.disk.heal()
    world.go_on()


def delete_records(world: World, offset: int) -> Any:
    asked = DeleteRecordsPartition(partition_index=world.ill, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[asked])], timeout_ms=9000)
    return world.wire.ask(request).topics[0].partitions[0]


def test_no_room_for_a_checkpoint(world: World) -> None:
    """The old one stays; what depends on the new one is not confirmed."""
    world.disk.fail(
        "write",
        code=errno.ENOSPC,
        matches=lambda path: path.startswith(world.dirs[-1]) and "-checkpoint" in Path(path).name,
    )
    assert code(delete_records(world, 1)) == "KAFKA_STORAGE_ERROR"
    assert world.produce() == "NONE"
    assert world.dir_errors()[-1] == "NONE"
    world.check_other()
    world.disk.heal()
    assert code(delete_records(world, 1)) == "NONE"
    assert world.produce() == "NONE"


def create(wire: Wire, name: str, partitions: int = 2) -> tuple[str, Topic]:
    asked = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    (result,) = wire.ask(CreateTopicsRequest(topics=[asked], timeout_ms=9000)).topics
    return code(result), Topic(name, result.topic_id)


def test_no_room_for_metadata(world: World) -> None:
    """The change is refused, and nothing else happens."""
    world.disk.fail(
        "write", code=errno.ENOSPC, matches=lambda path: "/__cluster_metadata-0/" in path, partial_bytes=10
    )
    for _ in range(2):
        assert create(world.wire, "u")[0] == "KAFKA_STORAGE_ERROR"
    assert code(world.wire.metadata("u").topics[0]) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert world.produce() == "NONE"
    world.check_online()
    world.disk.heal()
    outcome, topic = create(world.wire, "u")
    assert (outcome, code(world.wire.produce(topic, batch()))) == ("NONE", "NONE")
    world.check_after_restart()
    assert world.wire.offset_at(topic, -1).offset == 1


@pytest.mark.parametrize("operation", ["mkdir", "create", "write"])
@pytest.mark.parametrize("again", ["restarted", "created-again"])
def test_no_room_for_a_new_partition(world: World, operation: str, again: str) -> None:
    """It is offline, alone; and it comes to life after a restart, or when it is created again."""
    world.disk.fail(
        operation, code=errno.ENOSPC, matches=lambda path: path.startswith(f"{world.dirs[-1]}/u-")
    )
    outcome, topic = create(world.wire, "u")
    assert outcome == "NONE"
    outcomes = {code(world.wire.produce(topic, batch(), partition=index)) for index in range(2)}
    assert outcomes == ({"NONE", "KAFKA_STORAGE_ERROR"} if world.two else {"KAFKA_STORAGE_ERROR"})
    world.check_online()
    assert world.produce() == "NONE"
    if again == "restarted":
        world.check_after_restart()
    else:
        world.disk.heal()
        world.broker.call(lambda: world.broker.broker.topics.delete("u"))
        outcome, topic = create(world.wire, "u")
        assert outcome == "NONE"
    for index in range(2):
        assert code(world.wire.produce(topic, batch(), partition=index)) == "NONE"


# ---- the reserve


def test_records_are_refused_before_the_reserve_is_touched(launch: Any, disk: FaultyDisk) -> None:
    """Everything else goes on, and so do records, by themselves, when space is freed."""
    reserve = 10 << 20
    world = World(launch(disk=disk, dirs=1, log_dir_reserve_bytes=reserve), disk)
    disk.free_bytes = reserve + 1000
    assert world.produce() == "NONE"
    disk.free_bytes = reserve - 1
    wait_until(lambda: world.produce() == "KAFKA_STORAGE_ERROR")
    writes = disk.fail("write", matches=world.of_ill(""))
    answer = world.wire.produce(world.topic, batch())
    assert "log.dir.reserve.bytes" in answer.error_message
    assert writes.struck == 0, "nothing was tried"
    world.check_online()
    disk.heal()
    disk.free_bytes = reserve - 1
    outcome, topic = create(world.wire, "u", 1)
    assert (outcome, code(world.wire.produce(topic, batch()))) == ("NONE", "KAFKA_STORAGE_ERROR")
    world.broker.call(lambda: world.broker.broker.topics.delete("u"))
    assert code(delete_records(world, 1)) == "NONE"
    assert code(world.wire.metadata("u").topics[0]) == "UNKNOWN_TOPIC_OR_PARTITION"

    disk.free_bytes = None
    wait_until(lambda: world.produce() == "NONE")


def test_the_reserve_of_a_running_broker_can_be_lowered(launch: Any, disk: FaultyDisk) -> None:
    """The change itself needs a little room: that is what the reserve is for."""
    world = World(launch(disk=disk, dirs=1, log_dir_reserve_bytes=10 << 20), disk)
    disk.free_bytes = 5 << 20
    assert world.produce() == "KAFKA_STORAGE_ERROR"
    change = AlterableConfig(name="log.dir.reserve.bytes", value=str(1 << 20))
    resource = AlterConfigsResource(resource_type=ResourceType.BROKER, resource_name="", configs=[change])
    (outcome,) = world.wire.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert code(outcome) == "NONE"
    assert world.produce() == "NONE"


# ---- failing


class Broken(NamedTuple):
    name: str
    operations: tuple[str, ...]
    ending: str
    rolls: bool = False
    number: int = errno.EIO


BROKEN = [
    Broken("write", ("write",), ".log"),
    Broken("write-index", ("write",), ".index"),
    Broken("create", ("create",), ".log", rolls=True),
    Broken("fdatasync", ("sync",), ".log"),
    Broken("fdatasync-full", ("sync",), ".log", number=errno.ENOSPC),
    Broken("fdatasync-index", ("sync",), ".index", rolls=True),
    Broken("sync-directory", ("sync directory",), "", rolls=True),
]


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_a_disk_that_fails_on_produce(world: World, case: Broken) -> None:
    fault = world.disk.fail(*case.operations, code=case.number, matches=world.of_ill(case.ending))
    assert world.produce(rolls=case.rolls) == "KAFKA_STORAGE_ERROR"
    assert fault.struck == 1
    world.check_offline()
    assert fault.struck == 1, "tried again"
    world.check_after_restart()


def test_a_volume_that_does_not_answer(launch: Any, disk: FaultyDisk) -> None:
    world = World(launch(disk=disk, dirs=2, durability="fsync"), disk)
    assert world.produce() == "NONE"
    world.broker.call(lambda: world.broker.broker.logs.keep_free(1))
    disk.fail("statvfs", matches=lambda path: path == world.dirs[-1])
    assert world.produce() == "KAFKA_STORAGE_ERROR"
    world.check_offline()
    world.check_after_restart()


READS = {
    "plain": {},
    "waiting": {"max_wait_ms": 500, "min_bytes": 1 << 20},
    "small": {"partition_max_bytes": 100},
}


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("ending", [".log", ".index"])
@pytest.mark.parametrize("cold", [False, True], ids=["cached", "cold"])
def test_a_disk_that_fails_on_fetch(world: World, how: str, ending: str, cold: bool) -> None:
    """Of the sealed segment, whether its bytes are brought in by a thread first or not."""
    for _ in range(2):
        world.produce(rolls=True)
    world.broker.restart()  # nothing is remembered of where batches stand
    world.wire = world.broker.connect()
    world.disk.is_cold = lambda path: cold
    world.disk.fail("read", matches=world.of_ill(ending))
    answer = world.wire.fetch(world.topic, 1, partition=world.ill, **READS[how])
    assert code(answer) == "KAFKA_STORAGE_ERROR"
    world.check_offline()
    world.check_after_restart()


def test_a_disk_that_fails_under_sendfile(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is cut off, for its length is on the wire; from then on clients hear why."""

    def sendfile(*arguments: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("tidelog.broker.connection.COPIED_BYTES_MAX", 0)
    monkeypatch.setattr("tidelog.broker.connection.os.sendfile", sendfile)
    reader = world.broker.connect()
    reader.send(reader.fetch_request(world.topic, partition=world.ill))
    reader.is_closed()
    wait_until(lambda: world.dir_errors()[-1] == "KAFKA_STORAGE_ERROR")
    monkeypatch.undo()
    world.check_offline()
    world.check_after_restart()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_a_disk_that_fails_in_recovery(world: World, clean: bool) -> None:
    """One of two directories is offline, and its partitions with it; the only one, or that of the metadata, ends the start."""
    world.broker._clean = clean
    world.broker.stop()
    world.disk.fail("read", matches=world.of_ill(".log" if not clean else ""))
    if not world.two:
        with pytest.raises(StartError, match=r"no log directory can be used|which holds the metadata log"):
            world.broker.start()
    else:
        world.broker.start()
        world.wire = world.broker.connect()
        world.check_offline()
        world.broker.stop()
    world.disk.heal()
    world.broker.start()
    world.wire = world.broker.connect()
    assert world.read() == world.acknowledged
    world.go_on()


@pytest.mark.parametrize("operation", ["read", "list", "open"])
def test_metadata_that_cannot_be_read(world: World, operation: str) -> None:
    world.broker.stop()
    world.disk.fail(operation, matches=lambda path: "__cluster_metadata-0" in path)
    with pytest.raises(StartError, match="metadata"):
        world.broker.start()
    world.disk.heal()
    world.broker.start()
    assert world.read() == world.acknowledged


def test_the_first_of_two_directories_fails_in_recovery(launch: Any, disk: FaultyDisk) -> None:
    """It holds the metadata log: a broker that went on without it could not keep what it is told."""
    world = World(launch(disk=disk, dirs=2, durability="fsync"), disk)
    assert world.produce() == "NONE"
    world.wire.produce(world.topic, batch(), partition=world.well)
    world.broker._clean = False
    world.broker.stop()
    disk.fail("read", matches=lambda path: path.startswith(f"{world.dirs[0]}/t-"))
    with pytest.raises(StartError, match="which holds the metadata log"):
        world.broker.start()
    disk.heal()
    world.broker.start()
    assert world.read() == world.acknowledged


@pytest.mark.parametrize("operation", ["sync", "write"])
def test_a_checkpoint_that_fails(world: World, operation: str) -> None:
    world.disk.fail(
        operation, matches=lambda path: path.startswith(world.dirs[-1]) and "-checkpoint" in Path(path).name
    )
    assert code(delete_records(world, 1)) == "KAFKA_STORAGE_ERROR"
    world.check_offline()


@pytest.mark.parametrize("looks", [0, 2], ids=["first-look", "later-look"])
def test_a_file_that_cannot_be_opened_again(
    world: World, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptor was closed to make room for others. Met where the broker only looks whether bytes are in memory.

    Each look asks twice: for what the readers after this one may want, and for what this one wants.
    """
    monkeypatch.setattr(cold_read, "SEEN_WARM_SECONDS", 0)
    for _ in range(2):
        world.produce(rolls=True)
    assert code(world.wire.fetch(world.topic, 0, partition=world.ill)) == "NONE"
    seen = []

    def is_cached(file: FaultyFile, count: int, position: int, /) -> bool:
        seen.append(file.path)
        if len(seen) > looks:
            world.disk.fail("read", matches=world.of_ill(""))
            raise DiskError("open", file.path, OSError(errno.EIO, "Input/output error"))
        return False

    monkeypatch.setattr(FaultyFile, "is_cached", is_cached)
    reader = world.broker.connect()
    answer = reader.fetch(world.topic, 0, partition=world.ill, partition_max_bytes=100)
    assert code(answer) == "KAFKA_STORAGE_ERROR"
    world.check_offline()


def test_a_directory_that_vanishes(world: World) -> None:
    """Unmounted, or removed by mistake: what needs a name finds out, and says so."""
    shutil.rmtree(world.dirs[-1])
    assert world.produce(rolls=True) == "KAFKA_STORAGE_ERROR"
    world.check_offline()
