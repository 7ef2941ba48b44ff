"""Metadata snapshots as files beside the segments of the metadata log: found, written, read, removed.

Owns how many there are and what a start begins with: the newest sound one, then the log from where it ends. Two are kept, and the log
from the older one on, so that damage of one file does not cost the cluster its metadata. If none is left that the log reaches, nothing is
guessed: CorruptDataError, and no partition is touched (I6, M28).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from tidelog.controller.image import EMPTY_IMAGE, MetadataImage
from tidelog.controller.metadata_log import replay_log
from tidelog.controller.snapshot import encode_snapshot, read_snapshot
from tidelog.errors import CorruptDataError
from tidelog.storage import files
from tidelog.storage.disk import Disk, read_file, write_file_atomically

KEPT: Final = 2
ReadFrom = Callable[[int], Iterator[bytes]]


class SnapshotId(NamedTuple):
    """It covers everything below `end_offset`; `epoch` is the leader epoch of the last batch it covers."""

    end_offset: int
    epoch: int


class LoadedMetadata(NamedTuple):
    image: MetadataImage
    torn_transaction: bool
    """The last writer died within a transaction."""
    snapshots: list[SnapshotId]
    """The one that was used and those before it, oldest first."""
    warnings: list[str]


def load(disk: Disk, directory: str, *, log_start: int, log_end: int, read_from: ReadFrom) -> LoadedMetadata:
    """The newest sound snapshot and what the log says behind it. `read_from` reads whole batches of the log from an offset on."""
    problems: list[str] = []
    usable: list[SnapshotId] = []
    image: MetadataImage | None = None
    for found in find(disk, directory):
        if not log_start <= found.end_offset <= log_end:
            problems.append(
                f"metadata snapshot {snapshot_path(directory, found)} does not fit the metadata log, which holds offsets"
                f" {log_start} to {log_end} (exclusive)"
            )
            continue
        if image is None:
            try:
                image = _read(disk, directory, found)
            except (CorruptDataError, FileNotFoundError) as error:
                problems.append(str(error))
                continue
        usable.append(found)
    if image is None:
        if log_start > 0:
            raise CorruptDataError(
                f"the metadata log in {directory} begins at offset {log_start}, and no sound snapshot covers what was before:"
                f" {'; '.join(problems) or 'there is none'}. Bring one back from a copy of the directory"
            )
        image = EMPTY_IMAGE
    after, reader = replay_log(read_from(image.offset + 1), image)
    if reader.next_offset != log_end:
        raise CorruptDataError(
            f"the metadata log in {directory} ends at offset {log_end}, and can be read up to {reader.next_offset}"
        )
    return LoadedMetadata(after, reader.in_transaction, usable[::-1], problems)


def find(disk: Disk, directory: str) -> list[SnapshotId]:
    """Newest first."""
    parsed = (files.parse_metadata_snapshot(name) for name in disk.list_dir(directory))
    return sorted((SnapshotId(*found) for found in parsed if found is not None), reverse=True)


def snapshot_path(directory: str, snapshot: SnapshotId) -> str:
    return files.join(directory, files.metadata_snapshot_name(*snapshot))


def write(
    disk: Disk, directory: str, image: MetadataImage, *, last_timestamp_ms: int, now_ms: int
) -> SnapshotId:
    """Durable when it returns. In any thread: images are values."""
    snapshot = SnapshotId(image.offset + 1, image.epoch)
    content = b"".join(encode_snapshot(image, last_timestamp_ms=last_timestamp_ms, now_ms=now_ms))
    write_file_atomically(disk, snapshot_path(directory, snapshot), content)
    return snapshot


def remove(disk: Disk, directory: str, snapshots: Iterable[SnapshotId]) -> None:
    for snapshot in snapshots:
        disk.remove(snapshot_path(directory, snapshot))


def _read(disk: Disk, directory: str, snapshot: SnapshotId) -> MetadataImage:
    path = snapshot_path(directory, snapshot)
    return read_snapshot(
        read_file(disk, path), end_offset=snapshot.end_offset, epoch=snapshot.epoch, path=path
    )
