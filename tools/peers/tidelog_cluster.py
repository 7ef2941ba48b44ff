"""Three nodes of Tidelog on loopback, each a process of its own that is broker and controller, as `tidelog start --brokers 3` runs them.

Owns their files and command lines. The nodes are peers like any other: paused, measured and ended by their own pids. No process outlives the `with`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from tidelog.cli.local_cluster import LocalNode, plan, write_properties
from tools.peers.kafka_cluster import free_ports
from tools.peers.tidelog import TidelogPeer

HOST = "127.0.0.1"


class _Node(TidelogPeer):
    def __init__(self, node: LocalNode, durability: str) -> None:
        super().__init__(
            durability=durability,
            name=f"tidelog node {node.node_id}",
            data_dir=node.directory,
            port=node.port,
        )
        self._properties = node.properties_file

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tidelog", "start", "--config", str(self._properties)]


class TidelogCluster:
    """`with TidelogCluster() as cluster:` starts all nodes and waits until each serves clients. Nodes are numbered from 0."""

    def __init__(
        self, brokers: int = 3, *, durability: str = "fsync", settings: dict[str, str] | None = None
    ) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="tidelog-cluster-"))
        planned = [
            node._replace(port=port)
            for node, port in zip(
                plan(self._root, brokers=brokers, host=HOST, port=0), free_ports(brokers), strict=True
            )
        ]
        for node in planned:
            write_properties(planned, node, HOST, {"durability": durability} | (settings or {}))
        self.nodes = [_Node(node, durability) for node in planned]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def __enter__(self) -> TidelogCluster:
        try:
            began = [node.launch() for node in self.nodes]  # none is ready before most of them are there
            for node, at in zip(self.nodes, began, strict=True):
                node.wait_until_ready(at)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """All at once and without goodbyes: nobody needs what they hold."""
        for node in self.nodes:
            node.kill()
        shutil.rmtree(self._root, ignore_errors=True)
