"""Everything that reads bytes of strangers, behind one call each: requests, answers, record batches.

Each also holds what it read against a second opinion: a message that was read can be written and read again, the two readers of
records agree, and a batch that was accepted is one that readers can read.
"""

from __future__ import annotations

from typing import Any

from tests.fuzz.batches import NOW_MS
from tidelog.broker.apis import APIS
from tidelog.errors import CorruptDataError, ProtocolError, RequestError
from tidelog.records.batch import (
    CONTROL_FLAG,
    TIMESTAMP_TYPE_FLAG,
    BatchHeader,
    TimestampType,
    crc_matches,
    iter_headers,
    read_header,
)
from tidelog.records.columnar import decode_batches
from tidelog.records.compression import Codec
from tidelog.records.outline import iter_outlines
from tidelog.records.record import INT64_MAX, first_at_or_after_timestamp, iter_records, records_payload
from tidelog.records.validation import BatchRules, validate_for_append
from tidelog.wire.api import ApiKey, spec
from tidelog.wire.codec import decode, encode, request_decoder
from tidelog.wire.headers import decode_request_header, decode_response
from tidelog.wire.messages.produce import ProduceRequest
from tidelog.wire.produce_frames import read_produce

COLUMNS = ("offset", "timestamp", "key", "value", "headers")
RULES = (
    BatchRules(),
    BatchRules(compacted=True),
    BatchRules(compacted=True, before_max_ms=1000, after_max_ms=INT64_MAX),
    BatchRules(before_max_ms=1000),
    BatchRules(timestamp_type=TimestampType.LOG_APPEND_TIME),
    BatchRules(timestamp_type=TimestampType.LOG_APPEND_TIME, compacted=True, compression_type=Codec.SNAPPY),
    BatchRules(compression_type=Codec.NONE, after_max_ms=INT64_MAX, compacted=True),
    BatchRules(compression_type=Codec.GZIP),
    BatchRules(compression_type=Codec.LZ4, max_message_bytes=100),
    BatchRules(compression_type=Codec.ZSTD, compression_level=1),
    BatchRules(compacted=True, decompress_limit_bytes=64 * 1024),
)


def read_request(data: bytes, *, checked: bool = False) -> None:
    """As the dispatcher does: header, version, body; bytes behind the last field are ignored."""
    view = memoryview(data)
    header, position = decode_request_header(view, 0)
    api = APIS.get(header.api_key)
    if api is None or not max(api.min_version, api.lowest_served) <= header.api_version <= api.max_version:
        raise ProtocolError("not served")
    if header.api_key == ApiKey.PRODUCE:
        _read_produce(view, position, header.api_version)
    message, _ = request_decoder(spec(header.api_key).request_class, header.api_version)(view, position)
    if checked:
        _check_round_trip(message, header.api_version)


def _read_produce(view: memoryview, position: int, version: int) -> None:
    """The broker reads Produce by hand: it finds and refuses what the compiled decoder does."""
    try:
        transactional_id, acks, timeout_ms, topics = read_produce(view, position, version)
        found = [[(index, records) for index, records in batches] for _, _, _, batches in topics]
    except ProtocolError:
        found = None
    try:
        message, _ = request_decoder(ProduceRequest, version)(view, position)
    except ProtocolError:
        assert found is None, "read by hand, refused by the decoder"
        return
    assert found == [
        [(data.index, data.records) for data in topic.partition_data] for topic in message.topic_data
    ]
    assert (transactional_id, acks, timeout_ms) == (
        message.transactional_id,
        message.acks,
        message.timeout_ms,
    )
    for topic, (_, name, topic_id, _) in zip(message.topic_data, topics, strict=True):
        assert (topic.name, topic.topic_id) == (name, topic_id)


def read_response(key: int, version: int, data: bytes, *, checked: bool = False) -> None:
    _, message = decode_response(key, version, data)
    if checked:
        _check_round_trip(message, version)


def _check_round_trip(message: Any, version: int) -> None:
    again = decode(type(message), version, encode(message, version))
    # NaN is not itself, and may stand in a float field: compare what is shown.
    assert again == message or repr(again) == repr(message), f"{message} was read back as {again}"


def read_batch(data: bytes, rules: BatchRules, *, produce_version: int = 13) -> None:
    """As a broker does with a produced batch."""
    accepted = validate_for_append(data, rules, NOW_MS, produce_version=produce_version)
    header, batch = accepted
    assert read_header(batch) == header
    assert crc_matches(batch, 0, header), "an accepted batch whose CRC does not fit"
    assert header.size == len(batch)
    if rules.walks_records and not header.attributes & CONTROL_FLAG:
        assert sum(1 for _ in iter_records(batch, 0, header)) == header.record_count


def read_records(data: bytes, *, columnar: bool) -> None:
    """As a consumer does with fetched bytes, with both readers: they agree about what can be read."""
    refusal: CorruptDataError | None = None
    plain: list[tuple[int, int]] = []
    try:
        for position, header in iter_headers(data):
            _compare_outlines(data, position, header)
            plain += [(record.offset, record.timestamp) for record in iter_records(data, position, header)]
    except CorruptDataError as error:
        refusal = error
    if columnar:
        _compare_columns(data, None if refusal is not None else plain)
    if refusal is not None:
        raise refusal


def _compare_columns(data: bytes, plain: list[tuple[int, int]] | None) -> None:
    try:
        found = decode_batches(data, columns=COLUMNS, include_control=True, check_crcs=False)
        times = found.records.column("timestamp").cast("int64")
        rows = list(zip(found.records.column("offset").to_pylist(), times.to_pylist(), strict=True))
    except CorruptDataError:
        rows = None
    assert rows == plain, f"the plain reader found {plain}, the columnar one {rows}"


def _compare_outlines(data: bytes, position: int, header: BatchHeader) -> None:
    """The walk of the validator finds and refuses what the plain reader does."""
    created = header._replace(attributes=header.attributes & ~TIMESTAMP_TYPE_FLAG)
    try:
        records = [
            (record.offset, record.timestamp, record.key is not None)
            for record in iter_records(data, position, created)
        ]
    except CorruptDataError:
        records = None
    try:
        outlines = list(iter_outlines(records_payload(data, position, created), created))
    except CorruptDataError:
        outlines = None
    assert outlines == records, f"in outline {outlines}, in full {records}"


def find_time(data: bytes, timestamp: int) -> None:
    """As ListOffsets does with a stored batch."""
    for position, header in iter_headers(data):
        found = first_at_or_after_timestamp(data, position, header, timestamp)
        assert found is None or -(1 << 63) <= found[0] <= INT64_MAX, (
            f"a timestamp that fits no answer: {found}"
        )


REFUSALS = (ProtocolError, RequestError, CorruptDataError)
