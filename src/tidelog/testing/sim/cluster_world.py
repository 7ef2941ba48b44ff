"""A whole simulated cluster: quorum, controllers, brokers, groups, clients and everything that goes wrong, on one heap of events. One seed decides all of it.

Three phases: everything may go wrong and nothing may be violated; then all is healed, and within ten seconds every partition takes writes; then everything is read once more, and all
replicas are the same. Invariants are asked after every step of whoever took it. The same seed gives the same trace (I59): `trace_hash`.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from hashlib import blake2b
from random import Random
from typing import Final

from tidelog.client.metadata import TopicPartition
from tidelog.cluster.lifecycle import LifecycleTimings
from tidelog.cluster.node import NodeSettings
from tidelog.cluster.snapshots import SnapshotLimits
from tidelog.cluster.topic_policy import TopicPolicy
from tidelog.config.resolve import BrokerConfig
from tidelog.controller.service_ports import ControllerTimings
from tidelog.quorum.values import QuorumSettings, Voters
from tidelog.replication.fetcher import FetcherSettings
from tidelog.storage.disk import DiskError
from tidelog.storage.log_dirs import LogDirError
from tidelog.testing.history import History
from tidelog.testing.sim.cluster_admin import SimAdmin
from tidelog.testing.sim.cluster_clients import SimProducer
from tidelog.testing.sim.cluster_end import Ending
from tidelog.testing.sim.cluster_faults import Nemesis, Plan, plan_of
from tidelog.testing.sim.cluster_group_checks import Commits
from tidelog.testing.sim.cluster_machines import Machines
from tidelog.testing.sim.cluster_members import SimMember
from tidelog.testing.sim.cluster_net import Network
from tidelog.testing.sim.cluster_node import SimNode, policy
from tidelog.testing.sim.cluster_readers import SimReader
from tidelog.testing.sim.cluster_shape import Shape, shape_of
from tidelog.testing.sim.cluster_truth import Truth
from tidelog.testing.sim.cluster_watch import Watch
from tidelog.testing.sim.events import EventHeap
from tidelog.testing.sim.quorum_ledger import Ledger as QuorumLedger
from tidelog.testing.sim.replication_ledger import Batch

START_S: Final = 3.0
"""For a cluster to form before anything goes wrong."""
_TRACED_LINES: Final = 400


class ClusterWorld(Machines):
    def __init__(
        self, seed: int, *, shape: Shape | None = None, plan: Plan | None = None, dropped: Iterable[int] = ()
    ) -> None:
        self.seed = seed
        self.shape = shape or shape_of(seed)
        self.plan = plan or plan_of(seed, first_s=START_S, last_s=self.shape.seconds)
        self.heap = EventHeap()
        self.network = Network(self.heap, Random(f"{seed}/network"))
        self.lines: list[str] = []
        self._hash = blake2b(digest_size=16)
        self.coverage: Counter[str] = Counter()
        self.history = History()
        self.may_die = True
        rng = Random(f"{seed}/world")
        shape_ = self.shape
        self.rates = {node: 1 + rng.uniform(-shape_.drift, shape_.drift) for node in shape_.nodes}
        self.skews = {node: rng.randint(-shape_.skew_ms, shape_.skew_ms) for node in shape_.nodes}
        self.voters = Voters.of(shape_.voters)
        self.configs = {node: self._config(node) for node in shape_.nodes}
        self._policies: dict[tuple[tuple[str, str], ...], TopicPolicy] = {}
        self.ledger = QuorumLedger()
        self.settings = self._quorum_settings(shape_.voters[0])
        super().__init__(rng)
        self.watch = Watch(self)
        self.truth = Truth(self.heap, self.ledger, self.watch.metadata_changed)
        for node in shape_.nodes:
            self.heap.after(rng.random() * 0.3, partial(self.start, node))
        self.admin = SimAdmin(self, 1000)
        self.nemesis = Nemesis(self, self.plan, dropped)
        self.network.weather.encoded = shape_.encoded
        self.producers: list[SimProducer] = []
        self.readers: list[SimReader] = []
        self.members: list[SimMember] = []
        self.commits = Commits()
        self._make_clients()

    def _make_clients(self) -> None:
        shape = self.shape
        for number in range(shape.producers + shape.weak_producers):
            topic = shape.topics[number % len(shape.topics)]
            self.producers.append(
                SimProducer(
                    self, 2000 + number, topic.name, topic.partitions, acks_all=number < shape.producers
                )
            )
        for number in range(shape.readers):
            topic = shape.topics[number % len(shape.topics)]
            self.readers.append(SimReader(self, 3000 + number, topic.name, topic.partitions))
        for number in range(shape.members):
            self.members.append(SimMember(self, 6000 + number, [topic.name for topic in shape.topics]))

    # ---- settings

    def _config(self, node_id: int) -> BrokerConfig:
        shape = self.shape
        is_broker, is_voter = node_id in shape.brokers, node_id in shape.voters
        roles = [name for name, has in (("broker", is_broker), ("controller", is_voter)) if has]
        listeners = [f"PLAINTEXT://127.0.0.1:{9000 + node_id}"] if is_broker else []
        if is_voter:
            listeners.append(f"CONTROLLER://127.0.0.1:{7000 + node_id}")
        properties = {
            "node.id": str(node_id),
            "process.roles": ",".join(roles),
            "listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": ",".join(
                f"{voter}@127.0.0.1:{7000 + voter}" for voter in shape.voters
            ),
            "log.dir": "/data",
            "durability": "fsync" if shape.durable else "replicated",
            "min.insync.replicas": str(shape.min_isr),
            "offsets.topic.num.partitions": str(shape.offsets.partitions),
        }
        if shape.racks and is_broker:
            properties["broker.rack"] = f"rack-{node_id % shape.racks}"
        return BrokerConfig.load(properties)

    def policy_of(self, overrides: Mapping[str, str], config: BrokerConfig) -> TopicPolicy:
        key = tuple(sorted(overrides.items()))
        found = self._policies.get(key)
        if found is None:
            found = self._policies[key] = policy(dict(overrides), config)
        return found

    def _quorum_settings(self, node_id: int) -> QuorumSettings:
        shape = self.shape
        return QuorumSettings(
            node_id,
            self.voters,
            "sim",
            election_timeout_s=shape.election_s,
            election_backoff_max_s=shape.election_s / 2,
            fetch_timeout_s=shape.quorum_fetch_s,
            request_timeout_s=shape.quorum_fetch_s * 0.6,
            fetch_max_bytes=1500,
            fetch_snapshot_max_bytes=700,
        )

    def node_settings(self, node_id: int) -> NodeSettings:
        shape = self.shape
        return NodeSettings(
            quorum=self._quorum_settings(node_id),
            cluster_id="sim",
            is_broker=node_id in shape.brokers,
            controller=ControllerTimings(
                session_timeout_s=shape.session_s,
                balance_interval_s=15.0,
                leaderless_interval_s=5.0,
                last_known_wait_s=2.0,
            ),
            lifecycle=LifecycleTimings(heartbeat_interval_s=shape.heartbeat_s, shutdown_timeout_s=6.0),
            fetcher=FetcherSettings(
                wait_max_ms=shape.fetch_wait_ms,
                partition_bytes_max=shape.fetch_bytes_max,
                backoff_ms=300,
                timeout_ms=1500,
            ),
            snapshots=SnapshotLimits(bytes_between=shape.snapshot_bytes),
            lag_seconds_max=shape.lag_s,
            min_insync_replicas=shape.min_isr,
        )

    # ---- running

    def run(self) -> None:
        """All phases. AssertionError (`Violation`) when a promise is broken."""
        collects = gc.isenabled()
        gc.disable()
        try:
            self.run_until(self.shape.seconds)
            self.trace("healing")
            self.heal()
            Ending(self).run()
        except AssertionError as error:
            error.add_note("\n".join((self.told(), *self.lines[-_TRACED_LINES:])))
            raise
        finally:
            if collects:
                gc.enable()

    def told(self) -> str:
        return f"seed {self.seed}: {self.shape.told()}; {self.plan.told()}"

    def run_until(self, time: float) -> None:
        heap, watch = self.heap, self.watch
        touched = heap.touched
        while heap.step(time):
            if touched:
                for process in touched:
                    process.touched = False
                    node = self.by_process.get(process)
                    if node is not None:
                        watch.look_at(node)
                touched.clear()

    def heal(self) -> None:
        self.nemesis.stop()
        self.may_die = False
        network = self.network
        network.weather = type(network.weather)(encoded=self.shape.encoded)
        network.slow.clear()
        network.heal(set(network.cut))
        self.heal_machines()

    # ---- what happens

    def trace(self, line: str) -> None:
        text = f"{self.heap.now:.6f} {line}"
        self.lines.append(text)
        self._hash.update(text.encode())

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    def sometimes(self, what: str) -> None:
        self.coverage[what] += 1

    def produced(self, topic: str, index: int, batch: Batch, *, acks_all: bool) -> None:
        ledger = self.watch.ledger_of(topic, index)
        if ledger is not None:
            ledger.produced(batch, acks_all=acks_all)

    def was_read(self, tp: TopicPartition, batch: Batch) -> None:
        ledger = self.watch.ledger_of(*tp)
        if ledger is not None:
            ledger.was_read(batch)

    def exposed(self, tp: TopicPartition) -> Mapping[int, int]:
        ledger = self.watch.ledger_of(*tp)
        return {} if ledger is None else ledger.exposed

    def watermark_told(self, tp: TopicPartition, leader_epoch: int, offset: int) -> None:
        ledger = self.watch.ledger_of(*tp)
        if ledger is not None:
            ledger.watermark_told(leader_epoch, offset)

    def latest_told(self, tp: TopicPartition, leader_epoch: int, offset: int, before: int) -> None:
        ledger = self.watch.ledger_of(*tp)
        if ledger is not None:
            ledger.latest_told(leader_epoch, offset, before)

    def leader_epoch_of(self, topic: str, index: int) -> int:
        found = self.truth.image.partition(topic, index)
        return -1 if found is None else found.leader_epoch

    def producer_ids_given(self, client_id: int, ids: range) -> None:
        self.watch.producer_ids_given(client_id, ids)

    # ---- the quorum, observed

    def leaders(self) -> list[SimNode]:
        return self.watch.quorum_leaders()

    def node_started(self, node: SimNode) -> None:
        self.trace(f"node {node.id} serves")

    def node_failed(self, node: SimNode, error: Exception) -> None:
        if not isinstance(error, (DiskError, LogDirError)):
            raise error
        self.sometimes("disk failed")
        self.disk_failed(node)
