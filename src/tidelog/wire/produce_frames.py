"""Produce by hand: the one request that every record passes through, read and answered without message objects.

Owns the bytes of ProduceRequest and ProduceResponse, versions 3 to 13, as the broker reads and writes them. The compiled codec does
the same in twice the time: it builds an object per level and a field per default. `tests/wire/test_produce_frames.py` holds both
to each other, byte for byte. Clients, and everything that is not on the hot path, use the compiled one.

Budget: 2.4 µs to read and 1.8 µs to answer a request with one batch (`bench/budgets.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NoReturn, TypeAlias

from tidelog.errors import ProtocolError
from tidelog.wire.limits import REQUEST_ENTRIES_MAX
from tidelog.wire.node_endpoints import NodeAddress, tagged_endpoints
from tidelog.wire.types import ZERO_UUID
from tidelog.wire.varint import finish_uvarint, skip_tags, write_uvarint

FIRST_FLEXIBLE: Final = 9
FIRST_WITH_LEADERS: Final = 10
FIRST_BY_ID: Final = 13
FIRST_WITH_LOG_START: Final = 5
FIRST_WITH_REASONS: Final = 8

Batch: TypeAlias = tuple[int, memoryview | None]
"""Partition and records."""
Topic: TypeAlias = tuple[bytes, str, bytes, list[Batch]]
"""The topic's name or id as it stands in the request (an answer repeats it), then name and id; whichever is missing is empty."""
ProduceRead: TypeAlias = tuple[str | None, int, int, list[Topic]]
"""Transactional id, acks, timeout in milliseconds, topics."""

_SHORT = Struct(">h").unpack_from
_INT = Struct(">i").unpack_from
_TWO_INTS = Struct(">ii").unpack_from
_HEAD = Struct(">hii").unpack_from
_FLEXIBLE_HEAD = Struct(">hiB").unpack_from
_FLEXIBLE_BATCH = Struct(">iB").unpack_from


def read_produce(view: memoryview, position: int, version: int) -> ProduceRead:
    """The body of a Produce request. ProtocolError when it is none."""
    try:
        if version >= FIRST_FLEXIBLE:
            return _read_flexible(view, position, version >= FIRST_BY_ID)
        return _read_plain(view, position)
    except (StructError, IndexError) as error:
        raise ProtocolError("ProduceRequest: the request ends within a field") from error
    except UnicodeDecodeError as error:
        raise ProtocolError(f"ProduceRequest: a string is not UTF-8: {error}") from error


def _read_plain(view: memoryview, position: int) -> ProduceRead:
    size = len(view)
    (length,) = _SHORT(view, position)
    position += 2
    transactional_id = None
    if length >= 0:
        end = position + length
        if end > size:
            _bad_length("transactional_id", length, size - position)
        transactional_id = str(view[position:end], "utf-8")
        position = end
    elif length != -1:
        _bad_length("transactional_id", length, size - position)
    acks, timeout_ms, count = _HEAD(view, position)
    position += 10
    if count < 0 or count * 6 > size - position:
        _bad_length("topic_data", count, size - position)
    entries = count
    topics: list[Topic] = []
    for _ in range(count):
        (length,) = _SHORT(view, position)
        end = position + 2 + length
        if length < 0 or end > size:
            _bad_length("name", length, size - position)
        key = bytes(view[position:end])
        (count,) = _INT(view, end)
        position = end + 4
        if count < 0 or count * 8 > size - position:
            _bad_length("partition_data", count, size - position)
        entries += count
        if entries > REQUEST_ENTRIES_MAX:
            _too_many()
        batches: list[Batch] = []
        for _ in range(count):
            index, length = _TWO_INTS(view, position)
            position += 8
            if length < 0:
                if length != -1:
                    _bad_length("records", length, size - position)
                batches.append((index, None))
            else:
                end = position + length
                if end > size:
                    _bad_length("records", length, size - position)
                batches.append((index, view[position:end]))
                position = end
        topics.append((key, str(key[2:], "utf-8"), ZERO_UUID, batches))
    return transactional_id, acks, timeout_ms, topics


