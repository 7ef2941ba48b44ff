"""What happened to each group lately, for people who want to know why it rebalances: kept in memory, bounded, gone after a restart.

Owns no decisions: coordinators note what they do, and nothing reads it but `tidelog explain group`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import Enum
from typing import Final, NamedTuple

from tidelog.coordinator.outcome import Now

GROUPS_MAX: Final = 1000
EVENTS_MAX: Final = 200


class Event(Enum):
    """What can happen. The values are what `tidelog explain group` reads over the wire."""

    JOINED = "joined"
    LEFT = "left"
    TIMED_OUT = "timed out"
    """Was silent for longer than its session timeout."""
    MISSED_REBALANCE = "missed the rebalance"
    """Did not join again, or did not give up its partitions, within the rebalance timeout."""
    FENCED = "fenced"
    """Another process took its instance id."""
    CHANGED_SUBSCRIPTION = "changed its subscription"
    REBALANCE_BEGAN = "rebalance began"
    REBALANCE_ENDED = "rebalance ended"
    MIGRATED = "changed its protocol"


class Entry(NamedTuple):
    wall_ms: int
    event: Event
    generation: int  # or group epoch, as of after the event
    member_id: str = ""
    client: str = ""  # id and host, "orders-7 (10.0.0.3)"
    detail: str = ""


class GroupHistory:
    """Of the groups of one shard. The group that has been quiet for longest goes first when there are too many."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: OrderedDict[str, deque[Entry]] = OrderedDict()

    def note(
        self,
        now: Now,
        group_id: str,
        event: Event,
        *,
        generation: int,
        member_id: str = "",
        client: str = "",
        detail: str = "",
    ) -> None:
        entries = self._groups.get(group_id)
        if entries is None:
            if len(self._groups) >= GROUPS_MAX:
                self._groups.popitem(last=False)
            entries = self._groups[group_id] = deque(maxlen=EVENTS_MAX)
        entries.append(Entry(now.wall_ms, event, generation, member_id, client, detail))
        self._groups.move_to_end(group_id)

    def of(self, group_id: str) -> list[Entry]:
        """Oldest first."""
        return list(self._groups.get(group_id, ()))

    def forget(self, group_id: str) -> None:
        self._groups.pop(group_id, None)
