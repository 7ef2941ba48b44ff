"""Kafka's own dump tool reads the metadata log that the controller writes, and finds every record in it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.controller.world import World, topic
from tidelog.controller.metadata_log import encode_batches
from tidelog.controller.metadata_serde import API_KEYS, record_version
from tidelog.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest
from tools.peers.kafka import run_tool
from tools.peers.maven import java, kafka_jars
from tools.peers.process import PeerUnavailableError

pytestmark = pytest.mark.interop


def dumped(directory: Path, log: bytes) -> list[dict[str, object]]:
    try:
        java()
        kafka_jars()
    except PeerUnavailableError as missing:
        pytest.skip(str(missing))
    path = directory / "00000000000000000000.log"
    path.write_bytes(log)
    done = run_tool("kafka-dump-log", "--cluster-metadata-decoder", "--files", str(path))
    assert done.returncode == 0, done.stderr
    assert "isvalid: false" not in done.stdout
    assert "could not" not in done.stdout.lower()
    return [json.loads(payload) for payload in re.findall(r"payload: (\{.*\})", done.stdout)]


def test_a_life_of_a_cluster(tmp_path: Path) -> None:
    world = World()
    epoch = world.add_broker(1, rack="r")
    world.create(topic("t", 2, configs={"retention.ms": "5"}), topic("gone"))
    world.do(world.controller.delete_topics(DeleteTopicsRequest(topic_names=["gone"])))
    world.do(world.controller.allocate_producer_ids(AllocateProducerIdsRequest(1, epoch)))
    world.do(world.controller.begin_controlled_shutdown(1, epoch))
    world.do(world.controller.fence_broker(1))
    world.add_broker(1, incarnation=1, previous_epoch=epoch)
    payloads = dumped(tmp_path, b"".join(world.log))
    assert len(payloads) == world.next_offset
    assert payloads[0] == {
        "type": "FEATURE_LEVEL_RECORD",
        "version": 0,
        "data": {"name": "metadata.version", "featureLevel": 30},
    }
    partitions = [payload for payload in payloads if payload["type"] == "PARTITION_RECORD"]
    assert [payload["version"] for payload in partitions] == [2, 2, 2]
    assert partitions[0]["data"]["replicas"] == [1]  # type: ignore[index]


def test_every_kind_of_record(tmp_path: Path) -> None:
    records = [cls() for cls in API_KEYS.values()]
    (batch,) = encode_batches(records, base_offset=0, leader_epoch=1, timestamp_ms=1)
    payloads = dumped(tmp_path, batch.data)
    names = [re.sub(r"(?<!^)(?=[A-Z])", "_", type(record).__name__).upper() for record in records]
    assert [payload["type"] for payload in payloads] == names
    assert [payload["version"] for payload in payloads] == [record_version(record) for record in records]
