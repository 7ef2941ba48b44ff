"""A cluster on one machine, as files: which node listens where and keeps its data where. Values and files only; `supervisor.py` runs it.

Nodes 0 … N−1 serve clients at consecutive ports. The ports at which their controllers talk to each other are chosen free at the first start and kept beside the data, because the voters
of a quorum are known by their addresses.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

LAYOUT_FILE: Final = "cluster.json"


class LocalClusterError(Exception):
    """The cluster in a directory is another one than was asked for; the message says what to do."""


class LocalNode(NamedTuple):
    node_id: int
    port: int
    controller_port: int
    directory: Path

    @property
    def properties_file(self) -> Path:
        return self.directory / "server.properties"

    @property
    def log_file(self) -> Path:
        return self.directory / "broker.log"


def plan(root: Path, *, brokers: int, host: str, port: int) -> list[LocalNode]:
    """The nodes of the cluster in `root`, which is made if there is none. Port 0: any that are free."""
    layout = root / LAYOUT_FILE
    if layout.exists():
        controller_ports = json.loads(layout.read_text())["controller_ports"]
        if len(controller_ports) != brokers:
            raise LocalClusterError(
                f"{root} holds a cluster of {len(controller_ports)} nodes: start it with --brokers {len(controller_ports)}, or give another --data-dir"
            )
    else:
        if (root / "meta.properties").exists():
            raise LocalClusterError(
                f"{root} holds the data of a single broker: start it without --brokers, or give another --data-dir"
            )
        controller_ports = free_ports(host, brokers)
        root.mkdir(parents=True, exist_ok=True)
        layout.write_text(json.dumps({"controller_ports": controller_ports}))
    ports = [port + number for number in range(brokers)] if port else free_ports(host, brokers)
    return [
        LocalNode(number, ports[number], controller_port, root / f"node-{number}")
        for number, controller_port in enumerate(controller_ports)
    ]


def free_ports(host: str, count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def require_free(nodes: list[LocalNode], host: str) -> None:
    """LocalClusterError names the first port that somebody else listens on: a node would find out too late, and over and over."""
    for node in nodes:
        for port in (node.port, node.controller_port):
            try:
                socket.create_server((host, port)).close()
            except OSError as error:
                if port == node.port:
                    way_out = "stop what uses it, or choose others with --port"
                else:
                    way_out = (
                        "it is where the controller of this cluster has been since its first start: stop what uses it "
                        "(is this cluster running already?)"
                    )
                raise LocalClusterError(
                    f"node {node.node_id} cannot listen on {host}:{port}: {error.strerror or error}; {way_out}"
                ) from error


def properties(
    nodes: list[LocalNode], node: LocalNode, host: str, settings: Mapping[str, str]
) -> dict[str, str]:
    """The settings of one node. `settings` hold for all of them, and win."""
    replicas = min(3, len(nodes))
    return {
        "node.id": str(node.node_id),
        "process.roles": "broker,controller",
        "controller.quorum.voters": ",".join(
            f"{each.node_id}@{host}:{each.controller_port}" for each in nodes
        ),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{host}:{node.port},CONTROLLER://{host}:{node.controller_port}",
        "log.dirs": str(node.directory / "data"),
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(max(1, replicas - 1)),
        "offsets.topic.replication.factor": str(replicas),
        **settings,
    }


def write_properties(nodes: list[LocalNode], node: LocalNode, host: str, settings: Mapping[str, str]) -> None:
    """What `tidelog start --config` reads for one node."""
    node.directory.mkdir(parents=True, exist_ok=True)
    lines = (f"{name}={value}\n" for name, value in properties(nodes, node, host, settings).items())
    node.properties_file.write_text("".join(lines))
