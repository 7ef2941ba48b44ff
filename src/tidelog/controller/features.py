"""Features and their levels: what this release can do, and what a cluster has agreed on.

Owns the names, the ranges we support and the levels a new cluster starts with. `transaction.version` is absent on
purpose until what it promises is there: clients switch protocols when they see it (D8).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.controller.image import MetadataImage, VersionRange

METADATA_VERSION: Final = "metadata.version"
ELIGIBLE_LEADER_REPLICAS_VERSION: Final = "eligible.leader.replicas.version"
GROUP_VERSION: Final = "group.version"

#: 4.3-IV0, the latest of Kafka 4.3. Its record versions are the only ones written, so there is no lower level to fall to.
METADATA_VERSION_LEVEL: Final = 30

SUPPORTED_FEATURES: Final[Mapping[str, VersionRange]] = {
    METADATA_VERSION: VersionRange(METADATA_VERSION_LEVEL, METADATA_VERSION_LEVEL),
    ELIGIBLE_LEADER_REPLICAS_VERSION: VersionRange(0, 1),
    GROUP_VERSION: VersionRange(0, 1),
}
NEW_CLUSTER_FEATURES: Final[Mapping[str, int]] = {
    METADATA_VERSION: METADATA_VERSION_LEVEL,
    ELIGIBLE_LEADER_REPLICAS_VERSION: 1,
    GROUP_VERSION: 1,
}


def elr_enabled(image: MetadataImage) -> bool:
    return image.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) > 0


def unsupported_features(image: MetadataImage, supported: Mapping[str, VersionRange]) -> list[str]:
    """Why a node that supports this much cannot take part in this cluster; empty when it can."""
    problems = []
    for name, level in sorted(image.features.items()):
        low, high = supported.get(name, VersionRange(0, 0))
        if not low <= level <= high:
            problems.append(f"{name} is finalized at level {level}, the node supports {low} to {high}")
    return problems
