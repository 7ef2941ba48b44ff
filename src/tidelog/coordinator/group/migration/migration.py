"""Groups between the protocols, as the shard sees them: the classic protocol's requests to consumer groups, and the other way round.

Owns how the parts of this package fit together. `conversion.py` and `upgrade.py` make a consumer group of a classic one, `downgrade.py` the reverse;
`joins.py`, `hosted.py` and `leaving.py` serve members that speak the classic protocol in a consumer group, `deadlines.py` says for how long. What a
group has committed is not touched by any of it: offsets belong to the group's id.
"""

from __future__ import annotations

from tidelog.coordinator.group.classic.groups import ClassicGroups
from tidelog.coordinator.group.consumer.group import ConsumerGroup
from tidelog.coordinator.group.consumer.groups import ConsumerGroups
from tidelog.coordinator.group.migration.deadlines import Deadlines
from tidelog.coordinator.group.migration.downgrade import Downgrades
from tidelog.coordinator.group.migration.hosted import HostedMembers
from tidelog.coordinator.group.migration.joins import HostedJoins
from tidelog.coordinator.group.migration.leaving import Leaving
from tidelog.coordinator.group.migration.upgrade import Upgrades
from tidelog.coordinator.group.world import Client
from tidelog.coordinator.outcome import Now, Outcome, Waiter
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest
from tidelog.wire.messages.leave_group import LeaveGroupRequest
from tidelog.wire.messages.sync_group import SyncGroupRequest


class Migration:
    __slots__ = ("_classic", "_consumer", "_deadlines", "_joins", "_leaving", "_members", "_upgrades")

    def __init__(self, classic: ClassicGroups, consumer: ConsumerGroups) -> None:
        parts = consumer.parts
        self._classic = classic
        self._consumer = consumer
        self._deadlines = Deadlines(parts)
        downgrades = Downgrades(classic, consumer, self._deadlines)
        parts.departures.instead = downgrades.instead_of_fencing
        self._joins = HostedJoins(parts, self._deadlines, downgrades)
        self._members = HostedMembers(parts, self._deadlines)
        self._leaving = Leaving(parts)
        self._upgrades = Upgrades(classic, parts)

    def loaded(self, now: Now) -> None:
        """After both kinds of groups are."""
        self._deadlines.loaded(now)

    # ---- the consumer protocol's request, to a classic group with members

    def consumer_group_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, waiter: Waiter, now: Now
    ) -> Outcome:
        group = self._classic.get(request.group_id)
        assert group is not None, f"{request.group_id} is not a classic group"
        return self._upgrades.heartbeat(group, request, client, waiter, now)

    # ---- the classic protocol's requests, to a consumer group

    def join(self, request: JoinGroupRequest, client: Client, waiter: Waiter, now: Now) -> Outcome:
        self._classic.check_join(request)
        return self._joins.join(self._group(request.group_id), request, client, waiter, now)

    def sync(self, request: SyncGroupRequest, client: Client, waiter: Waiter, now: Now) -> Outcome:
        self._classic.check_sync(request, client)
        return self._members.sync(self._group(request.group_id), request, client, waiter, now)

    def heartbeat(self, request: HeartbeatRequest, client: Client, waiter: Waiter, now: Now) -> Outcome:
        return self._members.heartbeat(self._group(request.group_id), request, client, waiter, now)

    def leave(self, request: LeaveGroupRequest, client: Client, waiter: Waiter, now: Now) -> Outcome:
        return self._leaving.leave(self._group(request.group_id), request, client, waiter, now)

    def _group(self, group_id: str) -> ConsumerGroup:
        group = self._consumer.get(group_id)
        assert group is not None, f"{group_id} is not a consumer group"
        return group
