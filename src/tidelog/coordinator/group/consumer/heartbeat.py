"""ConsumerGroupHeartbeat: how a member joins, says what it wants and has, and is told what it may have.

Three steps, in this order: the member is made or changed, and the group's epoch grows if that or the topics change who should have what; a
group whose epoch is ahead of its target gets a new target; the member moves one step towards its part of it. All of it is decided on a
draft, the group as the records will leave it, since nothing of the group itself may change before they are written (D5).

What a member was told may have been lost on the way. Clients of Kafka's own library then say everything anew and are told everything anew;
librdkafka does not. So an answer repeats the assignment until the member has said that it has exactly that.

A member that waits for others to give something up is told to ask again soon, and all members of a group that was assigned anew a moment ago
ask more often for a while. In Kafka each of the two steps of a handover takes up to a whole heartbeat interval, five seconds in which nobody reads
the partition. An interval that somebody has chosen, for the broker or for the group, is kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidelog.coordinator.group.consumer import entries, target
from tidelog.coordinator.group.consumer.arrivals import Arrivals
from tidelog.coordinator.group.consumer.assignors import ASSIGNORS
from tidelog.coordinator.group.consumer.departures import Departures
from tidelog.coordinator.group.consumer.draft import Draft
from tidelog.coordinator.group.consumer.environment import Environment
from tidelog.coordinator.group.consumer.group import ConsumerGroup, Refreshed
from tidelog.coordinator.group.consumer.liveness import Liveness
from tidelog.coordinator.group.consumer.member import (
    LEAVING,
    LEFT_FOR_NOW,
    Member,
    MemberState,
    TopicPartitions,
    are_the_same,
)
from tidelog.coordinator.group.consumer.patterns import Patterns, compile_pattern
from tidelog.coordinator.group.consumer.reconciliation import Goal, reconcile
from tidelog.coordinator.group.consumer.validation import NOT_GIVEN, is_full, validate
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.group.settings import ConsumerTimes
from tidelog.coordinator.group.world import Client
from tidelog.coordinator.outcome import Now, Outcome, Waiter
from tidelog.wire.messages import consumer_group_heartbeat as messages
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

ASK_AGAIN_MS: Final = 500
"""How soon a member asks again while something is on its way to it."""
STAY_CLOSE_MS: Final = 1000
STAY_CLOSE_FOR_MS: Final = 30_000
"""After an assignment all members ask so often for a while: where members come and go, more do, and who must give something up hears of it
with its next heartbeat.
"""
MS_PER_MEMBER: Final = 2
"""In a large group both are longer, so that all of it together asks no more than 500 times a second."""


class Heartbeats:
    __slots__ = ("_arrivals", "_departures", "_environment", "_liveness", "_patterns")

    def __init__(self, environment: Environment, departures: Departures, liveness: Liveness) -> None:
        self._environment = environment
        self._arrivals = Arrivals(environment)
        self._departures = departures
        self._liveness = liveness
        self._patterns = Patterns(environment)

    def handle(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client: Client,
        waiter: Waiter,
        now: Now,
        group: ConsumerGroup | None = None,
    ) -> Outcome:
        """`group`: what is about to be made of a classic one; it is not in the table yet."""
        validate(request, client.version, self._environment.settings.assignors)
        if request.member_epoch in (LEAVING, LEFT_FOR_NOW):
            return self._departures.leave(request, client, waiter, now)
        draft = self._arrivals.find(request, client, now, group)
        group_id = draft.group.id
        times = self._environment.times(group_id)
        self.advance(draft, client, times, now)
        self._liveness.heard_from(group_id, draft.after.id, times.session_timeout_ms, now)
        return Outcome(draft.records).answer(waiter, _answer(draft, times, now))

    def advance(self, draft: Draft, client: Client, times: ConsumerTimes, now: Now) -> None:
        """The three steps, whichever protocol the member speaks."""
        self._update_member(draft, client, now)
        self._update_epoch(draft)
        wanted = self._update_target(draft, times, now)
        self._move_member(draft, wanted, now)
        self._note(draft, now)

    def _update_member(self, draft: Draft, client: Client, now: Now) -> None:
        group, before = draft.group, draft.before
        after = draft.after = _updated(before, draft, client)
        if after.pattern and after.pattern != before.pattern and after.pattern not in group.pattern_users:
            compile_pattern(after.pattern)  # which refuses it where it is none
        if after != before:
            draft.records.append(entries.member_metadata(group.id, after))
        unused = group.pattern_without_users(before, after)
        if unused is not None:
            draft.records.append(entries.pattern_gone(group.id, unused))
        self._patterns.match_if_due(group, before, after, now)

    def _update_epoch(self, draft: Draft) -> None:
        """A subscription to a pattern that has not been matched yet changes nothing: that comes when it has been."""
        group, metadata = draft.group, self._environment.metadata
        must_grow = self._wants_other_target(draft)
        if not must_grow and group.is_refreshed(metadata.generation):
            return
        metadata_hash = metadata.hash_of(group.names_with(draft.before, draft.after))
        if must_grow or metadata_hash != group.metadata_hash:
            draft.epoch += 1
            draft.records.append(entries.group_epoch(group.id, draft.epoch, metadata_hash))
        group.refreshed = Refreshed(metadata.generation, draft.epoch)
        if group.has_partition_metadata:
            draft.records.append(entries.partition_metadata_gone(group.id))

    def _wants_other_target(self, draft: Draft) -> bool:
        group, before, after = draft.group, draft.before, draft.after
        if after.topic_names != before.topic_names:
            return True
        if after.pattern != before.pattern and (not after.pattern or after.pattern in group.patterns):
            return True
        if after.assignor == before.assignor:
            return False
        known = self._environment.settings.assignors
        return group.assignor_with(before, after, known) != group.assignor_with(before, before, known)

    def _update_target(self, draft: Draft, times: ConsumerTimes, now: Now) -> TopicPartitions:
        """What the member should have, as of the draft's assignment epoch."""
        group, after = draft.group, draft.after
        if draft.epoch <= group.assignment_epoch or not target.is_due(
            group, times.assignment_interval_ms, now
        ):
            return draft.current_target()
        assignor = group.assignor_with(draft.before, after, self._environment.settings.assignors)
        found = target.compute(
            group,
            draft.epoch,
            draft.members(),
            draft.targets(),
            ASSIGNORS[assignor],
            self._environment.metadata,
            now,
        )
        draft.records += found.records
        draft.assignment_epoch = found.epoch
        return found.partitions[after.id]

    def _move_member(self, draft: Draft, wanted: TopicPartitions, now: Now) -> None:
        group, member = draft.group, draft.after
        if member.is_reconciled_to(draft.assignment_epoch) and not draft.subscription_changed:
            return
        goal = Goal(
            epoch=draft.assignment_epoch,
            target=wanted,
            wants=target.Subscriptions(group.patterns, self._environment.metadata).wants(member),
            owned=draft.owned,
            is_anothers=draft.is_anothers,
        )
        moved = reconcile(member, goal, subscription_changed=draft.subscription_changed)
        if moved == member:
            return
        draft.after = moved
        draft.records.append(entries.current_assignment(group.id, moved))
        if moved.state is MemberState.UNREVOKED_PARTITIONS and moved.classic is None:
            # Who speaks the classic protocol has other deadlines: for its next JoinGroup and SyncGroup.
            self._liveness.must_revoke(group.id, moved, now)

    def _note(self, draft: Draft, now: Now) -> None:
        group, note = draft.group, self._environment.note
        if draft.is_new:
            note(now, group.id, Event.JOINED, draft.epoch, draft.after)
        elif draft.subscription_changed:
            note(now, group.id, Event.CHANGED_SUBSCRIPTION, draft.epoch, draft.after)
        if draft.epoch > group.epoch and group.epoch == group.assignment_epoch:
            detail = "a subscription changed" if self._wants_other_target(draft) else "its topics changed"
            note(now, group.id, Event.REBALANCE_BEGAN, draft.epoch, detail=detail)
        if _ends_rebalance(draft):
            note(now, group.id, Event.REBALANCE_ENDED, draft.epoch)


