"""Members of groups over bare connections: each of their requests can be seen, changed and left out.

A member has a connection of its own, because an answer that is held back (a join, a follower's sync) holds back every request behind it
on its connection. A broker that is not ours is best started with `group.initial.rebalance.delay.ms=0`: with stock settings the
tests pass, too, but the first member of every group waits three seconds.
"""

from __future__ import annotations

import os
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.broker.conftest import Topic, Wire, code
from tidelog.wire.messages import consumer_group_heartbeat as beats
from tidelog.wire.messages import offset_commit as commits
from tidelog.wire.messages import offset_fetch as fetches
from tidelog.wire.messages.describe_groups import DescribeGroupsRequest
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

Connect = Callable[[], Wire]
PATIENCE_SECONDS = 20.0
PAUSE_SECONDS = 0.05


def group_broker(foreign: bool) -> Iterator[tuple[str, int]]:
    """The broker that the group tests of a module share; it coordinates groups already."""
    if foreign:
        host, _, port = os.environ["TIDELOG_TEST_BOOTSTRAP"].rpartition(":")
        await_coordinators(int(port), host)
        yield host, int(port)
        return
    from tidelog.testing import Cluster

    with Cluster(config={"group.initial.rebalance.delay.ms": 0}) as cluster:
        host, _, port = cluster.bootstrap_servers.rpartition(":")
        await_coordinators(int(port), host)
        yield host, int(port)


def await_coordinators(port: int, host: str = "127.0.0.1") -> None:
    """The first question creates `__consumer_offsets`; until each of its partitions is led and read, groups are told to come back."""
    somebody = [f"nobody-{number}" for number in range(500)]  # some in each of the 50 partitions
    with Wire(port, host) as wire:

        def ready() -> bool:
            found = wire.ask(FindCoordinatorRequest(coordinator_keys=["nobody"]), 4).coordinators
            if any(each.error_code for each in found):
                return False
            return not any(
                each.error_code for each in wire.ask(DescribeGroupsRequest(groups=somebody), 5).groups
            )

        eventually(ready)


def eventually(holds: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """Ask again and again until the answer is true; the answer."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not so within {seconds} s"
        time.sleep(PAUSE_SECONDS)
    return found


def new_id(prefix: str = "g") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


# ---- what consumers put into the classic protocol: the broker hands it on, and looks into it only for topic names


def subscription(*topics: str) -> bytes:
    """Version 0: topics, no user data."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def assignment(topic: str, *partitions: int) -> bytes:
    """Version 0: partitions of one topic, no user data."""
    numbers = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return struct.pack(">hih", 0, 1, len(topic)) + topic.encode() + numbers + struct.pack(">i", -1)


# ---- classic groups


class Member:
    """A member of a classic group, and what it was told last."""

    def __init__(
        self,
        wire: Wire,
        group_id: str,
        *,
        topics: Sequence[str] = ("t",),
        protocols: Mapping[str, bytes] | None = None,
        protocol_type: str = "consumer",
        instance_id: str | None = None,
        session_timeout_ms: int = 30_000,
        rebalance_timeout_ms: int = 30_000,
    ) -> None:
        self.wire = wire
        self.group_id = group_id
        self.protocols = dict(protocols or {"range": subscription(*topics)})
        self.protocol_type = protocol_type
        self.instance_id = instance_id
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.id = ""
        self.generation = -1
        self.protocol: str | None = None

    # joining

    def join_request(self, **changes: Any) -> JoinGroupRequest:
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "session_timeout_ms": self.session_timeout_ms,
            "rebalance_timeout_ms": self.rebalance_timeout_ms,
            "member_id": self.id,
            "group_instance_id": self.instance_id,
            "protocol_type": self.protocol_type,
            "protocols": [
                JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in self.protocols.items()
            ],
        }
        return JoinGroupRequest(**(fields | changes))

    def ask_to_join(self, version: int | None = None, **changes: Any) -> Any:
        """One request, one answer, whatever it is."""
        return self.wire.ask(self.join_request(**changes), version)

    def get_id(self) -> None:
        """The first half of the round trip: known to the group, not yet a member."""
        answer = self.ask_to_join()
        assert code(answer) == "MEMBER_ID_REQUIRED", answer
        self.id = answer.member_id

    def send_join(self, version: int | None = None, **changes: Any) -> None:
        self.wire.send(self.join_request(**changes), version)

    def joined(self) -> Any:
        """The answer to `send_join`, which must be a success."""
        answer = self.wire.receive()
        assert code(answer) == "NONE", answer
        self.id, self.generation, self.protocol = answer.member_id, answer.generation_id, answer.protocol_name
        return answer

    def join(self, version: int | None = None, **changes: Any) -> Any:
        """Become a member, through MEMBER_ID_REQUIRED where the broker wants that."""
        if not self.id and self.instance_id is None and (version is None or version >= 4):
            self.get_id()
        self.send_join(version, **changes)
        return self.joined()

    # afterwards

    def sync_request(
        self, assignments: Mapping[str, bytes] | None = None, **changes: Any
    ) -> SyncGroupRequest:
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance_id,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignments": [
                SyncGroupRequestAssignment(member_id=member_id, assignment=content)
                for member_id, content in (assignments or {}).items()
            ],
        }
        return SyncGroupRequest(**(fields | changes))

    def sync(
        self, assignments: Mapping[str, bytes] | None = None, version: int | None = None, **changes: Any
    ) -> Any:
        return self.wire.ask(self.sync_request(assignments, **changes), version)

    def send_sync(self, assignments: Mapping[str, bytes] | None = None) -> None:
        self.wire.send(self.sync_request(assignments))

    def heartbeat(self, version: int | None = None, **changes: Any) -> str:
        """The name of the answer's error."""
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance_id,
        }
        return code(self.wire.ask(HeartbeatRequest(**(fields | changes)), version))

    def leave(self, version: int | None = None) -> str:
        return left(self.wire, self.group_id, (self.id, self.instance_id), version=version)[0]

    def commit(self, topic: Topic, offset: int, **more: Any) -> str:
        who = {"member_id": self.id, "epoch": self.generation, "instance_id": self.instance_id}
        return commit(self.wire, self.group_id, topic, offset, **(who | more))


