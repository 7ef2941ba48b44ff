"""Crowds: ten thousand connections, clients that drip, that come and go, that take every descriptor. The bystander notices none of it.

Each test is a `Scene`: whatever the crowd does, the promises checked there hold.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.crowd import PING, Crowd, descriptors_for_a_crowd
from tests.fuzz.scene import Broker, Scene
from tests.fuzz.wire import framed
from tidelog.records.builder import BatchBuilder

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(120)]

CONNECTIONS = 10_000
CONNECTION_BYTES_MAX = 8_000
"""Resident memory of the broker for an idle connection."""
Report = Callable[[str], None]


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def one_record(value: bytes = b"hello") -> bytes:
    builder = BatchBuilder()
    builder.append(time.time_ns() // 1_000_000, b"key", value)
    return bytes(builder.build())


def test_ten_thousand_connections_are_served(tmp_path: Path, report: Report) -> None:
    count = descriptors_for_a_crowd(CONNECTIONS)
    with Scene(tmp_path, rss_bytes_max=250_000_000) as scene, Crowd(scene.port) as crowd:
        began = time.perf_counter()
        crowd.grow(count)
        connected = time.perf_counter() - began
        assert crowd.answered() == count
        asked = time.perf_counter() - began - connected
        each = (scene.rss_bytes() - scene.rss_start_bytes) / count
        crowd.reset(crowd.socks[: count // 4])
        assert crowd.answered(crowd.socks[:500]) == 500
        crowd.close()
        assert wait_until(lambda: scene.descriptors() < 100, 10), "closed connections keep their descriptors"
    limited = "" if count == CONNECTIONS else f" (the limit of open files allows no {CONNECTIONS})"
    report(
        f"crowd: {count} connections{limited} in {connected:.1f} s, each answered within {asked:.1f} s, "
        f"{each:,.0f} bytes each; {scene.summary()}"
    )
    assert each < CONNECTION_BYTES_MAX


def test_drips_and_silence_are_idle(tmp_path: Path, report: Report) -> None:
    """Slow-loris: half of a request, a byte now and then, or nothing at all. Only whole requests count as a sign of life."""
    settings = {"connections.max.idle.ms": "3000"}
    with Scene(tmp_path, settings=settings) as scene, Crowd(scene.port) as crowd:
        crowd.grow(900)
        dripping, half = crowd.socks[300:600], crowd.socks[600:]  # the first 300 stay silent
        for sock in half:  # a megabyte is announced, forty thousand bytes come
            sock.sendall(struct.pack(">i", 1 << 20) + bytes(40_000))
        held = (scene.rss_bytes() - scene.rss_start_bytes) / len(half)
        with Crowd(scene.port) as alive:
            alive.grow(20)
            began = time.monotonic()
            slow_request = framed(bytes(1000))
            for at in range(60):
                for sock in dripping:
                    try:
                        sock.send(slow_request[at : at + 1])
                    except OSError:
                        continue  # closed, as it should be
                assert alive.answered() == 20, "a connection that asks every second is not idle"
                time.sleep(0.2)
                if at >= 15 and not crowd.open_ones():
                    break
            seconds = time.monotonic() - began
            assert not crowd.open_ones(), f"{len(crowd.open_ones())} of 900 still open after {seconds:.1f} s"
            assert len(alive.open_ones()) == 20
    report(
        f"slow-loris: 900 closed within {seconds:.1f} s, {held:,.0f} bytes for each half request; {scene.summary()}"
    )


class FewDescriptors(Broker):
    """A broker that may open 300 files and sockets together."""

    def command(self) -> list[str]:
        return ["bash", "-c", 'ulimit -n 300 && exec "$@"', "bash", *super().command()]


def test_a_crowd_leaves_descriptors_for_the_log(tmp_path: Path, report: Report) -> None:
    """More connections than descriptors: some are turned away, and the log still gets every file that it needs."""
    with Scene(tmp_path, broker=FewDescriptors) as scene, Crowd(scene.port) as crowd:
        with scene.connect() as wire:
            crowd.grow(400)
            assert wait_until(lambda: len(crowd.open_ones()) < 300, 10)
            served = len(crowd.open_ones())
            for number in range(3):
                topic_id = wire.create(f"more-{number}", 10)
                for partition in range(10):
                    answer = wire.produce(topic_id, one_record(), partition=partition)
                    assert answer.error_code == 0, answer
        crowd.close()
        assert wait_until(lambda: _accepts(scene.port), 10), "it does not accept again"
        log = scene.broker.output_path.read_text()
        assert "are kept for the log's files" in log
        assert "offline" not in log
        assert log.count("\n") < 200, "a crowd must not flood the log"
    assert served > 50
    report(
        f"descriptors: limit 300, {served} of 400 connections served, 30 partitions created meanwhile; {scene.summary()}"
    )


def _accepts(port: int) -> bool:
    with Crowd(port) as one:
        one.grow(1)
        return one.answered() == 1


def test_a_storm_of_connections_leaves_nothing_behind(tmp_path: Path, report: Report) -> None:
    """Connect, perhaps say something, and go: with a goodbye, with a reset, in the middle of a word."""
    words = (
        b"",
        PING,
        PING[:3],
        PING[:9],
        PING * 3,
        struct.pack(">i", 1 << 20) + bytes(40_000),
        b"\x16\x03\x01\x02",
    )
    with Scene(tmp_path) as scene:
        before = scene.descriptors()
        began, count = time.perf_counter(), 6000
        for number in range(count):
            sock = socket.create_connection(("127.0.0.1", scene.port), timeout=10)
            sock.sendall(words[number % len(words)])
            if number % 3 == 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        seconds = time.perf_counter() - began
        assert wait_until(lambda: scene.descriptors() <= before + 5, 10), (
            f"{scene.descriptors()} descriptors, {before} before"
        )
    report(f"storm: {count} connections in {seconds:.1f} s; {scene.summary()}")
