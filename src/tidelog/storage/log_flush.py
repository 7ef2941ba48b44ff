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

from tidelog.storage import checkpoints, files
from tidelog.storage.disk import Disk, DiskError, File
from tidelog.storage.epoch_cache import LeaderEpochCache

if TYPE_CHECKING:
    from tidelog.storage.segment import Segment


class Unsynced:
    """What a log has written beside its active segment's `.log` and not synced yet. True while sealed segments are among it."""

    __slots__ = ("_epoch_file", "files", "new_names", "segments")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = list(segments)  # sealed ones, oldest first
        self.files: list[File] = []  # closed once they are synced
        self.new_names = False
        self._epoch_file: File | None = None

    def __bool__(self) -> bool:
        return bool(self.segments)

    @property
    def anything(self) -> bool:
        return bool(self.segments) or bool(self.files) or self.new_names

    def add(self, file: File) -> None:
        self.files.append(file)
        self.new_names = True

    def store_epochs(self, disk: Disk, directory: str, epochs: LeaderEpochCache) -> None:
        """Write the leader epoch checkpoint; the next flush makes it durable, before the recovery point passes the epoch.

        A crash before that leaves an old, new or broken file: recovery finds epochs above the recovery point in the batches,
        and a broken file makes it read them all.
        """
        path = files.join(directory, files.LEADER_EPOCH_CHECKPOINT)
        temporary = path + ".tmp"
        disk.remove(temporary)
        file = disk.open(temporary, create=True)
        file.write_at((checkpoints.encode_epochs(epochs.checkpoint_entries()),), 0)
        disk.rename(temporary, path)
        file.moved_to(path)
        self.drop_epoch_file()
        self._epoch_file = file
        self.new_names = True
        epochs.dirty = False

    def drop_epoch_file(self) -> None:
        """The checkpoint is replaced, or made durable in another way."""
        if self._epoch_file is not None:
            self._epoch_file.close()
            self._epoch_file = None

    def take(
        self, disk: Disk, directory: str, active: Segment, *, active_is_dirty: bool, end_offset: int
    ) -> FlushTicket:
        """A ticket for all of it. What is written from now on is the next one's."""
        to_sync = [file for segment in self.segments for file in segment.all_files()]
        if active_is_dirty or self.new_names:
            to_sync.append(active.file)
        if self._epoch_file is not None:
            self.files.append(self._epoch_file)
            self._epoch_file = None
        to_sync.extend(self.files)
        ticket = FlushTicket(
            disk,
            directory,
            files=to_sync,
            sync_dir=self.new_names,
            segment=active,
            temporary=self.files,
            end_offset=end_offset,
        )
        self.segments, self.files, self.new_names = [], [], False
        return ticket

    def close(self) -> None:
        self.drop_epoch_file()
        for file in self.files:
            file.close()


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
