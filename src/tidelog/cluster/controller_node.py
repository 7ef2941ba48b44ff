"""The controller of this node: what the quorum tells it, what the clock tells it, and the requests that only the active one answers.

Ties `ControllerService` to the quorum's log and to time. Requests are messages, whoever brings them: a connection of another node, a client's request that a broker has forwarded, or the
broker in this very process. On a node that is not the active controller everything is refused with NOT_CONTROLLER, and the asker looks for another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tidelog.cluster.missing_nodes import MissingNodes
from tidelog.controller.controller import Controller
from tidelog.controller.image import MetadataImage
from tidelog.controller.metadata_log import EncodedBatch
from tidelog.controller.result import ControllerResult
from tidelog.controller.service import ControllerService
from tidelog.controller.service_ports import NotLeaderError
from tidelog.errors import RequestError
from tidelog.ports import Clock, Scheduler, TimerHandle
from tidelog.quorum.driver import NotLeader, Quorum
from tidelog.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from tidelog.wire.messages.alter_configs import AlterConfigsRequest
from tidelog.wire.messages.alter_partition import AlterPartitionRequest
from tidelog.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from tidelog.wire.messages.broker_registration import BrokerRegistrationRequest
from tidelog.wire.messages.controller_registration import ControllerRegistrationRequest
from tidelog.wire.messages.create_partitions import CreatePartitionsRequest
from tidelog.wire.messages.create_topics import CreateTopicsRequest
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest
from tidelog.wire.messages.elect_leaders import ElectLeadersRequest
from tidelog.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from tidelog.wire.messages.unregister_broker import UnregisterBrokerRequest
from tidelog.wire.messages.update_features import UpdateFeaturesRequest

Answered = Callable[[Any], None]
"""With the response, or with the RequestError that the asker is to be told."""

_DECISIONS: Final[dict[type, Callable[[Controller, Any], ControllerResult[Any]]]] = {
    AllocateProducerIdsRequest: Controller.allocate_producer_ids,
    AlterConfigsRequest: Controller.alter_configs,
    AlterPartitionRequest: Controller.alter_partition,
    ControllerRegistrationRequest: Controller.register_controller,
    CreatePartitionsRequest: Controller.create_partitions,
    CreateTopicsRequest: Controller.create_topics,
    DeleteTopicsRequest: Controller.delete_topics,
    ElectLeadersRequest: Controller.elect_leaders,
    IncrementalAlterConfigsRequest: Controller.incremental_alter_configs,
    UpdateFeaturesRequest: Controller.update_features,
}


class QuorumWriter:
    """Implements `service_ports.MetadataQuorum`."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum

    @property
    def end_offset(self) -> int:
        return self._quorum.end_offset

    def append(self, batches: Sequence[EncodedBatch], *, epoch: int) -> int:
        try:
            return self._quorum.append([batch.data for batch in batches], epoch)
        except NotLeader as error:
            raise NotLeaderError(str(error)) from error


class ControllerNode:
    """Implements `cluster.metadata.Leadership`."""

    def __init__(
        self,
        service: ControllerService,
        *,
        clock: Clock,
        scheduler: Scheduler,
        missing: MissingNodes,
    ) -> None:
        """`missing` calls `broker_gone`."""
        self.service = service
        self._clock = clock
        self._scheduler = scheduler
        self._missing = missing
        self._timer: TimerHandle | None = None
        self._timer_at: float | None = None

    @property
    def is_active(self) -> bool:
        return self.service.is_active

    # ---- requests

    def handle(self, request: Any, answered: Answered) -> None:
        now = self._clock.monotonic()
        match request:
            case BrokerHeartbeatRequest():
                self._missing.heard(request.broker_id)
                self.service.heartbeat(request, now, answered)
            case BrokerRegistrationRequest():
                self.service.register_broker(request, now, answered)
            case UnregisterBrokerRequest():
                self.service.unregister_broker(request, now, answered)
            case _:
                decide = _DECISIONS[type(request)]
                self.service.submit(lambda controller: decide(controller, request), answered)
        self._set_timer()

    def submit(
        self,
        decide: Callable[[Controller], ControllerResult[Any]],
        answered: Callable[[Any | RequestError], None],
    ) -> None:
        """What the broker in this process wants of the controller, decided by code of its own."""
        self.service.submit(decide, answered)
        self._set_timer()

    def connection_lost(self, broker_id: int) -> None:
        """The connection that carried a broker's heartbeats has ended. A process that is killed closes it; so does a live one that had waited too long for an answer."""
        if self.is_active:
            self._missing.lost(broker_id)

    def broker_gone(self, broker_id: int) -> None:
        """Nobody listens at that broker's address any more."""
        if self.is_active:
            self.service.broker_gone(broker_id, self._clock.monotonic())
            self._set_timer()

    # ---- leadership

    def lead(
        self, epoch: int, image: MetadataImage, *, torn_transaction: bool, predecessor: int | None
    ) -> None:
        now = self._clock.monotonic()
        self.service.lead(epoch, image, now, torn_transaction=torn_transaction, predecessor=predecessor)
        if predecessor is not None:
            self._missing.lost(predecessor)  # it has probably died, and its broker with it
        self._set_timer()

    def lost(self) -> None:
        self.service.lost()
        self._set_timer()

    def committed(self, end_offset: int) -> None:
        self.service.committed(end_offset)
        self._set_timer()

    def failed(self, error: Exception) -> None:
        self.service.failed(error)
        self._set_timer()

    def close(self) -> None:
        self.service.lost()
        self._set_timer()

    # ---- time

    def _set_timer(self) -> None:
        wanted = self.service.next_tick()
        if wanted == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = wanted
        if wanted is not None:
            delay = max(0.0, wanted - self._clock.monotonic())
            self._timer = self._scheduler.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        self.service.tick(self._clock.monotonic())
        self._set_timer()
