"""Group requests by hand: one connection, the wire codec, and no client that would put things right.

Owns the sending and the few requests that several tests share. The versions are the highest of a Kafka 4.3 broker, but for
OffsetCommit and OffsetFetch: 9 is the last that names topics instead of numbering them.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from typing import Any, Final, Self

from tidelog.wire.api import ApiKey, spec
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.headers import RequestHeader, decode_response, encode_request
from tidelog.wire.messages import (
    find_coordinator,
    incremental_alter_configs,
    join_group,
    offset_commit,
    offset_fetch,
    sync_group,
)

ANSWER_SECONDS_MAX = 60.0
VERSIONS: Final = {
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
    ApiKey.FIND_COORDINATOR: 6,
    ApiKey.JOIN_GROUP: 9,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 5,
    ApiKey.SYNC_GROUP: 5,
    ApiKey.DESCRIBE_GROUPS: 6,
    ApiKey.METADATA: 13,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 1,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 1,
}
_KEYS: Final = {spec(key).request_class: key for key in VERSIONS}
GROUP_RESOURCE = 32
COORDINATOR_IS_COMING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


def code(answer: Any) -> str:
    """The name of an answer's error."""
    return ErrorCode(answer.error_code).name


def encoded(
    request: Any, correlation_id: int, version: int | None = None, *, client_id: str = "by-hand"
) -> tuple[ApiKey, int, bytes]:
    """The key, the version and the whole frame of a request."""
    key = _KEYS[type(request)]
    version = VERSIONS[key] if version is None else version
    return key, version, encode_request(RequestHeader(int(key), version, correlation_id, client_id), request)


class Wire:
    """One connection. `ask` for one answer; `send` and `receive` apart for what the broker answers later."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_ids = itertools.count(1)
        self._sent: list[tuple[ApiKey, int, int]] = []
        self._received = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, request: Any, version: int | None = None) -> None:
        correlation_id = next(self._correlation_ids)
        key, version, frame = encoded(request, correlation_id, version)
        self._socket.sendall(frame)
        self._sent.append((key, version, correlation_id))

    def receive(self, seconds: float = ANSWER_SECONDS_MAX) -> Any:
        """The next answer; TimeoutError when none has come in time, and then one may ask again."""
        deadline = time.monotonic() + seconds
        while len(self._received) < 4 or len(self._received) < 4 + self._size():
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            more = self._socket.recv(1 << 20)
            if not more:
                raise ConnectionError("the broker closed the connection")
            self._received += more
        frame = bytes(self._received[4 : 4 + self._size()])
        del self._received[: 4 + len(frame)]
        key, version, correlation_id = self._sent.pop(0)
        found, message = decode_response(int(key), version, frame)
        assert found == correlation_id, "answers must come in the order of their requests"
        return message

    def _size(self) -> int:
        return int(struct.unpack_from(">i", self._received)[0])

    def ask(self, request: Any, version: int | None = None) -> Any:
        self.send(request, version)
        return self.receive()

    # ---- frequent questions

    def wait_for_coordinator(self, group: str) -> None:
        """Kafka makes the offsets topic when a coordinator is first asked for; after a restart it is loaded first."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        request = find_coordinator.FindCoordinatorRequest(coordinator_keys=[group])
        while True:
            (found,) = self.ask(request).coordinators
            if found.error_code == 0 and not self._is_loading(group):
                return
            assert time.monotonic() < deadline, f"no coordinator for {group}: {found}"
            time.sleep(0.1)

    def _is_loading(self, group: str) -> bool:
        return self._fetch(group, "no-topic", [0]).error_code in COORDINATOR_IS_COMING

    def _fetch(self, group: str, topic: str, partitions: list[int]) -> Any:
        topics = [offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=partitions)]
        asked = offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=topics)
        (answer,) = self.ask(offset_fetch.OffsetFetchRequest(groups=[asked])).groups
        return answer

    def all_committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """For the first so many partitions; -1: nothing is."""
        answer = self._fetch(group, topic, list(range(partitions)))
        assert answer.error_code == 0, answer
        found = answer.topics[0].partitions
        assert not any(partition.error_code for partition in found), found
        return {partition.partition_index: partition.committed_offset for partition in found}

    def committed(self, group: str, topic: str) -> int:
        """For partition 0."""
        return self.all_committed(group, topic, 1)[0]

    def commit(
        self,
        group: str,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        generation: int = -1,
        member_id: str = "",
    ) -> str:
        """The name of the answer's error; without a member as a program does that assigns itself."""
        where = offset_commit.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        request = offset_commit.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[offset_commit.OffsetCommitRequestTopic(name=topic, partitions=[where])],
        )
        return code(self.ask(request).topics[0].partitions[0])

    def set_group_config(self, group: str, name: str, value: str) -> None:
        change = incremental_alter_configs.AlterableConfig(name=name, config_operation=0, value=value)
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=GROUP_RESOURCE, resource_name=group, configs=[change]
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
        (answer,) = self.ask(request).responses
        assert answer.error_code == 0, answer


class RawMember:
    """A member of a classic group, request by request, on a connection of its own."""

    def __init__(self, bootstrap: str, group: str, *protocols: str, metadata: bytes = b"") -> None:
        self.wire = Wire(bootstrap)
        self.wire.wait_for_coordinator(group)
        self.group = group
        self.protocols = protocols
        self.metadata = metadata
        self.member_id = ""
        self.generation = -1
        self.protocol: str | None = None
        self.is_leader = False

    def send_join(self) -> None:
        protocols = [
            join_group.JoinGroupRequestProtocol(name=name, metadata=self.metadata) for name in self.protocols
        ]
        request = join_group.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=300_000,
            rebalance_timeout_ms=300_000,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=protocols,
        )
        self.wire.send(request)

    def receive_join(self, seconds: float = ANSWER_SECONDS_MAX) -> str | None:
        """The name of the error, or None when nothing has come in time."""
        try:
            answer = self.wire.receive(seconds)
        except TimeoutError:
            return None
        if code(answer) == "MEMBER_ID_REQUIRED":
            self.member_id = answer.member_id
            self.send_join()
            return self.receive_join(seconds)
        if answer.error_code == 0:
            self.member_id = answer.member_id
            self.generation = answer.generation_id
            self.protocol = answer.protocol_name
            self.is_leader = answer.leader == answer.member_id
        return code(answer)

    def sync(self, assignments: dict[str, bytes] | None = None, **more: Any) -> Any:
        given = [
            sync_group.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in (assignments or {}).items()
        ]
        fields = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "protocol_type": "consumer",
            "protocol_name": self.protocol,
            "assignments": given,
        }
        return self.wire.ask(sync_group.SyncGroupRequest(**(fields | more)))

    def close(self) -> None:
        self.wire.close()


def gather(*members: RawMember) -> None:
    """All of them join until all are in one generation: whoever was answered before the others came, comes again."""
    waiting = set(members)
    for member in members:
        member.send_join()
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while waiting:
        assert time.monotonic() < deadline, "the members did not meet in one generation"
        for member in list(waiting):
            error = member.receive_join(0.3)
            assert error in (None, "NONE"), error
            if error == "NONE":
                waiting.discard(member)
        newest = max(member.generation for member in members)
        for member in members:
            if member not in waiting and (waiting or member.generation < newest):
                member.send_join()
                waiting.add(member)
