"""From the classic protocol to the consumer protocol: a member that speaks the new one joins a group whose members do not, yet.

Owns when that is allowed (`group.consumer.migration.policy`) and that it is one step: the classic group's tombstone, all that is known of
its members, and the new member's join are one batch, or nothing happens. The classic members notice nothing, but for those who wait in a
JoinGroup or SyncGroup: they are told that there is another rebalance, join again, and are served by `hosted.py` from then on.
"""

from __future__ import annotations

from tidelog.coordinator.group.classic.group import CONSUMER, ClassicGroup
from tidelog.coordinator.group.classic.groups import ClassicGroups
from tidelog.coordinator.group.consumer.departures import unknown_member
from tidelog.coordinator.group.consumer.groups import Parts
from tidelog.coordinator.group.consumer.member import JOINING
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.group.migration.conversion import cannot, convert
from tidelog.coordinator.group.world import Client
from tidelog.coordinator.outcome import Now, Outcome, Waiter
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


class Upgrades:
    __slots__ = ("_classic", "_parts")

    def __init__(self, classic: ClassicGroups, parts: Parts) -> None:
        self._classic = classic
        self._parts = parts

    def heartbeat(
        self,
        group: ClassicGroup,
        request: ConsumerGroupHeartbeatRequest,
        client: Client,
        waiter: Waiter,
        now: Now,
    ) -> Outcome:
        """A ConsumerGroupHeartbeat for a classic group that has members."""
        self._refuse_if_it_stays(group, request)
        group_id = group.group_id
        converted = convert(group, self._parts.environment.metadata)
        joined = self._parts.heartbeats.handle(request, client, waiter, now, converted.group)
        # Nothing is refused from here on, so what the log does not hold may change.
        released = self._classic.release(group_id, ErrorCode.REBALANCE_IN_PROGRESS, now)
        for member in group.members.values():
            self._parts.liveness.heard_from(group_id, member.member_id, member.session_timeout_ms, now)
        self._parts.environment.note(
            now,
            group_id,
            Event.MIGRATED,
            converted.group.epoch,
            detail=f"from the classic to the consumer protocol: {client.id} ({client.host}) joined with that one",
        )

        def failed(error: ErrorCode, _failed_at: Now) -> Outcome:
            # Who waited joins again all the same; the group is still the one it was.
            refused = ConsumerGroupHeartbeatResponse(error_code=error)
            return Outcome(answers=released.answers).answer(waiter, refused)

        return Outcome(
            records=self._classic.tombstone(group_id) + converted.records + joined.records,
            answers=released.answers + joined.answers,
            on_failed=failed,
        )

    def _refuse_if_it_stays(self, group: ClassicGroup, request: ConsumerGroupHeartbeatRequest) -> None:
        group_id, settings = group.group_id, self._parts.environment.settings
        policy, size_max = settings.consumer_migration_policy, settings.consumer_max_size
        if request.member_epoch < JOINING:
            raise RequestError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"group {group_id} is not a consumer group: there is nobody to leave it",
            )
        if not policy.upgrades:
            raise cannot(
                group_id,
                f"its members speak the classic one, and group.consumer.migration.policy is {policy.value}; stop all of them first, or set the"
                " broker's policy to upgrade or bidirectional",
            )
        if group.protocol_type != CONSUMER:
            raise cannot(
                group_id,
                f"its members are no consumers, but of type {group.protocol_type}; use another group id",
            )
        if request.member_epoch != JOINING:
            # It was a member before the group moved back. Kafka says GROUP_ID_NOT_FOUND here, which its libraries take for the end.
            raise unknown_member(group_id, request.member_id)
        if len(group.members) > size_max:
            raise cannot(
                group_id,
                f"it has {len(group.members)} members, and group.consumer.max.size allows {size_max}; stop some, or allow more",
            )
