"""Every library × compression × acks: what one writes, all read, byte for byte and in order."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.clients.libraries import LIBRARIES, Library
from tests.clients.rows import MANY, Row
from tools.peers.raw import RawConnection, StoredBatch, stored_batches

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = ("0", "1", "all")
RECORDS = MANY // 100


def usable(library: Library) -> Library:
    reason = library.available()
    if reason:
        pytest.skip(reason)
    return library


def wait_for_end(bootstrap: str, topic: str, end: int, seconds: float = 30.0) -> None:
    """acks=0 promises nothing about when: wait until the log is as long as it must become."""
    deadline = time.monotonic() + seconds
    with RawConnection(bootstrap) as connection:
        while (latest := connection.list_offset(topic, -1)) < end:
            assert time.monotonic() < deadline, f"{topic} ends at {latest}, expected {end}"
            time.sleep(0.02)
    assert latest == end, f"{topic} ends at {latest}, expected {end}"


def all_stored_batches(bootstrap: str, topic: str, end: int) -> list[StoredBatch]:
    batches: list[StoredBatch] = []
    with RawConnection(bootstrap) as connection:
        while not batches or batches[-1].base_offset + batches[-1].last_offset_delta + 1 < end:
            start = batches[-1].base_offset + batches[-1].last_offset_delta + 1 if batches else 0
            found = list(stored_batches(connection.fetch(topic, start)))
            assert found, f"a fetch of {topic} from {start} brought nothing"
            batches += found
    return batches


def without_time(rows: list[Row]) -> list[tuple[object, ...]]:
    return [row[:3] for row in rows]


@pytest.mark.parametrize("acks", ACKS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", LIBRARIES, ids=lambda library: library.name)
def test_what_one_library_writes_all_read(
    bootstrap: str, new_topic_name: Callable[[str], str], writer: Library, codec: str, acks: str
) -> None:
    usable(writer)
    topic = new_topic_name(f"{writer.name}.{codec}.{acks}")
    rows = writer.rows(RECORDS, seed=CODECS.index(codec) * 10 + ACKS.index(acks))
    writer.create_topic(bootstrap, topic)
    writer.write(bootstrap, topic, rows, codec=codec, acks=acks)
    wait_for_end(bootstrap, topic, RECORDS)

    codecs = {batch.codec for batch in all_stored_batches(bootstrap, topic, RECORDS)}
    assert codec in codecs and codecs <= {codec, "none"}, f"asked for {codec}, stored {codecs}"

    if rows[0].timestamp_ms < 0:  # the library chose the time: whatever it was, all must read the same
        chosen = LIBRARIES[0].read(bootstrap, topic, start=0, count=RECORDS)
        assert without_time(chosen) == without_time(rows)
        rows = chosen
    for reader in LIBRARIES:
        if reader.available() is None:
            check_reads(reader, bootstrap, topic, rows)


def check_reads(reader: Library, bootstrap: str, topic: str, rows: list[Row]) -> None:
    """From the beginning, from an offset inside a batch, and from a point in time."""
    assert reader.read(bootstrap, topic, start=0, count=len(rows)) == rows, reader.name

    offset = len(rows) * 2 // 3 + 1
    tail = reader.read(bootstrap, topic, start=offset, count=500)
    assert tail[:500] == rows[offset : offset + 500], reader.name

    moment = rows[len(rows) // 2].timestamp_ms
    first = next(number for number, row in enumerate(rows) if row.timestamp_ms >= moment)
    later = reader.read_from_time(bootstrap, topic, timestamp_ms=moment, count=500)
    assert later[:500] == rows[first : first + 500], reader.name
