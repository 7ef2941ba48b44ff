"""`tidelog consume --group`: read as a member of a group, print, commit what was printed, leave at the end.

A record is committed after it was written to stdout, never before: whoever kills this command, or breaks its pipe, may see records twice and
misses none. Output is written beside the loop, because heartbeats must go out while the reader of a pipe takes its time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Mapping
from typing import Final

from tidelog.cli.group_positions import GroupPositions
from tidelog.cli.output import put_out, warn
from tidelog.cli.reading import PATIENCE_MS, POLL_MS, POLL_MS_TO_END, Watch, go_on_where_cut, reader_options
from tidelog.cli.record_format import RecordFormat
from tidelog.cli.start_offsets import end_offsets, partitions_of
from tidelog.client.cluster import ClusterClient
from tidelog.client.consumer.consumer import Consumer
from tidelog.client.consumer.records import ConsumerRecord
from tidelog.client.errors import CommitFailedError, LogTruncatedError, NoOffsetError
from tidelog.client.groups import Groups
from tidelog.client.metadata import TopicPartition

COMMIT_SECONDS: Final = 1.0
SIGN_OF_LIFE_SECONDS: Final = 10.0
"""How often a member asks for records while its output is stuck: well within `max.poll.interval.ms`."""


async def consume_in_group(
    cluster: ClusterClient,
    bootstrap_servers: str,
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
    # A consumer looks for a coordinator for as long as it takes; a cluster that has none is told of in the end.
    await cluster.retrying(lambda: groups.coordinator(group), timeout_ms=PATIENCE_MS)
    async with Consumer(bootstrap_servers, group_id=group, **reader_options()) as consumer:
        positions = GroupPositions(groups, group, from_beginning=from_beginning)
        reader = _Reader(consumer, group, positions, write, count=count, ends=ends)
        consumer.subscribe([topic], listener=reader)
        await reader.run(Watch(cluster, topic))


class _Reader:
    """Prints and commits. The consumer tells it which partitions come and go, while it asks for records."""

    def __init__(
        self,
        consumer: Consumer,
        group: str,
        positions: GroupPositions,
        write: RecordFormat,
        *,
        count: int | None,
        ends: Mapping[TopicPartition, int] | None,
    ) -> None:
        self._consumer = consumer
        self._group = group
        self._positions = positions
        self._write = write
        self._left = count
        self._ends = ends
        self._printed: dict[TopicPartition, int] = {}  # the next offset of what is printed
        self._known: dict[TopicPartition, int] = {}  # where the group goes on without another commit
        self._committed_at = 0.0
        self._writing: asyncio.Task[None] | None = None
        self._has_share = False
        self._is_leaving = False

    async def run(self, watch: Watch) -> None:
        try:
            while not self._is_finished():
                records = await self._poll(POLL_MS if self._ends is None else POLL_MS_TO_END)
                await self._print(records)
                if asyncio.get_running_loop().time() - self._committed_at > COMMIT_SECONDS:
                    await self._commit(self._printed)
                await watch.heard(bool(records))
        finally:
            self._is_leaving = True
            await self._commit(self._printed)

    def _is_finished(self) -> bool:
        if self._left == 0:
            return True
        if self._ends is None or not self._has_share:
            return False
        return all(offset >= self._end_of(tp, self._ends) for tp, offset in self._printed.items())

    def _end_of(self, tp: TopicPartition, ends: Mapping[TopicPartition, int]) -> int:
        """A partition that is newer than the command has nothing that was there when it began."""
        return ends.get(tp, 0)

    async def _poll(self, timeout_ms: int) -> list[ConsumerRecord]:
        try:
            return await self._consumer.poll(timeout_ms=timeout_ms, max_records=self._left)
        except NoOffsetError as error:
            if error.offset is None:
                raise
            # Retention overtook us: go on with what is there.
            self._go_to(await self._positions.in_range({error.tp: error.offset}))
        except LogTruncatedError as error:
            go_on_where_cut(self._consumer, error)
        return []

    # -- output -----------------------------------------------------------------------------------------------------

    async def _print(self, records: list[ConsumerRecord]) -> None:
        lines = [self._write(record) for record in records if self._is_wanted(record)]
        if lines:
            await self._put_out(b"".join(lines))
        if self._left is not None:
            self._left -= len(lines)
        self._all_is_printed()

    def _is_wanted(self, record: ConsumerRecord) -> bool:
        if self._ends is None:
            return True
        return record.offset < self._end_of(TopicPartition(record.topic, record.partition), self._ends)

    async def _put_out(self, data: bytes) -> None:
        self._writing = writing = asyncio.create_task(asyncio.to_thread(put_out, data))
        writing.add_done_callback(_look_at)  # after Ctrl-C nobody else does
        try:
            while not (await asyncio.wait({writing}, timeout=SIGN_OF_LIFE_SECONDS))[0]:
                # A member that asks for no records for too long is out of its group. So it asks, and wants none.
                self._consumer.pause(*self._consumer.assignment())
                await self._poll(0)
            writing.result()
        finally:
            self._writing = None
        self._consumer.resume(*self._consumer.paused())

    def _all_is_printed(self) -> None:
        """Whatever the consumer has handed out so far."""
        for tp, offset in self._consumer.positions().items():
            self._printed[tp] = offset if self._ends is None else min(offset, self._end_of(tp, self._ends))

    # -- commits ----------------------------------------------------------------------------------------------------

    async def _commit(self, partitions: Collection[TopicPartition]) -> None:
        self._committed_at = asyncio.get_running_loop().time()
        offsets = {tp: self._printed[tp] for tp in partitions if self._is_uncommitted(tp)}
        if not offsets:
            return
        try:
            await self._consumer.commit(offsets)
        except CommitFailedError as error:
            self._warn_of_repeats(offsets, str(error))
        self._known.update(offsets)

    def _is_uncommitted(self, tp: TopicPartition) -> bool:
        return tp in self._printed and self._printed[tp] != self._known.get(tp)

    def _warn_of_repeats(self, partitions: Collection[TopicPartition], why: str) -> None:
        warn([f"what was printed of {_names(partitions)} since the last commit may come again: {why}"])

    # -- partitions that come and go --------------------------------------------------------------------------------

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        generation = self._consumer.group_metadata().generation
        self._tell(f"generation {generation}, {_names(self._consumer.assignment())}")
        begins = await self._positions.begin(partitions)
        self._known |= begins.known
        self._go_to(begins.offsets)
        if self._writing is not None:
            self._consumer.pause(*partitions)
        self._has_share = True

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        if self._is_leaving:
            return
        if self._writing is not None:
            await asyncio.shield(self._writing)
            self._all_is_printed()
        await self._commit(partitions)
        self._give_up(partitions, "the group rebalances")

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        if self._is_leaving:
            return
        why = "the group went on without this member"
        repeated = [tp for tp in partitions if self._is_uncommitted(tp)]
        if repeated:
            self._warn_of_repeats(repeated, why)
        self._give_up(partitions, why)

    def _give_up(self, partitions: Collection[TopicPartition], why: str) -> None:
        for tp in partitions:
            self._printed.pop(tp, None)
            self._known.pop(tp, None)
        self._has_share = False
        self._tell(f"{why}; joining again")

    def _go_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            self._consumer.seek(tp, offset)
        self._printed |= offsets

    def _tell(self, sentence: str) -> None:
        print(f"group {self._group}: {sentence}", file=sys.stderr, flush=True)


def _look_at(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _names(partitions: Collection[TopicPartition]) -> str:
    return (
        ", ".join(map(str, sorted(partitions)))
        or "no partition for this member: there are more members than partitions"
    )
