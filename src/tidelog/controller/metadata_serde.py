"""The frame of a metadata record: frame version, api key, record version, body.

Owns the table of api keys and which version each record is written in: those of Kafka 4.3 at metadata.version 4.3-IV0.
Every version Kafka ever wrote is read. A record that this build does not know is an error, never skipped: an image built
without it would differ from everybody else's (I18).
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from tidelog.controller import metadata_records as meta
from tidelog.controller import registration_records as registration
from tidelog.controller import security_records as security
from tidelog.controller.registration_records import BrokerRegistrationChangeRecord
from tidelog.errors import CorruptDataError, ProtocolError
from tidelog.wire.codec import decoder, encoder, joined
from tidelog.wire.types import Buffer, Part
from tidelog.wire.varint import read_uvarint, write_uvarint

#: Any class of the tables below.
MetadataRecord: TypeAlias = Any

FRAME_VERSION: Final = 1

API_KEYS: Final[dict[int, type[Any]]] = {
    0: registration.RegisterBrokerRecord,
    1: registration.UnregisterBrokerRecord,
    2: meta.TopicRecord,
    3: meta.PartitionRecord,
    4: meta.ConfigRecord,
    5: meta.PartitionChangeRecord,
    7: registration.FenceBrokerRecord,
    8: registration.UnfenceBrokerRecord,
    9: meta.RemoveTopicRecord,
    10: security.DelegationTokenRecord,
    11: security.UserScramCredentialRecord,
    12: meta.FeatureLevelRecord,
    14: security.ClientQuotaRecord,
    15: meta.ProducerIdsRecord,
    17: registration.BrokerRegistrationChangeRecord,
    18: security.AccessControlEntryRecord,
    19: security.RemoveAccessControlEntryRecord,
    20: meta.NoOpRecord,
    21: meta.ZkMigrationStateRecord,
    22: security.RemoveUserScramCredentialRecord,
    23: meta.BeginTransactionRecord,
    24: meta.EndTransactionRecord,
    25: meta.AbortTransactionRecord,
    26: security.RemoveDelegationTokenRecord,
    27: registration.RegisterControllerRecord,
    28: meta.ClearElrRecord,
}
_KEY_OF: Final = {cls: key for key, cls in API_KEYS.items()}
_LATEST: Final[dict[type[Any], int]] = {cls: cls.SCHEMA.versions[1] for cls in _KEY_OF}
_PREFIXES: Final = {
    (cls, version): write_uvarint(FRAME_VERSION) + write_uvarint(key) + write_uvarint(version)
    for key, cls in API_KEYS.items()
    for version in range(cls.SCHEMA.versions[0], cls.SCHEMA.versions[1] + 1)
}


def record_version(record: MetadataRecord) -> int:
    """The version Kafka writes this record in. A registration change takes the oldest that can say it."""
    cls = type(record)
    if cls is BrokerRegistrationChangeRecord:
        if record.cordoned_log_dirs is not None:
            return 3
        if record.log_dirs:
            return 2
        return 1 if record.in_controlled_shutdown else 0
    try:
        return _LATEST[cls]
    except KeyError:
        raise TypeError(f"{cls.__name__} is no metadata record") from None


def encode_record(record: MetadataRecord, version: int | None = None) -> bytes:
    """A record with its frame: the value of a record in `__cluster_metadata`."""
    if version is None:
        version = record_version(record)
    parts: list[Part] = [_PREFIXES[type(record), version]]
    encoder(type(record), version)(record, parts)
    return joined(parts)


def decode_record(value: Buffer) -> MetadataRecord:
    """The record in a framed value. CorruptDataError says which part of it makes no sense."""
    view = memoryview(value)
    try:
        frame_version, position = read_uvarint(view, 0)
        api_key, position = read_uvarint(view, position)
        version, position = read_uvarint(view, position)
    except (IndexError, ProtocolError) as error:
        raise CorruptDataError(f"metadata record of {len(view)} bytes breaks off within its frame") from error
    if frame_version != FRAME_VERSION:
        raise CorruptDataError(
            f"metadata record with frame version {frame_version}; only {FRAME_VERSION} is known"
        )
    cls = API_KEYS.get(api_key)
    if cls is None:
        raise CorruptDataError(
            f"metadata record of unknown type {api_key} (version {version}): it was written by a newer release, use that one"
        )
    oldest, latest = cls.SCHEMA.versions
    if not oldest <= version <= latest:
        raise CorruptDataError(
            f"{cls.__name__} in version {version}, this release reads {oldest} to {latest}: a newer one wrote it"
        )
    try:
        record, end = decoder(cls, version)(view, position)
    except ProtocolError as error:
        raise CorruptDataError(f"{cls.__name__} version {version}: {error}") from error
    if end != len(view):
        raise CorruptDataError(
            f"{cls.__name__} version {version} is followed by {len(view) - end} stray bytes"
        )
    return record
