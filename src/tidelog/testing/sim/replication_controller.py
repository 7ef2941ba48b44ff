"""A controller of one partition that fits on a page: it follows the rules of KIP-966 and nothing else, never fails and has no quorum.

It stands where the real one will stand when the whole cluster is simulated. Owns who is registered, fenced, leader, in the ISR and in the
ELR. What it decides is an `Image`, numbered; brokers get the newest with every heartbeat, and once when it is made, if that message arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tidelog.replication.assignment import NO_LEADER, Assignment
from tidelog.testing.sim.events import EventHeap, Process
from tidelog.testing.sim.replication_network import Network, NetworkPeers
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    RequestPartitionData,
    ResponsePartitionData,
    ResponseTopicData,
)

CONTROLLER_ID: Final = 3000
SESSION_S: Final = 1.5


class Register(NamedTuple):
    broker_id: int
    incarnation: int
    lossless: bool


class Registered(NamedTuple):
    broker_epoch: int
    """-1: an earlier run is still believed to be alive; try again."""


class Heartbeat(NamedTuple):
    broker_id: int
    broker_epoch: int
    version: int
    wants_shutdown: bool = False


class HeartbeatAnswer(NamedTuple):
    image: Image | None
    may_stop: bool = False
    must_register: bool = False
    """Another run has registered meanwhile, or a message of an earlier one came late."""


class Publish(NamedTuple):
    image: Image


class BrokerView(NamedTuple):
    broker_epoch: int
    is_active: bool


class Image(NamedTuple):
    version: int
    assignment: Assignment
    elr: tuple[int, ...]
    brokers: dict[int, BrokerView]


@dataclass(slots=True)
class Registration:
    broker_epoch: int
    incarnation: int
    version: int
    heard_at: float
    fenced: bool = True
    shutting_down: bool = False

    @property
    def is_active(self) -> bool:
        return not self.fenced and not self.shutting_down


class SimController:
    def __init__(self, heap: EventHeap, network: Network, replicas: tuple[int, ...], *, min_isr: int) -> None:
        self.heap = heap
        self.process = Process(heap)
        self.min_isr = min_isr
        self._peers = NetworkPeers(network, CONTROLLER_ID, self.process)
        self.registrations: dict[int, Registration] = {}
        self.assignment = Assignment(NO_LEADER, 0, 0, replicas, ())
        self.elr: tuple[int, ...] = replicas  # of an empty log, everybody holds all that is committed
        self.versions: list[Image] = []
        self.isr_of: dict[int, tuple[int, ...]] = {}
        self.on_change: Callable[[Image], None] = lambda image: None
        self.elections = self.joins = self.leaves = 0
        self._next_epoch = 1
        network.nodes[CONTROLLER_ID] = self
        self._tick()

    @property
    def effective_min(self) -> int:
        return min(self.min_isr, len(self.assignment.replicas))

    def is_active(self, broker_id: int) -> bool:
        registration = self.registrations.get(broker_id)
        return registration is not None and registration.is_active

    # ---- requests

    def handle(self, source: int, request: Any, respond: Callable[[Any], None], /) -> None:
        if isinstance(request, Register):
            respond(self._register(request))
        elif isinstance(request, Heartbeat):
            respond(self._heartbeat(request))
        else:
            assert isinstance(request, AlterPartitionRequest)
            respond(self._alter(request))

    def _register(self, request: Register) -> Registered:
        known = self.registrations.get(request.broker_id)
        if known is not None and known.incarnation == request.incarnation:
            return Registered(known.broker_epoch)
        if known is not None and not known.fenced and self.heap.now - known.heard_at < SESSION_S:
            return Registered(-1)
        self._next_epoch += 1
        registration = Registration(
            self._next_epoch, request.incarnation, len(self.versions) + 1, self.heap.now
        )
        self.registrations[request.broker_id] = registration
        self._leave(request.broker_id, lossy=not request.lossless)
        return Registered(registration.broker_epoch)

    def _heartbeat(self, request: Heartbeat) -> HeartbeatAnswer:
        known = self.registrations.get(request.broker_id)
        if known is None or known.broker_epoch != request.broker_epoch:
            return HeartbeatAnswer(None, must_register=True)
        known.heard_at = self.heap.now
        if request.wants_shutdown and not known.shutting_down:
            known.shutting_down = True
            self._leave(request.broker_id)
        elif known.fenced and not known.shutting_down and request.version >= known.version:
            known.fenced = False
            self._change(self.assignment.isr, self.elr)
        image = self.versions[-1] if self.versions and request.version < len(self.versions) else None
        return HeartbeatAnswer(image, known.shutting_down and self.assignment.leader != request.broker_id)

    def _tick(self) -> None:
        for broker_id, known in self.registrations.items():
            if not known.fenced and self.heap.now - known.heard_at > SESSION_S:
                known.fenced = True
                self._leave(broker_id)
        self.process.call_later(SESSION_S / 5, self._tick)

    # ---- AlterPartition

    def _alter(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        known = self.registrations.get(request.broker_id)
        if known is None or known.broker_epoch != request.broker_epoch:
            return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        topic = request.topics[0]
        wanted = topic.partitions[0]
        error = self._judge(request.broker_id, wanted)
        if error == ErrorCode.NONE:
            isr = tuple(member.broker_id for member in wanted.new_isr_with_epochs)
            self.joins += len(set(isr) - set(self.assignment.isr))
            self.leaves += len(set(self.assignment.isr) - set(isr))
            self._change(isr, self._next_elr(isr))
        now = self.assignment
        answer = ResponsePartitionData(
            partition_index=wanted.partition_index,
            error_code=error,
            leader_id=now.leader,
            leader_epoch=now.leader_epoch,
            isr=list(now.isr),
            partition_epoch=now.partition_epoch,
        )
        return AlterPartitionResponse(
            topics=[ResponseTopicData(topic_id=topic.topic_id, partitions=[answer])]
        )

    def _judge(self, broker_id: int, wanted: RequestPartitionData) -> ErrorCode:
        now = self.assignment
        if broker_id != now.leader or wanted.leader_epoch != now.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if wanted.partition_epoch != now.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        isr = [member.broker_id for member in wanted.new_isr_with_epochs]
        if broker_id not in isr or len(set(isr)) != len(isr) or not set(isr) <= set(now.replicas):
            return ErrorCode.INVALID_REQUEST
        for member in wanted.new_isr_with_epochs:
            known = self.registrations.get(member.broker_id)
            if known is None or not known.is_active or member.broker_epoch not in (-1, known.broker_epoch):
                return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE

    # ---- who leads

    def _next_elr(self, isr: tuple[int, ...], lossy: int = NO_LEADER) -> tuple[int, ...]:
        """Below min.insync.replicas, who leaves the ISR stays eligible: nothing is committed any more that it would lack."""
        if len(isr) >= self.effective_min:
            return ()
        once = {*self.assignment.isr, *self.elr} - {*isr, lossy}
        return tuple(broker_id for broker_id in self.assignment.replicas if broker_id in once)

    def _leave(self, broker_id: int, *, lossy: bool = False) -> None:
        isr = tuple(other for other in self.assignment.isr if other != broker_id)
        elr = self._next_elr(isr, broker_id if lossy else NO_LEADER)
        self._change(isr, elr)

    def elect(self, broker_id: int) -> bool:
        """Let another member of the ISR lead, as a preferred election does."""
        if broker_id == self.assignment.leader or broker_id not in self.assignment.isr:
            return False
        if not self.is_active(broker_id):
            return False
        self._change(self.assignment.isr, self.elr, leader=broker_id)
        return True

    def _change(self, isr: tuple[int, ...], elr: tuple[int, ...], *, leader: int | None = None) -> None:
        before = self.assignment
        chosen = self._elected(isr, elr) if leader is None else leader
        if chosen != NO_LEADER and chosen not in isr:
            isr = (chosen,)
            elr = tuple(other for other in elr if other != chosen) if self.effective_min > 1 else ()
        changed = chosen != before.leader
        self.elections += changed and chosen != NO_LEADER
        self.assignment = Assignment(
            chosen,
            before.leader_epoch + changed,
            before.partition_epoch + ((chosen, isr, elr) != (before.leader, before.isr, self.elr)),
            before.replicas,
            isr,
        )
        self.elr = elr
        self.isr_of[self.assignment.partition_epoch] = isr
        image = Image(
            len(self.versions) + 1,
            self.assignment,
            elr,
            {
                broker_id: BrokerView(known.broker_epoch, known.is_active)
                for broker_id, known in self.registrations.items()
            },
        )
        self.versions.append(image)
        self.on_change(image)
        for broker_id, known in self.registrations.items():
            if not known.fenced:
                self._peers.ask(broker_id, Publish(image), lambda answer: None, timeout_s=1.0)

    def _elected(self, isr: tuple[int, ...], elr: tuple[int, ...]) -> int:
        leader = self.assignment.leader
        if leader in isr and self.is_active(leader):
            return leader
        for candidates in (isr, elr):
            for broker_id in self.assignment.replicas:
                if broker_id in candidates and self.is_active(broker_id):
                    return broker_id
        return NO_LEADER
