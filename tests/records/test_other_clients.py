"""Batches written by other clients are read, and other clients read ours, under every codec."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_python_records
import pytest

from tidelog.records.batch import crc_matches, iter_headers, read_header
from tidelog.records.builder import build_batch
from tidelog.records.columnar import decode_batches
from tidelog.records.compression import Codec
from tidelog.records.record import Record, iter_records

LIBRARIES = {"kafka-python": kafka_python_records, "aiokafka": aiokafka_records}
RECORDS = [
    Record(
        index,
        1_700_000_000_000 + index * 7 % 13,
        None if index % 4 == 0 else b"key-%d" % index,
        None if index % 7 == 3 else (b"value %d " % index) * (1 + index * 9),
        (("trace", b"\x00\x01"), ("empty", b""), ("null", None)) if index % 5 == 0 else (),
    )
    for index in range(60)
]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("library", LIBRARIES)
def test_they_write_we_read(library: str, codec: Codec) -> None:
    builder = LIBRARIES[library].DefaultRecordBatchBuilder(
        magic=2, compression_type=int(codec), is_transactional=1, producer_id=42, producer_epoch=3, base_sequence=5,
        batch_size=10_000_000,
    )  # fmt: skip
    for record in RECORDS:
        builder.append(
            record.offset,
            timestamp=record.timestamp,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
        )
    batch = bytes(builder.build())
    header = read_header(batch)
    assert header.size == len(batch)
    assert header.codec == codec
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (42, 3, 5)
    assert header.is_transactional
    assert crc_matches(batch, 0, header)
    assert list(iter_records(batch, 0, header)) == RECORDS
    assert decode_batches(batch).records.column("value").to_pylist() == [record.value for record in RECORDS]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("library", LIBRARIES)
def test_we_write_they_read(library: str, codec: Codec) -> None:
    batch = build_batch(RECORDS, codec=codec, producer_id=42, producer_epoch=3, base_sequence=5)
    theirs = LIBRARIES[library].DefaultRecordBatch(bytearray(batch))
    assert theirs.validate_crc()
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (42, 3, 5)
    seen = [
        Record(r.offset, r.timestamp, r.key, r.value, tuple((key, value) for key, value in r.headers))
        for r in theirs
    ]
    assert seen == RECORDS


def _stored_batches() -> dict[str, bytes]:
    """Segments with one batch each: recompressed by a Java broker of Kafka 4.3.1, or sent by librdkafka 2.16."""
    encoded: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "client_batches.json").read_text())
    return {name: base64.b64decode(text) for name, text in encoded.items()}


@pytest.mark.parametrize("writer", sorted(_stored_batches()))
def test_java_and_librdkafka(writer: str) -> None:
    segment = _stored_batches()[writer]
    expected = [
        Record(
            index,
            1_700_000_000_000 + index,
            b"key-%d" % index if index % 3 else None,
            (b"value-%d " % (index % 7)) * 600,
            (("h", b"x"),) if index % 10 == 0 else (),
        )
        for index in range(20)
    ]
    records: list[Record] = []
    for position, header in iter_headers(segment):
        assert Codec(header.codec).name.lower() == writer.partition("-")[2]
        assert crc_matches(segment, position, header)
        records += iter_records(segment, position, header)
    assert records == expected
    decoded = decode_batches(segment, columns=("offset", "key", "value"))
    assert decoded.consumed_bytes == len(segment)
    assert decoded.records.column("value").to_pylist() == [record.value for record in expected]
    assert decoded.records.column("key").to_pylist() == [record.key for record in expected]
