"""Very many members of one group from one process: classic ones on a connection each, consumer ones on a single connection.

A classic member needs a connection of its own, because the broker answers its JoinGroup when all have joined and nothing behind
it before. A member of the consumer protocol is answered at once.
"""

from __future__ import annotations

import asyncio
import resource
import struct
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.groups.wire import Wire, code, encoded
from tidelog.wire.headers import decode_response
from tidelog.wire.messages import consumer_group_heartbeat, heartbeat, join_group, leave_group, sync_group

SUBSCRIPTION = struct.pack(">hii", 0, 0, -1)
"""Version 0, no topics, no user data: as little as a consumer can send."""
OPEN_AT_ONCE = 100
PATIENCE_MS = 600_000
WINDOW = 200
DESCRIPTORS_FOR_THE_REST = 500


def allow_descriptors(wanted: int) -> bool:
    """Whether this process, and a broker with the same limit, may have so many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return wanted + DESCRIPTORS_FOR_THE_REST <= hard


class ClassicMember:
    """Joins and syncs until it is told to stop, and joins again whenever it is told that the group rebalances."""

    def __init__(self, multitude: Multitude) -> None:
        self._multitude = multitude
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self.member_id = ""
        self.generation = -1
        self.assignment: bytes | None = None
        """What the broker gave it in this generation; None before that."""

    async def open(self, host: str, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection(host, port)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    async def ask(self, request: Any) -> Any:
        # A client's name is part of its member id, and both are in the group's record: a short one keeps that small.
        key, version, frame = encoded(request, 1, client_id="m")
        assert self._writer is not None
        self._writer.write(frame)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return decode_response(int(key), version, await self._reader.readexactly(size))[1]

    async def join(self) -> Any:
        protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)
        request = join_group.JoinGroupRequest(
            group_id=self._multitude.group,
            session_timeout_ms=PATIENCE_MS,
            rebalance_timeout_ms=PATIENCE_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        return await self.ask(request)

    async def get_an_id(self) -> None:
        answer = await self.join()
        assert code(answer) == "MEMBER_ID_REQUIRED", answer
        self.member_id = answer.member_id

    async def take_part(self) -> None:
        while not self._multitude.is_settled:
            if self.assignment is None:
                await self._enter()
            else:
                await asyncio.sleep(1.0)
                if await self.heartbeat() == "REBALANCE_IN_PROGRESS":
                    self.assignment = None

    async def _enter(self) -> None:
        joined = await self.join()
        assert joined.error_code == 0, joined
        self.generation = joined.generation_id
        given = [
            # Four bytes of its own for each: whoever gets another's is noticed.
            sync_group.SyncGroupRequestAssignment(
                member_id=member.member_id, assignment=short(member.member_id)
            )
            for member in joined.members
        ]
        request = sync_group.SyncGroupRequest(
            group_id=self._multitude.group,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=given,
        )
        synced = await self.ask(request)
        assert code(synced) in ("NONE", "REBALANCE_IN_PROGRESS"), synced
        self.assignment = synced.assignment if synced.error_code == 0 else None

    async def heartbeat(self) -> str:
        request = heartbeat.HeartbeatRequest(
            group_id=self._multitude.group, generation_id=self.generation, member_id=self.member_id
        )
        return code(await self.ask(request))

    async def leave(self, members: Iterable[ClassicMember]) -> Any:
        """All of these, by one request."""
        leaving = [leave_group.MemberIdentity(member_id=member.member_id) for member in members]
        return await self.ask(leave_group.LeaveGroupRequest(group_id=self._multitude.group, members=leaving))


def short(member_id: str) -> bytes:
    return member_id[-4:].encode()


class Multitude:
    def __init__(self, group: str, count: int) -> None:
        self.group = group
        self.members = [ClassicMember(self) for _ in range(count)]
        self.is_settled = False
        """All have an assignment, and of one generation."""

    async def open(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        for some in windows(self.members, OPEN_AT_ONCE):
            await asyncio.gather(*(member.open(host, int(port)) for member in some))

    async def gather(self) -> None:
        await asyncio.gather(*(member.get_an_id() for member in self.members))
        await asyncio.gather(self._watch(), *(member.take_part() for member in self.members))

    async def _watch(self) -> None:
        while not self.is_settled:
            await asyncio.sleep(0.2)
            found = {(member.assignment is None, member.generation) for member in self.members}
            self.is_settled = len(found) == 1 and not found.pop()[0]

    def close(self) -> None:
        for member in self.members:
            member.close()


def windows(members: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for first in range(0, len(members), size):
        yield members[first : first + size]


# ---- the consumer protocol


@dataclass(slots=True)
class ConsumerMember:
    group: str
    topic: str
    member_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    epoch: int = 0
    owned: frozenset[int] = frozenset()
    _topic_id: bytes = bytes(16)
    _told: frozenset[int] | None = None

    def request(self) -> consumer_group_heartbeat.ConsumerGroupHeartbeatRequest:
        """All of it when joining, what it owns when that has changed, and else only who it is."""
        joining = self.epoch == 0
        changed = self.owned != self._told
        owned = [
            consumer_group_heartbeat.TopicPartitions(topic_id=self._topic_id, partitions=sorted(self.owned))
        ]
        self._told = self.owned
        return consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=PATIENCE_MS if joining else -1,
            subscribed_topic_names=[self.topic] if joining else None,
            topic_partitions=(owned if self.owned else []) if joining or changed else None,
        )

    def told(self, answer: Any, owners: dict[int, str]) -> bool:
        """Whether anything is new. What is no longer owned may be another's from the next request on, which says so."""
        assert answer.error_code == 0, answer
        before = (self.epoch, self.owned)
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            partitions: set[int] = set()
            for topic in answer.assignment.topic_partitions:
                self._topic_id = topic.topic_id
                partitions.update(topic.partitions)
            for partition in self.owned - partitions:
                del owners[partition]
            for partition in partitions - self.owned:
                assert partition not in owners, f"{partition} has two owners: {owners[partition]}, {self}"
                owners[partition] = self.member_id
            self.owned = frozenset(partitions)
        return (self.epoch, self.owned) != before


def beat_once(wire: Wire, members: Sequence[ConsumerMember], owners: dict[int, str]) -> int:
    """One heartbeat of each, many on their way at a time; how many of them heard something new.

    `owners` is who owns what; that nobody is given a partition which another still has is seen at every answer.
    """
    news = 0
    for some in windows(members, WINDOW):
        for member in some:
            wire.send(member.request())
        news += sum(member.told(wire.receive(), owners) for member in some)
    return news
