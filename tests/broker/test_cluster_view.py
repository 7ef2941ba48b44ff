"""What a broker says of the cluster's partitions from its image and its own disks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tidelog.broker.cluster_view import ClusterView


def offline(replicas: list[int], *, fenced: set[int], own_disk_works: bool) -> list[int]:
    """What broker 0 answers in a cluster of brokers 0 and 1."""
    brokers = {number: SimpleNamespace(fenced=number in fenced) for number in (0, 1)}
    image: Any = SimpleNamespace(brokers=brokers)
    partitions: Any = SimpleNamespace(is_online=lambda name, index: own_disk_works)
    topic: Any = SimpleNamespace(name="t")
    partition: Any = SimpleNamespace(replicas=replicas)
    return ClusterView(0, lambda: image, partitions).offline_replicas(topic, 0, partition)


def test_a_replica_is_offline_once_however_many_reasons_there_are() -> None:
    assert offline([1, 0], fenced={0}, own_disk_works=False) == [0]
    assert offline([1, 0, 2], fenced={0, 1}, own_disk_works=False) == [1, 0, 2]


def test_replicas_of_brokers_that_work_are_online() -> None:
    assert offline([0, 1], fenced=set(), own_disk_works=True) == []
    assert offline([0, 1], fenced={1}, own_disk_works=True) == [1]
    assert offline([1], fenced=set(), own_disk_works=False) == []
