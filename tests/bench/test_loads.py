"""The loads of the bench against a real broker process: each measures something, and each notices a broker that cheats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import children, latency, load, machine, raw_load, topics
from bench.children import ChildFailedError
from bench.readers import drop_from_cache
from tools.peers.process import Peer
from tools.peers.raw import RawConnection, build_batch
from tools.peers.tidelog import TidelogPeer

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with TidelogPeer(durability="replicated", settings=topics.QUICK_DELETION) as running:
        yield running


@pytest.mark.parametrize("partitions", [1, 6])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_what_goes_in_comes_out(peer: Peer, codec: str, partitions: int) -> None:
    with topics.topic_of(peer, "throughput", partitions=partitions) as topic:
        named = {"record_bytes": 1024, "codec": codec, "partitions": partitions}
        assert children.run(load.produce, peer.bootstrap, topic, records=12_000, **named) > 0
        assert children.run(load.consume, peer.bootstrap, topic, records=12_000, partitions=partitions) > 0
        rate = children.run(
            raw_load.fetch_and_discard, peer.bootstrap, topic, partitions=partitions, seconds=0.3
        )
        assert rate.size > 0
    with topics.topic_of(peer, "raw", partitions=partitions, large=True) as topic:
        rate = children.run(
            raw_load.produce_frames, peer.bootstrap, topic, seconds=5.0, bytes_max=12_000_000, **named
        )
        assert rate.size == pytest.approx(12_000_000, rel=0.1)
        stored = topics.stored_records(peer.bootstrap, topic, partitions)
        assert (stored * 1024) >= rate.size
    assert not list(peer.log_dir.glob(f"{topic}*")), "the topic's files are gone before the next measurement"


def test_records_that_are_missing_are_noticed(peer: Peer) -> None:
    """A topic that holds more, or less, than was sent: the producer's count does not fit."""
    with topics.topic_of(peer, "cheat") as topic:
        with RawConnection(peer.bootstrap) as connection:
            connection.produce(topic, build_batch([b"not of the bench"], timestamp_ms=1))
        with pytest.raises(ChildFailedError, match="1000 records were sent and 1001 stored"):
            children.run(load.produce, peer.bootstrap, topic, record_bytes=100, records=1000)


def test_a_pause_of_the_broker_is_paid_for_by_every_record_that_was_due(peer: Peer) -> None:
    """No coordinated omission: a broker that stands still for a second shows in far more than one record."""
    import os
    import signal
    import threading

    with topics.topic_of(peer, "latency") as topic:
        calm = latency.steady(peer.bootstrap, topic, seconds=1.5, skip_seconds=0.5)
    with topics.topic_of(peer, "latency") as topic:
        pause = threading.Timer(2.0, os.kill, (peer.pid, signal.SIGSTOP))
        resume = threading.Timer(3.0, os.kill, (peer.pid, signal.SIGCONT))
        pause.start()
        resume.start()
        try:
            paused = latency.steady(peer.bootstrap, topic, seconds=4.0, skip_seconds=0.0)
        finally:
            pause.cancel()
            resume.join()
    assert 0 < calm.p50 <= calm.p99 <= calm.p999
    assert paused.p99 > 500, "a quarter of the records was due while the broker stood still"


def test_readers_at_the_end_and_far_behind(peer: Peer) -> None:
    with topics.topic_of(peer, "readers") as topic:
        rate = children.run(
            raw_load.produce_frames,
            peer.bootstrap,
            topic,
            record_bytes=1024,
            seconds=5.0,
            bytes_max=30_000_000,
        )
        end = topics.stored_records(peer.bootstrap, topic)
        read = children.run(raw_load.read_to_end, peer.bootstrap, topic, start=0, end=end)
        assert read.size > rate.size
        before = peer.disk_read_bytes()
        import os

        os.sync()
        drop_from_cache(peer.log_dir / f"{topic}-0", 1 << 30)
        children.run(raw_load.read_to_end, peer.bootstrap, topic, start=0, end=end)
        if peer.log_dir.stat().st_dev != Path("/dev/shm").stat().st_dev:
            assert peer.disk_read_bytes() - before > 0.8 * read.size, "cold means from the disk"


def test_one_record_requests_and_the_machines_limit(peer: Peer, tmp_path: Path) -> None:
    with topics.topic_of(peer, "requests") as topic:
        assert children.run(raw_load.one_record_requests, peer.bootstrap, topic, depth=5, seconds=0.3) > 0
    for sync in (False, True):
        assert machine.socket_into_file(tmp_path / "limit", 20_000_000, sync=sync).size == 20_000_000
    assert machine.file_into_socket(tmp_path / "limit", 20_000_000).size == 20_000_000
    assert not (tmp_path / "limit").exists()


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(ChildFailedError, match=r"ZeroDivisionError"):
        children.run(divmod, 1, 0)
