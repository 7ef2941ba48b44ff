"""A cluster in which everything happens in random order: brokers, their disks, leaders, and controllers on a quorum that commits when it likes.

The controllers are the real ones (`ControllerService`); brokers are models that do what replication promises: a write is acknowledged
when every member of the leader's maximal ISR has it and the ISR is large enough, a follower is proposed for the ISR when it has caught up,
with the broker epoch of its fetches. Each broker acts on the metadata that it has seen, which may be old. So the model knows what
the controller does not: who really holds what. After every step the metadata keeps its promises (`cluster_invariants`), and whoever may
lead without anybody's consent to lose data holds all that was acknowledged (I20).

All chance comes from one seed; a failure shows the seed and the last steps.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tests.controller.cluster_invariants import check_accepted, check_change, check_image, require
from tests.controller.service_world import FakeQuorum
from tests.controller.world import CLUSTER_ID, TinyValidator, registration, topic
from tidelog.controller.alter_partition import UNCHECKED_EPOCH
from tidelog.controller.controller import Controller
from tidelog.controller.delta import MetadataDelta
from tidelog.controller.elections import rules_for
from tidelog.controller.image import EMPTY_IMAGE, LeaderRecoveryState, MetadataImage, PartitionImage
from tidelog.controller.last_known import is_abandoned
from tidelog.controller.metadata_log import MetadataLogReader
from tidelog.controller.result import ControllerResult, ControllerSettings
from tidelog.controller.service import ControllerService
from tidelog.controller.service_ports import ControllerTimings
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from tidelog.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    LeaderlessPartition,
    LeaderlessTopic,
)
from tidelog.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tidelog.wire.messages.create_topics import CreateTopicsRequest
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidelog.wire.messages.elect_leaders import ElectLeadersRequest
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tidelog.wire.messages.unregister_broker import UnregisterBrokerRequest

Key = tuple[bytes, int]
"""A partition: topic id and number."""
SETTINGS = ControllerSettings(num_partitions=2, default_replication_factor=3, elections_per_balance_max=3)
TIMINGS = ControllerTimings(
    session_timeout_s=2.0,
    balance_interval_s=5.0,
    leaderless_interval_s=7.0,
    last_known_wait_s=3.0,
    waiting_max=100,
)
TOPICS = ("a", "b", "c")
HEALING_ROUNDS = 25


class Fetched(NamedTuple):
    """What a leader knows of a follower: up to where it fetched, in which run."""

    version: int
    broker_epoch: int


class Pending(NamedTuple):
    """A proposal that nobody knows the outcome of. It is said again until it is known. `isr`: whoever counts as long as it is not."""

    isr: tuple[int, ...]
    partition_epoch: int
    request: AlterPartitionRequest
    is_repeated: bool = False
    """It was said more than once: when one of them is refused, another may still be accepted."""


class ModelBroker:
    """A process with a disk. `held`: up to which write of each partition its disk has."""

    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.running = False
        self.stopping = False
        self.incarnation = 0
        self.epoch: int | None = None
        self.last_epoch = -1
        self.is_lossless = True
        """Since the last registration nothing was lost. A loss is remembered until it was told."""
        self.view = EMPTY_IMAGE
        self.held: dict[Key, int] = {}
        self.fetched: dict[tuple[Key, int], dict[int, Fetched]] = {}
        self.pending: dict[Key, Pending] = {}

    def leads(self, key: Key) -> PartitionImage | None:
        """As far as it knows. What was known before its own registration is about an earlier run, which may have had more on its disk."""
        partition = _partition(self.view, key)
        return partition if self.is_ready and partition is not None and partition.leader == self.id else None

    @property
    def is_ready(self) -> bool:
        return self.running and self.epoch is not None and self.view.offset >= self.epoch

    def maximal_isr(self, key: Key, partition: PartitionImage) -> set[int]:
        pending = self.pending.get(key)
        return {*partition.isr, *(pending.isr if pending is not None else ())}


class ClusterModel:
    def __init__(self, seed: int, *, brokers: int = 5, controllers: int = 3) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0.0
        self.quorum = FakeQuorum()
        self.services = [self._service() for _ in range(controllers)]
        self.active: ControllerService | None = None
        self.brokers = {number: ModelBroker(number) for number in range(1, brokers + 1)}
        self.acknowledged: dict[Key, int] = {}
        self.lossy_epochs: dict[
            Key, int
        ] = {}  # what leaders of before these epochs still accept is lost as well
        self.in_flight: list[partial[None]] = []
        self.trace: deque[str] = deque(maxlen=30)
        self.by_hand: set[bytes] = set()  # batches that somebody's wish for unclean elections made
        self.reader, self.read_image, self.read_batches = MetadataLogReader(), EMPTY_IMAGE, 0
        self.committed_image, self.committed_batches = EMPTY_IMAGE, 0
        self.reached: set[str] = set()
        self.is_healing = False
        self._take_over()

    def _service(self) -> ControllerService:
        return ControllerService(
            self.quorum,
            lambda image: Controller(
                cluster_id=CLUSTER_ID, settings=SETTINGS, validator=TinyValidator(), rng=self.rng, image=image
            ),
            timings=TIMINGS,
            wall_ms=lambda: 0,
        )

    # ---- running

    def run(self, steps: int) -> None:
        actions = list(_ACTIONS)
        # Each seed has habits of its own: what is rare in one is frequent in another.
        weights = [weight * self.rng.choice([0.2, 0.5, 1, 2, 5]) for weight in _ACTIONS.values()]
        try:
            self._do("begin")
            for _ in range(steps):
                self._do(self.rng.choices(actions, weights)[0])
            self.heal()
        except AssertionError as error:
            raise type(error)(
                f"seed {self.seed}: {error}\nlast steps:\n  " + "\n  ".join(self.trace)
            ) from error

    def begin(self) -> None:
        """Most seeds begin with a cluster that works."""
        if self.rng.random() < 0.8:
            for broker in self.brokers.values():
                self._start(broker, is_lossless=True)
                self.commit()
                self._metadata(broker)
                self._beat(broker)
                self.commit()
            for _ in TOPICS:
                self.create()
            self.commit()

    def _do(self, action: str, *arguments: Any) -> None:
        self.trace.append(action)
        getattr(self, action)(*arguments)
        self.check()

    def note(self, text: object) -> None:
        self.trace[-1] += f" {text}"

    def heal(self) -> None:
        """Everything works again: after a while every partition has a leader, without a hand from anybody."""
        self.is_healing = True
        self.take_over()
        for _ in range(HEALING_ROUNDS):
            self._do("heal_a_little")
        for known, index, partition in self.committed_image.partitions():
            where = f"{known.name}-{index} is {partition}"
            require(partition.leader != -1, "every partition has a leader again (I50)", where)
            require(set(partition.isr) == set(partition.replicas), "everybody is in sync again", where)

    def heal_a_little(self) -> None:
        for broker in self.brokers.values():
            broker.stopping = False
            if not broker.running:
                self._start(broker, is_lossless=True)
            self._metadata(broker)
            self._beat(broker)
        self.pass_time(0.4)
        self.commit()
        for key in list(self.acknowledged):
            for broker in self.brokers.values():
                self._fetch(broker, key)
            for broker in self.brokers.values():
                self._propose(broker, key, expand=True)
        while self.in_flight:
            self.in_flight.pop()()
        self.commit()

    # ---- what is true

    def check(self) -> None:
        self._read_on()
        if self.active is not None:
            require(self.active.image == self.read_image, "the image is what the log says (I18)", "replay")
            check_image(self.active.image, SETTINGS)
            require(
                self.active.committed_image.offset <= self.quorum.committed,
                "only what is committed is told",
                "",
            )
        self._check_holders()

    def _read_on(self) -> None:
        """The log as another node reads it, batch by batch."""
        for number, batch in enumerate(self.quorum.log[self.read_batches :], self.read_batches):
            before = self.read_image
            self.read_image = self._replayed(before, batch.data, batch.next_offset - 1)
            self.read_batches = number + 1
            check_change(before, self.read_image, SETTINGS, by_hand=batch.data in self.by_hand)
            if batch.next_offset <= self.quorum.committed:
                self._became_committed(before, self.read_image)
                self.committed_batches = number + 1

    def _read_again(self) -> None:
        """What is behind the last that was known to be committed has changed, or is committed now."""
        self.reader = MetadataLogReader(self.committed_image.offset + 1, self.committed_image.epoch)
        self.read_batches, self.read_image = self.committed_batches, self.committed_image

    def _replayed(self, image: MetadataImage, data: bytes, offset: int) -> MetadataImage:
        delta = MetadataDelta(image)
        for change in self.reader.read(data):
            delta.replay_all(change.records)
        return delta.apply(offset=offset, epoch=self.reader.leader_epoch)

    def _became_committed(self, before: MetadataImage, after: MetadataImage) -> None:
        self.committed_image = after
        for known, index, partition in after.partitions():
            key = (known.topic_id, index)
            self.acknowledged.setdefault(key, 0)
            was = before.partition(known.name, index)
            if was is None or partition.leader in (-1, was.leader):
                continue
            elected_uncleanly = partition.leader not in (*was.isr, *was.elr)
            if elected_uncleanly:
                # Allowed and told: of what was written before nothing is promised any more.
                recovering = partition.leader_recovery_state == LeaderRecoveryState.RECOVERING
                self.reached.add("unclean" if recovering else "sole replica")
                if is_abandoned(was) and recovering:
                    self.reached.add("last known")
                self.acknowledged[key] = 0
                self.lossy_epochs[key] = partition.leader_epoch
        for key in [key for key in self.acknowledged if key[0] not in after.topics_by_id]:
            del self.acknowledged[key]

    def _check_holders(self) -> None:
        """I20. A run that the controller has not heard of yet is not its fault."""
        image = self.committed_image
        for known, index, partition in image.partitions():
            key = (known.topic_id, index)
            for member in (*partition.isr, *partition.elr):
                broker = self.brokers[member]
                registered = image.brokers.get(member)
                if registered is None or registered.incarnation_id != _incarnation(broker):
                    continue
                holds = broker.held.get(key, 0) >= self.acknowledged[key]
                where = (
                    f"broker {member} and {known.name}-{index}: {partition}, {self.acknowledged[key]} written"
                )
                require(holds, "whoever may lead holds all that was acknowledged (I20)", where)

    # ---- the quorum and its controllers

    def commit(self, all_of_it: bool = True) -> None:
        if self.active is None or not self.quorum.log:
            return
        ends = [batch.next_offset for batch in self.quorum.log if batch.next_offset > self.quorum.committed]
        if not ends:
            return
        self.quorum.committed = ends[-1] if all_of_it else self.rng.choice(ends)
        self._read_again()
        self.active.committed(self.quorum.committed)

    def commit_some(self) -> None:
        self.commit(all_of_it=False)

    def lose_controller(self) -> None:
        """The next one may find more of the log than was known to be committed, or less."""
        if self.active is None:
            return
        ends = [batch.next_offset for batch in self.quorum.log if batch.next_offset >= self.quorum.committed]
        self.quorum.cut(self.rng.choice(ends) if ends else self.quorum.committed)
        self.quorum.epoch += 1
        if self.rng.random() < 0.5:
            self.active.lost()  # else it finds out when it writes
        self.active = None
        self._read_again()

    def take_over(self) -> None:
        if self.active is None:
            self._take_over()

    def _take_over(self) -> None:
        self.quorum.committed = self.quorum.end_offset
        self._read_again()
        self._read_on()
        self.quorum.epoch += 1
        for service in self.services:
            service.lost()
        self.active = self.rng.choice(self.services)
        self.active.lead(self.quorum.epoch, self.read_image, self.now)
        if not self.committed_image.features:
            self.quorum.committed = self.quorum.end_offset
            self.active.committed(self.quorum.committed)

    def wait(self) -> None:
        """Mostly brokers are heard meanwhile."""
        beating = self.rng.random() < 0.85
        for _ in range(self.rng.choice([1, 1, 2, 6])):
            self.pass_time(0.4)
            if beating:
                self.beat_all()

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.active is not None and self.now < end:
            wanted = self.active.next_tick()
            self.now = end if wanted is None else min(end, max(wanted, self.now + 0.01))
            self.active.tick(self.now)
        self.now = end

    def _ask(
        self, decide: Callable[[Controller], Any], answered: Callable[[Any], None] = lambda _: None
    ) -> None:
        if self.active is not None:
            self.active.submit(decide, answered)

    # ---- brokers come and go

    def start(self) -> None:
        stopped = [broker for broker in self.brokers.values() if not broker.running]
        if stopped:
            self._start(self.rng.choice(stopped), self.rng.random() < 0.6)

    def _start(self, broker: ModelBroker, is_lossless: bool) -> None:
        """A new run. Without a promise that nothing is lost, something may be."""
        broker.running, broker.stopping = True, False
        broker.incarnation += 1
        broker.epoch = None
        broker.is_lossless = broker.is_lossless and is_lossless
        broker.view = EMPTY_IMAGE
        broker.fetched, broker.pending = {}, {}
        if not is_lossless:
            kept = self.rng.choice([0.0, 0.0, 0.5, 1.0])
            broker.held = {key: int(version * kept) for key, version in broker.held.items()}
        self.note(f"broker {broker.id}, run {broker.incarnation}, lossless {is_lossless}")
        self._register(broker)

    def _register(self, broker: ModelBroker) -> None:
        run = broker.incarnation
        request = registration(
            broker.id,
            rack=f"r{broker.id % 2}",
            previous_epoch=broker.last_epoch if broker.is_lossless else -1,
        )
        request.incarnation_id = _incarnation(broker)

        def registered(outcome: Any) -> None:
            if broker.incarnation != run:
                return
            if not isinstance(outcome, RequestError):
                broker.epoch = broker.last_epoch = outcome.broker_epoch
                broker.is_lossless = True
            elif outcome.code is ErrorCode.STALE_BROKER_EPOCH and self.active is not None:
                # A request of an earlier run was still on its way. By its incarnation the broker knows it for its own.
                broker.last_epoch = self.active.image.brokers[broker.id].epoch

        if self.active is not None:
            self.active.register_broker(request, self.now, registered)

    def kill(self) -> None:
        broker = self._some_running()
        if broker is not None:
            self.note(broker.id)
            broker.running = False
            if self.active is not None and self.rng.random() < 0.5:
                self.active.broker_gone(broker.id, self.now)

    def bounce(self) -> None:
        """Dead, noticed, and back, within a second; nobody else has done anything meanwhile."""
        broker = self._some_running()
        if broker is None or self.active is None:
            return
        broker.running = False
        self.active.broker_gone(broker.id, self.now)
        self.pass_time(0.4)
        self._start(broker, is_lossless=self.rng.random() < 0.4)
        self.commit()
        self._metadata(broker)
        self._beat(broker)

    def break_connection(self) -> None:
        broker = self._some_running()
        if broker is not None and self.active is not None:
            self.active.broker_gone(broker.id, self.now)

    def stop(self) -> None:
        broker = self._some_running()
        if broker is not None:
            self.note(broker.id)
            broker.stopping = True

    def unregister(self) -> None:
        broker = self.rng.choice(list(self.brokers.values()))
        self.note(broker.id)
        self._ask(partial(Controller.unregister_broker, request=UnregisterBrokerRequest(broker.id)))

    def beat(self) -> None:
        broker = self._some_running()
        if broker is not None:
            self._beat(broker)

    def beat_all(self) -> None:
        for broker in self.brokers.values():
            if broker.running:
                self._beat(broker)

    def _beat(self, broker: ModelBroker) -> None:
        if self.active is None or not broker.running:
            return
        if broker.epoch is None:
            self._register(broker)
            return
        run = broker.incarnation
        request = BrokerHeartbeatRequest(
            broker.id,
            broker.epoch,
            broker.view.offset,
            want_fence=not self.is_healing and self.rng.random() < 0.02,
            want_shut_down=broker.stopping,
            leaderless_log_ends=self._leaderless(broker),
        )

        def answered(outcome: Any) -> None:
            if broker.incarnation != run:
                return
            if isinstance(outcome, RequestError):
                if outcome.code == ErrorCode.STALE_BROKER_EPOCH:
                    broker.running = False  # it ends, and is started anew
            elif outcome.should_shut_down:
                broker.running = False
                self.reached.add("clean stop")

        self.active.heartbeat(request, self.now, answered)

    def _leaderless(self, broker: ModelBroker) -> list[LeaderlessTopic]:
        found = []
        for known, index, partition in broker.view.partitions():
            if is_abandoned(partition) and broker.id in partition.last_known_elr:
                held = broker.held.get((known.topic_id, index), 0)
                said = LeaderlessPartition(index, partition.leader_epoch, 0, held)
                found.append(LeaderlessTopic(known.topic_id, [said]))
        return found

    def _some_running(self) -> ModelBroker | None:
        running = [broker for broker in self.brokers.values() if broker.running]
        return self.rng.choice(running) if running else None

    # ---- replication, as it promises to be

    def metadata(self) -> None:
        broker = self._some_running()
        if broker is not None:
            self._metadata(broker)

    def metadata_all(self) -> None:
        for broker in self.brokers.values():
            if broker.running:
                self._metadata(broker)

    def _metadata(self, broker: ModelBroker) -> None:
        """The broker sees what is committed."""
        self._read_on()
        broker.view = self.committed_image
        for key, pending in list(broker.pending.items()):
            partition = broker.leads(key)
            if partition is None or partition.partition_epoch > pending.partition_epoch:
                del broker.pending[key]

    def write(self) -> None:
        for key in list(self.acknowledged):
            for broker in self.brokers.values():
                self._write(broker, key)

    def _write(self, leader: ModelBroker, key: Key) -> None:
        partition = leader.leads(key)
        if partition is None or leader.epoch is None:
            return
        known = leader.view.topics_by_id[key[0]]
        minimum = min(
            rules_for(leader.view, known.name, SETTINGS).min_insync_replicas, len(partition.replicas)
        )
        members = [self.brokers[member] for member in leader.maximal_isr(key, partition)]
        if len(partition.isr) < minimum or not all(self._follows(member, leader, key) for member in members):
            return
        self.reached.add("write")
        version = leader.held.get(key, 0) + 1
        for member in members:
            member.held[key] = version
        if partition.leader_epoch >= self.lossy_epochs.get(key, 0):
            self.acknowledged[key] = max(version, self.acknowledged[key])

    def _follows(self, follower: ModelBroker, leader: ModelBroker, key: Key) -> bool:
        """Both agree on the leader epoch, and the follower has nothing that the leader lacks (else it would truncate first)."""
        mine, theirs = leader.leads(key), _partition(follower.view, key)
        return (
            follower.is_ready
            and mine is not None
            and theirs is not None
            and theirs.leader_epoch == mine.leader_epoch
            and follower.held.get(key, 0) <= leader.held.get(key, 0)
        )

    def fetch(self) -> None:
        for key in list(self.acknowledged):
            for broker in self.brokers.values():
                if self.rng.random() < 0.7:
                    self._fetch(broker, key)

    def _fetch(self, follower: ModelBroker, key: Key) -> None:
        """Catches up with the leader, and truncates what the leader does not have."""
        seen = _partition(follower.view, key)
        if seen is None or seen.leader in (-1, follower.id) or follower.id not in seen.replicas:
            return
        leader = self.brokers[seen.leader]
        leading = leader.leads(key)
        if not follower.is_ready or follower.epoch is None or leading is None:
            return
        if leading.leader_epoch != seen.leader_epoch:
            return
        follower.held[key] = leader.held.get(key, 0)
        fetches = leader.fetched.setdefault((key, leading.leader_epoch), {})
        fetches[follower.id] = Fetched(follower.held[key], follower.epoch)

    def propose(self) -> None:
        for key in list(self.acknowledged):
            for broker in self.brokers.values():
                self._propose(broker, key, self.rng.random() < 0.7)

    def _propose(self, leader: ModelBroker, key: Key, expand: bool) -> None:
        partition = leader.leads(key)
        if partition is None or leader.epoch is None:
            return
        if key in leader.pending:
            self._post(leader, key)
            return
        fetched = leader.fetched.get((key, partition.leader_epoch), {})
        version = leader.held.get(key, 0)
        if expand:
            caught_up = [
                member
                for member in partition.replicas
                if member in fetched and fetched[member].version >= version and member not in partition.isr
            ]
            isr = (*partition.isr, *caught_up)
        else:
            isr = tuple(member for member in partition.isr if member == leader.id or self.rng.random() < 0.5)
        recovered = partition.leader_recovery_state == LeaderRecoveryState.RECOVERED
        if isr == partition.isr and recovered:
            return
        states = [
            BrokerState(
                member, leader.epoch if member == leader.id else _epoch_of(member, fetched, leader.view)
            )
            for member in isr
        ]
        request = _request(leader.id, leader.epoch, key, partition, states)
        leader.pending[key] = Pending(isr, partition.partition_epoch, request)
        self.in_flight.append(partial(self._send, leader, leader.incarnation, key, request))

    def _post(self, leader: ModelBroker, key: Key) -> None:
        request = leader.pending[key].request
        if all(request not in posted.args for posted in self.in_flight):
            leader.pending[key] = leader.pending[key]._replace(is_repeated=True)
            self.in_flight.append(partial(self._send, leader, leader.incarnation, key, request))

    def _withdraw(self, leader: ModelBroker, key: Key) -> None:
        """The ISR as it is, in place of what was proposed: until that is taken, what was proposed may be."""
        pending, partition = leader.pending[key], leader.leads(key)
        assert partition is not None and leader.epoch is not None
        states = [BrokerState(member, UNCHECKED_EPOCH) for member in partition.isr]
        self.reached.add("withdrawn")
        request = _request(leader.id, leader.epoch, key, partition, states)
        leader.pending[key] = pending._replace(request=request)
        self.in_flight.append(partial(self._send, leader, leader.incarnation, key, request))

    def _send(self, leader: ModelBroker, run: int, key: Key, request: AlterPartitionRequest) -> None:
        def answered(outcome: Any) -> None:
            if leader.incarnation != run or isinstance(outcome, RequestError):
                return  # nobody knows what became of it: the proposal stays pending
            code = outcome.topics[0].partitions[0].error_code
            self.reached.add(ErrorCode(code).name)
            pending = leader.pending.get(key)
            if (
                code == ErrorCode.INELIGIBLE_REPLICA
                and pending is not None
                and pending.request is request
                and leader.leads(key) is not None
            ):
                # The only refusal that comes after the epochs were compared: nothing has changed. Any other may be the answer to a
                # repetition, and the first time it was accepted.
                if pending.is_repeated:
                    self._withdraw(leader, key)
                else:
                    del leader.pending[key]

        def decide(controller: Controller) -> ControllerResult[AlterPartitionResponse]:
            image = controller.image
            result = controller.alter_partition(request)
            check_accepted(image, request, result.response)
            return result

        self._ask(decide, answered)

    def deliver(self) -> None:
        """In any order: they come over different connections, and after any time."""
        self.rng.shuffle(self.in_flight)
        for _ in range(self.rng.randrange(len(self.in_flight) + 1)):
            if self.in_flight:
                message = self.in_flight.pop()
                if self.rng.random() < 0.15:
                    self._say_twice(message)
                message()

    def _say_twice(self, message: partial[None]) -> None:
        leader, run, key, request = message.args
        self.in_flight.append(message)
        pending = leader.pending.get(key)
        if leader.incarnation == run and pending is not None and pending.request is request:
            leader.pending[key] = pending._replace(is_repeated=True)

    # ---- administration

    def create(self) -> None:
        wanted = topic(
            self.rng.choice(TOPICS),
            self.rng.randrange(1, 3),
            self.rng.choice([1, 2, 3, 3, 3, 3]),
            configs={"min.insync.replicas": self.rng.choice(["1", "2", "2", "3"])},
        )
        self._ask(lambda controller: controller.create_topics(CreateTopicsRequest([wanted])))

    def delete(self) -> None:
        state = DeleteTopicState(self.rng.choice(TOPICS))
        self._ask(lambda controller: controller.delete_topics(DeleteTopicsRequest(topics=[state])))

    def grow(self) -> None:
        wanted = CreatePartitionsTopic(self.rng.choice(TOPICS), self.rng.randrange(2, 4), None)
        self._ask(lambda controller: controller.create_partitions(CreatePartitionsRequest([wanted])))

    def configure(self) -> None:
        name, values = self.rng.choice(
            [
                ("min.insync.replicas", ["1", "2", "3"]),
                ("unclean.leader.election.enable", ["true", "false", "false"]),
            ]
        )
        change = AlterableConfig(name, 0, self.rng.choice(values))
        resource = AlterConfigsResource(2, self.rng.choice(TOPICS), [change])
        self.note(resource)
        self._ask(
            lambda controller: controller.incremental_alter_configs(
                IncrementalAlterConfigsRequest([resource])
            )
        )

    def elect(self) -> None:
        unclean = self.rng.random() < 0.2
        known = len(self.quorum.log)
        self._ask(lambda controller: controller.elect_leaders(ElectLeadersRequest(int(unclean), None)))
        if unclean:
            self.by_hand |= {batch.data for batch in self.quorum.log[known:]}


_ACTIONS = {
    "beat": 6, "beat_all": 10, "metadata": 6, "metadata_all": 12, "write": 6, "fetch": 10, "propose": 12, "deliver": 12, "commit": 14,
    "commit_some": 4, "wait": 6, "start": 8, "kill": 2, "bounce": 6, "stop": 1, "break_connection": 1, "unregister": 0.3, "lose_controller": 1, "take_over": 6,
    "create": 2, "delete": 0.2, "grow": 0.3, "configure": 2, "elect": 1,
}  # fmt: skip


def _partition(image: MetadataImage, key: Key) -> PartitionImage | None:
    known = image.topics_by_id.get(key[0])
    return known.partitions.get(key[1]) if known is not None else None


def _epoch_of(member: int, fetched: dict[int, Fetched], view: MetadataImage) -> int:
    if member in fetched:
        return fetched[member].broker_epoch
    known = view.brokers.get(member)
    return known.epoch if known is not None else -1


def _request(
    leader_id: int, leader_epoch: int, key: Key, partition: PartitionImage, isr: list[BrokerState]
) -> AlterPartitionRequest:
    data = RequestPartitionData(
        key[1], partition.leader_epoch, [], isr, LeaderRecoveryState.RECOVERED, partition.partition_epoch
    )
    return AlterPartitionRequest(leader_id, leader_epoch, [RequestTopicData(key[0], [data])])


def _incarnation(broker: ModelBroker) -> bytes:
    return bytes([broker.id]) + broker.incarnation.to_bytes(15, "big")
