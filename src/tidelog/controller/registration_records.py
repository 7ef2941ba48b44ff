"""Metadata records about brokers and controllers: who is there, at which addresses, fenced or not.

Owns facts only, as `metadata_records` does. Format: docs/formats/metadata-log.md.
"""

from __future__ import annotations

from typing import ClassVar

from tidelog.wire.schema import Field, Schema, fresh, message
from tidelog.wire.types import ZERO_UUID


@message
class BrokerEndpoint:
    name: str = ""
    host: str = ""
    port: int = 0
    security_protocol: int = 0

    SCHEMA: ClassVar[Schema] = Schema(
        Field("name", "string"),
        Field("host", "string"),
        Field("port", "uint16"),
        Field("security_protocol", "int16"),
    )


@message
class BrokerFeature:
    name: str = ""
    min_supported_version: int = 0
    max_supported_version: int = 0

    SCHEMA: ClassVar[Schema] = Schema(
        Field("name", "string"),
        Field("min_supported_version", "int16"),
        Field("max_supported_version", "int16"),
    )


@message
class RegisterBrokerRecord:
    """A broker process is known. It starts fenced: no leader, in no ISR, until it has caught up with the metadata."""

    broker_id: int = 0
    is_migrating_zk_broker: bool = False
    incarnation_id: bytes = ZERO_UUID
    broker_epoch: int = 0
    end_points: list[BrokerEndpoint] = fresh(default_factory=list)
    features: list[BrokerFeature] = fresh(default_factory=list)
    rack: str | None = ""
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: list[bytes] = fresh(default_factory=list)
    cordoned_log_dirs: list[bytes] | None = None

    SCHEMA: ClassVar[Schema] = Schema(
        Field("broker_id", "int32"),
        Field("is_migrating_zk_broker", "bool", (2, None)),
        Field("incarnation_id", "uuid"),
        Field("broker_epoch", "int64"),
        Field("end_points", [BrokerEndpoint]),
        Field("features", [BrokerFeature]),
        Field("rack", "string", nullable=(0, None)),
        Field("fenced", "bool"),
        Field("in_controlled_shutdown", "bool", (1, None)),
        Field("log_dirs", ["uuid"], (3, None), tag=0),
        Field("cordoned_log_dirs", ["uuid"], (4, None), nullable=(4, None), tag=1),
        versions=(0, 4),
        flexible=0,
    )


@message
class UnregisterBrokerRecord:
    broker_id: int = 0
    broker_epoch: int = 0

    SCHEMA: ClassVar[Schema] = Schema(
        Field("broker_id", "int32"), Field("broker_epoch", "int64"), versions=(0, 0), flexible=0
    )


@message
class FenceBrokerRecord:
    """The older form of a registration change; read, never written."""

    id: int = 0
    epoch: int = 0

    SCHEMA: ClassVar[Schema] = Schema(
        Field("id", "int32"), Field("epoch", "int64"), versions=(0, 0), flexible=0
    )


@message
class UnfenceBrokerRecord:
    """The older form of a registration change; read, never written."""

    id: int = 0
    epoch: int = 0

    SCHEMA: ClassVar[Schema] = Schema(
        Field("id", "int32"), Field("epoch", "int64"), versions=(0, 0), flexible=0
    )


@message
class BrokerRegistrationChangeRecord:
    """What changed about a registered broker. `fenced`: 1 fences, -1 unfences, 0 leaves it; the rest likewise."""

    broker_id: int = 0
    broker_epoch: int = 0
    fenced: int = 0
    in_controlled_shutdown: int = 0
    log_dirs: list[bytes] = fresh(default_factory=list)
    cordoned_log_dirs: list[bytes] | None = None

    SCHEMA: ClassVar[Schema] = Schema(
        Field("broker_id", "int32"),
        Field("broker_epoch", "int64"),
        Field("fenced", "int8", tag=0),
        Field("in_controlled_shutdown", "int8", (1, None), tag=1),
        Field("log_dirs", ["uuid"], (2, None), tag=2),
        Field("cordoned_log_dirs", ["uuid"], (3, None), nullable=(3, None), tag=3),
        versions=(0, 3),
        flexible=0,
    )


@message
class ControllerEndpoint:
    name: str = ""
    host: str = ""
    port: int = 0
    security_protocol: int = 0

    SCHEMA: ClassVar[Schema] = BrokerEndpoint.SCHEMA


@message
class ControllerFeature:
    name: str = ""
    min_supported_version: int = 0
    max_supported_version: int = 0

    SCHEMA: ClassVar[Schema] = BrokerFeature.SCHEMA


@message
class RegisterControllerRecord:
    controller_id: int = 0
    incarnation_id: bytes = ZERO_UUID
    zk_migration_ready: bool = False
    end_points: list[ControllerEndpoint] = fresh(default_factory=list)
    features: list[ControllerFeature] = fresh(default_factory=list)

    SCHEMA: ClassVar[Schema] = Schema(
        Field("controller_id", "int32"),
        Field("incarnation_id", "uuid"),
        Field("zk_migration_ready", "bool"),
        Field("end_points", [ControllerEndpoint]),
        Field("features", [ControllerFeature]),
        versions=(0, 0),
        flexible=0,
    )
