"""BrokerHeartbeat: what a broker says of itself, and which step follows.

    fenced ── caught up, wants in ──> active ── wants to stop, leads something ──> shutting down
      ^                                 │  │                                          │
      ├──────── wants to be fenced ─────┘  │ wants to stop, leads nothing             │ leads nothing, and the others
      ├────────────────────────────────────┘ (fenced, may stop)                       │ know who leads instead
      └───────────────────────────────────────────────────────────────────────────────┘ (fenced, may stop)

Owns that table (KIP-841). A broker that stops is let go only when every active broker has seen the metadata in which it leads
nothing any more, so that no client is sent to it afterwards. Decides and changes nothing: sessions are the caller's.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.controller import broker_states
from tidelog.controller.broker_states import current_broker
from tidelog.controller.image import BrokerImage, MetadataImage
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.result import ControllerResult, ControllerSettings
from tidelog.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse


class ShutdownProgress(NamedTuple):
    """How far a controlled shutdown is. `offset`: what the others must know, None until it was begun by this controller;
    `lowest_active_offset`: what all active brokers know, None when there are none.
    """

    offset: int | None = None
    lowest_active_offset: int | None = None

    @property
    def is_known_to_all(self) -> bool:
        if self.lowest_active_offset is None:
            return True
        return self.offset is not None and self.offset <= self.lowest_active_offset


def broker_heartbeat(
    image: MetadataImage,
    request: BrokerHeartbeatRequest,
    settings: ControllerSettings,
    progress: ShutdownProgress = ShutdownProgress(),  # noqa: B008 - a value
) -> ControllerResult[BrokerHeartbeatResponse]:
    """RequestError(STALE_BROKER_EPOCH) when it is not the registered run of the broker that speaks."""
    broker = current_broker(image, request.broker_id, request.broker_epoch)
    caught_up = request.current_metadata_offset >= broker.epoch  # the offset of its registration
    response = BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=broker.fenced)
    step = _step(image, broker, request, settings, progress, response)
    if not step:
        # Failed disks are told again with every heartbeat: a step that changes everything anyway goes first.
        offline = frozenset(request.offline_log_dirs)
        step = list(broker_states.directories_offline(image, broker, offline, settings).records)
    return ControllerResult(response, step)


def _step(
    image: MetadataImage,
    broker: BrokerImage,
    request: BrokerHeartbeatRequest,
    settings: ControllerSettings,
    progress: ShutdownProgress,
    response: BrokerHeartbeatResponse,
) -> list[MetadataRecord]:
    broker_id, epoch = broker.broker_id, broker.epoch
    if broker.fenced:
        response.should_shut_down = request.want_shut_down
        if request.want_shut_down or request.want_fence or not response.is_caught_up:
            return []
        response.is_fenced = False
        return list(broker_states.unfence_broker(image, broker_id, epoch, settings).records)
    if broker.in_controlled_shutdown:
        stops = not leads_any(image, broker_id) and progress.is_known_to_all
    else:
        stops = request.want_shut_down and (request.want_fence or not leads_any(image, broker_id))
        if request.want_shut_down and not stops:
            return list(broker_states.begin_controlled_shutdown(image, broker_id, epoch, settings).records)
    if not stops and not (request.want_fence and not broker.in_controlled_shutdown):
        return []
    response.is_fenced, response.should_shut_down = True, stops
    return list(broker_states.fence_broker(image, broker_id, settings).records)


def leads_any(image: MetadataImage, broker_id: int) -> bool:
    return any(partition.leader == broker_id for _, _, partition in image.partitions())
