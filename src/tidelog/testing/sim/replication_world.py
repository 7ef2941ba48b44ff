"""One partition, three to five brokers, a controller, clients and faults, all from one seed: the replication simulation.

The seed chooses the shape, the settings, the load and the faults. First everything goes wrong, then everything heals and has to come
right by itself. After every step the invariants are asked. The same seed gives the same trace (I59): `trace_hash`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from random import Random
from typing import Final, NamedTuple

from tidelog.testing.sim.disk import CrashMode, SimDisk
from tidelog.testing.sim.events import EventHeap, Process
from tidelog.testing.sim.replication_broker import BrokerOptions, SimBroker
from tidelog.testing.sim.replication_checks import invariants
from tidelog.testing.sim.replication_clients import SimProducer, SimReader
from tidelog.testing.sim.replication_controller import Image, SimController
from tidelog.testing.sim.replication_faults import Nemesis
from tidelog.testing.sim.replication_ledger import Ledger
from tidelog.testing.sim.replication_network import Network
from tidelog.testing.sim.storage_checks import Violation

CHAOS_S: Final = 14.0
HEAL_S: Final = 12.0
_TRACED_LINES: Final = 400


class Coverage(NamedTuple):
    """What a run has been through."""

    seconds: float
    steps: int
    faults: int
    elections: int
    joins: int
    leaves: int
    truncations: int
    acked: int
    committed: int
    read: int


class ReplicationWorld:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        rng = Random(seed)
        self.heap = EventHeap()
        self.network = Network(self.heap, Random(rng.random()))
        brokers = rng.choice((3, 3, 3, 4, 5))
        self.replicas = tuple(range(brokers))
        self.options = BrokerOptions(
            durable=rng.random() < 0.5,
            min_isr=rng.choice((1, 2, 2, 3)),
            lag_s=rng.choice((1.0, 2.0, 4.0)),
            fetch_bytes_max=rng.choice((1, 300, 2000, 1 << 20)),
            sync_s=rng.choice((0.002, 0.02, 0.1)),
        )
        self._slow_one = rng.choice(self.replicas) if rng.random() < 0.3 else -1
        self._rng = rng
        self.lines: list[str] = []
        self._hash = blake2b(digest_size=16)
        self.controller = SimController(self.heap, self.network, self.replicas, min_isr=self.options.min_isr)
        self.controller.on_change = self._image_changed
        self.ledger = Ledger(self.controller, invariants(self.options.lag_s))
        self.brokers: dict[int, SimBroker] = {}
        self.disks = {broker_id: SimDisk(Random(rng.random())) for broker_id in self.replicas}
        self._lossy: dict[int, int] = {}
        """Brokers that have lost what they had, with their last run before it."""
        self._must_say_so: set[int] = set()
        self._incarnation = 0
        self._rates = {broker_id: 1.0 + (rng.random() - 0.5) * 0.1 for broker_id in self.replicas}
        self._truncations = 0
        for broker_id in self.replicas:
            self.heap.after(rng.random() * 0.2, partial(self.start, broker_id))
        self.producers = self._make_producers(rng)
        self.readers = [
            SimReader(
                200 + number, self.network, self.heap, Random(rng.random()), self.ledger, self.replicas,
                from_followers=rng.random() < 0.5, pause_s=0.3,
            )
            for number in range(2)
        ]  # fmt: skip
        self.nemesis = Nemesis(self, Random(rng.random()))

    def _make_producers(self, rng: Random) -> list[SimProducer]:
        pause_s = rng.choice((0.05, 0.2, 0.6))
        kinds = [(True, True), (True, True), (rng.random() < 0.5, rng.random() < 0.5), (False, True)]
        return [
            SimProducer(
                100 + number, self.network, self.heap, Random(rng.random()), self.ledger, self.replicas,
                acks_all=acks_all, idempotent=idempotent, pause_s=pause_s,
            )
            for number, (acks_all, idempotent) in enumerate(kinds)
        ]  # fmt: skip

    # ---- running

    def run(self, *, chaos_s: float = CHAOS_S, heal_s: float = HEAL_S) -> Coverage:
        """Violation when a promise is broken; it says by which seed."""
        try:
            self._run_until(chaos_s)
            self.trace("healing")
            self.nemesis.stop()
            self._run_until(chaos_s + heal_s * 0.6)
            for producer in self.producers:
                producer.stopped = True
            for reader in self.readers:
                reader.settled = True
            self._run_until(chaos_s + heal_s)
            self._check_end()
        except AssertionError as error:
            error.add_note("\n".join((f"seed {self.seed}: {self.options}", *self.lines[-_TRACED_LINES:])))
            raise
        return self.coverage()

    def _run_until(self, time: float) -> None:
        heap = self.heap
        while heap.step(time):
            heap.touched.clear()
            for broker in list(self.brokers.values()):
                if broker.process.touched:
                    broker.process.touched = False
                    self._look_at(broker)

    def _look_at(self, broker: SimBroker) -> None:
        log = broker.log
        replica = self.ledger.replicas[broker.broker_id]
        before = (replica.end_offset, replica.high_watermark, replica.truncations, replica.leader)
        self.ledger.look_at(broker)
        after = (replica.end_offset, replica.high_watermark, replica.truncations, replica.leader)
        if before != after:
            self._truncations += before[2] != after[2]
            role = f"leads {replica.leader.epoch}" if replica.leader is not None else "follows"
            self.trace(f"broker {broker.broker_id} {role} end {log.log_end_offset} hw {log.high_watermark}")

    def _check_end(self) -> None:
        self.ledger.ended()
        waiting = [producer for producer in self.producers if not producer.is_idle]
        if waiting:
            raise Violation("EveryWriteEnds", f"{len(waiting)} producers still wait")
        for reader in self.readers:
            if not reader.has_been_at(self.ledger.committed_end):
                raise Violation(
                    "EverythingIsRead", f"a reader is at {reader.offset} of {self.ledger.committed_end}"
                )

    def trace(self, line: str) -> None:
        text = f"{self.heap.now:.6f} {line}"
        self.lines.append(text)
        self._hash.update(text.encode())

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    def coverage(self) -> Coverage:
        return Coverage(
            self.heap.now,
            self.heap.steps,
            sum(self.nemesis.faults.values()),
            self.controller.elections,
            self.controller.joins,
            self.controller.leaves,
            self._truncations,
            self.ledger.acked,
            len(self.ledger.committed),
            self.ledger.read,
        )

    def _image_changed(self, image: Image) -> None:
        now = image.assignment
        self.trace(
            f"image {image.version}: leader {now.leader} epoch {now.leader_epoch}/{now.partition_epoch} isr {now.isr} elr {image.elr}"
        )
        self.ledger.image_changed(image)

    # ---- processes and disks

    def options_of(self, broker_id: int) -> BrokerOptions:
        """One broker may be slower than the load: it fetches all the time, and never arrives."""
        if broker_id != self._slow_one:
            return self.options
        return self.options._replace(fetch_bytes_max=1, sync_s=max(0.2, self.options.sync_s))

    def heal(self) -> None:
        """Whoever is down comes back, and everybody is fast enough."""
        self._slow_one = -1
        self.options = self.options._replace(fetch_bytes_max=1 << 20, sync_s=0.002)
        for broker_id in self.replicas:
            self.start(broker_id)
            self.brokers[broker_id].process.paused_until = 0.0
            self.brokers[broker_id].retune(self.options)

    def start(self, broker_id: int) -> None:
        if broker_id in self.brokers:
            return
        self._incarnation += 1
        lossless = broker_id not in self._must_say_so
        self.trace(f"start {broker_id} {'' if lossless else 'lossy'}")
        broker = SimBroker(
            broker_id,
            self.disks[broker_id],
            self.network,
            self.heap,
            Random(self._rng.random()),
            self.options_of(broker_id),
            incarnation=self._incarnation,
            lossless=lossless,
            process=Process(
                self.heap, rate=self._rates[broker_id], wall_skew_ms=self._rng.randrange(2000) - 1000
            ),
        )
        self.brokers[broker_id] = broker
        self.ledger.started(broker)

    def _end(self, broker_id: int, crash: CrashMode) -> SimBroker | None:
        broker = self.brokers.pop(broker_id, None)
        if broker is not None:
            broker.process.kill()
            self._settle_registration(broker)
        self.disks[broker_id] = self.disks[broker_id].crash(crash)
        return broker

    def _settle_registration(self, broker: SimBroker) -> None:
        """Once a run has said that it lost something, the next one need not say it again."""
        known = self.controller.registrations.get(broker.broker_id)
        if known is not None and known.incarnation == broker.incarnation:
            self._must_say_so.discard(broker.broker_id)

    def kill(self, broker_id: int) -> None:
        self.trace(f"kill {broker_id}")
        self._end(broker_id, "keep_all")

    def power_off(self, broker_id: int) -> None:
        self.trace(f"power off {broker_id}")
        self._end(broker_id, "random")
        if not self.options.durable:
            self._lost(broker_id)

    def replace_disk(self, broker_id: int) -> None:
        self.trace(f"replace disk {broker_id}")
        self._end(broker_id, "keep_all")
        self.disks[broker_id] = SimDisk(Random(self._rng.random()))
        self._lost(broker_id)

    def _lost(self, broker_id: int) -> None:
        self._lossy[broker_id] = self._incarnation
        self._must_say_so.add(broker_id)

    def on_their_way_back(self) -> set[int]:
        """Brokers that have lost something and are not in sync again since."""
        for broker_id, incarnation in list(self._lossy.items()):
            known = self.controller.registrations.get(broker_id)
            told = known is not None and known.incarnation > incarnation
            if told and broker_id in self.controller.assignment.isr:
                del self._lossy[broker_id]
        return set(self._lossy)

    def stop_cleanly(self, broker_id: int, stopped: Callable[[int], None]) -> None:
        """It asks to leave first; when it leads nothing any more, it closes its log."""
        broker = self.brokers.get(broker_id)
        if broker is None:
            return
        self.trace(f"stopping {broker_id}")
        broker.wants_shutdown = True

        def look() -> None:
            if self.brokers.get(broker_id) is not broker:
                return
            if broker.may_stop and not broker.process.is_paused:
                self.trace(f"stopped {broker_id}")
                self.brokers.pop(broker_id)
                broker.stop_cleanly()
                self._settle_registration(broker)
                stopped(broker_id)
            else:
                self.heap.after(0.1, look)

        look()
