"""What a broker refuses on produce, with the error code that Kafka 4.3 answers for it.

Owns the rules a batch must meet before it is appended. Never walks records on the ordinary path (DESIGN D2): 61 bytes of
header and the CRC decide. A batch is walked only when the topic asks for it (compaction, `message.timestamp.before.max.ms`,
another compression) or when its own header looks wrong about time; then Kafka's answer is reached record by record.
Keeps I2 (CRC on entry), I53 (hostile bytes end in an error, within limits).

Where Kafka 4.3 answers UNKNOWN_SERVER_ERROR we name the reason instead (I40): an unnamed codec is
UNSUPPORTED_COMPRESSION_TYPE, a payload that does not decompress is INVALID_RECORD, one beyond the limit MESSAGE_TOO_LARGE.
One batch that Kafka lets through is refused: transactional records without a producer id, which nothing could ever commit.

Budget: 2 µs for a batch of one small record, its CRC included (`bench/budgets.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog.errors import CorruptDataError, RequestError
from tidelog.records.batch import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    CONTROL_FLAG,
    CURRENT_MAGIC,
    HEADER_SIZE,
    HEADER_STRUCT,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    TimestampType,
    read_header,
    restamped,
    write_crc,
)
from tidelog.records.compression import Codec, DecompressionLimitError, compress
from tidelog.records.outline import iter_outlines
from tidelog.records.record import (
    DECOMPRESS_LIMIT_BYTES,
    INT64_MAX,
    RECORD_BYTES_MIN,
    records_payload,
)
from tidelog.wire.error_codes import ErrorCode

ZSTD_PRODUCE_VERSION_MIN: Final = 7
_LATEST_PRODUCE_VERSION: Final = 1 << 15
_HEADER_UP_TO_MAGIC: Final = MAGIC_OFFSET + 1
_LEGACY_OVERHEAD_MIN: Final = 14  # the least length a record of any format ever had
_RECORD_ERRORS_SHOWN_MAX: Final = 10
RECORDS_WALKED_MAX: Final = 250_000
"""In one batch, where each record has to be looked at: a quarter of a second on the event loop. A producer that hears
MESSAGE_TOO_LARGE splits its batch."""
_UNCOMMON_FLAGS: Final = CONTROL_FLAG | TRANSACTIONAL_FLAG
_UNUSUAL_ATTRIBUTES: Final = (
    _UNCOMMON_FLAGS | TIMESTAMP_TYPE_FLAG | 4
)  # 4: zstd, or a codec that does not exist


@dataclass(frozen=True, slots=True)
class BatchRules:
    """What a topic asks of the batches appended to it, in Kafka's defaults."""

    max_message_bytes: int = 1_048_588
    compression_type: Codec | None = None  # None is Kafka's "producer": whatever the batch came with
    compression_level: int | None = None
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    before_max_ms: int = INT64_MAX
    after_max_ms: int = 3_600_000
    compacted: bool = False
    decompress_limit_bytes: int = DECOMPRESS_LIMIT_BYTES
    walks_records: bool = field(init=False)
    plain: bool = field(init=False)
    """Nothing but header and CRC decides: an ordinary batch passes by one look at its fields."""

    def __post_init__(self) -> None:
        bounded_before = self.timestamp_type == TimestampType.CREATE_TIME and self.before_max_ms != INT64_MAX
        object.__setattr__(self, "walks_records", self.compacted or bounded_before)
        created = self.timestamp_type == TimestampType.CREATE_TIME
        object.__setattr__(
            self, "plain", created and self.compression_type is None and not self.walks_records
        )


class Validated(NamedTuple):
    """A batch that may be appended: the client's own bytes, or a rewritten copy when a rule changed them."""

    header: BatchHeader
    batch: Buffer


