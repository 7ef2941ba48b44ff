"""The controller: every change of the cluster's metadata is decided here.

    result = controller.create_topics(request)        # decides, changes nothing
    for batch in encode_batches(result.records, …):   # the caller appends them to the metadata log
        …
    delta = controller.replay(result.records, offset=…, epoch=…)   # in the same turn, before the next handler
    …                                                 # result.response is sent when the log is durable

Owns the newest image, which includes records that are written but not yet durable; handlers must see them, or two
requests could create the same topic. Whoever serves clients keeps the image of the last durable offset instead: images
are values, keeping one costs nothing. Handlers of requests with many entries answer each entry; those with one
subject raise RequestError. `replay` is the only way state changes (D5, I18, I36).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tidelog.controller import broker_states, brokers, elect_leaders, topic_deletion
from tidelog.controller.alter_partition import alter_partition
from tidelog.controller.configs import ConfigChanges
from tidelog.controller.controller_registration import register_controller
from tidelog.controller.delta import MetadataDelta
from tidelog.controller.elect_leaders import ElectLeaders
from tidelog.controller.feature_updates import update_features
from tidelog.controller.heartbeats import ShutdownProgress, broker_heartbeat
from tidelog.controller.image import EMPTY_IMAGE, MetadataImage
from tidelog.controller.last_known import Survivor, elect_survivors
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.partitions import create_partitions
from tidelog.controller.producer_ids import allocate_producer_ids
from tidelog.controller.result import ConfigValidator, ControllerResult, ControllerSettings
from tidelog.controller.topics import TopicCreator
from tidelog.ports import Rng
from tidelog.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from tidelog.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from tidelog.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from tidelog.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from tidelog.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from tidelog.wire.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from tidelog.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from tidelog.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from tidelog.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from tidelog.wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse


class Controller:
    def __init__(
        self,
        *,
        cluster_id: str,
        settings: ControllerSettings,
        validator: ConfigValidator,
        rng: Rng,
        image: MetadataImage = EMPTY_IMAGE,
    ) -> None:
        self._cluster_id = cluster_id
        self._settings = settings
        self._validator = validator
        self._rng = rng
        self._image = image

    @property
    def image(self) -> MetadataImage:
        return self._image

    def replay(self, records: Iterable[MetadataRecord], *, offset: int, epoch: int) -> MetadataDelta:
        """Makes records true that were appended up to `offset`; `image` is the next one afterwards."""
        if offset < self._image.offset:
            raise ValueError(
                f"replay up to offset {offset}, but the image is at {self._image.offset} already"
            )
        delta = MetadataDelta(self._image).replay_all(records)
        self._image = delta.apply(offset=offset, epoch=epoch)
        return delta

    # ---- topics

    def create_topics(self, request: CreateTopicsRequest) -> ControllerResult[CreateTopicsResponse]:
        return TopicCreator(self._image, self._settings, self._validator, self._rng).create(request)

    def delete_topics(self, request: DeleteTopicsRequest) -> ControllerResult[DeleteTopicsResponse]:
        return topic_deletion.delete_topics(self._image, request, self._settings)

    def create_partitions(
        self, request: CreatePartitionsRequest
    ) -> ControllerResult[CreatePartitionsResponse]:
        return create_partitions(self._image, request, self._settings, self._rng)

    # ---- settings

    def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest
    ) -> ControllerResult[IncrementalAlterConfigsResponse]:
        return ConfigChanges(self._image, self._settings, self._validator).incremental_alter(request)

    def alter_configs(self, request: AlterConfigsRequest) -> ControllerResult[AlterConfigsResponse]:
        return ConfigChanges(self._image, self._settings, self._validator).alter(request)

    # ---- brokers

    def register_broker(
        self, request: BrokerRegistrationRequest, *, next_offset: int, session_active: bool = False
    ) -> ControllerResult[BrokerRegistrationResponse]:
        return brokers.register_broker(
            self._image,
            request,
            cluster_id=self._cluster_id,
            next_offset=next_offset,
            session_active=session_active,
            settings=self._settings,
        )

    def resume_broker(
        self, request: BrokerRegistrationRequest, *, next_offset: int, stopped_cleanly: bool
    ) -> ControllerResult[BrokerRegistrationResponse] | None:
        return brokers.resume_broker(
            self._image,
            request,
            cluster_id=self._cluster_id,
            next_offset=next_offset,
            stopped_cleanly=stopped_cleanly,
            settings=self._settings,
        )

    def broker_heartbeat(
        self,
        request: BrokerHeartbeatRequest,
        progress: ShutdownProgress = ShutdownProgress(),  # noqa: B008
    ) -> ControllerResult[BrokerHeartbeatResponse]:
        return broker_heartbeat(self._image, request, self._settings, progress)

    def fence_broker(self, broker_id: int) -> ControllerResult[None]:
        return broker_states.fence_broker(self._image, broker_id, self._settings)

    def unfence_broker(self, broker_id: int, broker_epoch: int) -> ControllerResult[None]:
        return broker_states.unfence_broker(self._image, broker_id, broker_epoch, self._settings)

    def begin_controlled_shutdown(self, broker_id: int, broker_epoch: int) -> ControllerResult[None]:
        return broker_states.begin_controlled_shutdown(self._image, broker_id, broker_epoch, self._settings)

    def unregister_broker(
        self, request: UnregisterBrokerRequest
    ) -> ControllerResult[UnregisterBrokerResponse]:
        return broker_states.unregister_broker(self._image, request, self._settings)

    # ---- who leads, who is in sync

    def alter_partition(self, request: AlterPartitionRequest) -> ControllerResult[AlterPartitionResponse]:
        return alter_partition(self._image, request, self._settings)

    def elect_leaders(self, request: ElectLeadersRequest) -> ControllerResult[ElectLeadersResponse]:
        return ElectLeaders(self._image, self._settings).elect(request)

    def balance_leaders(self) -> ControllerResult[bool]:
        return elect_leaders.balance_leaders(self._image, self._settings)

    def elect_leaderless(self) -> ControllerResult[bool]:
        return elect_leaders.elect_leaderless(self._image, self._settings)

    def elect_survivors(self, survivors: list[Survivor]) -> ControllerResult[None]:
        return elect_survivors(self._image, survivors, self._settings)

    # ---- the quorum's nodes, features

    def register_controller(
        self, request: ControllerRegistrationRequest
    ) -> ControllerResult[ControllerRegistrationResponse]:
        return register_controller(self._image, request)

    def update_features(
        self, request: UpdateFeaturesRequest, *, voters: Collection[int] = ()
    ) -> ControllerResult[UpdateFeaturesResponse]:
        return update_features(self._image, request, self._settings, voters=voters)

    # ---- producer ids

    def allocate_producer_ids(
        self, request: AllocateProducerIdsRequest
    ) -> ControllerResult[AllocateProducerIdsResponse]:
        return allocate_producer_ids(self._image, request)
