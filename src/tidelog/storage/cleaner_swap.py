"""One cleaning of a log as the loop sees it: what the cleaner has written takes the place of the old segments, or is forgotten.

Owns the question whether the log is still the one that the job was made for. Whatever happens to it meanwhile ends the cleaning and nothing else: a
truncation (a segment may have other content under the same name), a deletion, a change of policy, retention that takes one of the segments. The
log then is as it was after the last swap (I32), and the next cleaning begins anew. Only a cleaning that got through moves `Log.cleaned_to`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.storage import files
from tidelog.storage.cleaner_job import Cleaned, CleanedGroup, CleaningInterrupted, CleanJob, Limits
from tidelog.storage.cleaner_plan import Cleanable, plan
from tidelog.storage.leftovers import discard_cleaned
from tidelog.storage.segment import Segment
from tidelog.storage.segment_swap import SegmentSwap

if TYPE_CHECKING:
    from tidelog.storage.log import Log


class Cleaning:
    def __init__(
        self, log: Log, cleanable: Cleanable, limits: Limits, *, is_there: Callable[[], bool] = lambda: True
    ) -> None:
        """`is_there`: the log is still in the books."""
        self.log = log
        self.job: CleanJob = plan(log, cleanable, limits)
        self._is_there = is_there
        self._truncations = log.truncation_count
        self._segments = {segment.base_offset: segment for segment in log.segments[: cleanable.segments]}
        self._waiting = {id(segment): segment for segment in self._segments.values()}  # for their swap

    def check(self) -> None:
        """CleaningInterrupted if the log is not what it was."""
        log = self.log
        if not self._is_there() or log.directory != self.job.directory:
            raise CleaningInterrupted(f"{log.name} is not there any more")
        if log.truncation_count != self._truncations:
            raise CleaningInterrupted(f"{log.name} was truncated")
        if not log.config.compact_policy:
            raise CleaningInterrupted(f"{log.name} is not to be compacted any more")
        if not self._waiting.keys() <= {id(segment) for segment in log.segments}:
            raise CleaningInterrupted(f"retention has taken a segment of {log.name}")

    def open(self, group: CleanedGroup) -> list[Segment]:
        """The new segments, whose files are looked at; in any thread."""
        log = self.log
        opened = []
        for base_offset in group.new:
            path = files.segment_path(self.job.directory, base_offset, files.LOG) + files.CLEANED
            file, size = log.disk.open(path), log.disk.file_size(path)
            segment = Segment(
                log.disk,
                self.job.directory,
                base_offset,
                log.config,
                file,
                size,
                created_ms=log.disk.mtime_ms(path),
            )
            segment.suffix = files.CLEANED
            opened.append(segment)
        return opened

    def begin_swap(self, group: CleanedGroup, new: list[Segment], *, now_ms: int) -> SegmentSwap:
        """On the loop, which then takes the steps of the swap. CleaningInterrupted if the old segments are not a run of the log any more."""
        self.check()
        old = [self._segments[base_offset] for base_offset in group.old]
        try:
            swap = SegmentSwap(self.log, old, new, now_ms=now_ms)
        except ValueError as error:
            raise CleaningInterrupted(str(error)) from error
        for segment in old:
            del self._waiting[id(segment)]
        return swap

    def swapped(self, new: list[Segment]) -> None:
        """The last step is taken. CleaningInterrupted if somebody has ended the swap on its way."""
        if not all(segment in self.log.segments for segment in new):
            raise CleaningInterrupted(f"the new segments of {self.log.name} were not taken")

    def finish(self, cleaned: Cleaned) -> None:
        """Below its end the log is clean; durable with the next checkpoint, until which a start may clean some of it again."""
        self.check()
        self.log.cleaned_to = max(self.job.first_dirty_offset, cleaned.end_offset)

    def discard(self) -> None:
        """Remove what the cleaner left; in any thread, when nobody writes there any more."""
        discard_cleaned(self.log.disk, self.job.directory)
