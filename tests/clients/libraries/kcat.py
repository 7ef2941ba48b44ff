"""kcat: the command line client. Debian's 1.7.1 carries librdkafka 2.0.2, an old client that is everywhere."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from tests.clients.libraries.base import BATCH_BYTES, READ_SECONDS_MAX, Library
from tests.clients.rows import KCAT_HEADER, Row, text_rows

SEPARATOR = "\x1f"
# Offset, timestamp and both lengths, then the bytes themselves: parsed by length, so any byte may occur.
FORMAT = "%o %T %K %S\n%k%s%h\n"


class KcatLibrary(Library):
    name = "kcat"

    def available(self) -> str | None:
        return None if shutil.which("kcat") else "kcat is not installed"

    def rows(self, count: int, *, seed: int) -> list[Row]:
        return text_rows(count, seed=seed)

    def create_topic(self, bootstrap: str, topic: str) -> None:
        """kcat has no admin client: asking for a topic's metadata is what creates it."""
        _kcat(bootstrap, "-L", "-t", topic, "-X", "allow.auto.create.topics=true")

    def write(self, bootstrap: str, topic: str, rows: Sequence[Row], *, codec: str, acks: str) -> None:
        lines = b"".join((row.key or b"") + SEPARATOR.encode() + (row.value or b"") + b"\n" for row in rows)
        name, value = KCAT_HEADER
        options = [
            "-P",
            "-t",
            topic,
            "-p",
            "0",
            "-K",
            SEPARATOR,
            "-Z",
            "-z",
            codec,
            "-H",
            f"{name}={value.decode()}",
        ]
        settings = [f"acks={acks}", f"batch.size={BATCH_BYTES}", "linger.ms=5"]
        settings += [f"enable.idempotence={'true' if acks == 'all' else 'false'}"]
        _kcat(bootstrap, *options, *(part for setting in settings for part in ("-X", setting)), stdin=lines)

    def read(self, bootstrap: str, topic: str, *, start: int, count: int) -> list[Row]:
        return _read(bootstrap, topic, str(start) if start else "beginning", count)

    def read_from_time(self, bootstrap: str, topic: str, *, timestamp_ms: int, count: int) -> list[Row]:
        return _read(bootstrap, topic, f"s@{timestamp_ms}", count)


def _kcat(bootstrap: str, *arguments: str, stdin: bytes | None = None) -> bytes:
    done = subprocess.run(
        ["kcat", "-b", bootstrap, *arguments],
        input=stdin,
        capture_output=True,
        timeout=READ_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def _read(bootstrap: str, topic: str, start: str, count: int) -> list[Row]:
    output = _kcat(
        bootstrap,
        "-C",
        "-q",
        "-t",
        topic,
        "-p",
        "0",
        "-o",
        start,
        "-c",
        str(count),
        "-f",
        FORMAT,
        "-X",
        "check.crcs=true",
    )
    rows = []
    position = 0
    while position < len(output):
        end = output.index(b"\n", position)
        _offset, timestamp, key_size, value_size = (int(part) for part in output[position:end].split())
        position = end + 1
        key = _take(output, position, key_size)
        position += max(key_size, 0)
        value = _take(output, position, value_size)
        position += max(value_size, 0)
        end = output.index(b"\n", position)
        rows.append(Row(key, value, _headers(output[position:end]), timestamp))
        position = end + 1
    return rows


def _take(output: bytes, position: int, size: int) -> bytes | None:
    return None if size < 0 else output[position : position + size]


def _headers(text: bytes) -> tuple[tuple[str, bytes | None], ...]:
    """kcat prints `name=value,name=value` up to a zero byte, NULL for null; the test's values hold none of these."""
    if not text:
        return ()
    pairs = (part.partition(b"=") for part in text.split(b","))
    return tuple((name.decode(), None if value == b"NULL" else value) for name, _, value in pairs)
