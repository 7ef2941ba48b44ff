"""A flush that can leave the event loop: which files to sync, and up to where the log is durable afterwards.

A ticket is made on the loop, run in any thread, and finished on the loop. Appends go on meanwhile; what they add is the next
ticket's business. What a ticket covers, and why:

* the `.log` files of every segment written since the last flush, oldest first;
* the indexes of segments that were sealed since: below the recovery point nothing is scanned after a crash, so a sealed
  segment's indexes must be as durable as its log before the recovery point passes it. The active segment's indexes
  are not synced: recovery writes them anew;
* the leader epoch checkpoint and producer snapshots written since, and the directory if a name in it is new.

Keeps I3 and I7: a failed sync leaves the ticket unfinished for ever, and with it the log's recovery point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.storage.disk import Disk, DiskError, File

if TYPE_CHECKING:
    from tidelog.storage.segment import Segment


class FlushTicket:
    """`run` in any thread, then `Log.finish_flush` on the loop. Files are pinned until then: nothing closes under the sync."""

    __slots__ = (
        "_directory", "_disk", "_done", "_files", "abandoned", "end_offset", "position", "segment", "sync_dir", "temporary",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        files: Sequence[File],
        sync_dir: bool,
        segment: Segment,
        temporary: Sequence[File],
        end_offset: int,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._files = files
        self._done = False
        self.sync_dir = sync_dir
        self.segment = segment
        self.position = segment.size  # -1 once a truncation has moved what stands there
        self.temporary = temporary
        self.end_offset = end_offset
        self.abandoned = False
        for file in files:
            file.pin()

    def run(self) -> None:
        """Raises DiskError; the log directory must then go offline, and the sync is never tried again (I7)."""
        try:
            for file in self._files:
                file.sync()
            if self.sync_dir:
                self._disk.sync_dir(self._directory)
        except FileNotFoundError as error:
            if not self.abandoned:  # otherwise the partition was deleted meanwhile, directory and all
                raise DiskError("sync directory", self._directory, error) from error
        except DiskError:
            if not self.abandoned:
                raise
        self._done = True

    @property
    def done(self) -> bool:
        return self._done

    def release(self) -> None:
        for file in self._files:
            file.unpin()
        for file in self.temporary:
            file.close()