def _updated(member: Member, draft: Draft, client: Client) -> Member:
    """What a heartbeat does not mention stays as it was."""
    request = draft.request
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=client.id,
        client_host=client.host,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms
            if request.rebalance_timeout_ms == NOT_GIVEN
            else request.rebalance_timeout_ms
        ),
        topic_names=(
            member.topic_names
            if request.subscribed_topic_names is None
            else frozenset(request.subscribed_topic_names)
        ),
        pattern=member.pattern if request.subscribed_topic_regex is None else request.subscribed_topic_regex,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        classic=draft.classic,
    )


def _ends_rebalance(draft: Draft) -> bool:
    """This member was the last one that had not arrived."""
    group, epoch = draft.group, draft.assignment_epoch
    if draft.epoch != epoch or not draft.after.is_reconciled_to(epoch):
        return False
    if epoch == group.assignment_epoch and draft.before.is_reconciled_to(epoch):
        return False
    arriving = draft.after.id, draft.replaces
    laggard = group.members.get(group.laggard)
    if laggard is not None and laggard.id not in arriving and not laggard.is_reconciled_to(epoch):
        return False  # nearly always: one of thousands arrives, and need not look at all the others
    for member in reversed(group.members.values()):
        if member.id not in arriving and not member.is_reconciled_to(epoch):
            group.laggard = member.id
            return False
    return True


