"""DescribeConfigs (32), versions 1-4: the settings of topics, brokers, groups and loggers, and where each comes from.

1  sources and synonyms            3  types and documentation            4  flexible
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker import loggers
from tidelog.broker.dispatch import InThread, RequestContext
from tidelog.config.definition import ConfigType
from tidelog.config.describe import (
    ConfigEntry,
    describe_broker,
    describe_broker_defaults,
    describe_group,
    describe_topic,
)
from tidelog.controller.image import ResourceType
from tidelog.errors import RequestError
from tidelog.storage.files import validate_topic_name
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

DYNAMIC_BROKER_LOGGER_CONFIG = 6


RESOURCES_ON_THE_LOOP = 4
"""Describing one takes up to 3 ms; more than a few are described in a thread."""
ENTRIES_MAX = 100_000
"""Lines of an answer that may be about something else than topics, of which there are only so many."""


def handle(
    broker: Broker, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse | InThread:
    if len(request.resources) <= RESOURCES_ON_THE_LOOP:
        return _answer(broker, request)
    return InThread(lambda: _answer(broker, request))


def _answer(broker: Broker, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    response = DescribeConfigsResponse()
    answered: set[tuple[int, str]] = set()
    entries = 0
    for resource in request.resources:
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        key = (resource.resource_type, resource.resource_name)
        try:
            if key in answered:
                raise RequestError(ErrorCode.INVALID_REQUEST, "the resource is in the request more than once")
            answered.add(key)
            if entries > ENTRIES_MAX:
                raise RequestError(
                    ErrorCode.INVALID_REQUEST, "the answer would be too large: ask in several requests"
                )
            result.configs = _describe(broker, request, resource)
            if resource.resource_type != ResourceType.TOPIC:
                entries += len(result.configs)
        except RequestError as error:
            result.error_code = error.code
            result.error_message = error.message
        response.results.append(result)
    return response


def _describe(
    broker: Broker, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    # No keys, whether null or an empty list, asks for all of them.
    names = frozenset(resource.configuration_keys) if resource.configuration_keys else None
    if resource.resource_type == ResourceType.BROKER_LOGGER:
        _check_broker(broker, resource.resource_name)
        return _loggers(names)
    return [_entry(request, entry) for entry in _entries(broker, resource, names)]


def _entries(
    broker: Broker, resource: DescribeConfigsResource, names: frozenset[str] | None
) -> list[ConfigEntry]:
    kind, name = resource.resource_type, resource.resource_name
    if kind == ResourceType.TOPIC:
        validate_topic_name(name)
        if broker.image.topic(name) is None:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return describe_topic(broker.image.config(kind, name), broker.config, names)
    if kind == ResourceType.BROKER:
        if not name:
            return describe_broker_defaults(broker.config, names)
        _check_broker(broker, name)
        return describe_broker(broker.config, names)
    if kind == ResourceType.GROUP:
        if not name:
            raise RequestError(ErrorCode.INVALID_REQUEST, "a group's name must not be empty")
        return describe_group(broker.image.config(kind, name), broker.config, names)
    if kind == ResourceType.CLIENT_METRICS:
        raise RequestError(ErrorCode.UNSUPPORTED_VERSION, "client metrics are not served here")
    raise RequestError(ErrorCode.INVALID_REQUEST, f"resource type {kind} has no settings")


def _check_broker(broker: Broker, name: str) -> None:
    if name != str(broker.node_id):
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"this is broker {broker.node_id}; settings of {name!r} must be asked of that broker",
        )


def _entry(request: DescribeConfigsRequest, entry: ConfigEntry) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        ]
        if request.include_synonyms
        else [],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )


def _loggers(names: frozenset[str] | None) -> list[DescribeConfigsResourceResult]:
    return [
        DescribeConfigsResourceResult(
            name=name, value=level, config_source=DYNAMIC_BROKER_LOGGER_CONFIG, config_type=ConfigType.STRING
        )
        for name, level in loggers.levels().items()
        if names is None or name in names
    ]
