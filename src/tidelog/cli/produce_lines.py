"""Lines in, records out: reads whatever input has to offer, and sends as soon as the input pauses.

That is all the batching there is: a person typing gets every line delivered at once, a fast pipe fills whole batches.
Pipes and terminals are watched by the event loop, so Ctrl-C never waits for a blocked read.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from tidelog.cli.boundary import CommandError
from tidelog.cli.line_producer import LineProducer
from tidelog.cli.produce import LineFormat
from tidelog.records.record import Headers

_CHUNK_BYTES = 256 * 1024


async def send_lines(
    producer: LineProducer,
    file: Path | None,
    lines: LineFormat,
    *,
    headers: Headers = (),
    partition: int | None = None,
    count: int | None = None,
) -> None:
    descriptor = sys.stdin.fileno() if file is None else os.open(file, os.O_RDONLY)
    number = 0
    try:
        async for chunk in _line_chunks(descriptor):
            timestamp = time.time_ns() // 1_000_000
            for line in chunk:
                if number == count:
                    break
                number += 1
                key, value = lines.split(line, number)
                await producer.send(
                    value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp
                )
            if number == count:
                break
            size = sum(map(len, chunk))
            if size < _CHUNK_BYTES // 2:
                await producer.flush()
            else:
                await producer.sent(size)
    except CommandError:
        await producer.flush()  # the lines before a bad one were promised
        raise
    finally:
        if file is not None:
            os.close(descriptor)
    await producer.flush()


async def _line_chunks(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Lists of complete lines without their line ends; a last line without one counts."""
    rest: list[bytes] = []
    while chunk := await _read(descriptor):
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            rest.append(chunk)
            continue
        whole = b"".join([*rest, head])
        rest = [tail] if tail else []
        yield [line.removesuffix(b"\r") for line in whole.split(b"\n")]
    if rest:
        yield [b"".join(rest).removesuffix(b"\r")]


async def _read(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        if not readable.done():
            readable.set_result(None)

    try:
        loop.add_reader(descriptor, ready)
    except PermissionError:
        return os.read(
            descriptor, _CHUNK_BYTES
        )  # a regular file is always ready, and epoll says so by refusing it
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, _CHUNK_BYTES)
