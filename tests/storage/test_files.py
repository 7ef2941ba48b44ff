"""Names in a log directory: what is built parses back, and nothing outside the rules is ever built (I57)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import RequestError
from tidelog.storage import files
from tidelog.wire.error_codes import ErrorCode

topics = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(lambda name: name not in (".", ".."))
partitions = st.integers(0, 2**31 - 1)
kinds = st.sampled_from([files.LOG, files.INDEX, files.TIME_INDEX, files.TXN_INDEX, files.SNAPSHOT])


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../etc", "a/b", "a b", "a\n", "a\0", "ä", "x" * 250, "a:b", "\u0661"],
)
def test_a_name_that_could_leave_the_directory_is_refused(name: str) -> None:
    assert not files.is_topic_name(name)
    assert files.topic_name_problem(name)
    with pytest.raises(RequestError) as refusal:
        files.partition_dir("/data", name, 0)
    assert refusal.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@given(topics, partitions)
def test_partition_directories_parse_back(topic: str, partition: int) -> None:
    name = files.partition_dir_name(topic, partition)
    assert files.parse_partition_dir(name) == (topic, partition, "")
    assert files.topic_name_problem(topic) is None


@given(
    topics, partitions, st.binary(min_size=16, max_size=16), st.sampled_from(["-delete", "-future", "-stray"])
)
def test_marked_directories_fit_a_file_system_and_parse_back(
    topic: str, partition: int, unique: bytes, suffix: str
) -> None:
    name = files.marked_dir_name(topic, partition, unique, suffix)
    assert len(name) <= 255
    parsed = files.parse_partition_dir(name)
    assert parsed is not None
    assert (parsed.partition, parsed.suffix) == (partition, suffix)
    assert topic.startswith(parsed.topic)
    if len(topic) < 200:
        assert parsed.topic == topic


@given(st.integers(0, 2**63 - 1), kinds, st.sampled_from(["", files.DELETED, files.CLEANED, files.SWAP]))
def test_segment_files_parse_back_and_sort_by_offset(base_offset: int, kind: str, suffix: str) -> None:
    name = files.segment_name(base_offset, kind)
    assert len(name) == 20 + len(kind)
    assert files.parse_segment_name(name + suffix) == (base_offset, kind, suffix)
    if base_offset:
        assert files.segment_name(base_offset - 1, kind) < name


@pytest.mark.parametrize(
    "name",
    ["orders", "orders-", "orders-01", "orders-1 ", "orders-2147483648", "-5", "..-0x", "orders-0.x-delete"],
)
def test_foreign_directories_are_not_partitions(name: str) -> None:
    assert files.parse_partition_dir(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "1.log",
        "0" * 20 + ".txt",
        "0" * 21 + ".log",
        "9" * 20 + ".log",
        "0" * 20 + ".log.tmp",
        "x" * 20 + ".log",
    ],
)
def test_foreign_files_are_not_segments(name: str) -> None:
    assert files.parse_segment_name(name) is None


def test_names_are_kafkas() -> None:
    assert files.segment_path("/d/orders-0", 42, files.LOG) == "/d/orders-0/00000000000000000042.log"
    assert files.snapshot_path("/d", 7) == "/d/00000000000000000007.snapshot"
    marked = files.marked_dir_name("orders", 3, bytes(range(16)))
    assert marked == "orders-3.000102030405060708090a0b0c0d0e0f-delete"


def test_numbers_out_of_range_are_refused() -> None:
    for bad in (-1, 2**63):
        with pytest.raises(ValueError, match="offset"):
            files.segment_name(bad, files.LOG)
    for bad in (-1, 2**31):
        with pytest.raises(ValueError, match="partition"):
            files.partition_dir_name("orders", bad)
