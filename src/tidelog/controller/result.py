"""What a handler gives back, what it must know about this cluster's settings, and whom it asks about settings' values.

Owns the three types that every handler shares. A handler never changes anything: it returns records, the caller appends
them to the metadata log, and `Controller.replay` makes them true (D5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.errors import RequestError
from tidelog.wire.messages.create_topics import CreatableTopicConfigs

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ControllerResult(Generic[R]):
    """`records` belong together: all of them are appended, or none. `response` may be sent once they are durable."""

    response: R
    records: Sequence[MetadataRecord] = field(default=())


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The few settings on which the controller's answers depend, and its limits (D9)."""

    num_partitions: int = 1
    default_replication_factor: int = 1
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    delete_topic_enable: bool = True
    partitions_per_request_max: int = 10_000
    partitions_per_cluster_max: int = 200_000
    records_per_request_max: int = 10_000
    elections_per_balance_max: int = 1000


class ConfigValidator(Protocol):
    """Knows every setting there is. `tidelog.config` implements it; each method raises RequestError to refuse."""

    def validate_topic(self, topic: str, configs: Mapping[str, str]) -> None:
        """All dynamic settings the topic would have."""
        ...

    def validate_broker(
        self, broker_id: int | None, configs: Mapping[str, str], changed: frozenset[str]
    ) -> None:
        """All dynamic settings that broker, or every broker (None), would have; `changed` names those now set."""
        ...

    def validate_group(self, group: str, configs: Mapping[str, str]) -> None: ...

    def validate_client_metrics(self, subscription: str, configs: Mapping[str, str]) -> None: ...

    def list_default(self, resource_type: int, name: str) -> tuple[str, ...] | None:
        """What a list setting holds where nobody set it: APPEND and SUBTRACT start from it. None: it is not a list."""
        ...

    def describe_topic(
        self, configs: Mapping[str, str], broker_defaults: Mapping[str, str]
    ) -> list[CreatableTopicConfigs]:
        """Every setting that a topic with these dynamic ones has, for the answer to CreateTopics (version 5 on)."""
        ...


def refuse_each(response: object, error: RequestError) -> bool:
    """Put the error of a change that was not made into the answer, where that has one result per thing that was to be changed."""
    if hasattr(response, "error_code"):
        return False
    for name in ("topics", "responses", "results"):
        for result in getattr(response, name, ()):
            if not result.error_code:
                result.error_code, result.error_message = error.code, error.message
        if hasattr(response, name):
            return True
    return False
