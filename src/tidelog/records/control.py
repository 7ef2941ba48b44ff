"""Control records: the markers that end transactions, and the leader-change record of a Raft epoch.

Owns their key and value bytes. Control batches are written by brokers only; readers never hand them to applications.
Markers count for the transaction of their exact (producer id, producer epoch) (I43), which stand in the batch header.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from tidelog.errors import CorruptDataError
from tidelog.records.batch import NO_LEADER_EPOCH, BatchHeader, Buffer
from tidelog.records.builder import BatchBuilder
from tidelog.records.record import Record, iter_records

_KEY: Final = Struct(">hh")  # version, type
_END_TRANSACTION: Final = Struct(">hi")  # version, coordinator epoch
_LEADER_CHANGE: Final = Struct(">hi")  # version, leader id
_VOTER_ID: Final = Struct(">i")
_KEY_VERSION: Final = 0
_END_TRANSACTION_VERSION: Final = 0
_LEADER_CHANGE_VERSION: Final = 1  # with voter directory ids (KIP-853)
_DIRECTORY_ID_BYTES: Final = 16
_NO_TAGS: Final = b"\x00"


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTransactionMarker(NamedTuple):
    control_type: ControlType
    coordinator_epoch: int

    @property
    def is_commit(self) -> bool:
        return self.control_type == ControlType.COMMIT


class Voter(NamedTuple):
    voter_id: int
    directory_id: bytes = bytes(_DIRECTORY_ID_BYTES)


@dataclass(frozen=True, slots=True)
class LeaderChange:
    leader_id: int
    voters: tuple[Voter, ...] = ()
    granting_voters: tuple[Voter, ...] = ()
    version: int = _LEADER_CHANGE_VERSION


def control_key(control_type: ControlType) -> bytes:
    return _KEY.pack(_KEY_VERSION, control_type)


def control_type(record: Record) -> int:
    """The number of the type; a type newer than we know is passed on as it is, because readers skip control records anyway."""
    key = record.key
    if key is None or len(key) < _KEY.size:
        raise CorruptDataError(f"control record at offset {record.offset} has no type in its key")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptDataError(f"control record at offset {record.offset} has key version {version}")
    return int(kind)


def build_end_transaction_marker(
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """The one-record control batch that commits or aborts a producer's open transaction in one partition."""
    builder = BatchBuilder(
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
        partition_leader_epoch=partition_leader_epoch,
    )
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    builder.append(
        timestamp, control_key(kind), _END_TRANSACTION.pack(_END_TRANSACTION_VERSION, coordinator_epoch)
    )
    return builder.build()


def read_end_transaction_marker(
    buffer: Buffer, position: int, header: BatchHeader
) -> EndTransactionMarker | None:
    """The marker in a control batch, or None when the batch controls something else."""
    record = _only_record(buffer, position, header)
    kind = control_type(record)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if record.value is None or len(record.value) < _END_TRANSACTION.size:
        raise CorruptDataError(f"transaction marker at offset {record.offset} has no coordinator epoch")
    _, coordinator_epoch = _END_TRANSACTION.unpack_from(record.value)
    return EndTransactionMarker(ControlType(kind), coordinator_epoch)


def build_leader_change(
    change: LeaderChange, *, leader_epoch: int, timestamp: int, base_offset: int = 0
) -> bytes:
    """The control batch with which a new Raft leader opens its epoch."""
    builder = BatchBuilder(base_offset=base_offset, is_control=True, partition_leader_epoch=leader_epoch)
    builder.append(timestamp, control_key(ControlType.LEADER_CHANGE), encode_leader_change(change))
    return builder.build()


def encode_leader_change(change: LeaderChange) -> bytes:
    parts = (
        _LEADER_CHANGE.pack(change.version, change.leader_id),
        _encode_voters(change.voters, change.version),
        _encode_voters(change.granting_voters, change.version),
        _NO_TAGS,
    )
    return b"".join(parts)


def decode_leader_change(value: bytes) -> LeaderChange:
    try:
        version, leader_id = _LEADER_CHANGE.unpack_from(value)
        voters, position = _decode_voters(value, _LEADER_CHANGE.size, version)
        granting, _ = _decode_voters(value, position, version)
    except (StructError, IndexError) as error:
        raise CorruptDataError(f"leader change record of {len(value)} bytes breaks off") from error
    return LeaderChange(leader_id, voters, granting, version)


def _only_record(buffer: Buffer, position: int, header: BatchHeader) -> Record:
    records = list(iter_records(buffer, position, header))
    if not header.is_control or not records:
        raise CorruptDataError(f"batch at offset {header.base_offset} is no control batch with a record")
    return records[0]


def _encode_voters(voters: tuple[Voter, ...], version: int) -> bytes:
    parts = [_unsigned_varint(len(voters) + 1)]
    for voter in voters:
        parts.append(_VOTER_ID.pack(voter.voter_id))
        if version >= 1:
            parts.append(voter.directory_id)
        parts.append(_NO_TAGS)
    return b"".join(parts)


def _decode_voters(value: bytes, position: int, version: int) -> tuple[tuple[Voter, ...], int]:
    count, position = _read_unsigned_varint(value, position)
    voters: list[Voter] = []
    for _ in range(count - 1):
        (voter_id,) = _VOTER_ID.unpack_from(value, position)
        position += _VOTER_ID.size
        directory_id = bytes(_DIRECTORY_ID_BYTES)
        if version >= 1:
            directory_id = value[position : position + _DIRECTORY_ID_BYTES]
            position += _DIRECTORY_ID_BYTES
        position = _skip_tags(value, position)
        voters.append(Voter(voter_id, directory_id))
    return tuple(voters), position


def _skip_tags(value: bytes, position: int) -> int:
    count, position = _read_unsigned_varint(value, position)
    for _ in range(count):
        _, position = _read_unsigned_varint(value, position)
        size, position = _read_unsigned_varint(value, position)
        position += size
    return position


def _unsigned_varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_unsigned_varint(value: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while shift < 35:
        byte = value[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise CorruptDataError(f"variable-length number at {position} is longer than 5 bytes")
