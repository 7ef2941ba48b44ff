"""Three brokers as processes under two producers and two readers, and one thing after the other that goes wrong: nothing that was acknowledged is lost, doubled or moved.

Each test hurts a cluster in one way, sees that what must go on goes on, and hands over to the judge (`load.Load.judge`). `test_nemesis.py` mixes them at random. Replicas 3, min.insync.replicas 2, acks=all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.load import Load
from tests.cluster.processes import Network, Processes, wait_until
from tests.cluster.questions import PartitionView, partitions_of
from tidelog.storage import files

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TOPIC = "orders"
PARTITIONS = 3
DURABILITIES = ["fsync", "replicated"]
CUT_SECONDS = 6.0
"""Twice what a silent broker or follower is given."""


@contextmanager
def under_load(cluster: Processes) -> Iterator[Load]:
    """Everything is in sync when the load is there; what it has gone through is judged in the end."""
    with cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        cluster.wait_until_in_sync(TOPIC)
        with Load(cluster, TOPIC, PARTITIONS) as load:
            yield load
        print(load.judge())


@pytest.mark.parametrize("durability", DURABILITIES)
def test_each_broker_is_killed_in_turn(root: Path, durability: str) -> None:
    cluster = Processes(root, settings={"durability": durability})
    with under_load(cluster) as load:
        for node_id in cluster.node_ids:
            cluster.kill(node_id)
            load.goes_on()  # by those that are left
            cluster.start(node_id)
            cluster.wait_until_in_sync(TOPIC)
            load.goes_on()


@pytest.mark.parametrize("durability", DURABILITIES)
def test_all_brokers_are_killed_at_once(root: Path, durability: str) -> None:
    """Every partition has a leader again by itself, and nothing is lost: a killed process takes no page cache with it."""
    cluster = Processes(root, settings={"durability": durability})
    with under_load(cluster) as load:
        for _ in range(3):
            cluster.kill(*cluster.node_ids)
            cluster.start_all()
            load.goes_on()
            cluster.wait_until_in_sync(TOPIC)


def test_after_a_reboot_of_all_in_replicated_partitions_are_led_again_by_themselves(root: Path) -> None:
    """kill -9 of all, and to the next run it looks as if the machine had booted since. The page cache has kept everything, so nothing may be missing in the end."""
    cluster = Processes(root, settings={"durability": "replicated"})
    with under_load(cluster) as load:
        cluster.kill(*cluster.node_ids)
        for node in cluster.nodes:
            run = node.directory / "data" / files.BROKER_RUN
            run.write_text(json.dumps(json.loads(run.read_text()) | {"bootId": "another life"}))
        cluster.start_all()
        load.goes_on()
        cluster.wait_until_in_sync(TOPIC)
        told = "".join(node.log_file.read_text() for node in cluster.nodes)
    assert told.count("gives up its places") == len(cluster.nodes)
    for index in range(PARTITIONS):
        assert f"leads {TOPIC}-{index} and was not in sync" in told


def test_the_leader_is_paused(root: Path) -> None:
    """Others take over; when it wakes up it believes that it leads, and must not be believed."""
    cluster = Processes(root)
    with under_load(cluster) as load:
        for partition in range(2):
            leader = cluster.leader_of(TOPIC, partition)
            cluster.pause(leader)
            load.goes_on()
            assert cluster.leader_of(TOPIC, partition) != leader
            cluster.resume(leader)
            cluster.wait_until_in_sync(TOPIC)
            load.goes_on()


def test_the_leader_is_paused_for_a_moment(root: Path) -> None:
    """Nobody needs to take over: producers wait, and go on."""
    cluster = Processes(root)
    with under_load(cluster) as load:
        for seconds in (0.1, 0.5, 1.5):
            leader = cluster.leader_of(TOPIC, 0)
            cluster.pause(leader)
            time.sleep(seconds)
            cluster.resume(leader)
            load.goes_on()


def not_the_controller(cluster: Processes) -> int:
    """A partition whose leader is on another node than the active controller."""
    controller = cluster.controller()
    return next(index for index, leader in cluster.leaders(TOPIC).items() if leader != controller)


def network(cluster: Processes) -> Network:
    assert cluster.network is not None
    return cluster.network


def test_the_leader_is_cut_off_from_its_followers(root: Path) -> None:
    """Not from the controller, which therefore lets it lead; without enough in sync it acknowledges nothing. What is led elsewhere goes on."""
    cluster = Processes(root, proxied=True)
    with under_load(cluster) as load:
        partition = not_the_controller(cluster)
        leader = cluster.leader_of(TOPIC, partition)
        network(cluster).brokers.isolate(leader)
        wait_until(
            lambda: cluster.in_sync(TOPIC)[partition] == {leader}, "its followers are not in sync any more"
        )
        before = load.acknowledged_in(partition)
        load.goes_on([index for index, other in cluster.leaders(TOPIC).items() if other != leader])
        assert load.acknowledged_in(partition) == before, "less than min.insync.replicas have it"
        assert cluster.leader_of(TOPIC, partition) == leader
        network(cluster).heal()
        cluster.wait_until_in_sync(TOPIC)
        load.goes_on()


def test_the_leader_is_cut_off_from_the_controller(root: Path) -> None:
    """Not from its followers. It is taken for dead, others lead, and it knows nothing of that until the network is whole again."""
    cluster = Processes(root, proxied=True)
    with under_load(cluster) as load:
        partition = not_the_controller(cluster)
        leader = cluster.leader_of(TOPIC, partition)
        network(cluster).controllers.isolate(leader)
        wait_until(lambda: cluster.leader_of(TOPIC, partition) != leader, "another one leads")
        load.goes_on()
        time.sleep(CUT_SECONDS)
        load.goes_on()
        network(cluster).heal()
        cluster.wait_until_in_sync(TOPIC)
        load.goes_on()


def test_the_active_controller_is_cut_off(root: Path) -> None:
    """From everybody, with the partitions that its broker leads: a new controller is elected, and new leaders by it."""
    cluster = Processes(root, proxied=True)
    with under_load(cluster) as load:
        controller = cluster.controller()
        network(cluster).controllers.isolate(controller)
        network(cluster).brokers.isolate(controller)
        wait_until(
            lambda: controller not in {view.leader for view in seen_by_others(cluster, controller)},
            "nobody follows it any more",
        )
        load.goes_on()
        network(cluster).heal()
        cluster.wait_until_in_sync(TOPIC)
        load.goes_on()


def test_connections_between_brokers_are_torn(root: Path) -> None:
    """Again and again, all of them: nobody is cut off for long, and nobody may lose anything."""
    cluster = Processes(root, proxied=True)
    with under_load(cluster) as load:
        for _ in range(10):
            for one in cluster.node_ids:
                for other in cluster.node_ids[:one]:
                    network(cluster).brokers.cut(one, other)
                    network(cluster).controllers.cut(one, other)
            time.sleep(0.2)
            network(cluster).heal()
            load.goes_on()


def test_all_brokers_are_restarted_one_after_the_other(root: Path) -> None:
    cluster = Processes(root)
    with under_load(cluster) as load:
        for node_id in cluster.node_ids:
            cluster.stop(node_id)
            load.goes_on()
            cluster.start(node_id)
            cluster.wait_until_in_sync(TOPIC)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_disk_is_lost(root: Path, durability: str) -> None:
    """That of each node in turn: it comes back with nothing, may not lead before it has everything again, and gets it."""
    cluster = Processes(root, settings={"durability": durability})
    with under_load(cluster) as load:
        for node_id in cluster.node_ids:
            cluster.kill(node_id)
            cluster.lose_disk(node_id)
            load.goes_on()
            cluster.start(node_id)
            cluster.wait_until_in_sync(TOPIC)
            load.goes_on()


def test_a_rack_is_lost(root: Path) -> None:
    """Six brokers in three racks: each partition has a replica in each of them. The racks go one after the other, each with two brokers and one of the three controllers."""
    racks = ["a", "b", "c"]
    cluster = Processes(root, brokers=6, voters=3, racks=racks)
    with under_load(cluster) as load:
        for view in cluster.view(TOPIC).values():
            assert {racks[node_id % 3] for node_id in view.replicas} == set(racks)
        for rack in range(3):
            lost = [node_id for node_id in cluster.node_ids if node_id % 3 == rack]
            cluster.kill(*lost)
            load.goes_on()
            cluster.start(*lost)
            cluster.wait_until_in_sync(TOPIC)


def seen_by_others(cluster: Processes, node_id: int) -> list[PartitionView]:
    others = [node.port for node in cluster.nodes if node.node_id != node_id]
    return [view for port in others for view in partitions_of(TOPIC, port).values()]
