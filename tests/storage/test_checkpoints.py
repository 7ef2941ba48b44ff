"""The small text files: round trips, Kafka's own bytes, and strict refusal of damaged ones."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptDataError
from tidelog.storage import checkpoints as cp
from tidelog.storage.disk import read_file
from tidelog.storage.epoch_cache import EpochEntry
from tidelog.testing.sim.disk import SimDisk

FORMATS = Path(__file__).parents[2] / "docs" / "formats"

# As Kafka 4.3.1 left them after a clean stop.
KAFKA_META = (
    b"#\n#Mon Nov 16 02:27:07 UTC 2026\nnode.id=1\ndirectory.id=pJphFtdZuOmVfUNQFXelNw\nversion=1\n"
    b"cluster.id=MkU3OEVBNTcwNTJENDM2Qg\n"
)
KAFKA_PARTITION_METADATA = b"version: 0\ntopic_id: 7xKZk4_dQyq3jvFlorj95A"
KAFKA_CLEAN_SHUTDOWN = b'{"version":0,"brokerEpoch":11}'
KAFKA_EPOCHS = b"0\n1\n0 0\n"
KAFKA_OFFSETS = b"0\n3\n__transaction_state 42 0\npayments 0 7\norders 0 30\n"

topics = st.from_regex(r"[a-zA-Z0-9._-]{1,40}", fullmatch=True).filter(lambda name: name not in (".", ".."))
partitions = st.integers(0, 2**31 - 1)
offsets = st.integers(-1, 2**63 - 1)


def sim_disk() -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    return disk


@given(st.dictionaries(st.tuples(topics, partitions), offsets))
def test_offsets_round_trip(content: dict[tuple[str, int], int]) -> None:
    assert cp.decode_offsets(cp.encode_offsets(content), "f") == content


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9))))
def test_epochs_round_trip(steps: list[tuple[int, int]]) -> None:
    entries = []
    epoch = offset = 0
    for rise, ahead in steps:
        epoch += rise
        offset += ahead
        entries.append(EpochEntry(epoch, offset))
    assert cp.decode_epochs(cp.encode_epochs(entries), "f") == entries


@given(st.binary(min_size=16, max_size=16).filter(any), st.integers(0, 2**31 - 1), st.integers(-1, 2**63 - 1))
def test_identity_files_round_trip(some_id: bytes, node_id: int, epoch: int) -> None:
    assert cp.decode_uuid(cp.encode_uuid(some_id)) == some_id
    assert cp.decode_partition_metadata(cp.encode_partition_metadata(some_id), "f") == some_id
    for directory_id in (some_id, None):
        meta = cp.MetaProperties(cp.encode_uuid(some_id), node_id, directory_id)
        assert cp.decode_meta_properties(cp.encode_meta_properties(meta), "f") == meta
    assert cp.decode_clean_shutdown(cp.encode_clean_shutdown(epoch), "f") == epoch


def test_kafkas_files_are_read_and_written() -> None:
    topic_id = bytes.fromhex("ef1299938fdd432ab78ef165a2b8fde4")
    assert cp.decode_partition_metadata(KAFKA_PARTITION_METADATA, "f") == topic_id
    assert cp.encode_partition_metadata(topic_id) == KAFKA_PARTITION_METADATA
    assert cp.decode_clean_shutdown(KAFKA_CLEAN_SHUTDOWN, "f") == 11
    assert cp.encode_clean_shutdown(11) == KAFKA_CLEAN_SHUTDOWN
    assert cp.decode_clean_shutdown(b"", "f") == -1
    assert cp.encode_epochs(cp.decode_epochs(KAFKA_EPOCHS, "f")) == KAFKA_EPOCHS
    found = cp.decode_offsets(KAFKA_OFFSETS, "f")
    assert found == {("__transaction_state", 42): 0, ("payments", 0): 7, ("orders", 0): 30}
    assert cp.encode_offsets(found) == KAFKA_OFFSETS
    meta = cp.decode_meta_properties(KAFKA_META, "f")
    assert (meta.cluster_id, meta.node_id) == ("MkU3OEVBNTcwNTJENDM2Qg", 1)
    assert meta.directory_id == bytes.fromhex("a49a6116d759b8e9957d43501577a537")


def test_an_empty_checkpoint_has_no_entries() -> None:
    """Kafka leaves an empty cleaner-offset-checkpoint behind."""
    assert cp.decode_offsets(b"", "f") == {}
    assert cp.decode_epochs(b"", "f") == []


Decoder = Callable[[bytes, str], object]


@pytest.mark.parametrize(
    ("decode", "content", "line"),
    [
        (cp.decode_offsets, b"\n", 2),
        (cp.decode_offsets, b"0\n", 2),
        (cp.decode_offsets, b"1\n0\n", 1),
        (cp.decode_offsets, b"x\n0\n", 1),
        (cp.decode_offsets, b"0\n2\na 0 1\n", 2),
        (cp.decode_offsets, b"0\n1\na 0 1\nb 0 1\n", 2),
        (cp.decode_offsets, b"0\n1\na 0\n", 3),
        (cp.decode_offsets, b"0\n1\n../a 0 1\n", 3),
        (cp.decode_offsets, b"0\n2\na 0 1\na 0 2\n", 4),
        (cp.decode_offsets, b"0\n1\na -1 1\n", 3),
        (cp.decode_offsets, b"0\n1\na 0 1_0\n", 3),
        (cp.decode_offsets, "0\n1\na 0 ٣\n".encode(), 3),
        (cp.decode_epochs, b"0\n1\n1 2 3\n", 3),
        (cp.decode_epochs, b"0\n2\n3 10\n3 20\n", 4),
        (cp.decode_epochs, b"0\n2\n3 10\n4 9\n", 4),
        (cp.decode_epochs, b"0\n1\n-1 9\n", 3),
        (cp.decode_partition_metadata, b"", 1),
        (cp.decode_partition_metadata, b"version: 1\ntopic_id: 7xKZk4_dQyq3jvFlorj95A", 1),
        (cp.decode_partition_metadata, b"version: 0", 2),
        (cp.decode_partition_metadata, b"version: 0\ntopic_id: 7xKZk4_dQyq3jvFlorj95", 2),
        (cp.decode_partition_metadata, b"version: 0\ntopic_id: 7xKZk4_dQyq3jvFlorj95!", 2),
        (cp.decode_partition_metadata, b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", 2),
        (cp.decode_meta_properties, b"version=1\nnonsense\n", 2),
        (cp.decode_meta_properties, b"version=1\nnode.id=1\n", 3),
        (cp.decode_meta_properties, b"node.id=1\ncluster.id=c\nversion=0\n", 3),
        (cp.decode_meta_properties, b"node.id=one\ncluster.id=c\nversion=1\n", 1),
        (cp.decode_meta_properties, b"node.id=1\ndirectory.id=?\ncluster.id=c\nversion=1\n", 2),
        (cp.decode_clean_shutdown, b"{", 1),
        (cp.decode_clean_shutdown, b"[]", 1),
        (cp.decode_clean_shutdown, b'{"version":0,"brokerEpoch":true}', 1),
        (cp.decode_clean_shutdown, b'{"version":7,"brokerEpoch":1}', 1),
    ],
)
def test_damage_is_named_with_file_and_line(decode: Decoder, content: bytes, line: int) -> None:
    with pytest.raises(CorruptDataError, match=rf"^/d/the-file line {line}: expected "):
        decode(content, "/d/the-file")


@given(
    st.sampled_from(
        [cp.decode_offsets, cp.decode_epochs, cp.decode_partition_metadata, cp.decode_meta_properties]
    ),
    st.one_of(
        st.binary(max_size=60),
        st.builds(
            lambda at, byte, source: source[:at] + bytes([byte]) + source[at + 1 :],
            st.integers(0, 80),
            st.integers(0, 255),
            st.sampled_from([KAFKA_OFFSETS, KAFKA_EPOCHS, KAFKA_PARTITION_METADATA, KAFKA_META]),
        ),
    ),
)
def test_any_bytes_are_read_or_refused(decode: Decoder, content: bytes) -> None:
    try:
        decode(content, "f")
    except CorruptDataError as refusal:
        assert str(refusal).startswith("f ")


def test_a_missing_file_reads_as_none_and_a_written_one_survives_power_loss() -> None:
    disk = sim_disk()
    readers: list[Callable[[SimDisk, str], object]] = [
        cp.read_offsets,
        cp.read_epochs,
        cp.read_partition_metadata,
        cp.read_meta_properties,
        cp.read_clean_shutdown,
    ]
    assert [read(disk, "/d/x") for read in readers] == [None] * 5
    meta = cp.MetaProperties("c", 1, bytes(range(16)))
    cp.write_offsets(disk, "/d/o", {("t", 0): 5})
    cp.write_epochs(disk, "/d/e", [EpochEntry(0, 0)])
    cp.write_meta_properties(disk, "/d/m", meta)
    cp.write_clean_shutdown(disk, "/d/c", 3)
    after = disk.crash("lose_unsynced")
    assert cp.read_offsets(after, "/d/o") == {("t", 0): 5}
    assert cp.read_epochs(after, "/d/e") == [(0, 0)]
    assert cp.read_meta_properties(after, "/d/m") == meta
    assert cp.read_clean_shutdown(after, "/d/c") == 3


def test_the_id_of_a_partition_is_whole_or_taken_for_none_before_its_first_flush() -> None:
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    disk.start_recording()
    cp.write_partition_metadata(disk, "/d/p", bytes(range(16)))
    cp.write_partition_metadata(disk, "/d/p", bytes(range(16)))  # again, over what a crash has left
    found = set()
    for state in disk.crash_states():
        found.add(cp.read_partition_metadata(state.disk, "/d/p", may_be_unfinished=True))
        if not state.killed and state.disk.exists("/d/p") and 0 < state.disk.file_size("/d/p") < 43:
            with pytest.raises(CorruptDataError):
                cp.read_partition_metadata(state.disk, "/d/p")
    assert found == {None, bytes(range(16))}


@pytest.mark.parametrize(
    "data", [b"x", b"version: 1", b"version: 0\ntopic_ix: 7x", b"version: 0\ntopic_id: ?" + b"7" * 22]
)
def test_damage_of_an_id_is_not_taken_for_an_unfinished_one(data: bytes) -> None:
    disk = sim_disk()
    disk.open("/d/p", create=True).write_at((data,), 0)
    with pytest.raises(CorruptDataError):
        cp.read_partition_metadata(disk, "/d/p", may_be_unfinished=True)


def test_a_checkpoint_is_old_or_new_after_any_crash() -> None:
    disk = SimDisk(random.Random(2), record=True)
    disk.make_dirs("/d")
    cp.write_offsets(disk, "/d/o", {("t", 0): 1})
    first_done = disk.operations
    cp.write_offsets(disk, "/d/o", {("t", 0): 2})
    seen = set()
    for state in disk.crash_states():
        content = cp.read_offsets(state.disk, "/d/o") if state.disk.is_dir("/d") else None
        value = None if content is None else content["t", 0]
        assert value in ({None, 1} if state.operations < first_done else {1, 2}), state.label
        if state.operations == disk.operations:
            assert value == 2
        seen.add(value)
    assert seen == {None, 1, 2}


def test_the_examples_in_the_docs_are_true() -> None:
    text = (FORMATS / "checkpoints.md").read_text()
    blocks = dict(re.findall(r"<!-- example: (.*?) -->\n```\n(.*?)```", text, re.S))
    offsets_found = cp.decode_offsets(blocks["offsets"].encode(), "f")
    assert offsets_found == {("orders", 0): 30, ("payments", 2): 7}
    assert cp.encode_offsets(offsets_found).decode() == blocks["offsets"]
    epochs = cp.decode_epochs(blocks["epochs"].encode(), "f")
    assert epochs == [(0, 0), (3, 120)]
    topic_id = cp.decode_partition_metadata(blocks["partition.metadata"].encode(), "f")
    assert cp.encode_partition_metadata(topic_id).decode() == blocks["partition.metadata"].rstrip("\n")
    meta = cp.decode_meta_properties(blocks["meta.properties"].encode(), "f")
    assert cp.encode_meta_properties(meta).decode() == blocks["meta.properties"]
    assert cp.decode_clean_shutdown(blocks["clean shutdown"].encode(), "f") == 11


def test_a_zero_topic_id_is_never_written() -> None:
    disk = sim_disk()
    with pytest.raises(ValueError, match="not a topic id"):
        cp.write_partition_metadata(disk, "/d/p", bytes(16))
    with pytest.raises(FileNotFoundError):
        read_file(disk, "/d/p")
