"""What the parts of this package share: the groups themselves, the settings, and the world around them.

Owns nothing but the place where they meet.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.coordinator.group.consumer.group import ConsumerGroup
from tidelog.coordinator.group.consumer.member import Member
from tidelog.coordinator.group.consumer.metadata import TopicMetadata
from tidelog.coordinator.group.history import Event, GroupHistory
from tidelog.coordinator.group.settings import ConsumerTimes, GroupSettings
from tidelog.coordinator.group.world import Topics
from tidelog.coordinator.outcome import Now
from tidelog.coordinator.timers import Timers
from tidelog.ports import Rng


@dataclass(frozen=True, slots=True)
class Environment:
    settings: GroupSettings
    rng: Rng
    timers: Timers
    history: GroupHistory
    metadata: TopicMetadata
    groups: dict[str, ConsumerGroup]

    @property
    def topics(self) -> Topics:
        return self.metadata.topics

    def times(self, group_id: str) -> ConsumerTimes:
        return ConsumerTimes(self.settings, self.topics.group_config(group_id))

    def note(
        self,
        now: Now,
        group_id: str,
        event: Event,
        epoch: int,
        member: Member | None = None,
        detail: str = "",
    ) -> None:
        """`epoch` is the group's, as of after the event."""
        if member is None:
            self.history.note(now, group_id, event, generation=epoch, detail=detail)
        else:
            self.history.note(
                now,
                group_id,
                event,
                generation=epoch,
                member_id=member.id,
                client=f"{member.client_id} ({member.client_host})",
                detail=detail,
            )
