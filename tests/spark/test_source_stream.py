"""`spark.readStream.format("tidelog")` in a real Spark: batches, restarts, losses, and what of Spark it relies on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.driving import numbered, send
from tests.spark.test_checkpoints import jvm_checkpoint
from tidelog.client import TopicPartition
from tidelog.client.blocking import Admin
from tidelog.spark.checkpoints import import_jvm_checkpoint
from tidelog.spark.session import ADDED_PER_STREAM, source_environment
from tidelog.testing import Cluster

pytestmark = pytest.mark.slow


class Job:
    """A query that copies values to a list, batch by batch; each run goes on from its checkpoint."""

    def __init__(self, spark: Any, checkpoint: Path, servers: str, **options: str) -> None:
        self._spark = spark
        self.checkpoint = checkpoint
        self._options = {
            "kafka.bootstrap.servers": servers,
            "fetchOffset.retryIntervalMs": "50",
            "startingOffsets": "earliest",
            **options,
        }
        self.batches: dict[int, list[bytes]] = {}
        self.progress: list[Any] = []

    def run(self, **options: str) -> BaseException | None:
        """Everything that is there. Returns how it failed, if it did."""

        def take(frame: Any, number: int) -> None:
            rows = frame.select("partition", "offset", "value").collect()
            self.batches[number] = [bytes(row.value) for row in sorted(rows, key=lambda row: row[:2])]

        stream = self._spark.readStream.format("tidelog").options(**{**self._options, **options}).load()
        query = (
            stream.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(300), "still running"
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001 - what the caller asks for
            return error
        finally:
            query.stop()
        self.progress = list(query.recentProgress)
        return None

    @property
    def values(self) -> list[bytes]:
        return [value for _, batch in sorted(self.batches.items()) for value in batch]


@pytest.fixture
def servers(cluster: Cluster) -> Iterator[str]:
    yield cluster.bootstrap_servers


def test_streams_that_begin_at_once_cannot_damage_what_they_share(
    spark: Any, cluster: Cluster, servers: str, tmp_path: Path
) -> None:
    """Spark puts names into a map that all of them share and that has no lock: they have to be there."""
    before = set(source_environment(spark))
    assert before >= set(ADDED_PER_STREAM)
    cluster.create_topic("shared")
    send(servers, "shared", numbered(0, 2))
    job = Job(spark, tmp_path / "checkpoint", servers, subscribe="shared")
    assert job.run() is None
    assert job.values == numbered(0, 2)
    assert set(source_environment(spark)) == before


def test_a_stream_stops_goes_on_and_notices_what_is_gone(
    spark: Any, cluster: Cluster, servers: str, tmp_path: Path
) -> None:
    cluster.create_topic("live")
    send(servers, "live", numbered(0, 25))
    job = Job(spark, tmp_path / "checkpoint", servers, subscribe="live", commitGroup="live-job")
    assert job.run(maxOffsetsPerTrigger="10") is None
    assert [len(batch) for batch in job.batches.values()] == [10, 10, 5]
    source = job.progress[-1].sources[0]
    assert json.loads(source.endOffset)["live"] == json.loads(source.latestOffset)["live"] == {"0": 25}
    # What Spark keeps is what the source said, a line for each source: `tidelog.spark.checkpoints` relies on it.
    kept = (tmp_path / "checkpoint" / "offsets" / "2").read_text().split("\n")
    assert kept[0] == "v1" and len(kept) == 3 and json.loads(kept[2]) == json.loads(source.endOffset)
    assert not (tmp_path / "checkpoint" / "sources").exists()

    send(servers, "live", numbered(25, 40))
    assert job.run() is None
    assert job.values == numbered(0, 40)
    with Admin(servers) as admin:
        assert admin.group_offsets("live-job")[TopicPartition("live", 0)].offset == 40

    cluster.delete_topic("live")
    cluster.create_topic("live")
    send(servers, "live", numbered(100, 200))  # more than were read before
    failure = job.run()
    assert failure is not None and "topic live was deleted and made anew" in str(failure)
    assert job.run(failOnDataLoss="false") is None
    assert job.values == numbered(0, 40) + numbered(100, 200)


def test_a_batch_that_was_planned_before_a_crash_is_run_again_as_it_was(
    spark: Any, cluster: Cluster, servers: str, tmp_path: Path
) -> None:
    """Spark asks for the initial offsets of a first batch again: "latest" would be another one by then."""
    cluster.create_topic("crash")
    send(servers, "crash", numbered(0, 5))
    job = Job(spark, tmp_path / "checkpoint", servers, subscribe="crash")
    assert job.run(startingOffsets="latest") is None
    assert job.batches == {0: []}
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink()
    send(servers, "crash", numbered(5, 9))
    assert job.run(startingOffsets="latest") is None
    assert job.batches == {0: [], 1: numbered(5, 9)}


def test_a_driver_that_died_while_it_wrote_its_first_offsets_can_begin_again(
    spark: Any, cluster: Cluster, servers: str, tmp_path: Path
) -> None:
    cluster.create_topic("torn")
    send(servers, "torn", numbered(0, 5))
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.619f1952-40a7-4bbd-ba14-2afcc21e50be.tmp").write_text("v1\n{")
    job = Job(spark, tmp_path / "checkpoint", servers, subscribe="torn")
    assert job.run(startingOffsets="earliest") is None
    assert job.values == numbered(0, 5)


def test_a_checkpoint_of_sparks_own_source_is_carried_on(
    spark: Any, cluster: Cluster, servers: str, tmp_path: Path
) -> None:
    cluster.create_topic("moved", 2)
    for partition in range(2):
        send(servers, "moved", numbered(100 * partition, 100 * partition + 50), partition=partition)
    done, started = '{"moved":{"0":10,"1":0}}', '{"moved":{"0":30,"1":20}}'
    old = jvm_checkpoint(tmp_path / "old", done, started, commits=1, begin='{"moved":{"0":0,"1":0}}')
    import_jvm_checkpoint(str(old), str(tmp_path / "new"))
    for crc in (tmp_path / "new").rglob(".*.crc"):
        crc.unlink()  # the ones of this test are no checksums
    job = Job(spark, tmp_path / "new", servers, subscribe="moved", startingOffsets="latest")
    assert job.run() is None
    assert job.batches[1] == numbered(10, 30) + numbered(100, 120)
    assert job.values == numbered(10, 30) + numbered(100, 120) + numbered(30, 50) + numbered(120, 150)

    first = jvm_checkpoint(tmp_path / "first", started, commits=0, begin='{"moved":{"0":7,"1":15}}')
    import_jvm_checkpoint(str(first), str(tmp_path / "again"))
    for crc in (tmp_path / "again").rglob(".*.crc"):
        crc.unlink()
    job = Job(spark, tmp_path / "again", servers, subscribe="moved", startingOffsets="latest")
    assert job.run() is None
    assert job.batches[0] == numbered(7, 30) + numbered(115, 120)
