"""Changes as batches of the metadata log, and the way back; also from a file that Kafka wrote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.controller.world import World, topic
from tidelog.controller.delta import MetadataDelta
from tidelog.controller.image import EMPTY_IMAGE, ResourceType
from tidelog.controller.metadata_log import (
    EncodedBatch,
    MetadataLogReader,
    bootstrap_records,
    encode_batches,
    replay_log,
)
from tidelog.controller.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    NoOpRecord,
    TopicRecord,
)
from tidelog.errors import CorruptDataError
from tidelog.records.batch import crc_matches, read_header
from tidelog.records.builder import BatchBuilder
from tidelog.records.control import LeaderChange, Voter, build_leader_change

# bootstrap.checkpoint of a node that Kafka 4.3.1 formatted: a snapshot header, six feature levels, a footer.
KAFKA_BOOTSTRAP_CHECKPOINT = bytes.fromhex(
    "000000000000000000000047000000000284ed4407002000000000000001a1e22cc9df000001a1e22cc9dfffffffffffffff"
    "ffffffffffffff000000012a0000000800000003160000000000000000000000000000000000000001000000f10000000002"
    "661babd9000000000005000001a1e22cc9f7000001a1e22cc9f7ffffffffffffffffffffffffffff000000063a000000012e"
    "010c00116d657461646174612e76657273696f6e001e00005a000002014e010c0021656c696769626c652e6c65616465722e"
    "7265706c696361732e76657273696f6e00010000340000040128010c000e67726f75702e76657273696f6e00010000340000"
    "060128010c000e73686172652e76657273696f6e0001000038000008012c010c001073747265616d732e76657273696f6e00"
    "0100004000000a0134010c00147472616e73616374696f6e2e76657273696f6e0002000000000000000000070000003f0000"
    "000002c5d88480002000000000000001a1e22cc9f8000001a1e22cc9f8ffffffffffffffffffffffffffff000000011a0000"
    "0008000000040600000000"
)


def batches(*records: object, at: int = 0, epoch: int = 1, **limits: int) -> list[EncodedBatch]:
    return encode_batches(
        records, base_offset=at, leader_epoch=epoch, timestamp_ms=1_700_000_000_000, **limits
    )


def data(*records: object, at: int = 0, epoch: int = 1) -> bytes:
    return b"".join(batch.data for batch in batches(*records, at=at, epoch=epoch))


def a_config(number: int) -> ConfigRecord:
    return ConfigRecord(ResourceType.GROUP, f"g{number}", "k", "v")


def test_a_snapshot_of_kafkas_is_read() -> None:
    image, reader = replay_log([KAFKA_BOOTSTRAP_CHECKPOINT])
    assert image.features == {
        "metadata.version": 30,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
        "transaction.version": 2,
    }
    assert (reader.next_offset, image.offset, image.epoch) == (8, 7, 0)


def test_one_change_is_one_batch_with_offsets_epoch_and_crc() -> None:
    (batch,) = batches(TopicRecord("t", b"i" * 16), NoOpRecord(), at=41, epoch=7)
    header = read_header(batch.data)
    assert (batch.base_offset, batch.next_offset) == (41, 43)
    assert (header.base_offset, header.next_offset, header.record_count) == (41, 43, 2)
    assert (header.partition_leader_epoch, header.is_control, header.codec) == (7, False, 0)
    assert header.size == len(batch.data)
    assert crc_matches(batch.data, 0, header)


def test_a_large_change_is_a_transaction_of_several_batches() -> None:
    records = [a_config(number) for number in range(25)]
    made = batches(*records, at=5, batch_records_max=10)
    assert [read_header(batch.data).record_count for batch in made] == [1, 10, 10, 5, 1]
    reader = MetadataLogReader(5)
    for batch in made[:-1]:
        assert list(reader.read(batch.data)) == []
        assert reader.in_transaction
    (change,) = reader.read(made[-1].data)
    assert change.records == records
    assert (change.last_offset, change.leader_epoch) == (5 + 26, 1)
    assert not reader.in_transaction


def test_batches_stay_below_their_size() -> None:
    made = batches(*(a_config(number) for number in range(500)), batch_bytes_max=2_000)
    assert len(made) > 5
    assert max(len(batch.data) for batch in made) <= 2_000


def test_nothing_to_say_is_no_batch() -> None:
    assert batches() == []


def test_a_transaction_that_never_ended_never_happened() -> None:
    log = data(a_config(0)) + data(BeginTransactionRecord("torn"), a_config(1), at=1)
    image, reader = replay_log([log])
    assert reader.in_transaction
    assert [key.name for key in image.configs] == ["g0"]
    assert image.offset == 2
    log += data(AbortTransactionRecord("its writer died"), a_config(2), at=3)
    image, reader = replay_log([log])
    assert not reader.in_transaction
    assert [key.name for key in image.configs] == ["g0", "g2"]


def test_a_transaction_within_a_batch_counts_from_its_end_on() -> None:
    reader = MetadataLogReader()
    (change,) = reader.read(data(BeginTransactionRecord(), a_config(0), EndTransactionRecord(), a_config(1)))
    assert change.records == [a_config(0), a_config(1)]


def test_control_batches_take_offsets_and_say_nothing() -> None:
    voters = (Voter(0, bytes(16)),)
    leader = build_leader_change(LeaderChange(0, voters, voters), leader_epoch=1, timestamp=1, base_offset=0)
    image, reader = replay_log([leader, data(a_config(0), at=1, epoch=1)])
    assert [key.name for key in image.configs] == ["g0"]
    assert (image.offset, image.epoch, reader.next_offset) == (1, 1, 2)


def test_replay_goes_on_from_an_image() -> None:
    image, _ = replay_log([data(a_config(0))])
    image, reader = replay_log([data(a_config(1), at=1, epoch=3)], image)
    assert [key.name for key in image.configs] == ["g0", "g1"]
    assert (image.offset, image.epoch, reader.leader_epoch) == (1, 3, 3)


def _flipped(log: bytes) -> bytes:
    return log[:-3] + bytes([log[-3] ^ 1]) + log[-2:]


def _raw(value: bytes | None) -> bytes:
    builder = BatchBuilder(partition_leader_epoch=1)
    builder.append(0, None, value)
    return builder.build()


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (_flipped(data(a_config(0))), "CRC"),
        (data(a_config(0), at=3), "offset 0 was expected"),
        (data(a_config(0), epoch=4) + data(a_config(1), at=1, epoch=3), "epoch 3 after epoch 4"),
        (data(a_config(0)) + b"torn", "4 bytes after offset 1"),
        (data(EndTransactionRecord()), "never began"),
        (data(BeginTransactionRecord(), BeginTransactionRecord()), "inside another"),
        (_raw(None), "offset 0 has no value"),
        (_raw(b"\x01\x63\x00\x00"), "offset 0: metadata record of unknown type 99"),
    ],
)
def test_a_log_that_cannot_be_right_is_not_replayed(log: bytes, says: str) -> None:
    with pytest.raises(CorruptDataError, match=re.escape(says)):
        replay_log([log])


def test_a_new_cluster_begins_with_its_features_and_min_insync_replicas() -> None:
    image = (
        MetadataDelta(EMPTY_IMAGE)
        .replay_all(bootstrap_records(min_insync_replicas=2))
        .apply(offset=2, epoch=1)
    )
    assert image.features == {
        "metadata.version": 30,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
    }
    assert image.broker_defaults == {"min.insync.replicas": "2"}
    assert bootstrap_records()[0].name == "metadata.version"


def test_many_partitions_are_written_and_read_back_in_parts() -> None:
    world = World(batch_records_max=500)
    world.add_broker(0)
    assert world.create(topic("t", 3_000)) == [0]
    assert len(world.log) > 6
    assert world.reread() == world.image


def test_the_worked_example_of_the_format_page_is_true() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats" / "metadata-log.md").read_text()
    example = page.partition("## A worked example")[2].partition("```text")[2].partition("```")[0]
    dump = bytes.fromhex("".join(line.partition("|")[0] for line in example.splitlines()))
    (batch,) = batches(TopicRecord("orders", bytes(range(16))), at=3, epoch=1)
    assert dump == batch.data