def left(
    wire: Wire, group_id: str, *who: tuple[str, str | None], version: int | None = None
) -> tuple[str, ...]:
    """Let members, by id and instance id, leave: the error of each. Before version 3 there is one, and the answer is about it."""
    request = LeaveGroupRequest(
        group_id=group_id,
        member_id=who[0][0],
        members=[
            MemberIdentity(member_id=member_id, group_instance_id=instance_id)
            for member_id, instance_id in who
        ],
    )
    answer = wire.ask(request, version)
    if answer.error_code or (version is not None and version < 3):
        return (code(answer),)
    assert [(each.member_id, each.group_instance_id) for each in answer.members] == list(who)
    return tuple(code(each) for each in answer.members)


def joined_together(connect: Connect, group_id: str, count: int, **settings: Any) -> list[Member]:
    """Members of one generation that have not synced yet; the first of them leads."""
    first, *others = (Member(connect(), group_id, **settings) for _ in range(count))
    first.join()
    for member in others:
        member.get_id()
        member.send_join()
    if others:
        eventually(lambda: first.heartbeat() == "REBALANCE_IN_PROGRESS")
        rejoined(first, *others)
    return [first, *others]


def rejoined(last: Member, *waiting: Member) -> list[Any]:
    """The member that everybody has waited for joins; the answers of all, its own first."""
    last.send_join()
    answers = [member.joined() for member in (last, *waiting)]
    assert len({answer.generation_id for answer in answers}) == 1
    return answers


def stable(connect: Connect, group_id: str, count: int = 1, **settings: Any) -> list[Member]:
    """Members of a stable group, the leader first; each is assigned its own number as text."""
    members = joined_together(connect, group_id, count, **settings)
    leader, *followers = members
    answer = leader.sync({member.id: b"%d" % number for number, member in enumerate(members)})
    assert code(answer) == "NONE", answer
    for number, member in enumerate(followers, 1):
        assert member.sync().assignment == b"%d" % number
    return members


# ---- consumer groups (KIP-848)

Owned = dict[bytes, set[int]]
"""Partitions by topic id."""


class Consumer:
    """A member of a consumer group: it owns what it was told to own, and says so with every heartbeat."""

    def __init__(
        self,
        wire: Wire,
        group_id: str,
        *topics: str,
        regex: str | None = None,
        instance_id: str | None = None,
        assignor: str | None = None,
        rebalance_timeout_ms: int = 30_000,
        member_id: str | None = None,
    ) -> None:
        self.wire = wire
        self.group_id = group_id
        self.topics = list(topics)
        self.regex = regex
        self.instance_id = instance_id
        self.assignor = assignor
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.id = str(uuid.uuid4()) if member_id is None else member_id
        self.epoch = 0
        self.owned: Owned = {}

    def request(self, **changes: Any) -> beats.ConsumerGroupHeartbeatRequest:
        """Everything when it joins; afterwards what it owns."""
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "instance_id": self.instance_id,
            "topic_partitions": partitions_of(self.owned),
        }
        if self.epoch == 0:
            fields |= {
                "rebalance_timeout_ms": self.rebalance_timeout_ms,
                "subscribed_topic_names": self.topics,
                "subscribed_topic_regex": self.regex,
                "server_assignor": self.assignor,
            }
        return beats.ConsumerGroupHeartbeatRequest(**(fields | changes))

    def ask(self, version: int | None = None, **changes: Any) -> Any:
        """One request, one answer, whatever it is; nothing is learnt from it."""
        return self.wire.ask(self.request(**changes), version)

    def beat(self, version: int | None = None, **changes: Any) -> Any:
        """A heartbeat that must succeed; what it says is done at once."""
        answer = self.ask(version, **changes)
        assert code(answer) == "NONE", answer
        self.id, self.epoch = answer.member_id, answer.member_epoch
        if answer.assignment is not None:
            self.owned = {
                each.topic_id: set(each.partitions)
                for each in answer.assignment.topic_partitions
                if each.partitions
            }
        return answer

    def leave(self, epoch: int = -1) -> str:
        return code(self.ask(member_epoch=epoch, topic_partitions=None))

    def partitions(self, topic: Topic) -> set[int]:
        return self.owned.get(topic.id, set())


