"""One partition with many segments: written, searched by offset and by time, read, stopped, started, killed, and let go by retention."""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Callable

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from bench.load import LoadError
from bench.scale_load import Watch, open_descriptors, wait_until_served
from bench.scale_partitions import MB, Row, idle, timed
from tools.peers.process import Peer
from tools.peers.raw import RawConnection, build_batch, last_batch_end, produce_request

BROKER_SETTINGS = {
    "log.retention.check.interval.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "5000",
}
TOPIC = "segments"
RECORD_BYTES = 600
SEGMENT_BYTES = 1000
LOOKUPS = 200
PIPELINED = 20
RETENTION_SECONDS_MAX = 120.0
DESCRIBE_LOG_DIRS = 35
FIRST_TIMESTAMP_MS_AGO = 3_600_000


def measure(peer: Peer, segments: int, say: Callable[[str], None]) -> Row:
    row: Row = {}
    peer.start()
    try:
        admin = AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 0})
        settings = {"internal.segment.bytes": str(SEGMENT_BYTES), "file.delete.delay.ms": "100"}
        settings |= {"index.interval.bytes": "0"}
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=settings)])[TOPIC].result(30)
        with RawConnection(peer.bootstrap) as connection:
            wait_until_served(connection, TOPIC, [0])
        first_ms = int(time.time() * 1000) - FIRST_TIMESTAMP_MS_AGO
        with Watch(peer.pid, peer.bootstrap) as watch:
            row["produce one batch per segment [s]"] = timed(
                lambda: produce(peer.bootstrap, segments, first_ms)
            )
        row["longest wait while producing [ms]"] = watch.wait_max * 1000
        row["descriptors, most [1]"] = watch.descriptors_max
        row["RSS, written [MB]"] = peer.rss_bytes() / MB
        found = len(list((peer.log_dir / f"{TOPIC}-0").glob("*.log")))
        if found < segments:
            raise LoadError(f"{segments} batches made only {found} segments")
        say(f"{found} segments")
        searches(peer, row, segments, first_ms, "")
        idle(peer, row)
        row["clean stop [s]"] = timed(peer.terminate)
        peer.start()
        row["start after clean stop [s]"] = peer.startup_seconds
        row["descriptors after start [1]"] = open_descriptors(peer.pid)
        row["RSS after start [MB]"] = peer.rss_bytes() / MB
        searches(peer, row, segments, first_ms, ", after a start")
        row["RSS, searched [MB]"] = peer.rss_bytes() / MB
        kill_under_load(peer, segments)
        peer.start()
        row["start after kill -9 under load [s]"] = peer.startup_seconds
        with RawConnection(peer.bootstrap) as connection:
            if connection.list_offset(TOPIC, -1) < segments:
                raise LoadError("acknowledged records are gone")
        retention(peer, admin, row)
    finally:
        peer.stop()
    return row


def produce(bootstrap: str, count: int, first_ms: int) -> None:
    """One record in each batch, one batch in each segment, one second between two."""
    with RawConnection(bootstrap) as connection:
        for first in range(0, count, PIPELINED):
            numbers = range(first, min(first + PIPELINED, count))
            connection.send(
                b"".join(
                    produce_request(TOPIC, build_batch([b"x" * RECORD_BYTES], timestamp_ms=first_ms + number))
                    for number in numbers
                )
            )
            for _ in numbers:
                answer = connection.receive()
                (error_code,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(TOPIC) + 4 + 4)
                if error_code:
                    raise LoadError(f"Produce answered error {error_code}")


def searches(peer: Peer, row: Row, segments: int, first_ms: int, when: str) -> None:
    chance = random.Random(7)
    with RawConnection(peer.bootstrap) as connection:
        with Watch(peer.pid, peer.bootstrap) as watch:
            row[f"first look-up of the latest time{when} [ms]"] = 1000 * timed(
                lambda: look_up(connection, first_ms + segments - 1, segments - 1)
            )
        row[f"longest wait meanwhile{when} [ms]"] = watch.wait_max * 1000
        numbers = [chance.randrange(segments) for _ in range(LOOKUPS)]
        row[f"a time look-up{when} [ms]"] = (
            1000 / LOOKUPS * timed(lambda: look_up_all(connection, first_ms, numbers))
        )
        row[f"a fetch at a random offset{when} [ms]"] = (
            1000 / LOOKUPS * timed(lambda: fetch_each(connection, numbers))
        )
        row[f"DescribeLogDirs{when} [ms]"] = 1000 * timed(lambda: describe_log_dirs(connection))
        row[f"read all, a segment per fetch{when} [s]"] = timed(lambda: read_all(connection, segments))


def look_up(connection: RawConnection, timestamp_ms: int, expected: int) -> None:
    found = connection.list_offset(TOPIC, timestamp_ms)
    if found != expected:
        raise LoadError(f"timestamp {timestamp_ms} is at offset {expected}, the broker says {found}")


def look_up_all(connection: RawConnection, first_ms: int, numbers: list[int]) -> None:
    for number in numbers:
        look_up(connection, first_ms + number, number)


def fetch_each(connection: RawConnection, offsets: list[int]) -> None:
    for offset in offsets:
        end = last_batch_end(connection.fetch(TOPIC, offset, max_bytes=1000))
        if end != offset + 1:
            raise LoadError(f"a fetch at offset {offset} returned records up to {end}")


def read_all(connection: RawConnection, segments: int) -> None:
    offset = 0
    while offset < segments:
        end = last_batch_end(connection.fetch(TOPIC, offset))
        if end <= offset:
            raise LoadError(f"nothing can be read at offset {offset}")
        offset = end


def describe_log_dirs(connection: RawConnection) -> None:
    request = struct.pack(">hhih", DESCRIBE_LOG_DIRS, 1, 1, 5) + b"scale" + struct.pack(">i", -1)
    connection.send(struct.pack(">i", len(request)) + request)
    connection.receive()


def kill_under_load(peer: Peer, segments: int) -> None:
    now_ms = int(time.time() * 1000)

    def load() -> None:
        try:
            produce(peer.bootstrap, 1_000_000, now_ms)
        except OSError:
            return  # the broker is gone, as planned

    thread = threading.Thread(target=load)
    thread.start()
    time.sleep(1.0)
    peer.kill()
    thread.join()


def retention(peer: Peer, admin: AdminClient, row: Row) -> None:
    """All segments but one become superfluous at once."""
    directory = peer.log_dir / f"{TOPIC}-0"
    change = ConfigResource(
        ConfigResource.Type.TOPIC,
        TOPIC,
        incremental_configs=[
            ConfigEntry("retention.bytes", "1", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    with Watch(peer.pid, peer.bootstrap) as watch, RawConnection(peer.bootstrap) as connection:
        began = time.perf_counter()
        for future in admin.incremental_alter_configs([change]).values():
            future.result(30)
        while connection.list_offset(TOPIC, -1) - connection.list_offset(TOPIC, -2) > 1:
            _check_deadline(began)
            time.sleep(0.02)
        row["retention: gone for readers [s]"] = time.perf_counter() - began
        while len(list(directory.glob("*.log*"))) > 2:
            _check_deadline(began)
            time.sleep(0.05)
        row["retention: files removed [s]"] = time.perf_counter() - began
    row["longest wait during retention [ms]"] = watch.wait_max * 1000


def _check_deadline(began: float) -> None:
    if time.perf_counter() - began > RETENTION_SECONDS_MAX:
        raise LoadError(f"retention was not done after {RETENTION_SECONDS_MAX} s")
