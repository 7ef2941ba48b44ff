"""One member's next step from what it has to what it should have.

    STABLE ──new target──► has to give up something it still has? ── yes ──► UNREVOKED_PARTITIONS
       ▲                          │ no                                           │ says it has given it up
       │                          ▼                                              │
       │            all it should get is free? ◄─────────────────────────────────┘
       └──── yes ─────────┘       │ no
                                  ▼
                       UNRELEASED_PARTITIONS, with what is free; tried again at each heartbeat

A member stays at its epoch while it has to give something up, and is at the target's epoch from then on. A partition is handed out
only when nobody owns it: its former owner has said that it gave it up, or is gone. This is I34, and the reason for the states.
A pure function: it returns the member as it will be, and the caller writes that down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tidelog.coordinator.group.consumer.member import Member, MemberState, PartitionEpochs, TopicPartitions

_NO_PARTITIONS: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Goal:
    """Where a member should get to, and what is known about the way."""

    epoch: int
    target: TopicPartitions
    wants: Callable[[bytes], bool]
    """Whether the member wants a topic now: of others it may keep nothing, whatever the target says, which may be older."""
    owned: TopicPartitions | None
    """What the member says it has; None: it did not say, so it may still have all it ever had."""
    is_anothers: Callable[[bytes, int], bool]
    """Whether somebody else owns a partition."""


def reconcile(member: Member, goal: Goal, *, subscription_changed: bool) -> Member:
    """The member's next step, or the member itself where there is none."""
    if member.state is MemberState.UNREVOKED_PARTITIONS and _still_owns(member.revoking, goal):
        return _drop_unsubscribed(member, goal) if subscription_changed else member
    if member.is_reconciled_to(goal.epoch):
        return _drop_unsubscribed(member, goal) if subscription_changed else member
    return _next_step(member, goal)


def _next_step(member: Member, goal: Goal) -> Member:
    assigned: dict[bytes, dict[int, int]] = {}
    revoking: dict[bytes, dict[int, int]] = {}
    for topic_id, held in member.assigned.items():
        wanted = _wanted(topic_id, goal)
        for partition, since in held.items():
            part = assigned if partition in wanted else revoking
            part.setdefault(topic_id, {})[partition] = since
    if revoking and _still_owns(revoking, goal):
        return replace(
            member.at_epoch(member.epoch),
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=assigned,
            revoking=revoking,
        )
    all_free = True
    for topic_id in sorted(goal.target):
        for partition in sorted(_wanted(topic_id, goal) - assigned.get(topic_id, {}).keys()):
            if goal.is_anothers(topic_id, partition):
                all_free = False
            else:
                assigned.setdefault(topic_id, {})[partition] = goal.epoch
    return replace(
        member.at_epoch(goal.epoch),
        state=MemberState.STABLE if all_free else MemberState.UNRELEASED_PARTITIONS,
        assigned=assigned,
        revoking={},
    )


def _drop_unsubscribed(member: Member, goal: Goal) -> Member:
    """It changed its mind before there is a new target: what it no longer wants, it gives up now."""
    dropped = {topic_id: held for topic_id, held in member.assigned.items() if not goal.wants(topic_id)}
    if not dropped:
        return member
    assigned = {topic_id: held for topic_id, held in member.assigned.items() if topic_id not in dropped}
    revoking = {topic_id: dict(held) for topic_id, held in member.revoking.items()}
    for topic_id, held in dropped.items():
        revoking.setdefault(topic_id, {}).update(held)
    if _still_owns(revoking, goal):
        return replace(
            member.at_epoch(member.epoch),
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=assigned,
            revoking=revoking,
        )
    # It says already that it has them no more. That it is giving up nothing else, its state shows: otherwise we were not here.
    return replace(member.at_epoch(member.epoch), assigned=assigned)


def _wanted(topic_id: bytes, goal: Goal) -> frozenset[int]:
    return goal.target.get(topic_id, _NO_PARTITIONS) if goal.wants(topic_id) else _NO_PARTITIONS


def _still_owns(partitions: PartitionEpochs, goal: Goal) -> bool:
    """Silence is no confirmation."""
    if goal.owned is None:
        return True
    return any(
        not goal.owned.get(topic_id, _NO_PARTITIONS).isdisjoint(held) for topic_id, held in partitions.items()
    )