def partitions_of(owned: Owned) -> list[beats.TopicPartitions]:
    return [
        beats.TopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
        for topic_id, numbers in owned.items()
    ]


def settled(holds: Callable[[], Any], *members: Consumer) -> None:
    """All members go on sending heartbeats until it holds. At no time does a partition have two owners (I34)."""

    def look() -> bool:
        for member in members:
            member.beat()
            claims = [
                (topic, number) for each in members for topic in each.owned for number in each.owned[topic]
            ]
            assert len(claims) == len(set(claims)), "a partition has two owners"
        return bool(holds())

    eventually(look)


# ---- offsets


class Committed(NamedTuple):
    error: str
    offset: int
    leader_epoch: int
    metadata: str | None


NOTHING = Committed("NONE", -1, -1, "")


def commit_request(
    group_id: str,
    *wanted: tuple[Topic, int, int],
    member_id: str = "",
    epoch: int = -1,
    instance_id: str | None = None,
    leader_epoch: int = -1,
    metadata: str | None = "",
) -> commits.OffsetCommitRequest:
    """Topic, partition and offset of each."""
    return commits.OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[
            commits.OffsetCommitRequestTopic(
                name=topic.name,
                topic_id=topic.id,
                partitions=[
                    commits.OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=leader_epoch,
                        committed_metadata=metadata,
                    )
                ],
            )
            for topic, partition, offset in wanted
        ],
    )


def commit(
    wire: Wire,
    group_id: str,
    topic: Topic,
    offset: int,
    *,
    partition: int = 0,
    version: int | None = None,
    **who: Any,
) -> str:
    """Commit for one partition: the name of its error."""
    answer = wire.ask(commit_request(group_id, (topic, partition, offset), **who), version)
    (found,) = answer.topics
    (result,) = found.partitions
    assert result.partition_index == partition
    if version is None or version >= 10:
        assert found.topic_id == topic.id
    else:
        assert found.name == topic.name
    return code(result)


def fetch_request(
    group_id: str,
    topics: Mapping[Topic, Sequence[int]] | None,
    *,
    member_id: str | None = None,
    member_epoch: int = -1,
    require_stable: bool = False,
) -> fetches.OffsetFetchRequest:
    """For every version: each takes the fields it has. `None` asks for everything that is committed."""
    group = fetches.OffsetFetchRequestGroup(group_id=group_id, member_id=member_id, member_epoch=member_epoch)
    group.topics = old = None
    if topics is not None:
        old = [
            fetches.OffsetFetchRequestTopic(name=topic.name, partition_indexes=list(numbers))
            for topic, numbers in topics.items()
        ]
        group.topics = [
            fetches.OffsetFetchRequestTopics(
                name=topic.name, topic_id=topic.id, partition_indexes=list(numbers)
            )
            for topic, numbers in topics.items()
        ]
    return fetches.OffsetFetchRequest(
        group_id=group_id, topics=old, groups=[group], require_stable=require_stable
    )


def committed(
    wire: Wire,
    group_id: str,
    topics: Mapping[Topic, Sequence[int]] | None,
    version: int | None = None,
    **more: Any,
) -> dict[tuple[str | bytes, int], Committed] | str:
    """By topic (its name, or its id from version 10 on) and partition; the name of the error when the whole group has one."""
    answer = wire.ask(fetch_request(group_id, topics, **more), version)
    if version is None or version >= 8:
        (answer,) = answer.groups
        assert answer.group_id == group_id
    if answer.error_code:
        return code(answer)
    by_id = version is None or version >= 10
    return {
        (topic.topic_id if by_id else topic.name, each.partition_index): Committed(
            code(each), each.committed_offset, each.committed_leader_epoch, each.metadata
        )
        for topic in answer.topics
        for each in topic.partitions
    }


def committed_offset(wire: Wire, group_id: str, topic: Topic, partition: int = 0) -> int:
    found = committed(wire, group_id, {topic: [partition]})
    assert isinstance(found, dict), found
    (result,) = found.values()
    assert result.error == "NONE", result
    return result.offset