class RecordsRefusedError(RequestError):
    """Some records of the batch are at fault: (index in the batch, reason) of each, for Produce 8 and later."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def validate_for_append(
    records: Buffer,
    rules: BatchRules,
    now_ms: int,
    *,
    from_client: bool = True,
    produce_version: int = _LATEST_PRODUCE_VERSION,
) -> Validated:
    """The one batch in `records`, if it may be appended; RequestError otherwise.

    `from_client=False` is for the broker's own coordinators, which write control batches and markers. Their records are as they should be.
    """
    if len(records) < HEADER_SIZE:
        raise _refuse_form(records)
    header = read_header(records)
    # One unpacking instead of a dozen property calls: this runs for every produced batch.
    (
        base_offset,
        batch_length,
        _,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        _,
        base_sequence,
        record_count,
    ) = header
    size = batch_length + LOG_OVERHEAD
    # What ordinary clients send to ordinary topics, cheapest looks first. Whatever fails one of them is judged below, in Kafka's order.
    if (
        rules.plain
        and from_client
        and size == len(records)
        and magic == CURRENT_MAGIC
        and size <= rules.max_message_bytes
        and not attributes & _UNUSUAL_ATTRIBUTES
        and last_offset_delta + 1 == record_count > 0
        and record_count * RECORD_BYTES_MIN <= size - HEADER_SIZE
        and base_offset == 0
        and -1 <= base_timestamp <= max_timestamp <= now_ms + rules.after_max_ms
        and (producer_id < 0 or base_sequence >= 0)
        and crc32c(memoryview(records)[ATTRIBUTES_OFFSET:]) == crc
    ):
        return _new_tuple(Validated, (header, records))
    if magic != CURRENT_MAGIC or size != len(records):
        if magic != CURRENT_MAGIC or not HEADER_SIZE <= size <= len(records):
            raise _refuse_form(records)
        records = _without_partial_tail(records, size)
    codec = attributes & CODEC_MASK
    if codec >= Codec.ZSTD:
        _check_codec(codec, produce_version)
    if base_offset != 0 and from_client:
        raise _invalid_record(f"the base offset of a produced batch must be 0, not {base_offset}")
    if size > rules.max_message_bytes:
        raise _too_large(size, rules)
    computed = crc32c(memoryview(records)[ATTRIBUTES_OFFSET:])
    if computed != crc:
        raise RequestError(
            ErrorCode.CORRUPT_MESSAGE,
            f"CRC of the batch is {computed:#010x}, its header says {crc:#010x} ({size} bytes)",
        )
    if record_count <= 0 or last_offset_delta != record_count - 1:
        raise _invalid_record(
            f"batch states {record_count} records and last offset delta {last_offset_delta}"
        )
    if record_count * RECORD_BYTES_MIN > size - HEADER_SIZE:
        _check_count(record_count, codec, size, rules)
    if from_client:
        if attributes & _UNCOMMON_FLAGS:
            _check_flags(header)
        if producer_id >= 0 and base_sequence < 0:
            raise _invalid_record(f"producer id {producer_id} with base sequence {base_sequence}")
    if (
        rules.compression_type is not None
        and codec != rules.compression_type
        and not attributes & CONTROL_FLAG
    ):
        return _validate_records(records, header, rules, now_ms)
    if rules.walks_records and from_client and not attributes & CONTROL_FLAG:
        return _validate_records(records, header, rules, now_ms)
    if rules.timestamp_type == TimestampType.LOG_APPEND_TIME:
        return _stamped(records, header, now_ms)
    if (
        max_timestamp > now_ms + rules.after_max_ms
        or base_timestamp > max_timestamp
        or base_timestamp < now_ms - rules.before_max_ms
        or attributes & TIMESTAMP_TYPE_FLAG
    ):
        return _validate_records(records, header, rules, now_ms)
    return _new_tuple(Validated, (header, records))


_new_tuple = tuple.__new__


def _refuse_form(records: Buffer) -> RequestError:
    """Why `records` does not begin with a whole batch of the current format, in Kafka's order of looking."""
    there = len(records)
    if there < _HEADER_UP_TO_MAGIC:
        return _invalid_record(
            f"a partition's records must be exactly one record batch; {there} bytes hold none"
        )
    length = int.from_bytes(records[8:LOG_OVERHEAD], "big", signed=True)
    magic = int.from_bytes(records[MAGIC_OFFSET:_HEADER_UP_TO_MAGIC], "big", signed=True)
    if length < _LEGACY_OVERHEAD_MIN:
        return RequestError(
            ErrorCode.CORRUPT_MESSAGE, f"batch length {length} is less than any record's overhead"
        )
    if not 0 <= magic <= CURRENT_MAGIC:
        return RequestError(ErrorCode.CORRUPT_MESSAGE, f"batch has magic {magic}; 2 is the newest there is")
    if length > there - LOG_OVERHEAD:
        return _invalid_record(f"batch of {length + LOG_OVERHEAD} bytes is cut off after {there}")
    if magic < CURRENT_MAGIC:
        return _invalid_record(f"batch has magic {magic}; only magic 2 is accepted since Produce 3")
    return RequestError(
        ErrorCode.CORRUPT_MESSAGE,
        f"batch of {length + LOG_OVERHEAD} bytes is shorter than its {HEADER_SIZE}-byte header",
    )


