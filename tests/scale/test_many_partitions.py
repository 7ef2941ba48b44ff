"""Hundreds of partitions in a broker process that may hold few descriptors; ten thousand in the slow one.

Costs are compared in seconds of the broker's own processor time: a test machine is busy with other things.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.scale_load import Watch, end_offsets, fetch_from_each, produce_to_each
from bench.scale_partitions import create, delete
from tests.scale.kit import LimitedPeer
from tools.peers.process import Peer
from tools.peers.raw import RawConnection, build_batch

EFFORT = int(os.environ.get("TIDELOG_TEST_EFFORT", "1"))
DESCRIPTORS = 400
PARTITIONS = 600
WAIT_SECONDS_MAX = 0.5
"""Generous: what is looked for is work that grows with the number of partitions, on a machine that may be busy."""
STARTS = 3
"""The least of so many counts: the machine may do other things as well."""


def batch() -> bytes:
    return build_batch([b"x" * 100], timestamp_ms=int(time.time() * 1000))


def connection(peer: Peer) -> RawConnection:
    return RawConnection(peer.bootstrap, timeout_seconds=120)


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["replicated", "fsync"])
def test_more_partitions_than_descriptors(durability: str) -> None:
    """Every partition is written to and read, by a broker that can keep only a part of their files open."""
    each = range(PARTITIONS)
    peer = LimitedPeer(descriptors=DESCRIPTORS, durability=durability)
    try:
        peer.start()
        create(peer.bootstrap, ["many"], PARTITIONS)
        with Watch(peer.pid, peer.bootstrap) as watch, connection(peer) as raw:
            for _ in range(3):
                produce_to_each(raw, "many", each, batch())
            fetch_from_each(raw, "many", each)
            deadline = time.monotonic() + 10
            while peer_descriptors(peer) > DESCRIPTORS * 3 // 4 and time.monotonic() < deadline:
                time.sleep(0.1)
        assert watch.descriptors_max < DESCRIPTORS
        assert peer_descriptors(peer) <= DESCRIPTORS * 3 // 4
        assert peer.terminate() == 0
        peer.start()
        with connection(peer) as raw:
            assert end_offsets(raw, "many", each) == [3] * PARTITIONS
        kill_while_writing(peer, "many", PARTITIONS)
        peer.start()
        with connection(peer) as raw:
            assert min(end_offsets(raw, "many", each)) >= 3
            fetch_from_each(raw, "many", each)
        assert "offline" not in peer.output_tail(1000)
    finally:
        peer.stop()


def seconds_to_make(count: int, folder: Path) -> float:
    """What the file system itself takes for so many directories with two files each.

    For minutes after other files were removed, ext4 looks at each of their inodes whenever it makes one.
    """
    began = time.perf_counter()
    for number in range(count):
        partition = folder / str(number)
        partition.mkdir()
        (partition / "log").touch()
        (partition / "id").touch()
    return time.perf_counter() - began


def user_seconds(peer: Peer) -> float:
    """Processor time outside of the kernel."""
    fields = Path(f"/proc/{peer.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


def peer_descriptors(peer: Peer) -> int:
    return len(os.listdir(f"/proc/{peer.pid}/fd"))


def kill_while_writing(peer: Peer, topic: str, partitions: int) -> None:
    def load() -> None:
        try:
            with connection(peer) as raw:
                while True:
                    produce_to_each(raw, topic, range(partitions), batch())
        except OSError:
            return  # the broker is gone, as planned

    thread = threading.Thread(target=load)
    thread.start()
    time.sleep(0.5)
    peer.kill()
    thread.join()


def costs(partitions: int) -> dict[str, float]:
    """Processor seconds of a broker with so many partitions of three records each."""
    found: dict[str, float] = {}
    peer = LimitedPeer(descriptors=4000, durability="replicated")
    try:
        peer.start()
        begun = user_seconds(peer)
        with Watch(peer.pid, peer.bootstrap) as watch:
            create(peer.bootstrap, ["many"], partitions)
            found["create"] = user_seconds(peer) - begun  # what the kernel takes to make files is not ours
            with connection(peer) as raw:
                for _ in range(3):
                    produce_to_each(raw, "many", range(partitions), batch())
            begun = peer.cpu_seconds()
            time.sleep(2.5)  # two ticks of housekeeping, and the watch's own questions
        found["idle"] = peer.cpu_seconds() - begun
        found["longest wait"] = watch.wait_max
        found["start"] = min(cpu_of_a_start(peer, peer.terminate) for _ in range(STARTS))
        found["start after a crash"] = min(cpu_of_a_start(peer, peer.kill) for _ in range(STARTS))
        delete(peer.bootstrap, ["many"])
    finally:
        peer.stop()
    return found


def cpu_of_a_start(peer: Peer, stop: Callable[[], object]) -> float:
    stop()
    peer.start()
    return peer.cpu_seconds()


@pytest.mark.slow
def test_costs_grow_no_faster_than_the_number_of_partitions() -> None:
    empty, few, many = costs(1), costs(200), costs(1000)
    print()
    for what in ("create", "start", "start after a crash"):
        small, large = few[what] - empty[what], many[what] - empty[what]
        print(f"{what}: {small * 1000:.0f} ms for 200 partitions, {large * 1000:.0f} ms for 1000")
        # Five times as many; the clock of processor time ticks every 10 ms.
        assert large <= 5 * max(small, 0.02) * 2.5, f"{what} is not linear: {few[what]} s, {many[what]} s"
    assert many["longest wait"] < WAIT_SECONDS_MAX
    assert many["idle"] - empty["idle"] <= 0.15, "housekeeping looks at every partition"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_partitions(tmp_path: Path) -> None:
    """Made, written, read, stopped, started, killed, started: each in bounded time, with bounded descriptors."""
    topics, each = [f"many-{number}" for number in range(10)], range(1000)
    making = 20 * seconds_to_make(500, tmp_path)
    limits = {"create": 20 + 2 * making, "start": 20, "start after a crash": 40, "stop": 20}
    found: dict[str, float] = {}
    peer = LimitedPeer(descriptors=4096, durability="replicated")
    try:
        peer.start()
        base = peer.rss_bytes()
        begun = time.perf_counter()
        with Watch(peer.pid, peer.bootstrap) as watch:
            create(peer.bootstrap, topics, len(each))
            found["create"] = time.perf_counter() - begun
            with connection(peer) as raw:
                for topic in topics:
                    produce_to_each(raw, topic, each, batch())
                    fetch_from_each(raw, topic, each)
            begun_cpu = peer.cpu_seconds()
            time.sleep(3)
            idle = (peer.cpu_seconds() - begun_cpu) / 3
        found["bytes per partition"] = (peer.rss_bytes() - base) / 10_000
        begun = time.perf_counter()
        assert peer.terminate() == 0
        found["stop"] = time.perf_counter() - begun
        peer.start()
        found["start"] = peer.startup_seconds
        peer.kill()
        peer.start()
        found["start after a crash"] = peer.startup_seconds
        with connection(peer) as raw:
            for topic in topics:
                assert end_offsets(raw, topic, each) == [1] * len(each)
    finally:
        peer.stop()
    print()
    print(", ".join(f"{what} {value:.2f}" for what, value in found.items()))
    print(
        f"longest wait {watch.wait_max * 1000:.0f} ms, descriptors {watch.descriptors_max}, idle {idle * 100:.1f} % CPU"
    )
    for what, limit in limits.items():
        assert found[what] < limit, f"{what} took {found[what]:.1f} s"
    assert found["bytes per partition"] < 12_000
    assert watch.descriptors_max < 4096
    assert watch.wait_max < 2 * WAIT_SECONDS_MAX
