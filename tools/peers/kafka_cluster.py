"""Three nodes of Apache Kafka on loopback, to be killed, stopped and paused one by one: the referee of failovers.

Owns how the nodes find each other (each is broker and controller); `node_cluster` has what may be done to them. Nodes have small heaps and the serial collector, and hear of each
other's death sooner than stock ones: such a cluster judges, it is never measured. With `stock=True` it has Kafka's own settings and Java options, to be measured.
"""

from __future__ import annotations

from tools.peers.kafka import SERVER_OPTIONS, KafkaPeer, class_path
from tools.peers.maven import java
from tools.peers.node_cluster import NodeCluster, free_ports

OFFSETS_TOPIC = "__consumer_offsets"
NODE_OPTIONS = (
    "-Xms96m",
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
)
JUDGING = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "4000",
    # Else what a paused leader or controller was asked keeps the others waiting for half a minute.
    "replica.socket.timeout.ms": "3000",
    "controller.socket.timeout.ms": "3000",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "offsets.topic.num.partitions": "1",  # so that one broker coordinates every group
    "group.initial.rebalance.delay.ms": "0",
}


class _Node(KafkaPeer):
    def __init__(
        self,
        node_id: int,
        *,
        port: int,
        controller_ports: list[int],
        overrides: dict[str, str],
        java_options: tuple[str, ...],
    ) -> None:
        super().__init__(name=f"kafka node {node_id}", port=port)
        self._java_options = java_options
        self._controller_port = controller_ports[node_id]
        voters = (f"{number}@127.0.0.1:{each}" for number, each in enumerate(controller_ports))
        copies = str(len(controller_ports))
        self._overrides = {
            "node.id": str(node_id),
            "controller.quorum.voters": ",".join(voters),
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "share.coordinator.state.topic.replication.factor": copies,
            **overrides,
        }

    def command(self) -> list[str]:
        return [
            java(),
            *self._java_options,
            "-cp",
            class_path(self.version),
            "kafka.Kafka",
            str(self._properties_path),
        ]


class KafkaCluster(NodeCluster):
    def __init__(
        self, brokers: int = 3, overrides: dict[str, str] | None = None, *, stock: bool = False
    ) -> None:
        ports = free_ports(2 * brokers)
        super().__init__(
            [
                _Node(
                    number,
                    port=ports[number],
                    controller_ports=ports[brokers:],
                    overrides=({} if stock else JUDGING) | (overrides or {}),
                    java_options=SERVER_OPTIONS if stock else NODE_OPTIONS,
                )
                for number in range(brokers)
            ],
            ports[brokers:],
        )

    def coordinator(self) -> int:
        """The node that coordinates every group."""
        return self.leader_of(OFFSETS_TOPIC)