def _without_partial_tail(records: Buffer, size: int) -> memoryview:
    """Kafka drops a tail that is the beginning of another batch, refuses a whole second batch, and calls other tails corrupt."""
    view = memoryview(records)
    tail = view[size:]
    if len(tail) >= _HEADER_UP_TO_MAGIC:
        length = int.from_bytes(tail[8:LOG_OVERHEAD], "big", signed=True)
        magic = int.from_bytes(tail[MAGIC_OFFSET:_HEADER_UP_TO_MAGIC], "big", signed=True)
        if length < _LEGACY_OVERHEAD_MIN or not 0 <= magic <= CURRENT_MAGIC:
            raise RequestError(ErrorCode.CORRUPT_MESSAGE, f"{len(tail)} bytes behind the batch are no batch")
        if length <= len(tail) - LOG_OVERHEAD:
            raise _invalid_record(
                "a partition's records must be exactly one record batch; there is a second one"
            )
    return view[:size]


def _check_codec(codec: int, produce_version: int) -> None:
    if codec > Codec.ZSTD:
        raise RequestError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no compression codec has the number {codec}"
        )
    if produce_version < ZSTD_PRODUCE_VERSION_MIN:
        raise RequestError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce {ZSTD_PRODUCE_VERSION_MIN} or later, the request is version {produce_version}",
        )


def _check_count(record_count: int, codec: int, size: int, rules: BatchRules) -> None:
    """More records than can be in there: a batch of 61 bytes must not use up two billion offsets."""
    payload = size - HEADER_SIZE
    room = payload if codec == Codec.NONE or not payload else rules.decompress_limit_bytes
    if record_count * RECORD_BYTES_MIN > room:
        raise _invalid_record(f"batch states {record_count} records in {payload} bytes")


def _check_flags(header: BatchHeader) -> None:
    if header.is_control:
        raise _invalid_record("clients may not write control batches")
    if header.is_transactional and not header.has_producer_id:
        raise _invalid_record("transactional batch without a producer id")


def _stamped(records: Buffer, header: BatchHeader, now_ms: int) -> Validated:
    """LogAppendTime. A producer that sets the type itself is refused, as by Kafka; a control batch of ours may be re-stamped."""
    if header.timestamp_type == TimestampType.LOG_APPEND_TIME and not header.is_control:
        reason = "a producer may not set the timestamp type to LogAppendTime"
        raise _refused_timestamps(
            ((index, reason) for index in range(header.record_count)), header.record_count
        )
    batch = restamped(records, header, max_timestamp=now_ms)
    return Validated(read_header(batch), batch)


