"""Every kind of bad batch gets the answer that a Kafka 4.3.1 broker was seen to give (Produce 8, one broker, asked one by one).

Where Kafka answers UNKNOWN_SERVER_ERROR, the code is ours and the case says so.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.errors import RequestError
from tidelog.records.batch import TimestampType, crc_matches, read_header
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.control import build_end_transaction_marker
from tidelog.records.record import Record, iter_records
from tidelog.records.validation import BatchRules, RecordsRefusedError, Validated, validate_for_append
from tidelog.wire.error_codes import ErrorCode

Forge = Callable[..., bytes]
HOUR_MS = 3_600_000
RULES = BatchRules()


def refusal(records: bytes, now_ms: int, rules: BatchRules = RULES, **options: int) -> ErrorCode:
    with pytest.raises(RequestError) as caught:
        validate_for_append(memoryview(records), rules, now_ms, **options)
    assert any(character.isdigit() for character in caught.value.message) or " " in caught.value.message
    return caught.value.code


def test_a_good_batch_is_passed_on_without_a_copy(make: Forge, now_ms: int) -> None:
    records = memoryview(make())
    validated = validate_for_append(records, RULES, now_ms)
    assert validated.batch is records
    assert validated == Validated(read_header(records), records)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"magic": 0}, ErrorCode.INVALID_RECORD),
        ({"magic": 1}, ErrorCode.INVALID_RECORD),
        ({"magic": 3}, ErrorCode.CORRUPT_MESSAGE),
        ({"magic": -1}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": 48}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": 13}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": 0}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": -1}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": -(2**31)}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": 2**31 - 1}, ErrorCode.INVALID_RECORD),  # Kafka: UNKNOWN_SERVER_ERROR (overflow)
        ({"batch_length": 200}, ErrorCode.INVALID_RECORD),
        ({"record_count": 0}, ErrorCode.INVALID_RECORD),
        ({"record_count": 0, "last_offset_delta": -1}, ErrorCode.INVALID_RECORD),
        ({"record_count": -1}, ErrorCode.INVALID_RECORD),
        ({"record_count": 2**31 - 1}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": 7}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": -5}, ErrorCode.INVALID_RECORD),
        ({"base_offset": 5}, ErrorCode.INVALID_RECORD),
        ({"base_offset": -1}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x20}, ErrorCode.INVALID_RECORD),
        ({"attributes": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),  # Kafka: UNKNOWN_SERVER_ERROR
        ({"attributes": 7}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),  # Kafka: UNKNOWN_SERVER_ERROR
        ({"producer_id": 1000, "producer_epoch": 0}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 1000, "producer_epoch": 0, "base_sequence": -2}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x10}, ErrorCode.INVALID_RECORD),  # transactional, no producer: Kafka stores it
    ],
)
def test_bad_headers(fields: dict[str, int], code: ErrorCode, make: Forge, forge: Forge, now_ms: int) -> None:
    assert refusal(forge(make(), **fields), now_ms) == code


@pytest.mark.parametrize(
    "fields",
    [
        {"attributes": 0x40},  # delete horizon
        {"attributes": 0x80},  # reserved
        {"attributes": -0x8000},
        {"producer_id": 1000, "producer_epoch": -1, "base_sequence": 0},
        {"producer_id": -5, "producer_epoch": 0, "base_sequence": 0},
        {"base_sequence": 0},
        {"partition_leader_epoch": 77},
        {"base_timestamp": -1, "max_timestamp": -1},
        {"base_timestamp": -2, "max_timestamp": 0},
    ],
)
def test_odd_headers_that_kafka_accepts(
    fields: dict[str, int], make: Forge, forge: Forge, now_ms: int
) -> None:
    validate_for_append(forge(make(), **fields), RULES, now_ms)


def test_no_batch_two_batches_and_tails(make: Forge, now_ms: int) -> None:
    batch = make()
    assert refusal(b"", now_ms) == ErrorCode.INVALID_RECORD
    assert refusal(batch + batch, now_ms) == ErrorCode.INVALID_RECORD
    for cut in (10, 20, 60, len(batch) - 1):
        assert refusal(batch[:cut], now_ms) == ErrorCode.INVALID_RECORD, cut
    for junk in (bytes(17), bytes(61)):
        assert refusal(batch + junk, now_ms) == ErrorCode.CORRUPT_MESSAGE
    for tail in (b"12345", batch[:16], batch[:40], batch[:70]):
        assert bytes(validate_for_append(batch + tail, RULES, now_ms).batch) == batch


def test_every_flipped_bit_is_noticed(make: Forge, now_ms: int) -> None:
    """Only base offset (judged on its own) and leader epoch (the broker's to write) lie outside the CRC."""
    batch = make(2)
    for position in range(len(batch)):
        for bit in range(8):
            flipped = bytearray(batch)
            flipped[position] ^= 1 << bit
            if 12 <= position < 16:
                validate_for_append(flipped, RULES, now_ms)
            else:
                refusal(bytes(flipped), now_ms)


def test_kafkas_order_of_looking(make: Forge, forge: Forge, now_ms: int) -> None:
    small = BatchRules(max_message_bytes=100)
    damaged = make(20)[:-1] + b"\xff"
    assert refusal(damaged, now_ms) == ErrorCode.CORRUPT_MESSAGE
    assert refusal(damaged, now_ms, small) == ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(forge(damaged, crc=False, base_offset=3), now_ms, small) == ErrorCode.INVALID_RECORD
    assert refusal(forge(damaged, crc=False, record_count=0), now_ms) == ErrorCode.CORRUPT_MESSAGE
    assert refusal(forge(make(20), record_count=0), now_ms, small) == ErrorCode.MESSAGE_TOO_LARGE


def test_size_limit_is_inclusive(make: Forge, now_ms: int) -> None:
    batch = make()
    validate_for_append(batch, BatchRules(max_message_bytes=len(batch)), now_ms)
    assert refusal(batch, now_ms, BatchRules(max_message_bytes=len(batch) - 1)) == ErrorCode.MESSAGE_TOO_LARGE


def test_zstd_needs_produce_7(make: Forge, now_ms: int) -> None:
    batch = make(codec=Codec.ZSTD)
    for version in (3, 6):
        assert refusal(batch, now_ms, produce_version=version) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    validate_for_append(batch, RULES, now_ms, produce_version=7)


class TestTimestamps:
    def test_too_far_in_the_future(self, make: Forge, forge: Forge, now_ms: int) -> None:
        late = now_ms + 2 * HOUR_MS
        with pytest.raises(RecordsRefusedError) as caught:
            validate_for_append(forge(make(), base_timestamp=late, max_timestamp=late), RULES, now_ms)
        assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
        assert [index for index, _ in caught.value.record_errors] == [0, 1, 2]
        assert str(late) in caught.value.message

    @pytest.mark.parametrize("extreme", [2**63 - 3, -(2**63)])
    def test_extremes(self, extreme: int, make: Forge, forge: Forge, now_ms: int) -> None:
        batch = forge(make(), base_timestamp=extreme, max_timestamp=extreme)
        assert refusal(batch, now_ms) == ErrorCode.INVALID_TIMESTAMP

    @pytest.mark.parametrize("stated", [NOW := 1_700_000_000_000 + 2 * HOUR_MS, -1, NOW - 3 * HOUR_MS])
    def test_a_wrong_max_in_the_header_is_repaired(
        self, stated: int, make: Forge, forge: Forge, now_ms: int
    ) -> None:
        validated = validate_for_append(forge(make(), max_timestamp=stated), RULES, now_ms)
        assert validated.header.max_timestamp == now_ms + 2
        assert crc_matches(validated.batch, 0, validated.header)
        assert validated.header == read_header(validated.batch)

    def test_before_max_looks_at_every_record(self, now_ms: int) -> None:
        rules = BatchRules(before_max_ms=10_000)
        times = (now_ms, now_ms - 60_000, -1)
        batch = build_batch(Record(index, time, b"k", b"v") for index, time in enumerate(times))
        with pytest.raises(RecordsRefusedError) as caught:
            validate_for_append(batch, rules, now_ms)
        assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
        assert [index for index, _ in caught.value.record_errors] == [1]

    def test_log_append_time_stamps_the_batch(self, make: Forge, forge: Forge, now_ms: int) -> None:
        rules = BatchRules(timestamp_type=TimestampType.LOG_APPEND_TIME)
        future = forge(make(), base_timestamp=now_ms + 10**9)
        validated = validate_for_append(future, rules, now_ms + 5)
        assert validated.header.timestamp_type == TimestampType.LOG_APPEND_TIME
        assert crc_matches(validated.batch, 0, validated.header)
        assert {record.timestamp for record in iter_records(validated.batch, 0, validated.header)} == {
            now_ms + 5
        }

    def test_the_type_is_the_brokers_to_set(self, make: Forge, now_ms: int) -> None:
        """Kafka refuses the flag on a LogAppendTime topic, and clears it on a CreateTime one."""
        batch = make(timestamp_type=TimestampType.LOG_APPEND_TIME)
        rules = BatchRules(timestamp_type=TimestampType.LOG_APPEND_TIME)
        assert refusal(batch, now_ms, rules) == ErrorCode.INVALID_TIMESTAMP
        validated = validate_for_append(batch, RULES, now_ms)
        assert validated.header.timestamp_type == TimestampType.CREATE_TIME
        assert [record.timestamp for record in iter_records(validated.batch, 0, validated.header)] == [
            now_ms, now_ms + 1, now_ms + 2,
        ]  # fmt: skip


class TestWalk:
    COMPACTED = BatchRules(compacted=True)

    def test_compacted_topics_want_keys(self, make: Forge, now_ms: int) -> None:
        batch = build_batch([Record(0, now_ms, b"k", b"v"), Record(1, now_ms, None, b"v")])
        with pytest.raises(RecordsRefusedError) as caught:
            validate_for_append(batch, self.COMPACTED, now_ms)
        assert caught.value.code == ErrorCode.INVALID_RECORD
        assert [index for index, _ in caught.value.record_errors] == [1]
        validate_for_append(make(), self.COMPACTED, now_ms)

    @pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
    def test_a_payload_that_does_not_decompress(
        self, codec: Codec, make: Forge, forge: Forge, now_ms: int
    ) -> None:
        """Kafka answers UNKNOWN_SERVER_ERROR; we name it."""
        assert refusal(forge(make(), attributes=codec), now_ms, self.COMPACTED) == ErrorCode.INVALID_RECORD

    def test_a_bomb_is_too_large(self, now_ms: int) -> None:
        bomb = build_batch([Record(0, now_ms, b"k", bytes(3_000_000))], codec=Codec.GZIP)
        rules = BatchRules(compacted=True, decompress_limit_bytes=1_000_000)
        assert refusal(bomb, now_ms, rules) == ErrorCode.MESSAGE_TOO_LARGE

    def test_malformed_records(self, make: Forge, forge: Forge, now_ms: int) -> None:
        gap = build_batch([Record(0, now_ms, b"a", b"b"), Record(5, now_ms, b"a", b"b")])
        for bad in (
            forge(make(3), record_count=4, last_offset_delta=3),
            forge(make(3), record_count=2, last_offset_delta=1),
            forge(make(1)[:61] + bytes(12), batch_length=61),
            forge(make(1) + b"xxx", batch_length=len(make(1)) + 3 - 12),
            forge(gap, last_offset_delta=1),
        ):
            assert refusal(bad, now_ms, self.COMPACTED) == ErrorCode.INVALID_RECORD


class TestRecompression:
    @pytest.mark.parametrize("target", list(Codec))
    @pytest.mark.parametrize("source", list(Codec))
    def test_changes_the_codec_and_nothing_else(
        self, source: Codec, target: Codec, make: Forge, now_ms: int
    ) -> None:
        batch = make(
            50, codec=source, producer_id=9, producer_epoch=2, base_sequence=70, is_transactional=True
        )
        validated = validate_for_append(batch, BatchRules(compression_type=target), now_ms)
        before = read_header(batch)
        assert validated.header == read_header(validated.batch)
        assert validated.header.codec == target
        assert crc_matches(validated.batch, 0, validated.header)
        unchanged = {"batch_length": 0, "crc": 0, "attributes": 0}
        assert validated.header._replace(**unchanged) == before._replace(**unchanged)
        assert validated.header.attributes & ~7 == before.attributes & ~7
        assert list(iter_records(validated.batch, 0, validated.header)) == list(
            iter_records(batch, 0, before)
        )

    @pytest.mark.parametrize(
        ("codec", "low", "high"), [(Codec.GZIP, 1, 9), (Codec.LZ4, 1, 17), (Codec.ZSTD, -5, 19)]
    )
    def test_levels(self, codec: Codec, low: int, high: int, now_ms: int) -> None:
        text = b" ".join(b"word%d" % (index * index % 977) for index in range(6000))
        batch = build_batch([Record(0, now_ms, b"k", text)])
        sizes = [
            len(
                validate_for_append(
                    batch, BatchRules(compression_type=codec, compression_level=level), now_ms
                ).batch
            )
            for level in (low, high)
        ]
        assert sizes[1] < sizes[0] < len(batch)

    def test_size_is_checked_again(self, now_ms: int) -> None:
        batch = build_batch([Record(0, now_ms, b"k", bytes(5000))], codec=Codec.GZIP)
        rules = BatchRules(compression_type=Codec.NONE, max_message_bytes=1000)
        assert refusal(batch, now_ms, rules) == ErrorCode.MESSAGE_TOO_LARGE

    def test_with_log_append_time(self, make: Forge, now_ms: int) -> None:
        rules = BatchRules(compression_type=Codec.LZ4, timestamp_type=TimestampType.LOG_APPEND_TIME)
        validated = validate_for_append(make(), rules, now_ms + 9)
        assert validated.header.codec == Codec.LZ4
        assert validated.header.max_timestamp == now_ms + 9
        assert crc_matches(validated.batch, 0, validated.header)


def test_coordinators_may_write_markers(now_ms: int) -> None:
    marker = build_end_transaction_marker(
        commit=True, producer_id=5, producer_epoch=1, coordinator_epoch=3, timestamp=now_ms
    )
    assert refusal(marker, now_ms) == ErrorCode.INVALID_RECORD
    for rules in (RULES, BatchRules(compacted=True, compression_type=Codec.ZSTD)):
        assert validate_for_append(marker, rules, now_ms, from_client=False).batch == marker
