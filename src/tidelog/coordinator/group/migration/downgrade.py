"""From the consumer protocol back to the classic one: the last member that speaks the new one goes, and those who are left do not.

Owns when that is allowed (`group.consumer.migration.policy`) and that it is one step: the tombstones of all that the consumer group has written
and the classic group's record are one batch, or nothing happens. If a policy forbids it, the group stays what it is, and goes on serving its
classic members.

The classic group takes over the assignments, and rebalances: what the one who left has read must be divided up by the members' own assignor. Nobody knows
of that rebalance but this coordinator. If it is lost in the middle, the next one would find a Stable group that nobody disturbs, and partitions
that nobody reads. So the record names no leader, and a group without a leader rebalances when it is loaded.

One case needs no rebalance: a static member comes back with the classic protocol, wants what it wanted, and everybody has what was meant for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidelog.coordinator.group.classic.group import CONSUMER, ClassicMember
from tidelog.coordinator.group.classic.groups import ClassicGroups
from tidelog.coordinator.group.consumer.draft import Draft
from tidelog.coordinator.group.consumer.group import ConsumerGroup
from tidelog.coordinator.group.consumer.groups import ConsumerGroups
from tidelog.coordinator.group.consumer.member import Member
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.group.migration import embedded
from tidelog.coordinator.group.migration.deadlines import Deadlines
from tidelog.coordinator.group.records import ClassicMemberMetadata
from tidelog.coordinator.outcome import Now, Outcome, Waiter
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.join_group import JoinGroupResponse


class Downgrades:
    __slots__ = ("_classic", "_consumer", "_deadlines", "_environment")

    def __init__(self, classic: ClassicGroups, consumer: ConsumerGroups, deadlines: Deadlines) -> None:
        self._classic = classic
        self._consumer = consumer
        self._deadlines = deadlines
        self._environment = consumer.parts.environment

    def instead_of_fencing(self, group: ConsumerGroup, gone: Sequence[Member], now: Now) -> Outcome | None:
        """What happens when these members go, and nobody is left who speaks the consumer protocol; None: somebody is."""
        ids = {member.id for member in gone}
        if any(member.classic is None and member.id not in ids for member in group.members.values()):
            return None  # found at once in most groups, however large
        left = [member for member in group.members.values() if member.id not in ids]
        if not self._may_move(left):
            return None
        reason = "the group came back from the consumer protocol, and a member of that one is gone"
        return self._move(group, left, "its last member of the consumer protocol is gone", reason, now)

    def moves_with(self, draft: Draft) -> bool:
        """Whether the member that joins with the classic protocol was, or takes the place of, the last one that spoke the other."""
        before = draft.group.members.get(draft.replaces or draft.before.id)
        return before is not None and before.classic is None and self._may_move(draft.members().values())

    def join(self, draft: Draft, waiter: Waiter, now: Now) -> Outcome:
        """The join of a member that takes the place of the last one that spoke the consumer protocol."""
        group, members = draft.group, list(draft.members().values())
        is_settled = draft.epoch == group.epoch == group.assignment_epoch and all(
            member.is_reconciled_to(group.epoch) for member in members
        )
        reason = (
            None
            if is_settled
            else "the group came back from the consumer protocol in the middle of a rebalance"
        )
        why = f"static member {draft.after.instance_id} came back with that one, and was the last"
        out = self._move(group, members, why, reason, now)
        moved = self._classic.get(group.id)
        assert moved is not None
        # As in any consumer group: nobody leads, so this member will not bring an assignment. In a rebalance its SyncGroup tells it to join again.
        return out.answer(
            waiter,
            JoinGroupResponse(
                generation_id=moved.generation,
                protocol_type=CONSUMER,
                protocol_name=moved.protocol,
                member_id=draft.after.id,
            ),
        )

    def _may_move(self, left: Collection[Member]) -> bool:
        settings = self._environment.settings
        if not left or len(left) > settings.max_size or not settings.consumer_migration_policy.downgrades:
            return False
        offered = [
            {name for name, _ in embedded.offered_by(member.classic)}
            for member in left
            if member.classic is not None
        ]
        return len(offered) == len(left) and bool(set.intersection(*offered))

    def _move(
        self, group: ConsumerGroup, members: Collection[Member], why: str, reason: str | None, now: Now
    ) -> Outcome:
        moved = [
            self._classic_member(member, member.classic) for member in members if member.classic is not None
        ]
        installed = self._classic.install(group.id, moved, generation=group.epoch, reason=reason, now=now)
        [(_, value)] = installed.records
        assert value is not None
        if reason is not None:
            value.leader = None
        out = Outcome(records=self._consumer.tombstone(group.id) + installed.records)

        def failed(error: ErrorCode, _failed_at: Now) -> Outcome:
            """The group is still a consumer group. Whoever would have been answered is told the error."""
            instead = self._classic.dissolve(group.id, error)
            for waiter, response in out.answers:
                instead.answer(waiter, type(response)(error_code=error))
            return instead

        out.on_failed = failed
        self._deadlines.forget(group.id, group.members)
        detail = f"from the consumer to the classic protocol: {why}"
        self._environment.note(now, group.id, Event.MIGRATED, group.epoch, detail=detail)
        return out

    def _classic_member(self, member: Member, classic: ClassicMemberMetadata) -> ClassicMember:
        return ClassicMember(
            member_id=member.id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            session_timeout_ms=classic.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            protocols=embedded.offered_by(classic),
            assignment=embedded.assignment_of(member, classic, self._environment.topics),
        )
