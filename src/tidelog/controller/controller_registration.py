"""ControllerRegistration: what a node of the quorum can do, and where it listens (KIP-919)."""

from __future__ import annotations

from tidelog.controller.image import Endpoint, MetadataImage, VersionRange
from tidelog.controller.registration_records import (
    ControllerEndpoint,
    ControllerFeature,
    RegisterControllerRecord,
)
from tidelog.controller.result import ControllerResult
from tidelog.wire.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)


def register_controller(
    image: MetadataImage, request: ControllerRegistrationRequest
) -> ControllerResult[ControllerRegistrationResponse]:
    """Every node of the quorum registers at each start; one that says what is known already costs no record."""
    response = ControllerRegistrationResponse()
    known = image.controllers.get(request.controller_id)
    endpoints = tuple(
        Endpoint(listener.name, listener.host, listener.port, listener.security_protocol)
        for listener in request.listeners
    )
    features = {
        feature.name: VersionRange(feature.min_supported_version, feature.max_supported_version)
        for feature in request.features
    }
    if (
        known is not None
        and known.incarnation_id == request.incarnation_id
        and (known.endpoints, known.features) == (endpoints, features)
    ):
        return ControllerResult(response)
    record = RegisterControllerRecord(
        request.controller_id,
        request.incarnation_id,
        request.zk_migration_ready,
        [ControllerEndpoint(*endpoint) for endpoint in endpoints],
        [ControllerFeature(name, low, high) for name, (low, high) in features.items()],
    )
    return ControllerResult(response, [record])
