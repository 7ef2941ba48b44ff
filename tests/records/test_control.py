"""Control records have the bytes that Kafka's brokers write."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.errors import CorruptDataError
from tidelog.records.batch import crc_matches, read_header
from tidelog.records.builder import build_batch
from tidelog.records.control import (
    ControlType,
    EndTransactionMarker,
    LeaderChange,
    Voter,
    build_end_transaction_marker,
    build_leader_change,
    control_type,
    decode_leader_change,
    encode_leader_change,
    read_end_transaction_marker,
)
from tidelog.records.record import Record, iter_records


@pytest.mark.parametrize("commit", [True, False])
def test_end_transaction_marker(commit: bool) -> None:
    batch = build_end_transaction_marker(
        commit=commit, producer_id=77, producer_epoch=4, coordinator_epoch=258, timestamp=1000, base_offset=9
    )
    header = read_header(batch)
    assert crc_matches(batch, 0, header)
    assert (header.is_control, header.is_transactional, header.record_count) == (True, True, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_offset) == (
        77,
        4,
        -1,
        9,
    )
    (record,) = iter_records(batch, 0, header)
    assert record.key == bytes.fromhex("00000001" if commit else "00000000")
    assert record.value == bytes.fromhex("000000000102")
    marker = read_end_transaction_marker(batch, 0, header)
    assert marker == EndTransactionMarker(ControlType(commit), 258)
    assert marker.is_commit is commit


def test_leader_change_bytes() -> None:
    voter = Voter(3, bytes(range(16)))
    change = LeaderChange(3, (voter, Voter(4)), (voter,))
    encoded = encode_leader_change(change)
    three = "00000003" + bytes(range(16)).hex() + "00"
    four = "00000004" + "00" * 16 + "00"
    assert encoded.hex() == "0001" + "00000003" + "03" + three + four + "02" + three + "00"
    assert decode_leader_change(encoded) == change
    first_version = LeaderChange(1, (Voter(1), Voter(2)), (), version=0)
    assert (
        encode_leader_change(first_version).hex()
        == "0000" + "00000001" + "03" + "0000000100" + "0000000200" + "0100"
    )
    assert decode_leader_change(encode_leader_change(first_version)) == first_version


def test_leader_change_batch_is_no_transaction_marker() -> None:
    batch = build_leader_change(LeaderChange(1, (Voter(1),)), leader_epoch=6, timestamp=5, base_offset=40)
    header = read_header(batch)
    assert (header.is_control, header.is_transactional, header.partition_leader_epoch) == (True, False, 6)
    assert read_end_transaction_marker(batch, 0, header) is None
    (record,) = iter_records(batch, 0, header)
    assert control_type(record) == ControlType.LEADER_CHANGE


def test_broken_control_records(make: Callable[..., bytes]) -> None:
    for record in (
        Record(0, 0, None, b""),
        Record(0, 0, b"\x00\x00", b""),
        Record(0, 0, b"\x00\x00\x00\x01", b"\x00"),
    ):
        batch = build_batch([record], is_control=True)
        with pytest.raises(CorruptDataError):
            read_end_transaction_marker(batch, 0, read_header(batch))
    with pytest.raises(CorruptDataError):
        read_end_transaction_marker(make(1), 0, read_header(make(1)))
    encoded = encode_leader_change(LeaderChange(3, (Voter(3),), (Voter(3),)))
    for cut in range(len(encoded) - 1):
        with pytest.raises(CorruptDataError):
            decode_leader_change(encoded[:cut])
