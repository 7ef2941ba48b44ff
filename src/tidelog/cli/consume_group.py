"""`tidelog consume --group`: read as a member of a group, print, commit what was printed, leave at the end.

A record is committed after it was written to stdout, never before: whoever kills this command, or breaks its pipe, may see records twice and
misses none. Output is written beside the loop, because heartbeats must go out while the reader of a pipe takes its time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from tidelog.cli.output import put_out, warn
from tidelog.cli.record_format import RecordFormat
from tidelog.cli.start_offsets import end_offsets, partitions_of
from tidelog.client.cluster import ClusterClient
from tidelog.client.errors import BrokerError
from tidelog.client.fetch import FetchedRun, Fetcher, records_of
from tidelog.client.group_member import GroupMember, MembershipLostError
from tidelog.client.groups import Groups
from tidelog.client.metadata import TopicPartition
from tidelog.client.offsets import EARLIEST, list_offsets
from tidelog.wire.error_codes import ErrorCode

COMMIT_SECONDS = 1.0


async def consume_in_group(
    cluster: ClusterClient,
    topic: str,
    group: str,
    write: RecordFormat,
    *,
    from_beginning: bool,
    count: int | None,
    follow: bool,
) -> None:
    partitions = await partitions_of(cluster, topic, None)
    ends = None if follow else await end_offsets(cluster, partitions)
    groups = Groups(cluster)
    member = GroupMember(groups, group, [topic])
    reader = _Reader(cluster, groups, member, write, from_beginning=from_beginning, count=count, ends=ends)
    try:
        while not await reader.read(await member.join()):
            _tell(f"group {group}: {member.reason or 'the group rebalances'}; joining again")
    finally:
        await member.leave()


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


class _Reader:
    """Prints and commits, generation by generation."""

    def __init__(
        self,
        cluster: ClusterClient,
        groups: Groups,
        member: GroupMember,
        write: RecordFormat,
        *,
        from_beginning: bool,
        count: int | None,
        ends: Mapping[TopicPartition, int] | None,
    ) -> None:
        self._cluster = cluster
        self._groups = groups
        self._member = member
        self._write = write
        self._from_beginning = from_beginning
        self._left = count
        self._ends = ends
        self._printed: dict[TopicPartition, int] = {}  # the next offset of what is printed and not committed
        self._committed_at = 0.0

    async def read(self, assigned: frozenset[TopicPartition]) -> bool:
        """Until this generation is over (False), or there is nothing more to do (True)."""
        _tell(f"group {self._member.group_id}: generation {self._member.generation}, {_names(assigned)}")
        if not assigned:
            if self._ends is None:
                await self._member.rebalance.wait()
            return self._ends is not None
        try:
            positions = await self._positions(assigned)
            while True:
                try:
                    return await self._read_from(positions)
                except BrokerError as error:
                    if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                        raise
                    # Retention overtook us: go on with what is there.
                    positions = await self._in_range({**positions, **self._printed})
        finally:
            await self._commit()

    async def _read_from(self, positions: Mapping[TopicPartition, int]) -> bool:
        # A partition that is newer than the command has nothing that was there when it began.
        ends = None if self._ends is None else {tp: self._ends.get(tp, 0) for tp in positions}
        async with aclosing(Fetcher(self._cluster, positions, end_offsets=ends).runs()) as runs:
            while (run := await self._next(runs)) is not None:
                if await self._print(run):
                    return True
                if asyncio.get_running_loop().time() - self._committed_at > COMMIT_SECONDS:
                    await self._commit()
        return not self._member.rebalance.is_set()

    async def _next(self, runs: AsyncGenerator[FetchedRun, None]) -> FetchedRun | None:
        """The next records; None when a rebalance comes first, or all ends are reached. Commits while nothing comes."""
        if self._member.rebalance.is_set():
            return None
        fetched: asyncio.Task[Any] = asyncio.create_task(_step(runs))
        rebalance: asyncio.Task[Any] = asyncio.create_task(self._member.rebalance.wait())
        try:
            done: set[asyncio.Task[Any]] = set()
            while not done:
                timeout = COMMIT_SECONDS if self._printed else None
                done, _ = await asyncio.wait(
                    {fetched, rebalance}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    await self._commit()
            run: FetchedRun | None = fetched.result() if fetched in done else None
            return run
        finally:
            rebalance.cancel()
            fetched.cancel()
            await asyncio.wait({fetched, rebalance})

    async def _print(self, run: FetchedRun) -> bool:
        """Whether that was all that was asked for."""
        lines: list[bytes] = []
        next_offset = run.next_offset
        for record in records_of(run):
            lines.append(self._write(run.tp, record))
            if self._left is not None:
                self._left -= 1
                if self._left == 0:
                    next_offset = record.offset + 1
                    break
        if lines:
            await asyncio.to_thread(put_out, b"".join(lines))
        if run.end_offset is not None:
            next_offset = min(next_offset, run.end_offset)
        self._printed[run.tp] = next_offset
        return self._left == 0

    async def _commit(self) -> None:
        self._committed_at = asyncio.get_running_loop().time()
        printed, self._printed = self._printed, {}
        try:
            await self._member.commit(printed)
        except MembershipLostError as error:
            warn(
                [
                    f"{error}; what was printed of {_names(frozenset(printed))} since the last commit may come again"
                ]
            )

    # -- where to begin ---------------------------------------------------------------------------------------------

    async def _positions(self, assigned: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the group was; where it never was, at the end unless --from-beginning says otherwise."""
        found = await self._groups.offsets(self._member.group_id, assigned, require_stable=True)
        known = await self._in_range({tp: found[tp].offset for tp in found})
        new = sorted(assigned - known.keys())
        if not new:
            return known
        if self._from_beginning:
            firsts = await list_offsets(self._cluster, dict.fromkeys(new, EARLIEST))
            return known | {tp: firsts[tp].offset for tp in new}
        ends = await end_offsets(self._cluster, new)
        # Without a commit, whatever arrives before the next generation would be skipped: the end would be a later one.
        self._printed.update(ends)
        return known | ends

    async def _in_range(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Retention may have deleted where the group was; a topic made anew ends before it."""
        firsts = await list_offsets(self._cluster, dict.fromkeys(positions, EARLIEST))
        ends = await end_offsets(self._cluster, list(positions))
        moved = {tp: min(max(offset, firsts[tp].offset), ends[tp]) for tp, offset in positions.items()}
        warn(
            f"{tp}: offset {positions[tp]} is not there any more, going on at {offset}"
            for tp, offset in moved.items()
            if offset != positions[tp]
        )
        return moved


async def _step(runs: AsyncGenerator[FetchedRun, None]) -> FetchedRun | None:
    return await anext(runs, None)


def _names(partitions: frozenset[TopicPartition]) -> str:
    return (
        ", ".join(map(str, sorted(partitions)))
        or "no partition for this member: there are more members than partitions"
    )
