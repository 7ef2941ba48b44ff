"""Fetch answers by hand: what was read of each partition, written without message objects.

Owns the bytes of FetchResponse, versions 4 to 18, as the broker writes them; requests are read by the compiled codec.
`tests/wire/test_fetch_frames.py` holds this to the compiled encoder, byte for byte.

Budget: 3.2 µs for an answer with one partition (`bench/budgets.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from tidelog.wire.node_endpoints import NodeAddress, tagged_endpoints
from tidelog.wire.types import Part
from tidelog.wire.varint import write_uvarint

FIRST_WITH_LOG_START: Final = 5
FIRST_WITH_SESSIONS: Final = 7
FIRST_WITH_READ_REPLICA: Final = 11
FIRST_FLEXIBLE: Final = 12
FIRST_BY_ID: Final = 13
FIRST_WITH_LEADERS: Final = 16

NO_OFFSET: Final = -1
NO_REPLICA: Final = -1


class Fetched(NamedTuple):
    """What is said of one partition."""

    partition: int
    error_code: int = 0
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    records: Part = b""
    aborted: Sequence[tuple[int, int]] | None = None
    """Producer id and first offset of each aborted transaction; None where the reader did not ask for committed records only."""
    diverging: tuple[int, int] | None = None
    """Epoch and end offset up to which the reader's log agrees with ours."""
    preferred: int = NO_REPLICA
    """The broker that the reader should read from instead (KIP-392)."""
    current_leader: tuple[int, int] | None = None
    """Who leads, and in which epoch, for a reader that came to the wrong broker (KIP-951)."""


class FetchedTopic(NamedTuple):
    name: str
    topic_id: bytes
    partitions: list[Fetched]


_INT = Struct(">i").pack
_SHORT = Struct(">h").pack
_HEAD = Struct(">iiii").pack  # size, correlation id, throttle time, topics
_SESSION_HEAD = Struct(">iiihii").pack  # with error code and session id before the topics
_FLEXIBLE_HEAD = Struct(">iixihi").pack  # the topics' number follows
_OLDEST = Struct(">ihqqi").pack  # no log start; number of aborted transactions
_OLD = Struct(">ihqqqi").pack
_FLEXIBLE = Struct(">ihqqqB").pack
_REPLICA_AND_SIZE = Struct(">ii").pack
_ABORTED = Struct(">qq").pack
_ABORTED_FLEXIBLE = Struct(">qqx").pack
_DIVERGING = Struct(">BBBiqx").pack  # one tagged field, number 0, of 13 bytes
_LEADER = Struct(">BBBiix").pack  # one tagged field, number 1, of 9 bytes
_PLAIN_FLEXIBLE = Struct(">ihqqqBi").pack  # no aborted transactions; the preferred replica
_NO_TAGS = b"\0"
_ONE_BYTE = tuple(bytes((value,)) for value in range(128))


def write_fetch_response(
    version: int,
    correlation_id: int,
    topics: Sequence[FetchedTopic],
    *,
    session_id: int = 0,
    error_code: int = 0,
    endpoints: Sequence[NodeAddress] = (),
) -> list[Part]:
    """A whole response frame, its length included: bytes, and file ranges where records are. `endpoints`: where the leaders are that partitions name, from version 16 on."""
    parts: list[Part] = []
    pieces: list[bytes] = []
    add = pieces.append
    size = 0
    flexible, by_id = version >= FIRST_FLEXIBLE, version >= FIRST_BY_ID
    for name, topic_id, partitions in topics:
        count = len(partitions)
        if by_id:
            add(topic_id)
        else:
            encoded = name.encode()
            add(write_uvarint(len(encoded) + 1) if flexible else _SHORT(len(encoded)))
            add(encoded)
        if flexible:
            add(_ONE_BYTE[count + 1] if count < 127 else write_uvarint(count + 1))
        else:
            add(_INT(count))
        for fetched in partitions:
            if flexible:
                _write_flexible(fetched, pieces)
            else:
                _write_plain(fetched, pieces, version)
            records = fetched[5]
            if isinstance(records, bytes):
                add(records)
            else:
                joined = b"".join(pieces)
                parts.append(joined)
                parts.append(records)
                size += len(joined) + len(records)
                pieces.clear()
            if flexible:
                diverging, leader = fetched[7], fetched[9]
                if diverging is not None:
                    add(_DIVERGING(1, 0, 13, *diverging))
                else:
                    add(_NO_TAGS if leader is None else _LEADER(1, 1, 9, *leader))
        if flexible:
            add(_NO_TAGS)
    if flexible:
        add(tagged_endpoints(endpoints) if endpoints else _NO_TAGS)
    joined = b"".join(pieces)
    if joined or not parts:
        parts.append(joined)
        size += len(joined)
    parts[0] = _head(version, correlation_id, error_code, session_id, len(topics), size) + parts[0]  # type: ignore[operator]
    return parts


def _head(
    version: int, correlation_id: int, error_code: int, session_id: int, topics: int, size: int
) -> bytes:
    if version >= FIRST_FLEXIBLE:
        count = write_uvarint(topics + 1)
        return _FLEXIBLE_HEAD(15 + len(count) + size, correlation_id, 0, error_code, session_id) + count
    if version >= FIRST_WITH_SESSIONS:
        return _SESSION_HEAD(18 + size, correlation_id, 0, error_code, session_id, topics)
    return _HEAD(12 + size, correlation_id, 0, topics)


def _write_flexible(fetched: Fetched, pieces: list[bytes]) -> None:
    (
        index,
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        records,
        aborted,
        _,
        preferred,
        _,
    ) = fetched
    length = write_uvarint(len(records) + 1)
    if aborted is None:
        pieces.append(
            _PLAIN_FLEXIBLE(
                index, error_code, high_watermark, last_stable_offset, log_start_offset, 0, preferred
            )
        )
    else:
        pieces.append(
            _FLEXIBLE(index, error_code, high_watermark, last_stable_offset, log_start_offset, 0)[:-1]
        )
        pieces.append(write_uvarint(len(aborted) + 1))
        pieces.extend(_ABORTED_FLEXIBLE(*transaction) for transaction in aborted)
        pieces.append(_INT(preferred))
    pieces.append(length)


def _write_plain(fetched: Fetched, pieces: list[bytes], version: int) -> None:
    (
        index,
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        records,
        aborted,
        _,
        preferred,
        _,
    ) = fetched
    count = -1 if aborted is None else len(aborted)
    if version >= FIRST_WITH_LOG_START:
        pieces.append(_OLD(index, error_code, high_watermark, last_stable_offset, log_start_offset, count))
    else:
        pieces.append(_OLDEST(index, error_code, high_watermark, last_stable_offset, count))
    if aborted:
        pieces.extend(_ABORTED(*transaction) for transaction in aborted)
    if version >= FIRST_WITH_READ_REPLICA:
        pieces.append(_REPLICA_AND_SIZE(preferred, len(records)))
    else:
        pieces.append(_INT(len(records)))
