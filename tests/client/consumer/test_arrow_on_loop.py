"""Columns are decoded on the event loop where that is a matter of microseconds, and in a thread where others would wait for it."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from tidelog.client.consumer import arrow
from tidelog.client.consumer.records import Chunk
from tidelog.client.metadata import TopicPartition
from tidelog.records.batch import patched_prefix, read_header
from tidelog.records.builder import build_batch
from tidelog.records.columnar import decode_batches
from tidelog.records.compression import Codec
from tidelog.records.record import Record

TP = TopicPartition("orders", 3)
COLUMNS = ("offset", "value")


def chunk(*, batches: int, per_batch: int, size: int, codec: Codec = Codec.NONE) -> Chunk:
    one = build_batch(
        [Record(n, 1_700_000_000_000, None, b"x" * size) for n in range(per_batch)], codec=codec
    )
    length = read_header(one).batch_length
    data = b"".join(patched_prefix(n * per_batch, length, 0) + one[16:] for n in range(batches))
    return Chunk(TP, memoryview(data), 0)


@pytest.fixture(autouse=True)
def _kernels() -> None:
    decode_batches(build_batch([Record(0, 0, None, b"x", (("h", b"1"),))]), columns=(*COLUMNS, "headers"))


@pytest.mark.parametrize(
    ("what", "columns", "fits"),
    [
        (chunk(batches=4, per_batch=1_000, size=1_024), COLUMNS, True),
        (chunk(batches=4, per_batch=1_000, size=1_024, codec=Codec.LZ4), COLUMNS, False),
        (chunk(batches=1_000, per_batch=1, size=10), COLUMNS, False),
        (chunk(batches=2, per_batch=60_000, size=1), COLUMNS, False),
        (chunk(batches=4, per_batch=4_000, size=10), COLUMNS, True),
        (chunk(batches=4, per_batch=4_000, size=10), (*COLUMNS, "headers"), False),
    ],
    ids=["4 MiB", "compressed", "small batches", "small rows", "some rows", "headers"],
)
def test_what_takes_a_thread_is_seen_by_the_headers(
    what: Chunk, columns: tuple[str, ...], fits: bool
) -> None:
    assert arrow.fits_on_loop(what, columns) is fits


def test_the_first_time_takes_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the kernels takes a while, compiling them seconds."""
    small = chunk(batches=1, per_batch=1, size=1)
    assert arrow.fits_on_loop(small, COLUMNS)
    monkeypatch.setattr("tidelog.records.columnar.kernels.walk", lambda *arguments: None)
    assert not arrow.fits_on_loop(small, COLUMNS)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
async def test_both_ways_give_the_same_rows(monkeypatch: pytest.MonkeyPatch, codec: Codec) -> None:
    threads = []
    decode_chunk = arrow.decode_chunk

    def noted(*arguments: object, **named: object) -> pa.RecordBatch:
        threads.append(threading.get_ident())
        return decode_chunk(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(arrow, "decode_chunk", noted)
    found = await arrow.decoded(
        chunk(batches=3, per_batch=10, size=5, codec=codec), COLUMNS, end_offset=25, check_crcs=True
    )
    assert found.to_pydict() == {"offset": list(range(25)), "value": [b"xxxxx"] * 25}
    assert (threads == [threading.get_ident()]) is (codec == Codec.NONE)
