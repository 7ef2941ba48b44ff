"""Many records: a great many through each library (a million by `make clients`), and all libraries at once on one topic."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.clients.libraries import LIBRARIES, Library
from tests.clients.rows import MANY, Row
from tests.clients.test_matrix import usable, wait_for_end

CHUNK = 50_000  # rows in memory at a time
TOGETHER = 20_000


def plain_rows(first: int, count: int, *, writer: str = "w") -> list[Row]:
    """Small numbered records that kcat can write too."""
    now = int(time.time() * 1000)
    return [Row(writer.encode(), b"%012d" % number, (), now) for number in range(first, first + count)]


def values(rows: list[Row]) -> list[bytes | None]:
    return [row.value for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_many_records(bootstrap: str, new_topic_name: Callable[[str], str], library: Library) -> None:
    usable(library)
    topic = new_topic_name("many")
    library.create_topic(bootstrap, topic)
    for first in range(0, MANY, CHUNK):
        library.write(bootstrap, topic, plain_rows(first, CHUNK), codec="lz4", acks="all")
    wait_for_end(bootstrap, topic, MANY)
    first = 0
    while first < MANY:
        read = values(library.read(bootstrap, topic, start=first, count=CHUNK))
        assert read, f"nothing at offset {first}"
        assert read == [b"%012d" % number for number in range(first, first + len(read))]
        first += len(read)
    assert first == MANY


@pytest.mark.slow
def test_all_libraries_at_once(bootstrap: str, new_topic_name: Callable[[str], str]) -> None:
    """Every library writes to one partition while every library reads it; each writer's records stay in order."""
    present = [library for library in LIBRARIES if library.available() is None]
    topic = new_topic_name("together")
    present[0].create_topic(bootstrap, topic)
    total = TOGETHER * len(present)

    def write(library: Library) -> None:
        rows = plain_rows(0, TOGETHER, writer=library.name)
        library.write(bootstrap, topic, rows, codec="lz4", acks="all")

    def read(library: Library) -> list[Row]:
        rows: list[Row] = []
        while len(rows) < total:
            more = library.read(bootstrap, topic, start=len(rows), count=min(TOGETHER, total - len(rows)))
            assert more, f"{library.name} found nothing after offset {len(rows)} of {total}"
            rows += more[: total - len(rows)]
        return rows

    with ThreadPoolExecutor(2 * len(present)) as pool:
        writing = [pool.submit(write, library) for library in present]
        reading = [pool.submit(read, library) for library in present]
        for task in writing:
            task.result()
        views = [task.result() for task in reading]

    assert all(view == views[0] for view in views[1:]), "libraries disagree about what the partition holds"
    for library in present:
        own = [row.value for row in views[0] if row.key == library.name.encode()]
        assert own == [b"%012d" % number for number in range(TOGETHER)], library.name
