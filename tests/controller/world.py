"""A controller with its log in memory: what a test says is validated, written, replayed, and can be read back."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from tidelog.controller.controller import Controller
from tidelog.controller.delta import MetadataDelta
from tidelog.controller.features import SUPPORTED_FEATURES
from tidelog.controller.image import MetadataImage, ResourceType
from tidelog.controller.metadata_log import bootstrap_records, encode_batches, replay_log
from tidelog.controller.result import ControllerResult, ControllerSettings
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from tidelog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicConfigs,
    CreateTopicsRequest,
)

R = TypeVar("R")
CLUSTER_ID = "test-cluster"


class TinyValidator:
    """Knows three topic settings, one broker setting and one of each other kind."""

    LISTS: ClassVar = {(ResourceType.TOPIC, "cleanup.policy"): ("delete",)}

    def validate_topic(self, topic: str, configs: Mapping[str, str]) -> None:
        for name, value in configs.items():
            if name not in (
                "retention.ms",
                "cleanup.policy",
                "min.insync.replicas",
                "unclean.leader.election.enable",
            ):
                raise RequestError(ErrorCode.INVALID_CONFIG, f"unknown topic setting {name}")
            if name == "retention.ms" and not value.lstrip("-").isdigit():
                raise RequestError(ErrorCode.INVALID_CONFIG, f"{name} cannot be {value}")

    def validate_broker(
        self, broker_id: int | None, configs: Mapping[str, str], changed: frozenset[str]
    ) -> None:
        assert changed <= set(configs)
        for name in changed:
            if name not in ("log.retention.ms", "min.insync.replicas"):
                raise RequestError(ErrorCode.INVALID_REQUEST, f"{name} cannot be changed")

    def validate_group(self, group: str, configs: Mapping[str, str]) -> None:
        if set(configs) - {"consumer.session.timeout.ms"}:
            raise RequestError(ErrorCode.INVALID_CONFIG, "unknown group setting")

    def validate_client_metrics(self, subscription: str, configs: Mapping[str, str]) -> None:
        if set(configs) - {"interval.ms"}:
            raise RequestError(ErrorCode.INVALID_REQUEST, "unknown client metrics setting")

    def list_default(self, resource_type: int, name: str) -> tuple[str, ...] | None:
        return self.LISTS.get((ResourceType(resource_type), name))

    def describe_topic(
        self, configs: Mapping[str, str], broker_defaults: Mapping[str, str]
    ) -> list[CreatableTopicConfigs]:
        min_isr = configs.get("min.insync.replicas", broker_defaults.get("min.insync.replicas", "1"))
        return [CreatableTopicConfigs(name="min.insync.replicas", value=min_isr)]


class World:
    def __init__(self, *, seed: int = 0, batch_records_max: int = 10_000, **settings: Any) -> None:
        self.log: list[bytes] = []
        self.next_offset = 0
        self.epoch = 1
        self._batch_records_max = batch_records_max
        self.controller = Controller(
            cluster_id=CLUSTER_ID,
            settings=ControllerSettings(**settings),
            validator=TinyValidator(),
            rng=random.Random(seed),
        )
        self.write(bootstrap_records())

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    def write(self, records: Sequence[Any]) -> MetadataDelta:
        """Append and replay, as the node does."""
        for batch in encode_batches(
            records,
            base_offset=self.next_offset,
            leader_epoch=self.epoch,
            timestamp_ms=1_700_000_000_000,
            batch_records_max=self._batch_records_max,
        ):
            self.log.append(batch.data)
            self.next_offset = batch.next_offset
        return self.controller.replay(records, offset=self.next_offset - 1, epoch=self.epoch)

    def do(self, result: ControllerResult[R]) -> R:
        if result.records:
            self.write(result.records)
        return result.response

    def reread(self) -> MetadataImage:
        """What another node would know from the log alone."""
        return replay_log(self.log)[0]

    def add_broker(
        self,
        broker_id: int,
        *,
        rack: str | None = None,
        incarnation: int = 0,
        previous_epoch: int = -1,
        unfence: bool = True,
    ) -> int:
        """Registers and unfences; returns the epoch."""
        request = registration(broker_id, rack=rack, incarnation=incarnation, previous_epoch=previous_epoch)
        epoch = self.do(self.controller.register_broker(request, next_offset=self.next_offset)).broker_epoch
        if unfence:
            self.do(self.controller.unfence_broker(broker_id, epoch))
        return epoch

    def create(self, *topics: CreatableTopic, validate_only: bool = False) -> list[int]:
        """The error code of each answer."""
        request = CreateTopicsRequest(list(topics), validate_only=validate_only)
        return [result.error_code for result in self.do(self.controller.create_topics(request)).topics]


def registration(
    broker_id: int, *, rack: str | None = None, incarnation: int = 0, previous_epoch: int = -1
) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(
        broker_id=broker_id,
        cluster_id=CLUSTER_ID,
        incarnation_id=bytes([incarnation]) * 16,
        listeners=[Listener("PLAINTEXT", "127.0.0.1", 9092 + broker_id, 0)],
        features=[Feature(name, low, high) for name, (low, high) in SUPPORTED_FEATURES.items()],
        rack=rack,
        log_dirs=[bytes([9]) * 15 + bytes([broker_id])],
        previous_broker_epoch=previous_epoch,
    )


def topic(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    *,
    assignments: Mapping[int, list[int]] | Sequence[tuple[int, list[int]]] = (),
    configs: Mapping[str, str | None] | Sequence[tuple[str, str | None]] = (),
) -> CreatableTopic:
    pairs = assignments.items() if isinstance(assignments, Mapping) else assignments
    settings = configs.items() if isinstance(configs, Mapping) else configs
    return CreatableTopic(
        name,
        partitions,
        replicas,
        [CreatableReplicaAssignment(index, brokers) for index, brokers in pairs],
        [CreatableTopicConfig(key, value) for key, value in settings],
    )
