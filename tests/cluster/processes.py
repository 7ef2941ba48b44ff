"""Brokers as processes, to be killed, stopped, paused and started again, and the network between them, to be cut.

Owns the processes, their directories and the proxies. Clients go to the brokers directly. With `proxied`, nodes reach each other only through proxies, one for each ordered pair of nodes and each of
two networks:

* brokers to brokers, which is replication: node a reaches every other by the listener FROM_a (its `inter.broker.listener.name`), which node b advertises at the proxy from a to b;
* everything that goes to the controllers, the quorum's own traffic and brokers' registrations, heartbeats and proposals: the voters of node a are named at the proxies from a.

So a leader can be cut off from its followers and not from the controller, or the other way round.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.cluster.questions import HOST, PartitionView, active_controller, partitions_of
from tidelog.cli.local_cluster import LocalNode, write_properties
from tidelog.testing.proxy import ProxyMesh
from tools.peers.tidelog import environment

READY_SECONDS: Final = 90.0
SETTLE_SECONDS: Final = 90.0
"""Generous: these tests also run on a machine that is busy with others."""
QUICK: Final = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0}
SOON: Final = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
}
"""So that nobody waits for half a minute until a silent broker is taken for one."""
CLUSTER_ID: Final = "tidelog-under-force---"


class Processes:
    def __init__(
        self,
        root: Path,
        *,
        brokers: int = 3,
        voters: int | None = None,
        racks: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        proxied: bool = False,
    ) -> None:
        """`voters` are the nodes that are controllers, too: the first ones, or all. Broker n is in rack n, from the beginning again when there are no more."""
        self.root = root
        self._voters = voters if voters is not None else brokers
        self._settings = {**SOON, **(settings or {})}
        ports = _ports(2 * brokers)
        self.nodes = [
            LocalNode(number, ports[2 * number], ports[2 * number + 1], root / f"node-{number}")
            for number in range(brokers)
        ]
        self.network = Network(self.nodes) if proxied else None
        for node in self.nodes:
            rack = {"broker.rack": racks[node.node_id % len(racks)]} if racks else {}
            write_properties(self.nodes, node, HOST, self._properties(node) | rack)
            self._format(node)
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._paused: set[int] = set()
        self._ready_from: dict[int, int] = {}

    def _properties(self, node: LocalNode) -> dict[str, str]:
        properties = dict(self._settings)
        client, own = f"PLAINTEXT://{HOST}:{node.port}", f"CONTROLLER://{HOST}:{node.controller_port}"
        is_voter = node.node_id < self._voters
        if not is_voter:
            properties["process.roles"] = "broker"
        voters = self.nodes[: self._voters]
        at = {each.node_id: each.controller_port for each in voters}
        listeners, advertised = [client], [client]
        if self.network is not None:
            at |= {
                each: self.network.controllers.port(node.node_id, each) for each in at if each != node.node_id
            }
            for other in self.nodes:
                # Nobody comes to this port: the proxies lead to the one for clients. The name is what matters.
                listeners.append(f"FROM_{other.node_id}://{HOST}:0")
                port = node.port if other == node else self.network.brokers.port(other.node_id, node.node_id)
                advertised.append(f"FROM_{other.node_id}://{HOST}:{port}")
            properties["inter.broker.listener.name"] = f"FROM_{node.node_id}"
        names = [listener.partition(":")[0] for listener in listeners] + ["CONTROLLER"]
        return properties | {
            "controller.quorum.voters": ",".join(f"{each}@{HOST}:{port}" for each, port in at.items()),
            "listeners": ",".join([*listeners, own] if is_voter else listeners),
            "advertised.listeners": ",".join(advertised),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
        }

    def _format(self, node: LocalNode) -> None:
        """A new disk gets the cluster's id, as Kafka's `storage format` gives it: nodes that see each other at different addresses cannot guess it."""
        data = node.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "meta.properties").write_text(f"cluster.id={CLUSTER_ID}\nnode.id={node.node_id}\nversion=1\n")

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    @property
    def node_ids(self) -> list[int]:
        return [node.node_id for node in self.nodes]

    def __enter__(self) -> Self:
        try:
            self.start_all()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"logs of the brokers are in {self.root}")
            for node in self.nodes:
                error.add_note(f"node {node.node_id}: …{node.log_file.read_text()[-3000:]}")
        self._end()

    def _end(self) -> None:
        for node_id in list(self._running):
            self.kill(node_id)
        if self.network is not None:
            self.network.close()

    # ---- processes

    def launch(self, node_id: int) -> None:
        node = self.nodes[node_id]
        with node.log_file.open("ab") as log:
            self._ready_from[node_id] = log.tell()
            self._running[node_id] = subprocess.Popen(
                [sys.executable, "-m", "tidelog", "start", "--config", str(node.properties_file)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment(),
            )

    def wait_until_ready(self, node_id: int) -> None:
        node, process = self.nodes[node_id], self._running[node_id]

        def ready() -> bool:
            code = process.poll()
            assert code is None, f"node {node_id} ended with {code} instead of being ready"
            return b"is ready on" in node.log_file.read_bytes()[self._ready_from[node_id] :]

        wait_until(ready, f"node {node_id} is ready", READY_SECONDS)

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.launch(node_id)
        for node_id in node_ids:
            self.wait_until_ready(node_id)

    def start_all(self) -> None:
        self.start(*(node_id for node_id in self.node_ids if node_id not in self._running))

    def kill(self, *node_ids: int) -> None:
        """kill -9, of all of them before any is waited for."""
        dying = [process for node_id in node_ids if (process := self._running.pop(node_id, None)) is not None]
        for process in dying:
            process.kill()
        for process in dying:
            process.wait()
        self._paused -= set(node_ids)

    def stop(self, node_id: int) -> None:
        """A controlled shutdown."""
        process = self._running.pop(node_id)
        process.terminate()
        assert process.wait(60) == 0

    def pause(self, node_id: int) -> None:
        os.kill(self._running[node_id].pid, signal.SIGSTOP)
        self._paused.add(node_id)

    def resume(self, node_id: int) -> None:
        self._paused.discard(node_id)
        os.kill(self._running[node_id].pid, signal.SIGCONT)

    def lose_disk(self, node_id: int) -> None:
        """Everything that a dead node had is gone: it comes back with an empty disk."""
        assert node_id not in self._running, "a disk is lost while its node is down"
        shutil.rmtree(self.nodes[node_id].directory / "data")
        self._format(self.nodes[node_id])

    # ---- what the cluster says

    def create_topic(
        self, name: str, partitions: int = 3, *, replicas: int = 3, config: Mapping[str, str] | None = None
    ) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUICK})
        topic = NewTopic(name, partitions, replicas, config=dict(config or {}))
        admin.create_topics([topic])[name].result(60)
        wait_until(lambda: None not in self.leaders(name).values(), f"{name} has leaders")

    @property
    def _asked(self) -> list[int]:
        """The ports of those who can answer."""
        return [self.nodes[node_id].port for node_id in self._running if node_id not in self._paused]

    def controller(self) -> int:
        """The node with the active controller; waits until there is one."""
        found: list[int] = []

        def look() -> bool:
            active = active_controller(self._asked)
            found[:] = [] if active is None else [active]
            return bool(found)

        wait_until(look, "there is an active controller")
        return found[0]

    def view(self, topic: str) -> dict[int, PartitionView]:
        """Partitions as the broker beside the active controller has them: nobody's metadata are newer."""
        node_id = active_controller(self._asked)
        if node_id is None:
            return {}
        return partitions_of(topic, self.nodes[node_id].port)

    def leaders(self, topic: str) -> dict[int, int | None]:
        """By partition; None while there is none."""
        found = {index: view.leader for index, view in self.view(topic).items()}
        return found or {0: None}

    def leader_of(self, topic: str, partition: int) -> int:
        found: list[int | None] = []

        def look() -> bool:
            found[:] = [self.leaders(topic).get(partition)]
            return found != [None]

        wait_until(look, f"{topic}-{partition} has a leader")
        assert found[0] is not None
        return found[0]

    def in_sync(self, topic: str) -> dict[int, frozenset[int]]:
        return {index: view.isr for index, view in self.view(topic).items()}

    def wait_until_in_sync(self, topic: str) -> None:
        """Every replica of every partition."""
        wait_until(
            lambda: (view := self.view(topic)) and all(each.isr == each.replicas for each in view.values()),
            f"{topic} is in sync",
        )


class Network:
    """Two of them: between brokers, and to the controllers."""

    def __init__(self, nodes: Iterable[LocalNode]) -> None:
        nodes = list(nodes)
        self.brokers = ProxyMesh({node.node_id: node.port for node in nodes})
        self.controllers = ProxyMesh({node.node_id: node.controller_port for node in nodes})

    def heal(self) -> None:
        self.brokers.heal()
        self.controllers.heal()

    def close(self) -> None:
        self.brokers.close()
        self.controllers.close()


def wait_until(is_true: Callable[[], object], what: str, seconds: float = SETTLE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if is_true():
                return
        except confluent_kafka.KafkaException:
            pass  # nobody answers yet
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.1)


def _ports(count: int) -> list[int]:
    """Free ones, below those that the kernel gives to whoever connects: a broker that is down must find its port free when it comes back."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(12_000, 32_000), 4_000):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("hardly a port is free")
