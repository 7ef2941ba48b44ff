"""AlterConfigs and IncrementalAlterConfigs: dynamic settings of topics, brokers, groups and metric subscriptions.

Owns which changes are well formed and what records they become; what a setting may be is the `ConfigValidator`'s
business. Resources of one request succeed or fail one by one, and a refused one changes nothing. A change of
min.insync.replicas also changes who is an eligible leader (`min_insync`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

from tidelog.controller.elections import MIN_INSYNC_REPLICAS
from tidelog.controller.features import elr_enabled
from tidelog.controller.image import MetadataImage, ResourceKey, ResourceType
from tidelog.controller.metadata_records import ConfigRecord
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.min_insync import void_elr_records
from tidelog.controller.result import ConfigValidator, ControllerResult, ControllerSettings
from tidelog.errors import RequestError
from tidelog.storage.files import topic_name_problem
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages import alter_configs as legacy
from tidelog.wire.messages import incremental_alter_configs as incremental

C = TypeVar("C", legacy.AlterableConfig, incremental.AlterableConfig)


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Outcome(NamedTuple):
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


_BROKER_ID_DIGITS_MAX: Final = 10
_ALTERABLE: Final = frozenset(
    {ResourceType.TOPIC, ResourceType.BROKER, ResourceType.CLIENT_METRICS, ResourceType.GROUP}
)


class ConfigChanges:
    """One request against one image."""

    def __init__(
        self, image: MetadataImage, settings: ControllerSettings, validator: ConfigValidator
    ) -> None:
        self._image = image
        self._settings = settings
        self._validator = validator

    def incremental_alter(
        self, request: incremental.IncrementalAlterConfigsRequest
    ) -> ControllerResult[incremental.IncrementalAlterConfigsResponse]:
        outcomes, records = self._each(
            [
                (ResourceKey(resource.resource_type, resource.resource_name), resource.configs)
                for resource in request.resources
            ],
            self._incremented,
        )
        response = incremental.IncrementalAlterConfigsResponse(
            responses=[incremental.AlterConfigsResourceResponse(*outcome) for outcome in outcomes]
        )
        return ControllerResult(response, [] if request.validate_only else records)

    def alter(self, request: legacy.AlterConfigsRequest) -> ControllerResult[legacy.AlterConfigsResponse]:
        """The given settings replace all that the resource has."""
        outcomes, records = self._each(
            [
                (ResourceKey(resource.resource_type, resource.resource_name), resource.configs)
                for resource in request.resources
            ],
            self._replaced,
        )
        response = legacy.AlterConfigsResponse(
            responses=[legacy.AlterConfigsResourceResponse(*outcome) for outcome in outcomes]
        )
        return ControllerResult(response, [] if request.validate_only else records)

    # ---- one resource after the other

    def _each(
        self,
        resources: Sequence[tuple[ResourceKey, Sequence[C]]],
        changed: Callable[[ResourceKey, Sequence[C]], dict[str, str]],
    ) -> tuple[list[Outcome], list[MetadataRecord]]:
        occurrences = Counter(key for key, _ in resources)
        outcomes: list[Outcome] = []
        records: list[MetadataRecord] = []
        for key, configs in resources:
            try:
                if occurrences[key] > 1:
                    raise _invalid(f"{_named(key)} is in the request more than once")
                self._check_resource(key)
                _check_keys(key, configs)
                own = self._change(key, changed(key, configs))
                if len(records) + len(own) > self._settings.records_per_request_max:
                    raise RequestError(
                        ErrorCode.POLICY_VIOLATION,
                        f"more than {self._settings.records_per_request_max} settings in one request: use several",
                    )
            except RequestError as error:
                outcomes.append(Outcome(error.code, error.message, *key))
            else:
                records += own
                outcomes.append(Outcome(ErrorCode.NONE, None, *key))
        return outcomes, records

    def _check_resource(self, key: ResourceKey) -> None:
        if key.type not in _ALTERABLE:
            raise _invalid(f"settings of resource type {key.type} cannot be altered here")
        if key.type == ResourceType.BROKER:
            self._check_broker(key.name)
        elif not key.name:
            raise _invalid(f"a {_kind(key)} needs a name: there are no settings for all of them at once")
        elif key.type == ResourceType.TOPIC:
            problem = topic_name_problem(key.name)
            if problem is not None:
                raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
            if key.name not in self._image.topics_by_name:
                raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {key.name!r}")

    def _check_broker(self, name: str) -> None:
        if not name:
            return
        if not name.isascii() or not name.isdigit():
            raise _invalid(
                f"a broker is named by its id, a number, not {name!r}; the empty name stands for all brokers"
            )
        if len(name) > _BROKER_ID_DIGITS_MAX or int(name) not in self._image.brokers:
            raise _invalid(f"broker {name:.20} is not registered in this cluster")

    def _change(self, key: ResourceKey, after: dict[str, str]) -> list[MetadataRecord]:
        """Validates what the resource would have, and says how to get there."""
        before = self._image.config(*key)
        names = [*after, *(name for name in before if name not in after)]
        different = [name for name in names if before.get(name) != after.get(name)]
        self._check_min_insync_replicas(key, after, different)
        self._validate(key, after, frozenset(name for name in different if name in after))
        records: list[MetadataRecord] = [ConfigRecord(*key, name, after.get(name)) for name in different]
        if MIN_INSYNC_REPLICAS in different and elr_enabled(self._image):
            records += void_elr_records(self._image, key, after, self._settings)
        return records

    def _check_min_insync_replicas(
        self, key: ResourceKey, after: Mapping[str, str], different: Sequence[str]
    ) -> None:
        """With ELR every controller must see the same value: it belongs to topics and to the cluster, not to a broker."""
        if (
            key.type != ResourceType.BROKER
            or MIN_INSYNC_REPLICAS not in different
            or not elr_enabled(self._image)
        ):
            return
        if key.name:
            raise RequestError(
                ErrorCode.INVALID_CONFIG,
                f"{MIN_INSYNC_REPLICAS} cannot be set for one broker: set it for the topic, or for all brokers",
            )
        if MIN_INSYNC_REPLICAS not in after:
            raise RequestError(
                ErrorCode.INVALID_CONFIG,
                f"{MIN_INSYNC_REPLICAS} of the cluster can be changed but not removed",
            )

    def _validate(self, key: ResourceKey, after: Mapping[str, str], changed: frozenset[str]) -> None:
        if key.type == ResourceType.TOPIC:
            self._validator.validate_topic(key.name, after)
        elif key.type == ResourceType.BROKER:
            self._validator.validate_broker(int(key.name) if key.name else None, after, changed)
        elif key.type == ResourceType.GROUP:
            self._validator.validate_group(key.name, after)
        else:
            self._validator.validate_client_metrics(key.name, after)

    # ---- what a resource would have

    def _replaced(self, key: ResourceKey, configs: Sequence[legacy.AlterableConfig]) -> dict[str, str]:
        return {config.name: _value(key, config.name, config.value) for config in configs}

    def _incremented(
        self, key: ResourceKey, configs: Sequence[incremental.AlterableConfig]
    ) -> dict[str, str]:
        after = dict(self._image.config(*key))
        for config in configs:
            name, operation = config.name, config.config_operation
            if operation == Operation.DELETE:
                after.pop(name, None)
            elif operation == Operation.SET:
                after[name] = _value(key, name, config.value)
            elif operation in (Operation.APPEND, Operation.SUBTRACT):
                given = dict.fromkeys(_split(_value(key, name, config.value)))
                items = dict.fromkeys(self._items(key, name, after.get(name), operation))
                if operation == Operation.APPEND:
                    items |= given
                else:
                    items = {item: None for item in items if item not in given}
                after[name] = ",".join(items)
            else:
                raise _invalid(
                    f"{operation} is no operation on {name}: use 0 (set), 1 (delete), 2 (append), 3 (subtract)"
                )
        return after

    def _items(self, key: ResourceKey, name: str, current: str | None, operation: int) -> list[str]:
        default = self._validator.list_default(key.type, name)
        if default is None:
            raise RequestError(
                ErrorCode.INVALID_CONFIG,
                f"{name} of {_named(key)} is not a list: {Operation(operation).name} makes no sense for it",
            )
        return _split(current) if current is not None else list(default)


def _check_keys(key: ResourceKey, configs: Sequence[C]) -> None:
    for name, count in Counter(config.name for config in configs).items():
        if count > 1:
            raise _invalid(f"{name} of {_named(key)} is in the request more than once")


def _value(key: ResourceKey, name: str, value: str | None) -> str:
    if value is None:
        raise _invalid(f"{name} of {_named(key)} has no value: to go back to the default, delete it")
    return value


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _kind(key: ResourceKey) -> str:
    return ResourceType(key.type).name.lower().replace("_", " ")


def _named(key: ResourceKey) -> str:
    known = key.type in ResourceType.__members__.values()
    if key.type == ResourceType.BROKER and not key.name:
        return "all brokers"
    return f"{_kind(key) if known else f'resource of type {key.type}'} {key.name!r}"


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, message)
