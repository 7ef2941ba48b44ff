"""What clients are told about the cluster: brokers, leaders, features. Read from the metadata image, never kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tidelog.cluster.departures import StillTold, nobody
from tidelog.cluster.partitions import PartitionTable
from tidelog.controller.features import SUPPORTED_FEATURES
from tidelog.controller.image import MetadataImage, PartitionImage, TopicImage


class BrokerEndpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool = False


class Features(NamedTuple):
    supported: Mapping[str, tuple[int, int]]
    finalized: Mapping[str, int]
    epoch: int


class ClusterView:
    def __init__(
        self,
        node_id: int,
        image: Callable[[], MetadataImage],
        partitions: PartitionTable,
        still_told: StillTold = nobody,
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._partitions = partitions
        self._still_told = still_told

    def features(self) -> Features:
        image = self._image()
        return Features(SUPPORTED_FEATURES, image.features, image.offset)

    def endpoints(
        self, listener_name: str, *, fenced_too: bool = False, departed_too: bool = False
    ) -> Iterator[BrokerEndpoint]:
        """Every broker that clients of this listener can reach; `fenced_too`, also those that they could if they were well; `departed_too`, those that they could a moment ago."""
        for broker in self._image().brokers.values():
            if not broker.fenced or fenced_too or (departed_too and self._still_told(broker)):
                for endpoint in broker.endpoints:
                    if endpoint.name == listener_name:
                        yield BrokerEndpoint(
                            broker.broker_id, endpoint.host, endpoint.port, broker.rack, broker.fenced
                        )

    def live_leader(self, topic: TopicImage, index: int, partition: PartitionImage) -> int:
        """The leader, or -1 while there is none that works."""
        if partition.leader == self._node_id and not self._partitions.is_online(topic.name, index):
            return -1
        return partition.leader

    def offline_replicas(self, topic: TopicImage, index: int, partition: PartitionImage) -> list[int]:
        """Those of brokers that are away, and this broker's own if its directory is offline; each once, in the order of the replicas."""
        brokers = self._image().brokers

        def is_offline(replica: int) -> bool:
            away = replica not in brokers or brokers[replica].fenced
            return away or (replica == self._node_id and not self._partitions.is_online(topic.name, index))

        return [replica for replica in partition.replicas if is_offline(replica)]
