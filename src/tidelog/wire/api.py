"""Kafka's APIs and Tidelog's own: their keys, and where their messages and versions are found.

Owns the table of what this code can read and write. What a broker advertises is a narrower promise, made in `tidelog.broker`;
Tidelog's own APIs are never part of it.
Message modules are imported when an API is first used, because a broker that starts in a fraction of a second
cannot import ninety modules.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from importlib import import_module
from typing import Any, Final

from tidelog.errors import ProtocolError
from tidelog.wire.messages import APIS


class ApiKey(IntEnum):
    """Every key Kafka has given out, then Tidelog's own. 4 to 7 ended with ZooKeeper and have no messages here."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    EXPLAIN_GROUP = 20001
    EXPLAIN_TOPIC = 20002
    EXPLAIN_REPLICAS = 20003


#: Tidelog's own, never advertised: like `APIS` by key, with a module of `tidelog.wire`.
TIDELOG_APIS: Final[dict[int, tuple[str, str, int, int, int | None]]] = {
    ApiKey.EXPLAIN_GROUP: ("tidelog_api", "ExplainGroup", 0, 0, 0),
    ApiKey.EXPLAIN_TOPIC: ("tidelog_api", "ExplainTopic", 0, 0, 0),
    ApiKey.EXPLAIN_REPLICAS: ("tidelog_api", "ExplainReplicas", 0, 0, 0),
}

#: Above every version: an API without flexible versions compares as "not yet".
_NEVER: Final = 1 << 15

_FIRST_FLEXIBLE: Final = {
    key: _NEVER if api[4] is None else api[4] for key, api in (APIS | TIDELOG_APIS).items()
}


_KEYS_BY_NAME: Final = {api[1]: key for key, api in (APIS | TIDELOG_APIS).items()}


class ApiSpec:
    """One API: its versions, and its message classes once somebody asks for them."""

    __slots__ = (
        "_module",
        "_request",
        "_response",
        "first_flexible",
        "key",
        "max_version",
        "min_version",
        "name",
    )

    def __init__(
        self,
        key: ApiKey,
        module: str,
        name: str,
        min_version: int,
        max_version: int,
        first_flexible: int | None,
    ) -> None:
        self.key = key
        self.name = name
        self.min_version = min_version
        self.max_version = max_version
        self.first_flexible = first_flexible
        self._module = module
        self._request: type[Any] | None = None
        self._response: type[Any] | None = None

    @property
    def request_class(self) -> type[Any]:
        if self._request is None:
            self._request = self._load("Request")
        return self._request

    @property
    def response_class(self) -> type[Any]:
        if self._response is None:
            self._response = self._load("Response")
        return self._response

    def _load(self, kind: str) -> type[Any]:
        found: type[Any] = getattr(import_module(self._module), self.name + kind)
        return found

    def __repr__(self) -> str:
        return f"ApiSpec({self.name}, versions {self.min_version} to {self.max_version})"


@cache
def spec(key: int) -> ApiSpec:
    """The API with this key. ProtocolError when there is none, because keys come from peers."""
    api, package = APIS.get(key), "tidelog.wire.messages"
    if api is None:
        api, package = TIDELOG_APIS.get(key), "tidelog.wire"
    if api is None:
        raise ProtocolError(f"there is no API with the key {key}")
    module, name, lowest, highest, flexible = api
    return ApiSpec(ApiKey(key), f"{package}.{module}", name, lowest, highest, flexible)


def spec_of_request(request_class: type[Any]) -> ApiSpec:
    """The API that a request message belongs to."""
    return spec(_KEYS_BY_NAME[request_class.__name__.removesuffix("Request")])


def request_header_version(key: int, version: int) -> int:
    return 2 if version >= first_flexible(key) else 1


def response_header_version(key: int, version: int) -> int:
    """ApiVersions is always 0: the client reads it before it knows what the broker speaks (KIP-511)."""
    return 1 if version >= first_flexible(key) and key != ApiKey.API_VERSIONS else 0


def first_flexible(key: int) -> int:
    """The first version with tagged fields; above all versions if there is none."""
    found = _FIRST_FLEXIBLE.get(key)
    if found is None:
        raise ProtocolError(f"there is no API with the key {key}")
    return found
