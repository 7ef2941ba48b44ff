"""Three nodes of Tidelog on loopback, each `tidelog start --config` in a process of its own."""

from __future__ import annotations

import sys

from tools.peers.node_cluster import NodeCluster, free_ports
from tools.peers.tidelog import TidelogPeer


class _Node(TidelogPeer):
    def __init__(
        self, node_id: int, *, port: int, controller_ports: list[int], settings: dict[str, str]
    ) -> None:
        copies = min(3, len(controller_ports))
        voters = (f"{number}@127.0.0.1:{each}" for number, each in enumerate(controller_ports))
        listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_ports[node_id]}"
        properties = {
            "node.id": str(node_id),
            "process.roles": "broker,controller",
            "controller.quorum.voters": ",".join(voters),
            "controller.listener.names": "CONTROLLER",
            "listeners": listeners,
            "default.replication.factor": str(copies),
            "offsets.topic.replication.factor": str(copies),
        }
        super().__init__(settings=properties | settings, name=f"tidelog node {node_id}", port=port)

    def prepare(self) -> None:
        settings = self._settings | {"log.dirs": str(self.log_dir)}
        lines = (f"{name}={value}\n" for name, value in settings.items())
        (self.data_dir / "server.properties").write_text("".join(lines))

    def command(self) -> list[str]:
        return [
            sys.executable,
            "-m",
            "tidelog",
            "start",
            "--config",
            str(self.data_dir / "server.properties"),
        ]


class TidelogCluster(NodeCluster):
    def __init__(
        self, brokers: int = 3, *, durability: str = "fsync", settings: dict[str, str] | None = None
    ) -> None:
        ports = free_ports(2 * brokers)
        super().__init__(
            [
                _Node(
                    number,
                    port=ports[number],
                    controller_ports=ports[brokers:],
                    settings={"durability": durability} | (settings or {}),
                )
                for number in range(brokers)
            ],
            ports[brokers:],
        )
