"""Kafka's verification tools on our files, and each broker on the other's segments (D7: the formats are Kafka's)."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.libraries.confluent import ConfluentLibrary
from tests.clients.rows import Row, binary_rows
from tests.crash.load import wait_for_leader
from tests.interop.conftest import new_broker
from tools.peers.kafka import KafkaPeer, run_tool
from tools.peers.process import Peer
from tools.peers.tidelog import TidelogPeer

TOPIC = "files"
PARTITION_DIR = f"{TOPIC}-0"
PER_CODEC = 6000
# Release 4.3.1 says this of every segment that does not begin at offset 0, its own included.
FIRST_RECORD_NOTE = re.compile(r"Non-consecutive offsets in \S+\n  -1 is followed by \d+\n(?!  )")
COMPLAINTS = ("mismatch", "corrupt", "isvalid: false", "not valid", "non-consecutive", "exception", "error")


def fill(bootstrap: str, topic: str = TOPIC) -> list[Row]:
    """Every codec, idempotent and not, over several segments."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"segment.bytes": str(1 << 20), "index.interval.bytes": "4096"}
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(30)
    rows: list[Row] = []
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd", "none")):
        more = binary_rows(PER_CODEC, seed=number)
        more = [row._replace(value=(row.value or b"") + os.urandom(150)) for row in more]
        ConfluentLibrary().write(bootstrap, topic, more, codec=codec, acks="all" if number % 2 else "1")
        rows += more
    return rows


@pytest.fixture(scope="module")
def stopped(kafka_version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The partition directory of a broker that was stopped in order."""
    peer = new_broker()
    try:
        peer.start()
        fill(peer.bootstrap)
        peer.terminate()
        yield peer.log_dir / PARTITION_DIR
    finally:
        peer.stop()


@pytest.fixture(scope="module")
def killed(kafka_version: str) -> Iterator[Path]:
    """The partition directory of a broker that was killed, recovered and stopped."""
    peer = new_broker()
    try:
        peer.start()
        fill(peer.bootstrap)
        peer.kill()
        peer.start()
        wait_for_leader(peer.bootstrap, TOPIC)
        peer.terminate()
        yield peer.log_dir / PARTITION_DIR
    finally:
        peer.stop()


def dump(files: list[Path], *options: str) -> str:
    done = run_tool("kafka-dump-log", "--files", ",".join(map(str, files)), *options)
    text = FIRST_RECORD_NOTE.sub("", done.stdout + "\n" + done.stderr + "\n")
    assert done.returncode == 0, text[-3000:]
    complaints = [line for line in text.splitlines() if any(word in line.lower() for word in COMPLAINTS)]
    assert not complaints, "\n".join(complaints[:10])
    return done.stdout


@pytest.mark.parametrize("state", ["stopped", "killed"])
def test_dump_log_segments_reads_every_record(request: pytest.FixtureRequest, state: str) -> None:
    directory: Path = request.getfixturevalue(state)
    segments = sorted(directory.glob("*.log"))
    assert len(segments) > 3
    text = dump(segments, "--deep-iteration", "--print-data-log")
    assert text.count("| offset:") == 6 * PER_CODEC
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        assert f"compresscodec: {codec}" in text


@pytest.mark.parametrize("state", ["stopped", "killed"])
@pytest.mark.parametrize("option", ["--index-sanity-check", "--verify-index-only", "--deep-iteration"])
@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_dump_log_segments_accepts_the_indexes(
    request: pytest.FixtureRequest, state: str, kind: str, option: str
) -> None:
    directory: Path = request.getfixturevalue(state)
    indexes = sorted(directory.glob(f"*.{kind}"))
    assert len(indexes) == len(list(directory.glob("*.log")))
    text = dump(indexes, option)
    if option == "--index-sanity-check" and kind == "index":
        assert text.count("passed sanity check") == len(indexes)


@pytest.mark.parametrize("state", ["stopped", "killed"])
def test_dump_log_segments_reads_the_producer_snapshots(request: pytest.FixtureRequest, state: str) -> None:
    directory: Path = request.getfixturevalue(state)
    snapshots = sorted(directory.glob("*.snapshot"))
    assert snapshots
    text = dump(snapshots[-1:])
    # Kafka keeps the last entry of each producer; ours stand behind the older batches that we remember as well.
    last = dict(re.findall(r"producerId: (\d+) .* lastSequence: (\d+) ", text))
    assert last == dict.fromkeys(last, str(PER_CODEC - 1)), text
    assert len(last) == 3, text


def move_partition(source: Path, target: Path) -> None:
    """Put another broker's segments in place of a partition's own, keeping the target's topic id."""
    keep = (target / "partition.metadata").read_bytes()
    shutil.rmtree(target)
    shutil.copytree(source, target)
    (target / "partition.metadata").write_bytes(keep)


@pytest.mark.parametrize("with_indexes", [True, False], ids=["with indexes", "segments only"])
@pytest.mark.parametrize("direction", ["Kafka to Tidelog", "Tidelog to Kafka"])
def test_the_segments_of_one_open_in_the_other(
    kafka_version: str, direction: str, with_indexes: bool
) -> None:
    makers = (KafkaPeer, TidelogPeer) if direction == "Kafka to Tidelog" else (TidelogPeer, KafkaPeer)
    if os.environ.get("TIDELOG_TEST_BROKER") == "kafka":
        makers = (KafkaPeer, KafkaPeer)
    source: Peer = makers[0]()
    target: Peer = makers[1]()
    try:
        source.start()
        rows = fill(source.bootstrap)
        source.terminate()
        target.start()
        ConfluentLibrary().create_topic(target.bootstrap, TOPIC)
        wait_for_leader(target.bootstrap, TOPIC)
        target.kill()
        move_partition(source.log_dir / PARTITION_DIR, target.log_dir / PARTITION_DIR)
        if not with_indexes:
            for path in (target.log_dir / PARTITION_DIR).iterdir():
                if path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
                    path.unlink()
        target.start()
        wait_for_leader(target.bootstrap, TOPIC)
        assert ConfluentLibrary().read(target.bootstrap, TOPIC, start=0, count=len(rows)) == rows
        middle = rows[len(rows) // 2]
        later = ConfluentLibrary().read_from_time(
            target.bootstrap, TOPIC, timestamp_ms=middle.timestamp_ms, count=100
        )
        first = next(number for number, row in enumerate(rows) if row.timestamp_ms >= middle.timestamp_ms)
        assert later[:100] == rows[first : first + 100]
        # Not idempotent: the two clusters give out the same producer ids, and the moved log remembers the other's.
        ConfluentLibrary().write(target.bootstrap, TOPIC, rows[:10], codec="lz4", acks="1")
        assert ConfluentLibrary().read(target.bootstrap, TOPIC, start=len(rows), count=10) == rows[:10]
    finally:
        source.stop()
        target.stop()
