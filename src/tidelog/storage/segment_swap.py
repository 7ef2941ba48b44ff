"""Puts new segments in the place of a run of old ones, so that a crash leaves the old or the new, never a mix or a gap (I32).

What compaction stands on. The cleaner writes what should remain into segments from `new_segment`, then a `SegmentSwap` takes the way that
Kafka takes, with a sync wherever the order of two steps matters:

    1. the new files, named `.cleaned`, are made durable
    2. all but the lowest are renamed to `.swap`, durably
    3. the lowest is renamed to `.swap`, durably: from here on a start completes the swap, before it a start undoes it
    4. the old files get the suffix `.deleted`, durably, and are removed later
    5. `.swap` is dropped from the new names, lowest first, each durable before the next

A start knows the old segments by the offsets that the `.swap` files span. Therefore each new segment must end where the next one begins:
where the cleaner has removed the last records, a batch without records stands for their offsets. It also tells recovery, which takes a
gap between segments for lost data, that nothing is lost. The old segments must be durable: until 3 they are what a crash leaves.

Steps 3 to 5 change names under the feet of readers, so they are taken on the loop's thread; every wait for the disk is a job for a
thread: `advance`, run the job, `advance`, until there is none. What a start does is in `leftovers`. It never decides what remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.records.batch import (
    CURRENT_MAGIC,
    HEADER_SIZE,
    HEADER_STRUCT,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    read_header,
    write_crc,
)
from tidelog.storage import files
from tidelog.storage.failed_sync import sync_all
from tidelog.storage.leftovers import discard_swaps
from tidelog.storage.segment import MAX_RELATIVE_OFFSET, Segment

if TYPE_CHECKING:
    from tidelog.storage.log import Log

Job = Callable[[], None]

OLD_AT_ONCE: Final = 50
"""Each is renamed with its indexes, on the loop: some milliseconds for so many."""


def new_segment(log: Log, base_offset: int, *, now_ms: int) -> Segment:
    """For the cleaner to write into (`append_run`), in any thread. Nobody reads it before it is swapped in."""
    return Segment.create(
        log.disk, log.directory, base_offset, log.config, now_ms=now_ms, suffix=files.CLEANED
    )


def empty_batch(
    first_offset: int, last_offset: int, leader_epoch: int, *, max_timestamp: int = NO_TIMESTAMP
) -> bytes:
    """A batch without records, as Kafka's cleaner leaves them, for offsets whose records are gone."""
    batch = bytearray(HEADER_SIZE)
    HEADER_STRUCT.pack_into(
        batch, 0,
        first_offset, HEADER_SIZE - LOG_OVERHEAD, leader_epoch, CURRENT_MAGIC, 0, 0, last_offset - first_offset,
        NO_TIMESTAMP, max_timestamp, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, 0,
    )  # fmt: skip
    write_crc(batch)
    return bytes(batch)


