"""docs/formats/record-batch.md shows a real batch."""

from __future__ import annotations

import re
from pathlib import Path

from tidelog.records.batch import HEADER_STRUCT, crc_matches, read_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record, iter_records

DOCUMENT = Path(__file__).parents[2] / "docs" / "formats" / "record-batch.md"


def test_the_worked_example() -> None:
    block = DOCUMENT.read_text().split("```")[1]
    batch = bytes.fromhex(
        "".join(re.match(r"(?:[0-9a-f]{2} ?)*", line).group() for line in block.splitlines())
    )
    records = [
        Record(42, 1_700_000_000_000, b"user-1", b"hello", (("src", b"web"),)),
        Record(43, 1_700_000_000_250, None, b"!"),
    ]
    header = read_header(batch)
    assert header.size == len(batch) == 96
    assert crc_matches(batch, 0, header)
    assert list(iter_records(batch, 0, header)) == records
    ours = build_batch(records, producer_id=7, producer_epoch=1, base_sequence=100, partition_leader_epoch=3)
    assert ours == batch


def test_the_table_of_fields() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ", DOCUMENT.read_text(), re.MULTILINE)
    position = 0
    for at, size in rows:
        assert int(at) == position
        position += int(size)
    assert position == HEADER_STRUCT.size == 61
