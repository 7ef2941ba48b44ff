"""Greed: requests that are enormous, answers that nobody takes, batches that explode. One client's greed is not another's wait.

Each test is a `Scene`: whatever is thrown at the broker, the promises checked there hold.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import batches
from tests.fuzz.effort import EFFORT
from tests.fuzz.elephants import elephants
from tests.fuzz.scene import Scene
from tests.fuzz.shapes import uvarint
from tests.fuzz.test_crowds import one_record, wait_until
from tests.fuzz.wire import Wire, encoded, framed, produce_request
from tidelog.records.compression import Codec, compress
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages import api_versions, describe_configs, fetch, list_offsets, metadata

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(120 + 120 * (EFFORT > 1))]

Report = Callable[[str], None]
TOPIC = "greed"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# ---- requests


def test_enormous_requests_do_not_stop_the_others(tmp_path: Path, report: Report) -> None:
    """Thousands of entries in each array of each request: the work grows with the request, and never faster."""
    count, slowest = 4_000 if EFFORT == 1 else 39_000, ("", 0.0)
    with Scene(tmp_path, rss_bytes_max=250_000_000) as scene:
        with scene.connect() as wire:
            topic_id = wire.create(TOPIC)
        number = 0
        for elephant in elephants(count, topic=TOPIC, topic_id=topic_id):
            number += 1
            began = time.perf_counter()
            with scene.connect(timeout=60) as wire:
                wire.send(framed(elephant.data))
                wire.receive()
            seconds = time.perf_counter() - began
            slowest = max(slowest, (elephant.name, seconds), key=lambda pair: pair[1])
    report(
        f"elephants: {number} requests of {count} entries, slowest {slowest[1]:.2f} s ({slowest[0]}); {scene.summary()}"
    )


def test_a_crowd_of_enormous_requests_takes_turns_with_others(tmp_path: Path, report: Report) -> None:
    """Each takes up to half a second, and fifteen clients send one at the same moment."""
    topics = [metadata.MetadataRequestTopic(name=f"no-such-topic-{number}") for number in range(30_000)]
    enormous = encoded(metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=False))
    with Scene(tmp_path) as scene:
        wires = [scene.connect(timeout=60) for _ in range(15)]
        began = time.perf_counter()
        senders = [threading.Thread(target=wire.send, args=(enormous,)) for wire in wires]
        for sender in senders:
            sender.start()
        for wire in wires:
            wire.receive()
        seconds = time.perf_counter() - began
        for sender, wire in zip(senders, wires, strict=True):
            sender.join()
            wire.close()
    report(f"elephants at once: 15 requests of 30,000 entries in {seconds:.1f} s; {scene.summary()}")


MANY = 2_000_000
TOO_MANY_ENTRIES = {
    "Metadata 9": struct.pack(">hhihB", 3, 9, 1, -1, 0) + uvarint(MANY + 1) + b"\x02a\x00" * MANY + b"\x01\x00\x00\x00",
    "Produce 9": struct.pack(">hhihB", 0, 9, 1, -1, 0) + b"\x00\x00\x01\x00\x00\x00\x00" + uvarint(MANY + 1) + b"\x02a\x01\x00" * MANY + b"\x00",
    "Produce 3": struct.pack(">hhih", 0, 3, 1, -1) + struct.pack(">hhii", -1, 1, 0, MANY) + b"\x00\x00\x00\x00\x00\x00" * MANY,
    "Fetch 12": struct.pack(">hhihB", 1, 12, 1, -1, 0) + struct.pack(">iiiibii", -1, 0, 0, 0, 0, 0, -1) + uvarint(MANY + 1) + b"\x02a\x01\x00" * MANY + b"\x01\x01\x00",
    "DeleteTopics 5": struct.pack(">hhihB", 20, 5, 1, -1, 0) + uvarint(MANY + 1) + b"\x02a" * MANY + b"\x00\x00\x00\x00\x00",
}  # fmt: skip


def test_millions_of_entries_are_refused_before_they_cost_anything(tmp_path: Path, report: Report) -> None:
    with Scene(tmp_path) as scene:
        for name, data in TOO_MANY_ENTRIES.items():
            with scene.connect() as wire:
                wire.send(framed(data))
                assert wire.is_closed(10), f"{name} with {MANY} entries was not refused"
        assert "holds more than 40000" in scene.broker.output_path.read_text()
    report(f"entries: {len(TOO_MANY_ENTRIES)} requests of {MANY} entries refused; {scene.summary()}")


def test_ten_thousand_pipelined_requests_are_answered_in_order(tmp_path: Path, report: Report) -> None:
    count = 10_000
    with Scene(tmp_path) as scene, scene.connect() as wire:
        topic_id = wire.create(TOPIC)
        began = time.perf_counter()
        sender = threading.Thread(target=lambda: wire.send(_mixed(count, topic_id)))
        sender.start()
        for number in range(count):
            (correlation_id,) = struct.unpack_from(">i", wire.receive())
            assert correlation_id == number
        sender.join()
        seconds = time.perf_counter() - began
    report(f"pipelined: {count} requests in {seconds:.1f} s ({count / seconds:,.0f}/s); {scene.summary()}")


def _mixed(count: int, topic_id: bytes) -> bytes:
    """Produce, fetch, metadata and a small question, over and over, numbered."""
    partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=2000)
    requests: list[Any] = [
        produce_request(topic_id, one_record(), acks=-1),
        fetch.FetchRequest(
            max_wait_ms=1,
            min_bytes=1,
            max_bytes=2000,
            session_epoch=-1,
            topics=[fetch.FetchTopic(topic_id=topic_id, partitions=[partition])],
        ),
        metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=TOPIC)]),
        produce_request(topic_id, one_record(), acks=1),
        api_versions.ApiVersionsRequest(client_software_name="x", client_software_version="1"),
    ]
    return b"".join(
        encoded(requests[number % len(requests)], correlation_id=number) for number in range(count)
    )


def test_pipelines_of_expensive_requests_take_turns_with_others(tmp_path: Path, report: Report) -> None:
    """Each takes milliseconds, and hundreds of four clients are there at once: the others are served between them."""
    count, clients = 250, 4
    with Scene(tmp_path) as scene:
        with scene.connect() as wire:
            wire.create(TOPIC, 500)
        everything = b"".join(
            encoded(metadata.MetadataRequest(topics=None), correlation_id=n) for n in range(count)
        )
        wires = [scene.connect(timeout=60) for _ in range(clients)]
        began = time.perf_counter()
        for wire in wires:
            wire.send(everything)
        received = sum(len(wire.receive()) for _ in range(count) for wire in wires)
        seconds = time.perf_counter() - began
        for wire in wires:
            wire.close()
    report(
        f"expensive: {clients} × {count} pipelined Metadata of 500 partitions in {seconds:.1f} s, "
        f"{received / 1e6:.0f} MB; {scene.summary()}"
    )


# ---- answers


def test_answers_that_nobody_takes_are_bounded(tmp_path: Path, report: Report) -> None:
    """Twelve clients ask for megabytes, again and again, and never read: a megabyte is held for each. What is held for all of them has a limit."""
    settings = {"connections.max.held.bytes": str(8 << 20), "socket.send.buffer.bytes": "16384"}
    with Scene(tmp_path, settings=settings) as scene:
        with scene.connect() as wire:
            topic_id = wire.create(TOPIC)
            for _ in range(20):
                assert wire.produce(topic_id, one_record(bytes(500_000))).error_code == 0
        greedy = encoded(_large_fetch(topic_id)) * 3 + encoded(_everything_about_the_broker()) * 200
        wires = [scene.connect(receive_buffer=4096) for _ in range(12)]
        threads = [threading.Thread(target=_send_all, args=(wire, greedy), daemon=True) for wire in wires]
        for number, thread in enumerate(threads):
            wires[number].send(encoded(_everything_about_the_broker()) * 100)
            thread.start()
        log = scene.broker.output_path
        assert wait_until(lambda: "connections.max.held.bytes" in log.read_text(), 30), "nobody was closed"
        time.sleep(2)
        for wire in wires:
            wire.close()
        for thread in threads:
            thread.join(10)
        closed = log.read_text().count("connections.max.held.bytes")
    report(f"never reads: 12 clients, {closed} closed; {scene.summary()}")


def _large_fetch(topic_id: bytes) -> Any:
    partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50_000_000)
    return fetch.FetchRequest(
        max_bytes=50_000_000,
        session_epoch=-1,
        topics=[fetch.FetchTopic(topic_id=topic_id, partitions=[partition])],
    )


def _everything_about_the_broker() -> Any:
    """An answer of a hundred kilobytes for a question of thirty bytes."""
    return describe_configs.DescribeConfigsRequest(
        resources=[
            describe_configs.DescribeConfigsResource(
                resource_type=4, resource_name="0", configuration_keys=None
            )
        ],
        include_synonyms=True,
        include_documentation=True,
    )


def _send_all(wire: Wire, data: bytes) -> None:
    with contextlib.suppress(OSError):  # closed by the broker, or by the test
        wire.send(data)


# ---- batches


def many_records(count: int) -> bytes:
    """The most records in the fewest bytes: seven each, without key and value, all alike but for their offset."""
    payload = b"".join(batches.record(b"\x00", 0, number, -1, -1, 0) for number in range(count))
    return batches.with_payload(
        compress(Codec.ZSTD, payload, 3), count=count, codec=Codec.ZSTD, compressed=True
    )


TOPICS = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "to-gzip": {"compression.type": "gzip", "compression.gzip.level": "9"},
    "to-zstd": {"compression.type": "zstd"},
    "to-none": {"compression.type": "uncompressed", "max.message.bytes": "8000000"},
    "bounded": {"message.timestamp.before.max.ms": "1000"},
}
NOT_LOOKED_INTO = ("plain", "to-zstd")
"""Where a batch that is zstd already has no reason to be opened."""
REFUSED = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP)


MONSTERS = {Codec.GZIP: 256 << 20, Codec.SNAPPY: 20 << 20, Codec.LZ4: 200 << 20, Codec.ZSTD: 16 << 30}
BELOW_THE_LIMIT = (Codec.GZIP, Codec.LZ4, Codec.ZSTD)


def test_batches_that_explode_are_held_to_their_limit(tmp_path: Path, report: Report) -> None:
    """Decompression bombs in every codec, where the broker must look inside: on produce, and to find a time."""
    bombs = {
        f"{codec.name} {size >> 20} MiB": stamped(batches.monster(codec, size))
        for codec, size in MONSTERS.items()
    }
    bombs |= {f"{codec.name} 31 MiB": stamped(batches.bomb(codec, 31 << 20)) for codec in BELOW_THE_LIMIT}
    bombs["ZSTD 1,000,000 records"] = stamped(many_records(1_000_000))
    outcomes: dict[str, int] = {}
    slowest = ("", 0.0)
    with Scene(tmp_path, rss_bytes_max=300_000_000) as scene, scene.connect(timeout=60) as wire:
        for topic, config in TOPICS.items():
            topic_id = wire.create(topic, 1, config)
            for name, bomb in bombs.items():
                began = time.perf_counter()
                answer = wire.produce(topic_id, bomb)
                slowest = max(
                    slowest, (f"{name} to {topic}", time.perf_counter() - began), key=lambda pair: pair[1]
                )
                code = ErrorCode(answer.error_code)
                outcomes[code.name] = outcomes.get(code.name, 0) + 1
                assert code in (ErrorCode.NONE, *REFUSED), (topic, name, answer)
                assert (
                    topic in NOT_LOOKED_INTO or "records" not in name or code == ErrorCode.MESSAGE_TOO_LARGE
                )
            for timestamp in (0, now_ms() - 1000, -3, now_ms() + 1_000_000):
                began = time.perf_counter()
                found = wire.ask(_offset_at(topic, timestamp)).topics[0].partitions[0]
                assert found.error_code == 0, found
                slowest = max(
                    slowest,
                    (f"ListOffsets {timestamp} of {topic}", time.perf_counter() - began),
                    key=lambda pair: pair[1],
                )
    report(
        f"bombs: {len(bombs)} × {len(TOPICS)} topics: {outcomes}, slowest {slowest[1]:.2f} s ({slowest[0]}); {scene.summary()}"
    )
    assert outcomes["NONE"] >= len(bombs) and outcomes["MESSAGE_TOO_LARGE"] > len(bombs)


def stamped(batch: bytes) -> bytes:
    """Of this moment, so that its timestamp is not what it is refused for."""
    return batches.forged(batch, base_timestamp=now_ms(), max_timestamp=now_ms())


def _offset_at(topic: str, timestamp: int) -> Any:
    asked = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    return list_offsets.ListOffsetsRequest(
        replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name=topic, partitions=[asked])]
    )
