"""The snapshots beside the metadata log, as files: which there are, pieces of them to send, pieces that arrive.

Owns `<end offset>-<epoch>.checkpoint` and `….checkpoint.part`. A snapshot that was fetched counts from the moment its bytes and its name are durable
(`install`), and not before its batches were found sound. What the records in it say is the controller's business.
"""

from __future__ import annotations

from tidelog.errors import CorruptDataError
from tidelog.quorum.values import SnapshotId
from tidelog.records.batch import crc_matches, iter_headers
from tidelog.records.control import ControlType, control_type
from tidelog.records.record import iter_records
from tidelog.storage import files
from tidelog.storage.disk import Disk, read_file


class SnapshotStore:
    def __init__(self, disk: Disk, directory: str) -> None:
        """Looks for what is there, and removes what was never finished."""
        self._disk = disk
        self._directory = directory
        names = disk.list_dir(directory)
        parsed = (files.parse_metadata_snapshot(name) for name in names)
        self.known = sorted(SnapshotId(*found) for found in parsed if found is not None)
        for name in names:
            if name.endswith(files.METADATA_SNAPSHOT + files.PART):
                disk.remove(files.join(directory, name))

    @property
    def latest(self) -> SnapshotId | None:
        return self.known[-1] if self.known else None

    def ending_at(self, offset: int) -> SnapshotId | None:
        return next((snapshot for snapshot in self.known if snapshot.end_offset == offset), None)

    def path(self, snapshot: SnapshotId) -> str:
        return files.join(self._directory, files.metadata_snapshot_name(*snapshot))

    def add(self, snapshot: SnapshotId) -> None:
        """Somebody has made it durable."""
        if snapshot not in self.known:
            self.known = sorted([*self.known, snapshot])

    def read(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[int, bytes]:
        """Size of the whole, and a piece of it. FileNotFoundError if it is gone."""
        if snapshot not in self.known:
            raise FileNotFoundError(self.path(snapshot))
        file = self._disk.open(self.path(snapshot))
        try:
            return file.size(), file.read_at(max_bytes, position)
        finally:
            file.close()

    def remove_but(self, kept: int) -> None:
        """The newest `kept` stay. A name that comes back after a crash does no harm: what it says is still true."""
        gone, self.known = self.known[:-kept], self.known[-kept:]
        for snapshot in gone:
            self._disk.remove(self.path(snapshot))

    def check(self, snapshot: SnapshotId) -> None:
        """CorruptDataError unless it is sound."""
        check_whole(read_file(self._disk, self.path(snapshot)), self.path(snapshot))

    # ---- one that is being fetched

    def write_part(self, snapshot: SnapshotId, position: int, data: bytes) -> None:
        path = self.path(snapshot) + files.PART
        if position == 0:
            self._disk.remove(path)
        file = self._disk.open(path, create=True)
        try:
            file.write_at([data], position)
        finally:
            file.close()

    def install(self, snapshot: SnapshotId) -> None:
        """Durable when it returns; `add` it then. CorruptDataError, and the pieces are gone, if it is not sound. In any thread."""
        path = self.path(snapshot)
        part = path + files.PART
        try:
            check_whole(read_file(self._disk, part), path)
        except CorruptDataError:
            self._disk.remove(part)
            raise
        file = self._disk.open(part)
        try:
            file.sync()
        finally:
            file.close()
        self._disk.rename(part, path)
        self._disk.sync_dir(self._directory)


def check_whole(data: bytes, path: str) -> None:
    """Sound batches from the first byte to the last, between a snapshot header and a snapshot footer."""
    kinds: list[int] = []
    end = 0
    for position, header in iter_headers(data):
        if not crc_matches(data, position, header):
            raise CorruptDataError(
                f"metadata snapshot {path}: the batch at position {position} fails its CRC"
            )
        is_end = position == 0 or position + header.size == len(data)
        if is_end and header.is_control:
            kinds.extend(control_type(record) for record in iter_records(data, position, header))
        end = position + header.size
    if end != len(data) or kinds != [ControlType.SNAPSHOT_HEADER, ControlType.SNAPSHOT_FOOTER]:
        raise CorruptDataError(f"metadata snapshot {path} of {len(data)} bytes is not whole")