def _validate_records(records: Buffer, header: BatchHeader, rules: BatchRules, now_ms: int) -> Validated:
    """The walk: every record is looked at, then the batch is rewritten where rules or the records themselves demand it."""
    if header.record_count > RECORDS_WALKED_MAX:
        raise RequestError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"batch of {header.record_count} records, where each has to be looked at; {RECORDS_WALKED_MAX} are allowed",
        )
    try:
        payload = records_payload(records, 0, header, limit=rules.decompress_limit_bytes)
        max_timestamp = _walk(payload, header, rules, now_ms)
        target = rules.compression_type
        if target is not None and header.codec != target and not header.is_control:
            records = _recompressed(payload, header, target, rules)
            header = read_header(records)
    except DecompressionLimitError as error:
        raise RequestError(ErrorCode.MESSAGE_TOO_LARGE, str(error)) from error
    except CorruptDataError as error:
        raise _invalid_record(str(error)) from error
    if rules.timestamp_type == TimestampType.LOG_APPEND_TIME:
        return _stamped(records, header, now_ms)
    if header.max_timestamp == max_timestamp and header.timestamp_type == TimestampType.CREATE_TIME:
        return Validated(header, records)
    batch = restamped(records, header, max_timestamp=max_timestamp, timestamp_type=TimestampType.CREATE_TIME)
    return Validated(read_header(batch), batch)


def _walk(payload: memoryview, header: BatchHeader, rules: BatchRules, now_ms: int) -> int:
    """The latest timestamp among the records, as their producer set them, once each of them was found in order."""
    errors: list[tuple[int, str]] = []
    refused = untimely = 0
    max_timestamp = NO_TIMESTAMP
    expected = header.base_offset
    earliest, latest = now_ms - rules.before_max_ms, now_ms + rules.after_max_ms
    bounded = rules.timestamp_type == TimestampType.CREATE_TIME
    for offset, timestamp, has_key in iter_outlines(payload, header):
        if offset != expected:
            index = expected - header.base_offset
            raise _invalid_record(
                f"record {index} of the batch has offset delta {offset - header.base_offset}"
            )
        expected += 1
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        if rules.compacted and not has_key:
            reason = "a compacted topic cannot accept a record without key"
        elif bounded and timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
            untimely += 1
            reason = f"timestamp {timestamp} is outside [{earliest}, {latest}]"
        else:
            continue
        refused += 1
        if refused <= _RECORD_ERRORS_SHOWN_MAX:
            errors.append((offset - header.base_offset, reason))
    if untimely:
        raise _refused_timestamps(iter(errors), refused)
    if refused:
        message = f"{refused} records refused; record {errors[0][0]}: {errors[0][1]}"
        raise RecordsRefusedError(ErrorCode.INVALID_RECORD, message, tuple(errors))
    return max_timestamp


def _recompressed(payload: memoryview, header: BatchHeader, codec: Codec, rules: BatchRules) -> bytearray:
    """The same records under another codec. They are not re-encoded, so timestamps, sequences and producer fields all stay."""
    batch = bytearray(HEADER_SIZE)
    batch += compress(codec, payload, rules.compression_level)
    if len(batch) > rules.max_message_bytes:
        raise _too_large(len(batch), rules, f" once it is {codec.name.lower()}")
    changed = header._replace(
        batch_length=len(batch) - LOG_OVERHEAD, attributes=header.attributes & ~CODEC_MASK | codec
    )
    HEADER_STRUCT.pack_into(batch, 0, *changed)
    write_crc(batch)
    return batch


def _invalid_record(message: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_RECORD, message)


def _too_large(size: int, rules: BatchRules, when: str = "") -> RequestError:
    return RequestError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"batch takes {size} bytes{when}, max.message.bytes allows {rules.max_message_bytes}",
    )


def _refused_timestamps(errors: Iterator[tuple[int, str]], count: int) -> RecordsRefusedError:
    shown = tuple(error for error, _ in zip(errors, range(_RECORD_ERRORS_SHOWN_MAX), strict=False))
    message = f"{count} records refused for their timestamps; record {shown[0][0]}: {shown[0][1]}"
    return RecordsRefusedError(ErrorCode.INVALID_TIMESTAMP, message, shown)