def _answer(draft: Draft, times: ConsumerTimes, now: Now) -> ConsumerGroupHeartbeatResponse:
    response = ConsumerGroupHeartbeatResponse(
        member_id=draft.after.id,
        member_epoch=draft.after.epoch,
        heartbeat_interval_ms=_interval_ms(draft, times, now),
    )
    if not _knows_its_assignment(draft) or draft.is_joining or is_full(draft.request):
        response.assignment = messages.Assignment(
            topic_partitions=[
                messages.TopicPartitions(topic_id=topic_id, partitions=sorted(draft.after.assigned[topic_id]))
                for topic_id in sorted(draft.after.assigned)
            ]
        )
    return response


def _interval_ms(draft: Draft, times: ConsumerTimes, now: Now) -> int:
    """Only where nobody has chosen an interval, and in company: who is alone has nothing to wait for, and nothing to hand over."""
    group, member = draft.group, draft.after
    if not times.may_hurry or (len(group.members) < 2 and member.id in group.members):
        return times.heartbeat_interval_ms
    if (
        member.state is MemberState.UNRELEASED_PARTITIONS
        or draft.epoch > draft.assignment_epoch
        or (member.pattern and member.pattern not in group.patterns)
    ):
        wanted = ASK_AGAIN_MS
    elif group.members and 0 <= now.wall_ms - group.assignment_timestamp_ms < STAY_CLOSE_FOR_MS:
        wanted = STAY_CLOSE_MS
    else:
        return times.heartbeat_interval_ms
    return min(max(wanted, MS_PER_MEMBER * len(group.members)), times.heartbeat_interval_ms)


def _knows_its_assignment(draft: Draft) -> bool:
    """Whether the member has said, now or earlier, that it has exactly what it may have. A new coordinator has not heard it."""
    confirmed, member, owned = draft.group.confirmed, draft.after, draft.owned
    if owned is not None:
        if are_the_same(member.assigned, owned):
            confirmed.add(member.id)
        else:
            confirmed.discard(member.id)
    elif member.assigned != draft.before.assigned:
        confirmed.discard(member.id)
    return member.id in confirmed
