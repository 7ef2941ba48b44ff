"""Access rules, credentials, tokens and quotas in the metadata image, and how their records change them.

Owns values and their replay; decides about no request. Salted keys are in here: never log or print one (I56).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from tidelog.controller.security_records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    EntityData,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

#: A quota's holder: (type, name) pairs in order of type; a name of None is the default for that type.
QuotaEntity = tuple[tuple[str, str | None], ...]


class AclEntry(NamedTuple):
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class ScramCredential(NamedTuple):
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations}, keys hidden)"


class DelegationToken(NamedTuple):
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    max_timestamp: int
    expiration_timestamp: int


@dataclass(frozen=True, slots=True)
class SecurityImage:
    acls: Mapping[bytes, AclEntry] = field(default_factory=dict)
    scram: Mapping[tuple[str, int], ScramCredential] = field(default_factory=dict)
    tokens: Mapping[str, DelegationToken] = field(default_factory=dict)
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)


def replay_security(image: SecurityImage, record: Any) -> SecurityImage:
    """The image after one of the records in `SECURITY_RECORDS`. These are few and rare: copying a map each time is fine."""
    return _REPLAY[type(record)](image, record)


def security_records(image: SecurityImage) -> list[Any]:
    """Records that build this image from nothing."""
    records: list[Any] = [
        AccessControlEntryRecord(acl_id, *entry) for acl_id, entry in sorted(image.acls.items())
    ]
    records += [
        UserScramCredentialRecord(name, mechanism, *credential)
        for (name, mechanism), credential in sorted(image.scram.items())
    ]
    records += [
        DelegationTokenRecord(
            token.owner,
            token.requester,
            list(token.renewers),
            token.issue_timestamp,
            token.max_timestamp,
            token.expiration_timestamp,
            token_id,
        )
        for token_id, token in sorted(image.tokens.items())
    ]
    for entity, limits in image.quotas.items():
        parts = [EntityData(kind, name) for kind, name in entity]
        records += [ClientQuotaRecord(list(parts), key, value) for key, value in sorted(limits.items())]
    return records


def _put_acl(image: SecurityImage, record: AccessControlEntryRecord) -> SecurityImage:
    entry = AclEntry(
        record.resource_type,
        record.resource_name,
        record.pattern_type,
        record.principal,
        record.host,
        record.operation,
        record.permission_type,
    )
    return replace(image, acls={**image.acls, record.id: entry})


def _remove_acl(image: SecurityImage, record: RemoveAccessControlEntryRecord) -> SecurityImage:
    return replace(image, acls=_without(image.acls, record.id))


def _put_scram(image: SecurityImage, record: UserScramCredentialRecord) -> SecurityImage:
    credential = ScramCredential(
        bytes(record.salt), bytes(record.stored_key), bytes(record.server_key), record.iterations
    )
    return replace(image, scram={**image.scram, (record.name, record.mechanism): credential})


def _remove_scram(image: SecurityImage, record: RemoveUserScramCredentialRecord) -> SecurityImage:
    return replace(image, scram=_without(image.scram, (record.name, record.mechanism)))


def _put_token(image: SecurityImage, record: DelegationTokenRecord) -> SecurityImage:
    token = DelegationToken(
        record.owner,
        record.requester,
        tuple(record.renewers),
        record.issue_timestamp,
        record.max_timestamp,
        record.expiration_timestamp,
    )
    return replace(image, tokens={**image.tokens, record.token_id: token})


def _remove_token(image: SecurityImage, record: RemoveDelegationTokenRecord) -> SecurityImage:
    return replace(image, tokens=_without(image.tokens, record.token_id))


def _change_quota(image: SecurityImage, record: ClientQuotaRecord) -> SecurityImage:
    entity = tuple(
        sorted(((part.entity_type, part.entity_name) for part in record.entity), key=lambda p: p[0])
    )
    limits = dict(image.quotas.get(entity, {}))
    if record.remove:
        limits.pop(record.key, None)
    else:
        limits[record.key] = record.value
    if limits:
        return replace(image, quotas={**image.quotas, entity: limits})
    return replace(image, quotas=_without(image.quotas, entity))


def _without(mapping: Mapping[Any, Any], key: object) -> dict[Any, Any]:
    return {name: value for name, value in mapping.items() if name != key}


_REPLAY: Final[dict[type[Any], Callable[[SecurityImage, Any], SecurityImage]]] = {
    AccessControlEntryRecord: _put_acl,
    RemoveAccessControlEntryRecord: _remove_acl,
    UserScramCredentialRecord: _put_scram,
    RemoveUserScramCredentialRecord: _remove_scram,
    DelegationTokenRecord: _put_token,
    RemoveDelegationTokenRecord: _remove_token,
    ClientQuotaRecord: _change_quota,
}
SECURITY_RECORDS: Final = frozenset(_REPLAY)
