"""ApiVersions (18), versions 0-4: what this broker serves.

3  flexible; the client names its software; features are listed
4  supported features with a minimum of 0 may be listed (version 3 must leave them out)

A version beyond 4 is answered by the dispatcher with version 0 and our own range (KIP-511).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.dispatch import Api, Encoded, RequestContext
from tidelog.wire.codec import joined
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.headers import with_correlation_id
from tidelog.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from tidelog.broker.cluster_view import Features
    from tidelog.broker.node import Broker

SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(
    broker: Broker, context: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse | Encoded:
    if context.version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not (SOFTWARE_NAME.fullmatch(name) and SOFTWARE_NAME.fullmatch(version)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        context.connection.client_software = (name, version)
    features = broker.view.features()
    apis = broker.apis_at(context.connection.listener_name)
    key = id(apis), context.version
    kept = broker.api_versions_answers.get(key)
    if kept is None or kept[0] != features.epoch:
        frame = joined(list(context.encode(_answer(apis, context.version, features))))
        kept = broker.api_versions_answers[key] = features.epoch, frame
    return Encoded((with_correlation_id(kept[1], context.correlation_id),))


def _answer(apis: Mapping[int, Api], version: int, features: Features) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
            for api in apis.values()
            if api.is_listed
        ],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in features.supported.items()
            if low > 0 or version >= 4
        ],
        finalized_features_epoch=features.epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in features.finalized.items()
        ],
    )