def _read_flexible(view: memoryview, position: int, by_id: bool) -> ProduceRead:
    size = len(view)
    transactional_id = None
    length = view[position]
    position += 1
    if length > 127:
        length, position = finish_uvarint(view, position, length)  # which may be null all the same
    if length:
        end = position + length - 1
        if end > size:
            _bad_length("transactional_id", length - 1, size - position)
        transactional_id = str(view[position:end], "utf-8")
        position = end
    acks, timeout_ms, count = _FLEXIBLE_HEAD(view, position)
    position += 7
    if count > 127:
        count, position = finish_uvarint(view, position, count)
    if not 0 < count <= size - position + 1:
        _bad_length("topic_data", count - 1, size - position)
    entries = count
    topics: list[Topic] = []
    for _ in range(count - 1):
        start = position
        if by_id:
            position += 16
            key = topic_id = bytes(view[start:position])
            name = ""
        else:
            length = view[position]
            position += 1
            if length > 127:
                length, position = finish_uvarint(view, position, length)
            end = position + length - 1
            if length == 0 or end > size:
                _bad_length("name", length - 1, size - position)
            name, topic_id = str(view[position:end], "utf-8"), ZERO_UUID
            position = end
            key = bytes(view[start:position])
        count = view[position]
        position += 1
        if count > 127:
            count, position = finish_uvarint(view, position, count)
        if not 0 < count <= size - position + 1:
            _bad_length("partition_data", count - 1, size - position)
        entries += count - 1
        if entries > REQUEST_ENTRIES_MAX:
            _too_many()
        batches: list[Batch] = []
        for _ in range(count - 1):
            index, length = _FLEXIBLE_BATCH(view, position)
            position += 5
            if length > 127:
                length, position = finish_uvarint(view, position, length)
            if length:
                end = position + length - 1
                if end > size:
                    _bad_length("records", length - 1, size - position)
                batches.append((index, view[position:end]))
                position = end
            else:
                batches.append((index, None))
            tags = view[position]
            position += 1
            if tags:
                position = skip_tags(view, position, tags)
        tags = view[position]
        position += 1
        if tags:
            position = skip_tags(view, position, tags)
        topics.append((key, name, topic_id, batches))
    tags = view[position]
    if tags:
        position = skip_tags(view, position + 1, tags)
        if position > size:
            _bad_length("tagged fields", position, size)
    return transactional_id, acks, timeout_ms, topics


def _bad_length(field: str, length: int, left: int) -> NoReturn:
    raise ProtocolError(f"ProduceRequest.{field}: length {length} with {max(left, 0)} bytes left")


def _too_many() -> NoReturn:
    raise ProtocolError(f"ProduceRequest holds more than {REQUEST_ENTRIES_MAX} topics and partitions")


# ---- answers


class Outcome:
    """What is said of one batch."""

    __slots__ = (
        "base_offset",
        "current_leader",
        "error_code",
        "error_message",
        "index",
        "log_append_time_ms",
        "log_start_offset",
        "record_errors",
    )

    def __init__(
        self,
        index: int,
        error_code: int,
        base_offset: int,
        log_append_time_ms: int,
        log_start_offset: int,
        error_message: str | None = None,
        record_errors: tuple[tuple[int, str], ...] = (),
    ) -> None:
        self.index = index
        self.error_code = error_code
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.error_message = error_message
        self.record_errors = record_errors
        self.current_leader: tuple[int, int] | None = None
        """Node id and leader epoch, where the batch should have gone (KIP-951)."""

    def fail(self, error_code: int, error_message: str) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.base_offset = -1


TopicOutcome: TypeAlias = tuple[bytes, list[Outcome]]
"""The topic as it stood in the request, and its batches."""

_PACK_HEAD = Struct(">iii").pack
_PACK_FLEXIBLE_HEAD = Struct(">iixB").pack
_PACK_INT = Struct(">i").pack
_PACK_SHORT = Struct(">h").pack
_PACK_OLDEST = Struct(">ihqq").pack
_PACK_OLD = Struct(">ihqqq").pack
_PACK_NO_REASON = Struct(">ihqqqih").pack  # no record errors, no message
_PACK_NO_REASON_FLEXIBLE = Struct(">ihqqqBBB").pack  # the same, and no tags
_PACK_FLEXIBLE = Struct(">ihqqq").pack
_NO_THROTTLE = bytes(4)
_NO_THROTTLE_NO_TAGS = bytes(5)
_PACK_LEADER = Struct(">BBBiix").pack  # one tagged field, number 0, of 9 bytes
_NO_TAGS = b"\0"


