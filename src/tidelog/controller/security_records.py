"""Metadata records about access and quotas: ACLs, SCRAM credentials, delegation tokens, client quotas.

Owns facts only, as `metadata_records` does. They are replayed from the first day, so that the rules in a log are never
lost on the way, whether or not anything enforces them yet.
"""

from __future__ import annotations

from typing import ClassVar

from tidelog.wire.schema import Field, Schema, fresh, message
from tidelog.wire.types import ZERO_UUID


@message
class AccessControlEntryRecord:
    id: bytes = ZERO_UUID
    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 0
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0

    SCHEMA: ClassVar[Schema] = Schema(
        Field("id", "uuid"),
        Field("resource_type", "int8"),
        Field("resource_name", "string"),
        Field("pattern_type", "int8"),
        Field("principal", "string"),
        Field("host", "string"),
        Field("operation", "int8"),
        Field("permission_type", "int8"),
        versions=(0, 0),
        flexible=0,
    )


@message
class RemoveAccessControlEntryRecord:
    id: bytes = ZERO_UUID

    SCHEMA: ClassVar[Schema] = Schema(Field("id", "uuid"), versions=(0, 0), flexible=0)


@message
class UserScramCredentialRecord:
    name: str = ""
    mechanism: int = 0
    salt: bytes = b""
    stored_key: bytes = b""
    server_key: bytes = b""
    iterations: int = 0

    SCHEMA: ClassVar[Schema] = Schema(
        Field("name", "string"),
        Field("mechanism", "int8"),
        Field("salt", "bytes"),
        Field("stored_key", "bytes"),
        Field("server_key", "bytes"),
        Field("iterations", "int32"),
        versions=(0, 0),
        flexible=0,
    )


@message
class RemoveUserScramCredentialRecord:
    name: str = ""
    mechanism: int = 0

    SCHEMA: ClassVar[Schema] = Schema(
        Field("name", "string"), Field("mechanism", "int8"), versions=(0, 0), flexible=0
    )


@message
class DelegationTokenRecord:
    owner: str = ""
    requester: str = ""
    renewers: list[str] = fresh(default_factory=list)
    issue_timestamp: int = 0
    max_timestamp: int = 0
    expiration_timestamp: int = 0
    token_id: str = ""

    SCHEMA: ClassVar[Schema] = Schema(
        Field("owner", "string"),
        Field("requester", "string"),
        Field("renewers", ["string"]),
        Field("issue_timestamp", "int64"),
        Field("max_timestamp", "int64"),
        Field("expiration_timestamp", "int64"),
        Field("token_id", "string"),
        versions=(0, 0),
        flexible=0,
    )


@message
class RemoveDelegationTokenRecord:
    token_id: str = ""

    SCHEMA: ClassVar[Schema] = Schema(Field("token_id", "string"), versions=(0, 0), flexible=0)


@message
class EntityData:
    entity_type: str = ""
    entity_name: str | None = ""

    SCHEMA: ClassVar[Schema] = Schema(
        Field("entity_type", "string"), Field("entity_name", "string", nullable=(0, None))
    )


@message
class ClientQuotaRecord:
    """One limit of one user, client id, address or combination; a name of None is the default for that type."""

    entity: list[EntityData] = fresh(default_factory=list)
    key: str = ""
    value: float = 0.0
    remove: bool = False

    SCHEMA: ClassVar[Schema] = Schema(
        Field("entity", [EntityData]),
        Field("key", "string"),
        Field("value", "float64"),
        Field("remove", "bool"),
        versions=(0, 0),
        flexible=0,
    )
