"""Where a member of a group begins: where the group was, as far as that is still there.

Where it never was, at the end unless --from-beginning says otherwise. Never moves a consumer, never commits: it says where.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from tidelog.cli.output import warn
from tidelog.cli.start_offsets import end_offsets, start_offsets
from tidelog.client.groups import Groups
from tidelog.client.metadata import TopicPartition


class Begins(NamedTuple):
    offsets: dict[TopicPartition, int]
    known: dict[TopicPartition, int]
    """Where the group would go on by itself. Partitions that are not here should be committed soon: without a commit, whatever arrives before
    the next generation would be skipped, because the end would be a later one.
    """


class GroupPositions:
    def __init__(self, groups: Groups, group: str, *, from_beginning: bool) -> None:
        self._groups = groups
        self._group = group
        self._from_beginning = from_beginning

    async def begin(self, partitions: Collection[TopicPartition]) -> Begins:
        if not partitions:
            return Begins({}, {})
        found = await self._groups.offsets(self._group, partitions, require_stable=True)
        known = await self.in_range({tp: found[tp].offset for tp in found})
        new = sorted(set(partitions) - known.keys())
        if not new:
            return Begins(known, known)
        begins = await start_offsets(self._groups.cluster, new, from_beginning=self._from_beginning)
        return Begins(known | begins, known | begins if self._from_beginning else known)

    async def in_range(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Retention may have deleted where the group was; a topic made anew ends before it."""
        if not positions:
            return {}
        cluster, partitions = self._groups.cluster, list(positions)
        firsts = await start_offsets(cluster, partitions, from_beginning=True)
        ends = await end_offsets(cluster, partitions)
        moved = {tp: min(max(offset, firsts[tp]), ends[tp]) for tp, offset in positions.items()}
        warn(
            f"{tp}: offset {positions[tp]} is not there any more, going on at {offset}"
            for tp, offset in moved.items()
            if offset != positions[tp]
        )
        return moved