class SegmentSwap:
    """One at a time per log (`Log.swap`). While it is under way retention waits, and a truncation ends it first."""

    __slots__ = (
        "_abandoned", "_committed", "_end_offset", "_job", "_log", "_new", "_now_ms", "_old", "_steps", "_undone",
    )  # fmt: skip

    def __init__(self, log: Log, old: Sequence[Segment], new: Sequence[Segment], *, now_ms: int) -> None:
        self._end_offset = _check(log, old, new)
        self._log = log
        self._old = list(old)
        self._new = list(new)
        self._now_ms = now_ms
        self._abandoned = False
        self._committed = False
        self._undone = False
        self._job: Job | None = None
        self._steps = self._take_steps()
        log.swap = self

    def advance(self) -> Job | None:
        """On the loop. The next job for a thread, or None when the swap is over. A DiskError of a job: the directory goes offline."""
        self._job = next(self._steps, None)
        return self._job

    def run(self) -> None:
        """All of it on this thread."""
        while (job := self.advance()) is not None:
            job()

    def end(self) -> None:
        """On the loop, for whoever cannot wait. What is committed is completed on this thread; anything else will be undone by the
        next steps, which are still its owner's to take.
        """
        if not self._committed:
            self._undone = True
            self._leave()
            return
        if self._job is not None:
            self._job()  # a thread may be at it; it may be done twice, but not too late
        self.run()

    def abandon(self) -> None:
        """The log is closed or has moved: no further step. What is left of the swap is for the next start."""
        self._abandoned = True
        self._leave()

    @property
    def committed(self) -> bool:
        """From here on a start completes it."""
        return self._committed

    def discard(self) -> None:
        """In a thread, when it was ended before it was committed and will take no further step: its files go."""
        self._discard()

    def _leave(self) -> None:
        if self._log.swap is self:
            self._log.swap = None

    # ---- the steps: code between two yields runs on the loop, what is yielded runs in a thread

    def _take_steps(self) -> Iterator[Job]:
        yield self._prepare
        if self._undone and not self._abandoned:
            yield self._discard
            return
        if not self._abandoned:
            self._commit()
            yield self._sync_names
        while self._old and not self._abandoned:
            self._let_old_go()
            yield self._sync_names
        for segment in self._new:
            if not self._abandoned:
                segment.change_suffix("")
                yield self._sync_names
        self._leave()

    def _prepare(self) -> None:
        """Steps 1 and 2. An earlier attempt's files go first: a lower `.cleaned` of theirs would undo this one after a crash."""
        disk, directory = self._log.disk, self._log.directory
        discard_swaps(disk, directory, keep={segment.base_offset for segment in self._new})
        ends = [segment.base_offset for segment in self._new[1:]] + [self._end_offset]
        for segment, end_offset in zip(self._new, ends, strict=True):
            self._fill(segment, end_offset)
            segment.seal()
            sync_all(disk, directory, segment.all_files())
        disk.sync_dir(directory)
        if len(self._new) > 1:
            for segment in reversed(self._new[1:]):
                segment.change_suffix(files.SWAP)
            disk.sync_dir(directory)

    def _fill(self, segment: Segment, end_offset: int) -> None:
        reached = segment.load_tail()
        if reached < end_offset:
            epoch = self._log.epochs.epoch_for_offset(end_offset - 1)
            batch = empty_batch(reached, end_offset - 1, NO_LEADER_EPOCH if epoch is None else epoch)
            segment.append_run(batch, [read_header(batch)])

    def _commit(self) -> None:
        """Step 3, and readers see the new segments. The old files stay where they are until that is durable."""
        log = self._log
        number = log.segments.index(self._old[0])
        self._new[0].change_suffix(files.SWAP)
        self._committed = True
        for segment in self._new:
            segment.config = log.config
        log.replace_segments([*log.segments[:number], *self._new, *log.segments[number + len(self._old) :]])

    def _let_old_go(self) -> None:
        """Step 4, some of them. Snapshots between the new segments go too: recovery begins at segments."""
        log = self._log
        some, self._old = self._old[:OLD_AT_ONCE], self._old[OLD_AT_ONCE:]
        due_ms = self._now_ms + log.config.file_delete_delay_ms
        kept = {segment.base_offset for segment in self._new}
        for segment in some:
            log.deferred_deletes.extend((due_ms, path) for path in segment.mark_deleted())
            if segment.base_offset not in kept:
                log.disk.remove(files.snapshot_path(log.directory, segment.base_offset))

    def _sync_names(self) -> None:
        self._log.disk.sync_dir(self._log.directory)

    def _discard(self) -> None:
        for segment in self._new:
            segment.close()
        discard_swaps(self._log.disk, self._log.directory)


def _check(log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> int:
    """ValueError where a swap would lose something; returns the offset at which the run ends."""
    if log.swap is not None:
        raise ValueError(f"a swap of {log.name} is under way; finish it first")
    number = log.segments.index(old[0]) if old and old[0] in log.segments else -1
    if number < 0 or log.segments[number : number + len(old)] != list(old):
        raise ValueError(f"the old segments are no run of {log.name} (any more)")
    if number + len(old) == len(log.segments):
        raise ValueError(f"the active segment of {log.name} cannot be replaced")
    end_offset = log.segments[number + len(old)].base_offset
    if end_offset > log.recovery_point or any(segment in log.unsynced.segments for segment in old):
        raise ValueError(f"{log.name} is not durable up to {end_offset}: flush it first")
    bases = [segment.base_offset for segment in new]
    if not new or bases[0] != old[0].base_offset or bases != sorted(set(bases)) or bases[-1] >= end_offset:
        raise ValueError(
            f"new segments at {bases} cannot stand for offsets {old[0].base_offset} to {end_offset}"
        )
    if any(
        end - base > MAX_RELATIVE_OFFSET for base, end in zip(bases, [*bases[1:], end_offset], strict=True)
    ):
        raise ValueError(f"new segments at {bases} are too far apart for their offsets")
    return end_offset
