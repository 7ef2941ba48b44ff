"""A flush that can leave the event loop: which files to sync, and up to where the log is durable afterwards.

A ticket is made on the loop, run in any thread, and finished on the loop. Appends go on meanwhile; what they add is the next
ticket's business. What a ticket covers, and why:

* the `.log` files of every segment written since the last flush, oldest first;
* the indexes of segments that were sealed since: below the recovery point nothing is scanned after a crash, so a sealed
  segment's indexes must be as durable as its log before the recovery point passes it. The active segment's indexes
  are not synced: recovery writes them anew;
* the leader epoch checkpoint and producer snapshots written since, and the directory if a name in it is new;
* of a log that may never have been flushed: its id, and its own name in the log directory.

That last point is what makes new partitions cheap: they are made without a single sync. Until the first flush nobody was told of
anything in them, so a power cut that takes a partition's directory, or leaves half of it, takes nothing: the metadata says that
the partition exists, and it starts empty (or is finished) at the next start. With the first flush all of it is there to stay.

Keeps I3 and I7: a failed sync leaves the ticket unfinished for ever, and with it the log's recovery point.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tidelog.storage import checkpoints, files
from tidelog.storage.disk import Disk, DiskError, File
from tidelog.storage.epoch_cache import LeaderEpochCache
from tidelog.storage.failed_sync import leave_note, sync_all

if TYPE_CHECKING:
    from tidelog.storage.segment import Segment


class DirectoryNames:
    """Which of the names made in a log directory are durable. One sync serves every partition that was made before it."""

    __slots__ = ("_disk", "_failure", "_made", "_path", "_synced")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._made = 0
        self._synced = 0
        self._failure: DiskError | None = None

    def made(self) -> int:
        """A name was made a moment ago, in any thread; returns the number to `sync`.

        Two threads may get the same number. A sync that covers it began after both had made their names, so it serves both.
        """
        self._made += 1
        return self._made

    def sync(self, number: int) -> None:
        """Make the name with this number durable. One failure is a failure for all: it is never tried again (I7)."""
        if number <= self._synced:
            return
        if self._failure is not None:
            raise self._failure
        covered = self._made
        try:
            self._disk.sync_dir(self._path)
        except DiskError as error:
            self._failure = error
            raise
        self._synced = max(self._synced, covered)


class Unsynced:
    """What a log has written beside its active segment's `.log` and not synced yet. True while sealed segments are among it."""

    __slots__ = (
        "_epoch_file",
        "_names_above",
        "_number_above",
        "files",
        "names_uncertain",
        "new_names",
        "segments",
    )

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = list(segments)  # sealed ones, oldest first
        self.files: list[File] = []  # closed once they are synced
        self.new_names = False
        self.names_uncertain = False
        """A power cut may take names that the log begins with: it is new, or was opened after a crash and not flushed since.

        Not a reason to flush. But no segment may be added meanwhile: if its name survived and an earlier one's did not, the log
        would seem to begin with it (I3).
        """
        self._names_above: DirectoryNames | None = None
        self._number_above = 0
        self._epoch_file: File | None = None

    def begin(self, names_above: DirectoryNames) -> None:
        """Whether the log's directory and what is in it have durable names is not known: the first flush sees to it."""
        self.names_uncertain = True
        self._names_above = names_above
        self._number_above = names_above.made()

    def make_names_durable(self, disk: Disk, directory: str) -> None:
        """On this thread. For a log that rolls before its first flush is done: once in its life, if ever."""
        _sync_id(disk, directory)
        disk.sync_dir(directory)
        if self._names_above is not None:
            self._names_above.sync(self._number_above)
        self.names_uncertain = False

    def __bool__(self) -> bool:
        return bool(self.segments)

    @property
    def anything(self) -> bool:
        return bool(self.segments) or bool(self.files) or self.new_names

    def forget(self, segments: Sequence[Segment]) -> None:
        """They are going, and nothing that stays depends on them."""
        gone = set(map(id, segments))
        self.segments = [segment for segment in self.segments if id(segment) not in gone]

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
        try:
            file.write_at((checkpoints.encode_epochs(epochs.checkpoint_entries()),), 0)
            disk.rename(temporary, path)
        except DiskError:
            file.close()
            raise
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
        for file in [file for file in self.files if not disk.exists(file.path)]:
            self.files.remove(file)  # a snapshot that retention or a truncation has taken meanwhile
            file.close()
        to_sync.extend(self.files)
        ticket = FlushTicket(
            disk,
            directory,
            files=to_sync,
            sync_dir=self.new_names or self.names_uncertain,
            names_above=self._names_above if self.names_uncertain else None,
            number_above=self._number_above,
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


def _sync_id(disk: Disk, directory: str) -> None:
    try:
        file = disk.open(files.join(directory, files.PARTITION_METADATA))
    except FileNotFoundError:
        return  # a log without a topic: the controller's
    try:
        sync_all(disk, directory, [file])
    finally:
        file.close()


class FlushTicket:
    """`run` in any thread, then `Log.finish_flush` on the loop.

    Files that are open are pinned until they are synced, so that nothing closes under the sync. None is opened for it: a round may
    be of thousands of logs.
    """

    __slots__ = (
        "_directory", "_disk", "_done", "_files", "_names_above", "_number_above", "_pinned", "abandoned", "end_offset",
        "position", "segment", "sync_dir", "temporary",
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
        names_above: DirectoryNames | None = None,
        number_above: int = 0,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._names_above = names_above
        self._number_above = number_above
        self._files = files
        self._done = False
        self.sync_dir = sync_dir
        self.segment = segment
        self.position = segment.size  # -1 once a truncation has moved what stands there
        self.temporary = temporary
        self.end_offset = end_offset
        self.abandoned = False
        self._pinned = [file.pin_if_open() for file in files]

    def run(self) -> None:
        """Raises DiskError; the log directory must then go offline, and the sync is never tried again (I7)."""
        try:
            for number, file in enumerate(self._files):
                self._sync(number, file)
            if self._names_above is not None:
                _sync_id(self._disk, self._directory)
            if self.sync_dir:
                self._disk.sync_dir(self._directory)
            if self._names_above is not None:
                self._names_above.sync(self._number_above)
        except FileNotFoundError as error:
            if not self.abandoned:  # otherwise the partition was deleted meanwhile, directory and all
                raise DiskError("sync directory", self._directory, error) from error
        except DiskError:
            if not self.abandoned:
                leave_note(self._disk, self._directory)
                raise
        self._done = True

    def _sync(self, number: int, file: File) -> None:
        if not self._pinned[number]:
            with suppress(
                ValueError
            ):  # retention or a truncation has closed it: it need not be durable any more
                file.sync()
            return
        file.sync()
        self._pinned[number] = False
        file.unpin()

    @property
    def done(self) -> bool:
        return self._done

    @property
    def settles_names(self) -> bool:
        """The log's own name and all that it begins with are durable once this has run."""
        return self._names_above is not None

    def release(self) -> None:
        for file, is_pinned in zip(self._files, self._pinned, strict=True):
            if is_pinned:
                file.unpin()
        for file in self.temporary:
            file.close()
