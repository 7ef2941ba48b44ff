"""D10, I23: who keeps its place among the replicas in sync after an unclean stop, and who leads when nobody has one left."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidelog.client.blocking import Consumer, Producer
from tidelog.controller.image import LeaderRecoveryState, PartitionImage
from tidelog.ports import SystemMachine
from tidelog.storage import files
from tidelog.testing import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TOPIC = "orders"
SECONDS_MAX = 60.0
QUICK = {"replica.lag.time.max.ms": 1000, "replica.fetch.wait.max.ms": 100}
"""A follower that is cut off is out of sync soon."""


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def partition_of(cluster: Cluster, topic: str = TOPIC, index: int = 0) -> PartitionImage:
    """As the newest of the brokers knows it."""
    images = [cluster.broker(node).image for node in cluster.running]
    found = max(images, key=lambda image: image.offset).partition(topic, index)
    assert found is not None
    return found


def send(cluster: Cluster, *values: bytes) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for value in values:
            producer.send_and_wait(TOPIC, value)


def read(cluster: Cluster, count: int) -> list[bytes | None]:
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, 0)])
        found: list[bytes | None] = []
        deadline = time.monotonic() + SECONDS_MAX
        while len(found) < count and time.monotonic() < deadline:
            found += [record.value for record in consumer.poll(timeout_ms=500)]
        return found


def claims(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> bool:
    """Nobody had to say that it may have lost something."""
    return "gives up its places" not in caplog.text


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, logger="tidelog"):
        yield


needs_a_boot_id = pytest.mark.skipif(
    SystemMachine().boot_id() is None, reason="this machine has no boot id: nothing is claimed"
)


class TestWhoKeepsItsPlace:
    @needs_a_boot_id
    def test_a_killed_process_has_lost_nothing_while_its_machine_runs(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """In `replicated`: all three killed at once, and whoever was in sync still is. No election loses anything."""
        with Cluster(brokers=3, topics={TOPIC: 1}, config={"durability": "replicated"}) as cluster:
            send(cluster, b"one", b"two")
            for node in range(3):
                cluster.kill(node)
            cluster.start()
            wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0, 1, 2})
            assert read(cluster, 2) == [b"one", b"two"]
        assert claims(cluster, caplog)
        assert "unclean election" not in caplog.text

    def test_in_fsync_a_power_cut_of_all_takes_nobodys_place(self, caplog: pytest.LogCaptureFixture) -> None:
        with Cluster(brokers=3, topics={TOPIC: 1}, config={"durability": "fsync"}) as cluster:
            send(cluster, b"one", b"two")
            cluster.lose_power(0, 1, 2)
            cluster.start()
            wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0, 1, 2})
            assert read(cluster, 2) == [b"one", b"two"]
        assert claims(cluster, caplog)
        assert "unclean election" not in caplog.text

    def test_after_a_clean_stop_a_reboot_is_harmless(self, caplog: pytest.LogCaptureFixture) -> None:
        with Cluster(brokers=3, topics={TOPIC: 1}, config={"durability": "replicated"}) as cluster:
            send(cluster, b"one")
            cluster.stop()
            cluster.lose_power(0, 1, 2)
            cluster.start()
            wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0, 1, 2})
            assert read(cluster, 1) == [b"one"]
        assert claims(cluster, caplog)

    def test_one_topic_in_replicated_is_enough_to_be_careful(self, caplog: pytest.LogCaptureFixture) -> None:
        """The registration speaks for the whole broker, so one topic that counts before it syncs speaks for all of them."""
        with Cluster(brokers=3, topics={TOPIC: 1}, config={"durability": "fsync"}) as cluster:
            cluster.create_topic("careless", config={"durability": "replicated"})
            cluster.lose_power(1)
            cluster.restart(1)
            wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0, 1, 2})
        assert not claims(cluster, caplog)

    def test_a_disk_that_was_emptied_is_a_new_one(self) -> None:
        """Its replicas come back from the others, and until then it is in no ISR."""
        import shutil

        with Cluster(brokers=3, topics={TOPIC: 1}, config={"durability": "fsync"}) as cluster:
            send(cluster, b"one", b"two")
            lost = cluster.leader_of(TOPIC, 0)
            cluster.kill(lost)
            # The controller's log is kept: a voter that forgets its vote is another matter.
            for name in (cluster.data_dir / f"node-{lost}").iterdir():
                if name.name != "__cluster_metadata-0":
                    shutil.rmtree(name) if name.is_dir() else name.unlink()
            cluster.restart(lost)
            wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0, 1, 2})
            assert read(cluster, 2) == [b"one", b"two"]

    def test_a_data_directory_from_a_copy_is_not_believed(self, caplog: pytest.LogCaptureFixture) -> None:
        """The same directory id, and yet older than what the broker was counted for."""
        import shutil

        with Cluster(brokers=3, topics={TOPIC: 1}, config={"durability": "fsync"}) as cluster:
            send(cluster, b"one")
            follower = next(node for node in range(3) if node != cluster.leader_of(TOPIC, 0))
            place = cluster.data_dir / f"node-{follower}"
            cluster.kill(follower)
            for name in place.iterdir():
                if name.name not in ("__cluster_metadata-0", files.LOCK):
                    copied = place.parent / "copy" / name.name
                    copied.parent.mkdir(exist_ok=True)
                    shutil.copytree(name, copied) if name.is_dir() else shutil.copy(name, copied)
            cluster.restart(follower)
            wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0, 1, 2})
            assert claims(cluster, caplog)
            send(cluster, b"two")
            cluster.kill(follower)
            for name in (place.parent / "copy").iterdir():
                old = place / name.name
                if name.is_dir():
                    shutil.rmtree(old)
                    shutil.copytree(name, old)
                else:
                    shutil.copy(name, old)
            cluster.restart(follower)
            epoch = cluster.broker(follower).broker_epoch
            assert cluster.broker(follower).image.brokers[follower].epoch == epoch
            wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0, 1, 2})
            assert cluster.leader_of(TOPIC, 0) != follower
            assert read(cluster, 2) == [b"one", b"two"]


class TestNobodyInSync:
    def test_after_a_power_cut_in_replicated_the_longest_log_leads_and_that_is_told(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with Cluster(brokers=3, topics={TOPIC: 1}, config={"durability": "replicated"}) as cluster:
            send(cluster, b"one", b"two", b"three")
            wait_until(lambda: len({end_of(cluster, node) for node in range(3)}) == 1)
            cluster.lose_power(0, 1, 2)
            # What the machines had not written to their disks: of each another part, of one nothing.
            longest = 1
            for node, kept in ((0, 1), (longest, 3), (2, 2)):
                cut_log(cluster.data_dir / f"node-{node}", batches=kept)
            cluster.start()
            wait_until(lambda: cluster.leader_of(TOPIC, 0) == longest)
            wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0, 1, 2})
            assert partition_of(cluster).leader_recovery_state == LeaderRecoveryState.RECOVERED
            assert read(cluster, 3) == [b"one", b"two", b"three"]
            send(cluster, b"four")
            assert read(cluster, 4)[-1] == b"four"
        assert f"unclean election: broker {longest} leads {TOPIC}-0" in caplog.text
        assert "gives up its places" in caplog.text

    def test_internal_topics_are_synced_in_any_case_and_yet_led_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with Cluster(brokers=3, topics={TOPIC: 1}, config={"durability": "replicated"}) as cluster:
            with Consumer(cluster.bootstrap_servers, group_id="g", auto_offset_reset="earliest") as consumer:
                consumer.subscribe([TOPIC])
                send(cluster, b"one")
                wait_until(lambda: bool(consumer.poll(timeout_ms=500)))
                consumer.commit()
            cluster.lose_power(0, 1, 2)
            cluster.start()
            image = cluster.broker(0).image
            wait_until(
                lambda: all(partition.leader >= 0 for _, _, partition in cluster.broker(0).image.partitions())
            )
            assert "__consumer_offsets" in image.topics_by_name
            send(cluster, b"two")
            with Consumer(cluster.bootstrap_servers, group_id="g", auto_offset_reset="earliest") as consumer:
                consumer.subscribe([TOPIC])
                found: list[bytes | None] = []
                wait_until(
                    lambda: bool(
                        found.extend(record.value for record in consumer.poll(timeout_ms=500)) or found
                    )
                )
                assert found == [b"two"], "the committed offset was kept"

    @pytest.mark.parametrize("durability", ["fsync", "replicated"])
    @pytest.mark.parametrize("reboots", [False, True])
    def test_the_only_replica_leads_again_by_itself(self, durability: str, reboots: bool) -> None:
        with Cluster(brokers=3, config={"durability": durability}) as cluster:
            cluster.create_topic(TOPIC, replicas=[[1]])
            send(cluster, b"one")
            cluster.lose_power(1) if reboots else cluster.kill(1)
            wait_until(lambda: cluster.leader_of(TOPIC, 0) == -1)
            cluster.restart(1)
            wait_until(lambda: cluster.leader_of(TOPIC, 0) == 1)
            assert read(cluster, 1) == [b"one"]


class TestUncleanElection:
    def start(self, *, unclean: bool) -> Cluster:
        return Cluster(
            brokers=3,
            config=QUICK
            | {
                "durability": "fsync",
                "min.insync.replicas": 1,
                "unclean.leader.election.enable": unclean,
            },
        )

    def kill_the_only_one_in_sync(self, cluster: Cluster) -> tuple[int, int]:
        """(leader, follower): the follower lacks the second record, and the leader is dead."""
        # Neither of the two may be the controller: who does not reach that is fenced, and never leads.
        leader, follower = [node for node in range(3) if node != cluster.controller]
        cluster.create_topic(TOPIC, replicas=[[leader, follower]])
        send(cluster, b"one")
        wait_until(lambda: end_of(cluster, follower) == 1)
        cluster.partition(leader, follower)
        send(cluster, b"two")  # answered when the follower is out
        assert cluster.in_sync(TOPIC, 0) == {leader}
        cluster.kill(leader)
        return leader, follower

    def test_off_it_stays_offline_until_a_member_returns(self, caplog: pytest.LogCaptureFixture) -> None:
        with self.start(unclean=False) as cluster:
            leader, follower = self.kill_the_only_one_in_sync(cluster)
            wait_until(lambda: cluster.leader_of(TOPIC, 0) == -1)
            time.sleep(2)
            assert cluster.leader_of(TOPIC, 0) == -1
            cluster.heal()
            cluster.restart(leader)
            wait_until(lambda: cluster.in_sync(TOPIC, 0) == {leader, follower})
            assert cluster.leader_of(TOPIC, 0) == leader
            assert read(cluster, 2) == [b"one", b"two"]
        assert "unclean election" not in caplog.text

    def test_on_it_comes_back_at_once_and_the_loss_is_told(self, caplog: pytest.LogCaptureFixture) -> None:
        with self.start(unclean=True) as cluster:
            leader, follower = self.kill_the_only_one_in_sync(cluster)
            wait_until(lambda: cluster.leader_of(TOPIC, 0) == follower)
            wait_until(lambda: partition_of(cluster).leader_recovery_state == LeaderRecoveryState.RECOVERED)
            send(cluster, b"another two")
            cluster.heal()
            cluster.restart(leader)
            wait_until(lambda: cluster.in_sync(TOPIC, 0) == {leader, follower})
            assert read(cluster, 2) == [b"one", b"another two"]
            wait_until(lambda: end_of(cluster, leader) == 2)
        assert f"unclean election: broker {follower} leads {TOPIC}-0" in caplog.text


@needs_a_boot_id
class TestWrittenDown:
    def test_the_epoch_of_a_run_and_the_machines_boot_id_stand_beside_its_logs(self) -> None:
        with Cluster(brokers=3, topics={TOPIC: 1}, config={"durability": "replicated"}) as cluster:
            send(cluster, b"one")
            cluster.lose_power(2)
            record = cluster.data_dir / "node-2" / files.BROKER_RUN
            assert json.loads(record.read_text())["loss"] is None
            cluster.restart(2)
            after = json.loads(record.read_text())
            assert after["loss"] is None, "it was told"
            assert after["brokerEpoch"] == cluster.broker(2).broker_epoch
            assert after["bootId"].endswith(", 2")


def end_of(cluster: Cluster, node: int) -> int:
    partition = cluster.broker(node).partitions.find(TOPIC, 0)
    return -1 if partition is None else partition.log.log_end_offset


def cut_log(data_dir: Path, *, batches: int) -> None:
    """Leave so many batches of the topic's only segment."""
    (segment,) = (data_dir / f"{TOPIC}-0").glob("*.log")
    assert segment.stat().st_size > 0
    data, position = segment.read_bytes(), 0
    for _ in range(batches):
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    segment.write_bytes(data[:position])
