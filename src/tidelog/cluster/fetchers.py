"""One fetcher for each broker that leads something this one follows; partitions move between them as their leaders do."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.replication.assignment import NO_LEADER
from tidelog.replication.fetcher import Fetcher
from tidelog.replication.partition import Partition


class Fetchers:
    def __init__(self, make: Callable[[int], Fetcher]) -> None:
        """`make` gives a fetcher for the broker with that id."""
        self._make = make
        self._by_leader: dict[int, Fetcher] = {}
        self._followed: dict[Partition, int] = {}

    def place(self, partition: Partition) -> None:
        """After the partition's role has changed, or its leader's epoch."""
        leader_id = partition.fetches_from
        before = self._followed.get(partition, NO_LEADER)
        if before not in (NO_LEADER, leader_id):
            self._leave(partition, before)
        if leader_id == NO_LEADER:
            self._followed.pop(partition, None)
            return
        fetcher = self._by_leader.get(leader_id)
        if fetcher is None:
            fetcher = self._by_leader[leader_id] = self._make(leader_id)
        self._followed[partition] = leader_id
        fetcher.add(partition)

    def forget(self, partition: Partition) -> None:
        """It is not served here any more."""
        leader_id = self._followed.pop(partition, None)
        if leader_id is not None:
            self._leave(partition, leader_id)

    def _leave(self, partition: Partition, leader_id: int) -> None:
        fetcher = self._by_leader[leader_id]
        fetcher.remove(partition)
        if not len(fetcher):
            fetcher.close()
            del self._by_leader[leader_id]

    def close(self) -> None:
        for fetcher in self._by_leader.values():
            fetcher.close()
        self._by_leader.clear()
        self._followed.clear()
