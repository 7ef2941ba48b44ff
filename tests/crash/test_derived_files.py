"""Indexes, producer snapshots and checkpoints are derived: deleted, they come back, and every answer is the same (I6)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.crash.conftest import create_topic
from tests.crash.load import Load, check, read_everything
from tools.peers.process import Peer
from tools.peers.raw import ProduceAnswer, RawConnection, build_batch, init_producer_id

TOPIC = "derived"
METADATA_TOPIC = "__cluster_metadata"
DERIVED_SUFFIXES = {".index", ".timeindex", ".txnindex", ".snapshot"}
DERIVED_NAMES = {
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "leader-epoch-checkpoint",
    ".kafka_cleanshutdown",
}


def derived_files(root: Path) -> list[Path]:
    # The metadata log's own snapshots are not derived: the log before them is gone.
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file()
        and METADATA_TOPIC not in str(path)
        and (path.suffix in DERIVED_SUFFIXES or path.name in DERIVED_NAMES)
    )


def answers(bootstrap: str, moments_ms: list[int]) -> dict[str, Any]:
    """What a client can learn of the partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    where = TopicPartition(TOPIC, 0)

    def offset(spec: Any) -> tuple[int, int, int | None]:
        found = admin.list_offsets({where: spec})[where].result(30)
        return found.offset, found.timestamp, found.leader_epoch

    return {
        "records": read_everything(bootstrap, TOPIC),
        "earliest": offset(OffsetSpec.earliest())[0],
        "latest": offset(OffsetSpec.latest())[0],
        "max timestamp": offset(OffsetSpec.max_timestamp())[:2],
        "by time": [offset(OffsetSpec.for_timestamp(moment))[:2] for moment in moments_ms],
    }


def wait_for_segments(broker: Peer, count: int) -> None:
    """Rolled segments have indexes of their own, which the active one's recovery would not show."""
    deadline = time.monotonic() + 60
    while len(list(broker.log_dir.glob(f"{TOPIC}-0/*.log"))) < count:
        assert time.monotonic() < deadline, f"the log did not reach {count} segments"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_deleting_every_derived_file_changes_no_answer(
    make_broker: Callable[[str], Peer], killed: bool
) -> None:
    broker = make_broker("fsync")
    broker.start()
    create_topic(broker, TOPIC)
    began_ms = int(time.time() * 1000)
    load = Load(broker.bootstrap, TOPIC, name="load", acks="all")
    load.start()
    wait_for_segments(broker, 3)
    load.stop()
    with RawConnection(broker.bootstrap) as connection:
        producer_id, epoch = init_producer_id(connection)
        batch = build_batch(
            [b"raw 0 .", b"raw 1 ."],
            timestamp_ms=int(time.time() * 1000),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
        )
        stored_at = connection.produce(TOPIC, batch)
        assert stored_at.error_code == 0

    moments = [began_ms - 1, began_ms + 300, began_ms + 900, began_ms + 1500, began_ms + 3_600_000]
    before = answers(broker.bootstrap, moments)
    check([load], before["records"])

    if killed:
        broker.kill()
    else:
        broker.terminate()
    removed = derived_files(broker.log_dir)
    assert removed
    for path in removed:
        path.unlink()
    broker.start()

    assert answers(broker.bootstrap, moments) == before
    with RawConnection(broker.bootstrap) as connection:
        assert connection.produce(TOPIC, batch) == stored_at, "the producer's last batch was forgotten"
        following = build_batch(
            [b"raw 2 ."],
            timestamp_ms=int(time.time() * 1000),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=2,
        )
        assert connection.produce(TOPIC, following) == ProduceAnswer(0, before["latest"])
    broker.terminate()
    returned = {path.suffix for path in derived_files(broker.log_dir / f"{TOPIC}-0")}
    assert {".index", ".timeindex"} <= returned
