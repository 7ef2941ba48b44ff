"""What idle members cost: an asyncio client of a few lines, a connection for each member, and nothing but heartbeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event

from bench.children import Child, new_event
from bench.groups_wire import CLASSIC, HEARTBEAT_SECONDS, PARTITIONS, REBALANCE_SECONDS_MAX, Asker, accept
from bench.load import LoadError
from bench.results import Metric, Results
from bench.topics import topic_of
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.leave_group import LeaveGroupRequest
from tidelog.wire.messages.sync_group import SyncGroupRequest
from tools.peers.process import Peer

IDLE_MEMBERS, IDLE_GROUPS = 1000, 20
IDLE_SECONDS = 20.0
IDLE_SETTLE_BEATS = 3
"""Intervals without a rebalance before a client counts its members as idle."""
SYNC_VERSION, JOIN_VERSION, BEAT_VERSION = 3, 5, 3


class IdleMember:
    """Joins, does what it is told, and then sends heartbeats."""

    def __init__(self, bootstrap: str, group: str, topic: str, number: int) -> None:
        self._asker = Asker(bootstrap)
        self._group, self._topic, self._number = group, topic, number
        self.id = ""
        self.beats = 0
        self.last_change = time.monotonic()

    async def live(self, protocol: str) -> None:
        interval = HEARTBEAT_SECONDS[protocol]
        await self._asker.connect()
        await asyncio.sleep(interval * self._number / IDLE_MEMBERS)  # not all at the same moment
        await (self._classic(interval) if protocol == CLASSIC else self._consumer(interval))

    async def _classic(self, interval: float) -> None:
        while True:
            generation = await self._join()
            sync = SyncGroupRequest(group_id=self._group, generation_id=generation, member_id=self.id)
            answer = await self._asker.ask(ApiKey.SYNC_GROUP, SYNC_VERSION, sync)
            self.last_change = time.monotonic()
            beat = HeartbeatRequest(group_id=self._group, generation_id=generation, member_id=self.id)
            due = time.monotonic()
            while not answer.error_code:
                due = max(due + interval, time.monotonic())
                await asyncio.sleep(due - time.monotonic())
                answer = await self._asker.ask(ApiKey.HEARTBEAT, BEAT_VERSION, beat)
                self.beats += 1
            accept(answer.error_code, ErrorCode.REBALANCE_IN_PROGRESS)

    async def _join(self) -> int:
        while True:
            request = JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=45_000,
                rebalance_timeout_ms=60_000,
                member_id=self.id,
                protocol_type="bench",
                protocols=[JoinGroupRequestProtocol(name="idle", metadata=b"")],
            )
            answer = await self._asker.ask(ApiKey.JOIN_GROUP, JOIN_VERSION, request)
            self.id = answer.member_id
            if not answer.error_code:
                generation: int = answer.generation_id
                return generation
            accept(answer.error_code, ErrorCode.MEMBER_ID_REQUIRED)

    async def _consumer(self, interval: float) -> None:
        epoch, owned = 0, None
        self.id = f"{self._group}-{self._number:04}"
        while True:
            request = ConsumerGroupHeartbeatRequest(
                group_id=self._group, member_id=self.id, member_epoch=epoch
            )
            if epoch == 0:
                request.rebalance_timeout_ms = 60_000
                request.subscribed_topic_names = [self._topic]
            request.topic_partitions = [] if epoch == 0 else owned
            answer = await self._asker.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
            accept(answer.error_code, ErrorCode.NONE)
            self.beats += 1
            owned = None
            if answer.member_epoch != epoch or answer.assignment is not None:
                epoch, self.last_change = answer.member_epoch, time.monotonic()
            if answer.assignment is not None:
                owned = answer.assignment.topic_partitions
                continue  # it has taken and let go what it was told to, and says so at once
            await asyncio.sleep(interval)

    async def leave(self, protocol: str, asker: Asker) -> None:
        """Through a connection that nothing else is under way on; later measurements would pay for members that just fall silent."""
        if protocol == CLASSIC:
            farewell = LeaveGroupRequest(group_id=self._group, member_id=self.id)
            await asker.ask(ApiKey.LEAVE_GROUP, 0, farewell)
        else:
            last = ConsumerGroupHeartbeatRequest(group_id=self._group, member_id=self.id, member_epoch=-1)
            await asker.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, last)


def idle_members(bootstrap: str, topic: str, protocol: str, *, idle: Event, stop: Event) -> int:
    """A thousand members: says when they have come to rest, and returns how many heartbeats were answered since."""
    return asyncio.run(_idle_members(bootstrap, topic, protocol, idle, stop))


async def _idle_members(bootstrap: str, topic: str, protocol: str, idle: Event, stop: Event) -> int:
    found = [
        IdleMember(bootstrap, f"{topic}-{number % IDLE_GROUPS}", topic, number)
        for number in range(IDLE_MEMBERS)
    ]
    tasks = [asyncio.create_task(member.live(protocol)) for member in found]
    quiet_seconds = IDLE_SETTLE_BEATS * HEARTBEAT_SECONDS[protocol]
    counted = 0
    while not stop.is_set():
        await asyncio.sleep(0.1)
        for task in tasks:
            if task.done():
                task.result()
        last_change = max(member.last_change for member in found)
        if not idle.is_set() and time.monotonic() - last_change > quiet_seconds:
            counted = sum(member.beats for member in found)
            idle.set()
    beats = sum(member.beats for member in found) - counted
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    asker = Asker(bootstrap)
    await asker.connect()
    for member in found:
        await member.leave(protocol, asker)
    asker.close()
    return beats


def idle_metric(protocol: str) -> Metric:
    return Metric(f"broker CPU, {IDLE_MEMBERS:,} idle members, {protocol}", "% of a core", False)


def idle_cost(protocol: str) -> Callable[[Peer, Results], None]:
    def measure(peer: Peer, results: Results) -> None:
        idle, stop = new_event(), new_event()
        with (
            topic_of(peer, "idle", partitions=PARTITIONS) as topic,
            Child(idle_members, peer.bootstrap, topic, protocol, idle=idle, stop=stop) as client,
        ):
            deadline = time.monotonic() + REBALANCE_SECONDS_MAX
            while not idle.wait(0.5):
                if not client.is_running or time.monotonic() > deadline:
                    stop.set()
                    client.result(10)
                    raise LoadError("the members did not come to rest")
            cpu, began = peer.cpu_seconds(), time.monotonic()
            time.sleep(IDLE_SECONDS)
            busy = (peer.cpu_seconds() - cpu) / (time.monotonic() - began)
            stop.set()
            beats = client.result(30)
        expected = IDLE_MEMBERS * IDLE_SECONDS / HEARTBEAT_SECONDS[protocol]
        if beats < 0.8 * expected:
            raise LoadError(f"{beats} heartbeats were answered instead of {expected:.0f}")
        results.add(idle_metric(protocol), peer.name, 100 * busy)

    return measure
