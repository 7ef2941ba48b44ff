"""`tidelog produce`: one record per line of stdin or a file."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.boundary import CommandError, reported, with_cluster
from tidelog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, parse_headers, unescape
from tidelog.cli.output import human_bytes, note, print_json

if TYPE_CHECKING:
    from tidelog.client.cluster import ClusterClient
    from tidelog.client.producer.delivery import BatchReport

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = {"0": 0, "1": 1, "all": -1, "-1": -1}


def parse_codec(text: str) -> str:
    if text.lower() not in CODECS:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(CODECS)}")
    return text.lower()


def parse_acks(text: str) -> str:
    if text.lower() not in ACKS:
        raise typer.BadParameter(f"{text!r} is none of 0, 1, all")
    return text.lower()


Compression = Annotated[
    str,
    typer.Option(
        "--compression", "-z", callback=parse_codec, metavar="|".join(CODECS), help="Of each batch."
    ),
]
Acks = Annotated[
    str,
    typer.Option("--acks", callback=parse_acks, metavar="0|1|all", help="Whose word to wait for."),
]


def register(app: typer.Typer) -> None:
    app.command()(produce)


class LineFormat:
    """How a line becomes key and value."""

    def __init__(self, key_separator: str | None, null_marker: str | None) -> None:
        self._separator = None if key_separator is None else unescape(key_separator).encode()
        self._null = None if null_marker is None else null_marker.encode()

    def split(self, line: bytes, number: int) -> tuple[bytes | None, bytes | None]:
        key: bytes | None = None
        value: bytes | None = line
        if self._separator is not None:
            first, found, rest = line.partition(self._separator)
            if not found:
                raise CommandError(
                    f"line {number} has no key separator {self._separator.decode()!r}; the lines before it were sent"
                )
            key, value = first, rest
        if self._null is not None and value == self._null:
            value = None
        return key, value


class Tally:
    """What has been delivered so far, and the progress line that says so."""

    def __init__(self) -> None:
        self.records = 0
        self.size_bytes = 0
        self.partitions: dict[int, dict[str, int]] = {}
        self._started = time.monotonic()
        self._shown_at = 0.0
        self._visible = sys.stderr.isatty() and not sys.stdin.isatty()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def count(self, batch: BatchReport) -> None:
        if batch.error is not None:
            return  # the producer tells of it when it is flushed
        self.records += batch.record_count
        self.size_bytes += batch.size_bytes
        seen = self.partitions.setdefault(batch.tp.partition, {"records": 0})
        seen["records"] += batch.record_count
        if batch.base_offset >= 0:
            seen.setdefault("first_offset", batch.base_offset)
            seen["last_offset"] = batch.base_offset + batch.record_count - 1
        now = time.monotonic()
        if self._visible and now - self._shown_at > 0.2:
            self._shown_at = now
            rate = self.records / max(self.seconds, 1e-6)
            line = f"{self.records:,} records, {human_bytes(self.size_bytes)}, {rate:,.0f} records/s"
            print(f"\r{line:<60}", end="", file=sys.stderr, flush=True)

    def finish_line(self) -> None:
        if self._shown_at:
            print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)

    def report(self, topic: str) -> dict[str, Any]:
        return {
            "topic": topic,
            "records": self.records,
            "bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
            "partitions": [{"partition": p, **seen} for p, seen in sorted(self.partitions.items())],
        }


@reported
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", dir_okay=False, show_default="stdin", help="Read lines from here."),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help=r"The key stands before this (\t for a tab)."
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="On every record; repeatable."),
    ] = None,
    null_marker: Annotated[
        str | None,
        typer.Option("--null-marker", metavar="TEXT", help="A value that is this is null (a tombstone)."),
    ] = None,
    compression: Compression = "none",
    acks: Acks = "all",
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Every record goes to this one.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=0, help="Stop after this many.")] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Write records to a topic, one per line.

    Keyed records go where every Kafka client puts them (murmur2 of the key); records without a key fill one partition
    after another. With --acks all a retry never writes a record twice.
    """
    headers = parse_headers(header or [])
    lines = LineFormat(key_separator, null_marker)
    tally = Tally()
    if file is None and sys.stdin.isatty():
        note("one record per line; Ctrl-D ends")

    async def work(cluster: ClusterClient) -> None:
        from tidelog.cli.line_producer import LineProducer
        from tidelog.cli.produce_lines import send_lines

        await cluster.topic(topic, create=True, timeout_ms=10_000)
        async with LineProducer(
            bootstrap_server, topic, acks=ACKS[acks], compression=compression, on_batch=tally.count
        ) as producer:
            await send_lines(producer, file, lines, headers=headers, partition=partition, count=count)

    try:
        with_cluster(bootstrap_server, work)
    finally:
        tally.finish_line()
    if json:
        print_json(tally.report(topic))
    else:
        note(f"{tally.records:,} records written to {topic} ({_where(tally)})")


def _where(tally: Tally) -> str:
    parts = []
    for partition, seen in sorted(tally.partitions.items()):
        offsets = (
            f": offsets {seen['first_offset']} to {seen['last_offset']}" if "first_offset" in seen else ""
        )
        parts.append(f"partition {partition}{offsets}")
    return ", ".join(parts) or "nothing to write"
