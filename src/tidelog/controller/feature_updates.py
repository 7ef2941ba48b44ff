"""UpdateFeatures: the levels that the cluster has agreed on (KIP-584, KIP-778).

Owns what may change: a level is finalized only when this node, every registered broker and every controller of the quorum support it, and goes
down only when the request says so. One refused feature refuses the whole request, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import Final

from tidelog.controller.elections import MIN_INSYNC_REPLICAS
from tidelog.controller.features import ELIGIBLE_LEADER_REPLICAS_VERSION, SUPPORTED_FEATURES
from tidelog.controller.image import MetadataImage, ResourceType, VersionRange
from tidelog.controller.metadata_records import ConfigRecord, FeatureLevelRecord
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.result import ControllerResult, ControllerSettings
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_NOT_SUPPORTED: Final = VersionRange(0, 0)


class UpgradeType(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def update_features(
    image: MetadataImage,
    request: UpdateFeaturesRequest,
    settings: ControllerSettings,
    *,
    voters: Collection[int] = (),
) -> ControllerResult[UpdateFeaturesResponse]:
    """RequestError(INVALID_UPDATE_VERSION) for the whole request when one feature cannot be changed."""
    records: list[MetadataRecord] = []
    for update in request.feature_updates:
        _check(image, update, voters)
        if update.max_version_level != image.features.get(update.feature, 0):
            records.append(FeatureLevelRecord(update.feature, update.max_version_level))
            if update.feature == ELIGIBLE_LEADER_REPLICAS_VERSION:
                records += _one_min_insync_replicas(image, settings)
    response = UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(update.feature, ErrorCode.NONE, None) for update in request.feature_updates
        ],
    )
    return ControllerResult(response, [] if request.validate_only else records)


def _check(image: MetadataImage, update: FeatureUpdateKey, voters: Collection[int]) -> None:
    name, level = update.feature, update.max_version_level
    # Version 0 of the request has no upgrade type.
    kind = UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else update.upgrade_type
    if kind not in UpgradeType.__members__.values():
        raise _refused(update, f"{kind} is no upgrade type")
    if level < 0:
        raise _refused(update, "a level is 0 or more")
    _check_support(image, update, voters)
    current = image.features.get(name, 0)
    if level < current and kind == UpgradeType.UPGRADE:
        raise _refused(update, f"it is at {current}, and the request does not allow a downgrade")
    if level > current and kind != UpgradeType.UPGRADE:
        raise _refused(update, f"it is at {current}: that would not be a downgrade")
    if name == ELIGIBLE_LEADER_REPLICAS_VERSION and level < current:
        raise _refused(
            update,
            "without eligible leader replicas a broker that lost its disk could lead: they stay (KIP-966)",
        )


def _check_support(image: MetadataImage, update: FeatureUpdateKey, voters: Collection[int]) -> None:
    ranges: dict[str, Mapping[str, VersionRange]] = {"this controller": SUPPORTED_FEATURES}
    ranges |= {f"broker {broker.broker_id}": broker.features for broker in image.brokers.values()}
    ranges |= {f"controller {known.controller_id}": known.features for known in image.controllers.values()}
    for node, supported in ranges.items():
        low, high = supported.get(update.feature, _NOT_SUPPORTED)
        if update.feature not in supported and node == "this controller":
            raise _refused(update, f"{node} does not know it")
        if not low <= update.max_version_level <= high:
            raise _refused(update, f"{node} supports {low} to {high}")
    for voter in voters:
        if len(voters) > 1 and voter not in image.controllers:
            raise _refused(update, f"controller {voter} has not registered, and may not support it")


def _one_min_insync_replicas(image: MetadataImage, settings: ControllerSettings) -> list[MetadataRecord]:
    """With ELR every controller must count with the same value: one for the cluster, none for single brokers."""
    records: list[MetadataRecord] = []
    if MIN_INSYNC_REPLICAS not in image.broker_defaults:
        value = str(settings.min_insync_replicas)
        records.append(ConfigRecord(ResourceType.BROKER, "", MIN_INSYNC_REPLICAS, value))
    records += [
        ConfigRecord(ResourceType.BROKER, key.name, MIN_INSYNC_REPLICAS, None)
        for key, values in image.configs.items()
        if key.type == ResourceType.BROKER and key.name and MIN_INSYNC_REPLICAS in values
    ]
    return records


def _refused(update: FeatureUpdateKey, reason: str) -> RequestError:
    return RequestError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"nothing was changed: {update.feature} cannot be set to {update.max_version_level}: {reason}",
    )
