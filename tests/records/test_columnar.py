"""The columnar reader: what it reports, what it leaves out, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.errors import CorruptDataError
from tidelog.records import columnar
from tidelog.records.batch import HEADER_STRUCT, BatchHeader, iter_headers, read_header, write_crc
from tidelog.records.builder import build_batch
from tidelog.records.columnar import COLUMN_TYPES, decode_batches
from tidelog.records.compression import Codec, DecompressionLimitError, compress
from tidelog.records.record import Record, iter_records
from tidelog.records.varint import encode_varint

Forge = Callable[..., bytes]


def run_of(count: int, per_batch: int = 2, codec: Codec = Codec.NONE) -> bytes:
    return b"".join(
        build_batch(
            [Record(start + i, 1000 + i, b"k", b"v%d" % (start + i)) for i in range(per_batch)], codec=codec
        )
        for start in range(0, count * per_batch, per_batch)
    )


def test_importing_the_package_loads_neither_numba_nor_pyarrow() -> None:
    code = (
        "import sys, tidelog.records, tidelog.records.validation, tidelog.records.control;"
        "sys.exit(any(name in sys.modules for name in ('numba', 'numpy', 'pyarrow')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_only_the_columns_asked_for(make: Forge) -> None:
    for name, kind in COLUMN_TYPES.items():
        table = decode_batches(make(4), columns=(name,)).records
        assert table.schema.names == [name]
        assert table.schema.field(name).type == kind
        assert table.num_rows == 4
    assert decode_batches(make(4), columns=()).records.num_rows == 4
    with pytest.raises(ValueError, match="topic"):
        decode_batches(make(), columns=("topic",))


def test_an_empty_buffer_and_a_cut_tail() -> None:
    assert decode_batches(b"").consumed_bytes == 0
    assert decode_batches(b"", start_offset=7).next_offset == 7
    run = run_of(3)
    decoded = decode_batches(run[:-1])
    assert decoded.records.column("offset").to_pylist() == [0, 1, 2, 3]
    assert decoded.consumed_bytes == len(run) // 3 * 2
    assert decoded.next_offset == 4


def test_offsets_are_trimmed_within_batches() -> None:
    run = run_of(10, per_batch=5)
    decoded = decode_batches(run, start_offset=7, end_offset=23)
    assert decoded.records.column("offset").to_pylist() == list(range(7, 23))
    assert decoded.next_offset == 23
    assert decoded.consumed_bytes == len(run_of(5, per_batch=5))  # the sixth batch starts at 25


def test_control_batches_are_passed_over_but_counted(make: Forge) -> None:
    marker = bytearray(make(1, is_control=True))
    marker[:8] = (2).to_bytes(8, "big")
    run = make(2) + bytes(marker)
    decoded = decode_batches(run)
    assert decoded.records.num_rows == 2
    assert (decoded.next_offset, decoded.consumed_bytes) == (3, len(run))
    assert decode_batches(run, include_control=True, columns=("is_control",)).records.to_pydict() == {
        "is_control": [False, False, True]
    }


def test_more_batches_than_the_first_table_holds() -> None:
    run = run_of(5000, per_batch=1)
    decoded = decode_batches(run, columns=("offset", "value"))
    assert decoded.records.column("offset").to_pylist() == list(range(5000))
    assert decoded.records.column("value")[4999].as_py() == b"v4999"
    assert decoded.consumed_bytes == len(run)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_call_stops_at_its_byte_limit_and_goes_on(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(50, per_batch=20, codec=codec)
    monkeypatch.setattr(columnar, "_PAYLOAD_BYTES_MAX", 1500)
    offsets: list[int] = []
    calls, rest, next_offset = 0, run, 0
    while rest:
        decoded = decode_batches(rest, start_offset=next_offset)
        assert decoded.consumed_bytes > 0
        offsets += decoded.records.column("offset").to_pylist()
        rest, next_offset, calls = rest[decoded.consumed_bytes :], decoded.next_offset, calls + 1
    assert offsets == list(range(1000))
    assert calls > 5


def test_any_buffer_will_do_and_is_free_afterwards() -> None:
    run = bytearray(run_of(3))
    expected = decode_batches(bytes(run)).records
    for buffer in (run, memoryview(run), memoryview(b"xx" + run)[2:]):
        assert decode_batches(buffer).records.equals(expected)
    kept = decode_batches(run).records
    run[:] = bytes(len(run))
    assert kept.equals(expected)


def test_columns_are_memory_of_arrows_pool() -> None:
    """It keeps the pages of columns that were dropped; fresh ones would cost more than the decoding."""
    batch = build_batch([Record(n, 0, b"k", b"v" * 1_000) for n in range(1_000)])
    before = pa.total_allocated_bytes()
    decoded = decode_batches(batch)
    assert pa.total_allocated_bytes() - before >= 1_000_000
    del decoded
    assert pa.total_allocated_bytes() == before


def test_a_wrong_crc_is_noticed_unless_told_otherwise() -> None:
    run = bytearray(run_of(3))
    run[-2] ^= 1  # a byte of the last value
    with pytest.raises(CorruptDataError, match=r"offset 4.*CRC"):
        decode_batches(run)
    assert decode_batches(run, check_crcs=False).records.num_rows == 6


def test_header_keys_that_are_not_utf8(make: Forge, forge: Forge) -> None:
    batch = build_batch([Record(0, 0, b"k", b"v", (("@@", b"1"), ("ok", None)))])
    broken = forge(batch.replace(b"@@", b"\xff\xfe"))
    table = decode_batches(broken, columns=("headers",)).records
    table.validate(full=True)
    from_rows = next(iter_records(broken, 0, read_header(broken))).headers
    assert [(h["key"], h["value"]) for h in table.column("headers")[0].as_py()] == list(from_rows)
    assert from_rows[0][0] == "\ufffd\ufffd"


def test_decompression_is_bounded() -> None:
    bomb = build_batch([Record(0, 0, b"k", bytes(10_000_000))], codec=Codec.ZSTD)
    with pytest.raises(CorruptDataError, match=r"offset 0.*1000000"):
        decode_batches(bomb, decompress_limit=1_000_000)
    with pytest.raises(DecompressionLimitError):
        list(iter_records(bomb, 0, read_header(bomb), limit=1_000_000))


def _record(*, length: int | None = None, deltas: bytes = b"\x00\x00", key: bytes = b"\x02k", value: bytes = b"\x02v",
            headers: bytes = b"\x00") -> bytes:  # fmt: skip
    body = b"\x00" + deltas + key + value + headers
    return encode_varint(len(body) if length is None else length) + body


LONG = b"\xff" * 11
MALFORMED = {
    "length beyond the batch": _record(length=500),
    "length negative": _record(length=-1),
    "length short by one": _record(length=6),
    "length zero": bytes(12),
    "length varint too long": LONG,
    "timestamp delta too long": _record(deltas=LONG + b"\x00"),
    "offset delta too long": _record(deltas=b"\x00" + b"\xff" * 6),
    "offset delta beyond the batch": _record(deltas=b"\x00\x08"),
    "offset delta negative": _record(deltas=b"\x00\x01"),
    "key beyond the record": _record(key=b"\x40k"),
    "key length -2": _record(key=b"\x03k"),
    "key length 2**31": _record(key=b"\xfe\xff\xff\xff\x1f"),
    "value beyond the record": _record(value=b"\x40v"),
    "value length -2": _record(value=b"\x03v"),
    "header count beyond the record": _record(headers=b"\xfe\xff\xff\xff\x0f"),
    "header count negative": _record(headers=b"\x01"),
    "header key null": _record(headers=b"\x02\x01\x00"),
    "header key beyond": _record(headers=b"\x02\x20a\x00"),
    "header value beyond": _record(headers=b"\x02\x02a\x20"),
    "header value -2": _record(headers=b"\x02\x02a\x03"),
    "bytes behind the headers": _record(headers=b"\x00\x00"),
    "bytes behind the last record": _record() + b"\x00",
    "nothing": b"",
}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_records_are_refused_by_both_readers(
    name: str, codec: Codec, make: Forge, forge: Forge
) -> None:
    payload = compress(codec, MALFORMED[name])
    bad = forge(make(1)[:61] + payload, batch_length=49 + len(payload), attributes=codec, base_offset=88)
    with pytest.raises(CorruptDataError):
        list(iter_records(bad, 0, read_header(bad)))
    with pytest.raises(CorruptDataError, match=r"88|position 0"):
        decode_batches(bad, columns=("offset", "key", "value", "headers"))


@pytest.mark.parametrize(
    "fields",
    [
        {"record_count": 2**31 - 1},
        {"record_count": -1},
        {"record_count": 4},
        {"record_count": 2},
        {"base_offset": -1},
        {"base_offset": 2**63 - 1},
        {"last_offset_delta": -1},
        {"last_offset_delta": 1},
        {"batch_length": 48},
        {"batch_length": -1},
        {"magic": 1},
        {"attributes": 6},
    ],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_hostile_headers_are_refused(fields: dict[str, int], codec: Codec, make: Forge, forge: Forge) -> None:
    bad = forge(make(3, codec=codec), **{"attributes": codec} | fields)
    with pytest.raises(CorruptDataError):
        decode_batches(bad)
    with pytest.raises(CorruptDataError):
        for position, header in iter_headers(bad):
            list(iter_records(bad, position, header))


@pytest.mark.parametrize("extreme", [2**63 - 1, -(2**63)])
def test_extreme_timestamps_do_no_harm(extreme: int, make: Forge, forge: Forge) -> None:
    bad = forge(make(3), base_timestamp=extreme, max_timestamp=extreme)
    assert decode_batches(bad).records.num_rows == 3


@given(
    st.binary(max_size=120), st.integers(0, 6), st.integers(0, 4), st.sampled_from([Codec.NONE, Codec.SNAPPY])
)
@settings(max_examples=300)
def test_noise_behind_a_true_header(noise: bytes, count: int, delta: int, codec: Codec) -> None:
    """Both readers agree whether a payload is a run of records; neither does anything but return or refuse."""
    payload = compress(codec, noise)
    header = BatchHeader(0, 49 + len(payload), 0, 2, 0, codec, delta, 0, 0, -1, -1, -1, count)
    bad = bytearray(HEADER_STRUCT.pack(*header) + payload)
    write_crc(bad)
    try:
        expected = [record.offset for record in iter_records(bad, 0, read_header(bad))]
    except CorruptDataError:
        with pytest.raises(CorruptDataError):
            decode_batches(bad)
    else:
        assert decode_batches(bad).records.column("offset").to_pylist() == expected
