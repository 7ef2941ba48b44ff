"""Producer snapshots: Kafka's bytes, the example of the docs, damage, and what a restart remembers."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptDataError
from tidelog.storage.producer_snapshot import decode_snapshot, encode_snapshot, read_snapshot, write_snapshot
from tidelog.storage.producer_state import BatchMetadata, ProducerEntry
from tidelog.testing.sim.disk import SimDisk

FORMATS = Path(__file__).parents[2] / "docs" / "formats"

# Written by Kafka 4.3.1: after 30 batches of an idempotent producer, and with a transaction open since offset 6.
KAFKA_IDEMPOTENT = bytes.fromhex(
    "0001f8f5339e00000001000000000000000000000000001d000000000000001d000000000000018bcfe5681dffffffffffffffffffffffff"
)
KAFKA_TRANSACTIONAL = bytes.fromhex(
    "0001c1ad124c0000000100000000000000010000000000030000000000000006000000000000018bcfe56800000000000000000000000006"
)

Facts = tuple[int, int, list[BatchMetadata], int, int, int, int]


def facts(entry: ProducerEntry) -> Facts:
    return (
        entry.producer_id,
        entry.producer_epoch,
        list(entry.batches),
        entry.next_sequence,
        entry.coordinator_epoch,
        entry.last_timestamp,
        entry.transaction_first_offset,
    )


@st.composite
def entries(draw: st.DrawFn) -> ProducerEntry:
    entry = ProducerEntry(draw(st.integers(0, 2**63 - 1)), draw(st.integers(0, 32767)))
    for _ in range(draw(st.integers(0, 7))):
        delta = draw(st.integers(0, 1000))
        offset = draw(st.integers(delta, 2**62))
        entry.remember(
            BatchMetadata(draw(st.integers(0, 2**31 - 1)), offset, delta, draw(st.integers(-1, 2**62)))
        )
    entry.coordinator_epoch = draw(st.integers(-1, 1000))
    entry.transaction_first_offset = draw(st.integers(-1, 2**62))
    if draw(st.booleans()):
        entry.last_timestamp = draw(st.integers(-1, 2**62))  # a marker came after the last batch
        if entry.batches:
            entry.batches[-1] = entry.batches[-1]._replace(timestamp=entry.last_timestamp)
    return entry


@given(st.lists(entries(), max_size=6, unique_by=lambda entry: entry.producer_id))
def test_all_remembered_batches_survive(producers: list[ProducerEntry]) -> None:
    again = decode_snapshot(encode_snapshot(producers), "f")
    assert [facts(entry) for entry in again] == [facts(entry) for entry in producers]


def test_kafkas_snapshots_are_read_and_written() -> None:
    (idempotent,) = decode_snapshot(KAFKA_IDEMPOTENT, "f")
    assert facts(idempotent) == (
        0,
        0,
        [BatchMetadata(29, 29, 0, 1_700_000_000_029)],
        30,
        -1,
        1_700_000_000_029,
        -1,
    )
    (open_transaction,) = decode_snapshot(KAFKA_TRANSACTIONAL, "f")
    assert open_transaction.transaction_first_offset == 6
    assert (open_transaction.coordinator_epoch, open_transaction.last_sequence) == (0, 3)
    assert encode_snapshot([idempotent]) == KAFKA_IDEMPOTENT
    assert encode_snapshot([open_transaction]) == KAFKA_TRANSACTIONAL


def test_the_last_entry_of_a_producer_is_the_one_kafka_writes() -> None:
    entry = ProducerEntry(0, 0)
    for sequence in range(30):
        entry.remember(BatchMetadata(sequence, sequence, 0, 1_700_000_000_000 + sequence))
    entry.transaction_first_offset = 3
    data = encode_snapshot([entry])
    assert int.from_bytes(data[6:10]) == 5
    rows = [data[10 + 46 * n :][:46] for n in range(5)]
    assert [int.from_bytes(row[10:14]) for row in rows] == [25, 26, 27, 28, 29]
    assert rows[-1][:38] == KAFKA_IDEMPOTENT[10:48]
    assert [int.from_bytes(row[38:], signed=True) for row in rows] == [-1, -1, -1, -1, 3]


def test_the_example_in_the_docs_is_true() -> None:
    text = (FORMATS / "producer-snapshot.md").read_text()
    block = re.search(r"<!-- example: snapshot -->\n```\n(.*?)```", text, re.S)
    assert block is not None
    data = bytes.fromhex("".join(line.split("#")[0] for line in block[1].splitlines()))
    first, second = decode_snapshot(data, "f")
    time = 1_700_000_000_000
    batches = [BatchMetadata(4, 1026, 4, time), BatchMetadata(5, 1027, 0, time + 10)]
    assert facts(first) == (4001, 0, batches, 6, -1, time + 10, -1)
    assert batches[0].first_offset == 1022
    assert facts(second) == (4002, 3, [], 0, 7, time + 20, -1)
    assert encode_snapshot([first, second]) == data


def test_every_damaged_byte_is_noticed() -> None:
    for position in range(len(KAFKA_IDEMPOTENT)):
        damaged = bytearray(KAFKA_IDEMPOTENT)
        damaged[position] ^= 0x20
        with pytest.raises(CorruptDataError, match=r"^f "):
            decode_snapshot(bytes(damaged), "f")
        with pytest.raises(CorruptDataError, match=r"^f "):
            decode_snapshot(KAFKA_IDEMPOTENT[:position], "f")


def test_a_torn_snapshot_is_found_out_after_a_crash() -> None:
    disk = SimDisk(random.Random(4), record=True)
    disk.make_dirs("/d")
    entry = ProducerEntry(7, 0)
    for sequence in range(30):
        entry.remember(BatchMetadata(sequence, sequence, 0, 50))
    file = write_snapshot(disk, "/d/s", [entry])
    file.sync()
    disk.sync_dir("/d")
    outcomes = set()
    for state in disk.crash_states():
        try:
            (found,) = read_snapshot(state.disk, "/d/s", now_ms=60, producer_id_expiration_ms=100)
            assert facts(found) == facts(entry)
            outcomes.add("whole")
        except (CorruptDataError, FileNotFoundError) as refusal:
            assert state.operations < disk.operations
            outcomes.add(type(refusal).__name__)
    assert outcomes == {"whole", "CorruptDataError", "FileNotFoundError"}


def test_expired_producers_are_not_loaded() -> None:
    disk = SimDisk(random.Random(4))
    disk.make_dirs("/d")
    producers = [ProducerEntry(1, 0), ProducerEntry(2, 0), ProducerEntry(3, 0)]
    for entry, timestamp in zip(producers, (0, 1, 0), strict=True):
        entry.remember(BatchMetadata(0, 0, 0, timestamp))
    producers[2].transaction_first_offset = 0
    write_snapshot(disk, "/d/s", producers).close()
    write_snapshot(disk, "/d/s", producers[:1] + producers).close()
    loaded = read_snapshot(disk, "/d/s", now_ms=100, producer_id_expiration_ms=100)
    assert [entry.producer_id for entry in loaded] == [2, 3]
