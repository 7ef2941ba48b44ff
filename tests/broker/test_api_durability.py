"""Acknowledged means durable: nothing is told before its fdatasync, and a disk that fails is told as such (I7, M33)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import OwnBroker, Topic, Wire, batch, code
from tidelog.testing.faulty_disk import FaultyDisk
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest

SOON_SECONDS = 10.0


def log_of(topic: str) -> Callable[[str], bool]:
    return lambda path: f"/{topic}-" in path and path.endswith(".log")


@pytest.fixture
def slow(launch: Any, disk: FaultyDisk) -> tuple[OwnBroker, Topic, Topic]:
    """A broker whose syncs of topic `t` do not end until the disk is released; those of `u` do."""
    broker: OwnBroker = launch(disk=disk, durability="fsync")
    wire = broker.connect()
    topic, other = wire.create("t"), wire.create("u")
    assert wire.produce(topic, batch()).base_offset == 0
    disk.holds = log_of("t")
    return broker, topic, other


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def test_acks_all_waits_for_the_sync(slow: tuple[OwnBroker, Topic, Topic], disk: FaultyDisk) -> None:
    broker, topic, _ = slow
    wire, reader = broker.connect(), broker.connect()
    wire.send(wire.produce_request(topic, batch(), acks=-1))
    assert wire.is_silent(), "not answered before it is durable"
    assert reader.offset_at(topic, -1).offset == 1, "and not visible"
    assert len(reader.fetch(topic, 1).records) == 0
    assert code(reader.fetch(topic, 2)) == "NONE", "it is in the log, though"
    disk.release()
    answer = wire.receive(SOON_SECONDS).responses[0].partition_responses[0]
    assert (code(answer), answer.base_offset) == ("NONE", 1)
    assert reader.offset_at(topic, -1).offset == 2


def test_acks_1_does_not_wait(slow: tuple[OwnBroker, Topic, Topic], disk: FaultyDisk) -> None:
    broker, topic, _ = slow
    wire = broker.connect()
    answer = wire.ask(wire.produce_request(topic, batch(), acks=1), timeout=SOON_SECONDS)
    assert answer.responses[0].partition_responses[0].base_offset == 1
    assert wire.offset_at(topic, -1).offset == 1, "told, but not committed yet"
    disk.release()
    wait_until(lambda: bool(wire.offset_at(topic, -1).offset == 2))


def test_records_are_deleted_that_are_about_to_be_committed(
    slow: tuple[OwnBroker, Topic, Topic], disk: FaultyDisk
) -> None:
    """Whoever has had the answer to acks=1 may delete what it told; what is not in the log at all is refused at once."""
    broker, topic, _ = slow
    wire, producer = broker.connect(), broker.connect()
    answer = producer.ask(producer.produce_request(topic, batch(), acks=1), timeout=SOON_SECONDS)
    assert answer.responses[0].partition_responses[0].base_offset == 1
    assert code(delete_records(wire, 0, 3)) == "OFFSET_OUT_OF_RANGE"
    assert code(delete_records(wire, 0, 2, timeout_ms=50)) == "OFFSET_OUT_OF_RANGE", "it took too long"
    wire.send(delete_request(0, 2))
    assert wire.is_silent()
    disk.release()
    result = wire.receive(SOON_SECONDS).topics[0].partitions[0]
    assert (code(result), result.low_watermark) == ("NONE", 2)


def test_a_wait_that_takes_too_long(slow: tuple[OwnBroker, Topic, Topic], disk: FaultyDisk) -> None:
    """The producer hears REQUEST_TIMED_OUT, and its retry gets the offset of the first try."""
    broker, topic, _ = slow
    wire = broker.connect()
    records = batch(producer_id=5, producer_epoch=0, base_sequence=0)
    answer = wire.produce(topic, records, timeout_ms=100)
    assert (code(answer), answer.base_offset) == ("REQUEST_TIMED_OUT", -1)
    wire.send(wire.produce_request(topic, records))
    assert wire.is_silent(), "a duplicate is answered when the first one is durable, not before"
    disk.release()
    assert wire.receive(SOON_SECONDS).responses[0].partition_responses[0].base_offset == 1
    assert wire.offset_at(topic, -1).offset == 2


def test_one_sync_serves_everybody_who_waits(slow: tuple[OwnBroker, Topic, Topic], disk: FaultyDisk) -> None:
    broker, topic, _ = slow
    wires = [broker.connect() for _ in range(5)]
    wires[0].send(wires[0].produce_request(topic, batch()))
    assert wires[0].is_silent()
    for wire in wires:
        for _ in range(10):
            wire.send(wire.produce_request(topic, batch()))
    wait_until(lambda: broker.broker.partitions.leader_of("t", 0).log.log_end_offset == 52)
    before = sum(map(log_of("t"), disk.synced))
    disk.release()
    for wire in wires:
        for _ in range(11 if wire is wires[0] else 10):
            assert code(wire.receive(SOON_SECONDS).responses[0].partition_responses[0]) == "NONE"
    assert sum(map(log_of("t"), disk.synced)) - before <= 2


def test_a_partly_committed_request_waits_for_all_of_it(
    slow: tuple[OwnBroker, Topic, Topic], disk: FaultyDisk
) -> None:
    broker, topic, other = slow
    wire = broker.connect()
    request = wire.produce_request(other, batch())
    request.topic_data += wire.produce_request(topic, batch()).topic_data
    wire.send(request)
    assert wire.is_silent()
    disk.release()
    answers = wire.receive(SOON_SECONDS).responses
    assert [code(answer.partition_responses[0]) for answer in answers] == ["NONE", "NONE"]


def test_replicated_durability_does_not_wait(launch: Any, disk: FaultyDisk) -> None:
    broker: OwnBroker = launch(disk=disk, durability="replicated")
    wire = broker.connect()
    topic = wire.create("t")
    disk.holds = log_of("t")
    assert wire.produce(topic, batch(), acks=-1).base_offset == 0
    assert wire.offset_at(topic, -1).offset == 1


def test_a_topic_is_durable_when_its_creation_is_answered(launch: Any, disk: FaultyDisk) -> None:
    broker: OwnBroker = launch(disk=disk)
    wire, other = broker.connect(), broker.connect()
    disk.holds = log_of("__cluster_metadata")
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    wire.send(CreateTopicsRequest(topics=[topic], timeout_ms=9000))
    assert wire.is_silent()
    assert code(other.metadata("t").topics[0]) == "UNKNOWN_TOPIC_OR_PARTITION"
    disk.release()
    assert code(wire.receive(SOON_SECONDS).topics[0]) == "NONE"


# ---- failing disks


class Two:
    """A broker with two log directories, and a topic with a partition in each. The metadata is in the first."""

    def __init__(self, broker: OwnBroker, disk: FaultyDisk) -> None:
        self.broker, self.disk = broker, disk
        self.paths = broker.properties["log.dirs"].split(",")
        self.topic = broker.connect().create("t", 2)
        homes = [
            str(Path(broker.broker.partitions.leader_of("t", index).log.directory).parent)
            for index in range(2)
        ]
        assert sorted(homes) == self.paths, "each directory holds one"
        self.well, self.ill = homes.index(self.paths[0]), homes.index(self.paths[1])

    def break_second(self, *operations: str) -> None:
        self.disk.fails = lambda operation, path: (
            path.startswith(self.paths[1] + "/") and (not operations or operation in operations)
        )


@pytest.fixture
def two(launch: Any, disk: FaultyDisk) -> Two:
    return Two(launch(disk=disk, dirs=2, durability="fsync"), disk)


def check_half_offline(two: Two, wire: Wire) -> None:
    """The second directory is offline and says so everywhere; the first goes on."""
    ill, well = two.ill, two.well
    for version in (12, 13):
        assert code(wire.produce(two.topic, batch(), partition=ill, version=version)) == "KAFKA_STORAGE_ERROR"
        assert code(wire.fetch(two.topic, partition=ill, version=version)) == "KAFKA_STORAGE_ERROR"
    assert code(wire.offset_at(two.topic, -1, partition=ill)) == "KAFKA_STORAGE_ERROR"
    assert code(delete_records(wire, ill, 0)) == "KAFKA_STORAGE_ERROR"
    described = {p.partition_index: p for p in wire.metadata("t").topics[0].partitions}
    assert (code(described[ill]), described[ill].leader_id, described[ill].offline_replicas) == (
        "LEADER_NOT_AVAILABLE",
        -1,
        [0],
    )
    assert (code(described[well]), described[well].leader_id, described[well].offline_replicas) == (
        "NONE",
        0,
        [],
    )
    dirs = {result.log_dir: code(result) for result in wire.ask(DescribeLogDirsRequest(topics=None)).results}
    assert dirs == {two.paths[0]: "NONE", two.paths[1]: "KAFKA_STORAGE_ERROR"}
    assert code(wire.produce(two.topic, batch(), partition=well)) == "NONE"
    assert code(wire.fetch(two.topic, partition=well)) == "NONE"


def delete_request(partition: int, offset: int, timeout_ms: int = 9000) -> DeleteRecordsRequest:
    asked = DeleteRecordsPartition(partition_index=partition, offset=offset)
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="t", partitions=[asked])], timeout_ms=timeout_ms
    )


def delete_records(wire: Wire, partition: int, offset: int, timeout_ms: int = 9000) -> Any:
    return wire.ask(delete_request(partition, offset, timeout_ms)).topics[0].partitions[0]


@pytest.mark.parametrize("operation", ["sync", "write"])
def test_a_disk_that_fails_on_produce(two: Two, operation: str) -> None:
    wire = two.broker.connect()
    assert wire.produce(two.topic, batch(b"kept"), partition=two.ill).base_offset == 0
    two.break_second(operation)
    answer = wire.produce(two.topic, batch(b"lost"), partition=two.ill)
    assert (code(answer), answer.base_offset) == ("KAFKA_STORAGE_ERROR", -1)
    syncs = len([path for path in two.disk.synced if path.startswith(two.paths[1])])
    check_half_offline(two, wire)
    assert len([path for path in two.disk.synced if path.startswith(two.paths[1])]) == syncs, "never retried"
    assert not two.broker.broker.failed.is_set()

    two.disk.fails = lambda operation, path: False
    two.broker.restart()
    wire = two.broker.connect()
    kept = bytes(wire.fetch(two.topic, partition=two.ill).records)
    assert b"kept" in kept, "what was acknowledged is there"
    assert code(wire.produce(two.topic, batch(), partition=two.ill)) == "NONE"


def test_all_who_wait_hear_of_the_failure(two: Two) -> None:
    """Produces and parked fetches alike, at once, and in order."""
    wire, reader = two.broker.connect(), two.broker.connect()
    reader.send(reader.fetch_request(two.topic, partition=two.ill, max_wait_ms=20_000))
    assert reader.is_silent()
    two.break_second("sync")
    for _ in range(5):
        wire.send(wire.produce_request(two.topic, batch(), partition=two.ill))
        wire.send(wire.produce_request(two.topic, batch(), partition=two.well))
    answers = [wire.receive(SOON_SECONDS).responses[0].partition_responses[0] for _ in range(10)]
    assert [code(answer) for answer in answers] == ["KAFKA_STORAGE_ERROR", "NONE"] * 5
    assert code(reader.receive(SOON_SECONDS).responses[0].partitions[0]) == "KAFKA_STORAGE_ERROR"


def test_a_disk_that_fails_on_fetch(two: Two) -> None:
    """Where the broker reads itself. What sendfile takes from the page cache meets no fault of ours."""
    wire = two.broker.connect()
    for _ in range(3):
        wire.produce(two.topic, batch(), partition=two.ill)
    two.break_second("read")
    answer = wire.fetch(two.topic, partition=two.ill, partition_max_bytes=len(batch()) + 1)
    assert code(answer) == "KAFKA_STORAGE_ERROR"
    check_half_offline(two, wire)


def test_a_checkpoint_that_fails_on_delete_records(two: Two) -> None:
    """The new log start would not survive a crash, so the deletion is not confirmed."""
    wire = two.broker.connect()
    wire.produce(two.topic, batch(), partition=two.ill)
    two.disk.fails = lambda operation, path: path.startswith(two.paths[1]) and "checkpoint" in path
    result = delete_records(wire, two.ill, 1)
    assert (code(result), result.low_watermark) == ("KAFKA_STORAGE_ERROR", -1)
    check_half_offline(two, wire)


def test_a_disk_that_fails_while_a_topic_is_created(two: Two) -> None:
    """The topic exists; its partitions there are offline. Nothing else is hurt."""
    two.break_second()
    wire = two.broker.connect()
    topic = CreatableTopic(name="new", num_partitions=4, replication_factor=1)
    (result,) = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=9000)).topics
    assert code(result) == "NONE"
    created = Topic("new", result.topic_id)
    outcomes = [code(wire.produce(created, batch(), partition=index)) for index in range(4)]
    assert set(outcomes) == {"NONE", "KAFKA_STORAGE_ERROR"}
    check_half_offline(two, wire)


def test_a_disk_that_fails_for_one_of_several_new_partitions(two: Two) -> None:
    """The others in that directory were made all right, but the directory is offline now, and so are they."""
    two.disk.fails = lambda operation, path: path.startswith(
        (f"{two.paths[1]}/new-0/", f"{two.paths[1]}/new-1/")
    )
    wire = two.broker.connect()
    topic = CreatableTopic(name="new", num_partitions=4, replication_factor=1)
    (result,) = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=9000)).topics
    assert code(result) == "NONE"
    homes = [(Path(two.paths[1]) / f"new-{index}").exists() for index in range(4)]
    outcomes = [
        code(wire.produce(Topic("new", result.topic_id), batch(), partition=index)) for index in range(4)
    ]
    assert outcomes == ["KAFKA_STORAGE_ERROR" if home else "NONE" for home in homes]
    check_half_offline(two, wire)
    wire.create("after")


def test_retention_that_fails_takes_the_directory_offline(launch: Any, disk: FaultyDisk) -> None:
    two = Two(launch(disk=disk, dirs=2, log_retention_check_interval_ms=50), disk)
    wire = two.broker.connect()
    wire.produce(two.topic, batch(timestamp=1000), partition=two.ill)
    two.break_second("open", "write")
    wait_until(lambda: bool(wire.metadata("t").topics[0].partitions[two.ill].leader_id == -1))
    check_half_offline(two, wire)


def test_starting_with_a_directory_that_cannot_be_read(two: Two) -> None:
    """Its partitions are known from the metadata: offline, not unknown, and never replaced by empty ones (I6)."""
    wire = two.broker.connect()
    wire.produce(two.topic, batch(), partition=two.ill)
    two.broker.stop()
    two.break_second()
    two.broker.start()
    check_half_offline(two, two.broker.connect())
    two.broker.stop()
    two.disk.fails = lambda operation, path: False
    two.broker.start()
    assert two.broker.connect().offset_at(two.topic, -1, partition=two.ill).offset == 1


def test_a_topic_of_an_offline_directory_can_be_deleted(two: Two) -> None:
    wire = two.broker.connect()
    two.break_second("sync")
    wire.produce(two.topic, batch(), partition=two.ill)
    two.broker.call(lambda: two.broker.broker.topics.delete("t"))
    for index in (two.ill, two.well):
        assert code(wire.produce(two.topic, batch(), partition=index)) == "UNKNOWN_TOPIC_ID"
        assert code(wire.fetch(two.topic, partition=index, version=12)) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_metadata_log_that_fails_ends_the_broker(launch: Any, disk: FaultyDisk) -> None:
    """It must not answer from a state that would be gone after a restart; and it can still be stopped."""
    broker: OwnBroker = launch(disk=disk, durability="fsync")
    wire = broker.connect()
    topic = wire.create("t")
    wire.produce(topic, batch())
    disk.fails = lambda operation, path: operation == "sync" and log_of("__cluster_metadata")(path)
    asked = CreatableTopic(name="u", num_partitions=1, replication_factor=1)
    (result,) = wire.ask(CreateTopicsRequest(topics=[asked], timeout_ms=9000)).topics
    assert code(result) == "KAFKA_STORAGE_ERROR"
    wait_until(broker.broker.failed.is_set)
    wire = broker.connect()
    assert code(wire.metadata("u").topics[0]) == "UNKNOWN_TOPIC_OR_PARTITION"
    response = wire.ask(InitProducerIdRequest(transactional_id=None))
    assert code(response) == "KAFKA_STORAGE_ERROR"

    disk.fails = lambda operation, path: False
    broker.restart()
    wire = broker.connect()
    assert wire.offset_at(topic, -1).offset == 1
    wire.create("v")


def test_a_topic_created_while_every_directory_is_offline(two: Two) -> None:
    """It exists, offline, and comes to life when the broker finds its disks again."""
    wire = two.broker.connect()
    two.disk.fails = lambda operation, path: operation == "sync" and "/t-" in path
    for index in range(2):
        assert code(wire.produce(two.topic, batch(), partition=index)) == "KAFKA_STORAGE_ERROR"
    topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    (result,) = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=9000)).topics
    created = Topic("new", result.topic_id)
    assert (code(result), code(wire.produce(created, batch()))) == ("NONE", "KAFKA_STORAGE_ERROR")
    two.disk.fails = lambda operation, path: False
    two.broker.restart()
    assert code(two.broker.connect().produce(created, batch())) == "NONE"


def test_a_directory_that_comes_back_after_its_topic_was_created_again(two: Two) -> None:
    """What it holds is of another topic id: it is set aside, and nothing keeps the broker from starting (I6)."""
    wire = two.broker.connect()
    two.break_second("sync")
    wire.produce(two.topic, batch(), partition=two.ill)
    two.broker.call(lambda: two.broker.broker.topics.delete("t"))
    new = wire.create("t", 2)
    two.disk.fails = lambda operation, path: False
    two.broker.restart()
    wire = two.broker.connect()
    assert [wire.produce(new, batch(), partition=index).base_offset for index in range(2)] == [0, 0]