def write_produce_response(
    version: int, correlation_id: int, topics: list[TopicOutcome], endpoints: Sequence[NodeAddress] = ()
) -> bytes:
    """A whole response frame, its length included. `endpoints`: where the leaders are that outcomes name, for versions that can say so."""
    if version >= FIRST_FLEXIBLE:
        return _write_flexible(correlation_id, topics, endpoints)
    pieces = [b""]
    for key, outcomes in topics:
        pieces.append(key)
        pieces.append(_PACK_INT(len(outcomes)))
        for outcome in outcomes:
            if version >= FIRST_WITH_REASONS:
                pieces.append(_with_reasons(outcome))
            elif version >= FIRST_WITH_LOG_START:
                pieces.append(
                    _PACK_OLD(
                        outcome.index,
                        outcome.error_code,
                        outcome.base_offset,
                        outcome.log_append_time_ms,
                        outcome.log_start_offset,
                    )
                )
            else:
                pieces.append(
                    _PACK_OLDEST(
                        outcome.index, outcome.error_code, outcome.base_offset, outcome.log_append_time_ms
                    )
                )
    pieces.append(_NO_THROTTLE)
    pieces[0] = _PACK_HEAD(8 + sum(map(len, pieces)), correlation_id, len(topics))
    return b"".join(pieces)


def _with_reasons(outcome: Outcome) -> bytes:
    if not outcome.error_code:
        return _PACK_NO_REASON(
            outcome.index,
            0,
            outcome.base_offset,
            outcome.log_append_time_ms,
            outcome.log_start_offset,
            0,
            -1,
        )
    pieces = [
        _PACK_OLD(
            outcome.index,
            outcome.error_code,
            outcome.base_offset,
            outcome.log_append_time_ms,
            outcome.log_start_offset,
        ),
        _PACK_INT(len(outcome.record_errors)),
    ]
    for index, reason in outcome.record_errors:
        pieces.append(_PACK_INT(index))
        pieces.append(_text(reason))
    pieces.append(_PACK_SHORT(-1) if outcome.error_message is None else _text(outcome.error_message))
    return b"".join(pieces)


def _write_flexible(
    correlation_id: int, topics: list[TopicOutcome], endpoints: Sequence[NodeAddress]
) -> bytes:
    pieces = [b""]
    for key, outcomes in topics:
        pieces.append(key)
        pieces.append(_count(len(outcomes)))
        for outcome in outcomes:
            if outcome.error_code:
                pieces.append(_flexible_failure(outcome))
            else:
                pieces.append(
                    _PACK_NO_REASON_FLEXIBLE(
                        outcome.index,
                        0,
                        outcome.base_offset,
                        outcome.log_append_time_ms,
                        outcome.log_start_offset,
                        1,
                        0,
                        0,
                    )
                )
        pieces.append(_NO_TAGS)
    if endpoints:
        pieces.append(_NO_THROTTLE + tagged_endpoints(endpoints))
    else:
        pieces.append(_NO_THROTTLE_NO_TAGS)
    count = len(topics)
    size = 6 + sum(map(len, pieces))
    if count < 127:
        pieces[0] = _PACK_FLEXIBLE_HEAD(size, correlation_id, count + 1)
    else:
        length = _count(count)
        pieces[0] = _PACK_FLEXIBLE_HEAD(size - 1 + len(length), correlation_id, 0)[:-1] + length
    return b"".join(pieces)


def _flexible_failure(outcome: Outcome) -> bytes:
    pieces = [
        _PACK_FLEXIBLE(
            outcome.index,
            outcome.error_code,
            outcome.base_offset,
            outcome.log_append_time_ms,
            outcome.log_start_offset,
        ),
        _count(len(outcome.record_errors)),
    ]
    for index, reason in outcome.record_errors:
        pieces.append(_PACK_INT(index))
        pieces.append(_compact_text(reason))
        pieces.append(_NO_TAGS)
    pieces.append(_NO_TAGS if outcome.error_message is None else _compact_text(outcome.error_message))
    leader = outcome.current_leader
    pieces.append(_NO_TAGS if leader is None else _PACK_LEADER(1, 0, 9, *leader))
    return b"".join(pieces)


def _count(count: int) -> bytes:
    return write_uvarint(count + 1)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _PACK_SHORT(len(encoded)) + encoded


def _compact_text(text: str) -> bytes:
    encoded = text.encode()
    return write_uvarint(len(encoded) + 1) + encoded
