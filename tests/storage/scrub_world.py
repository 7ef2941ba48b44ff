"""What the tests of the scrub share: logs with sealed segments, ways to harm them, and the check itself."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tests.storage.log_world import DIRECTORY, NOW_MS, Stored, append, make_batch, open_orders, read_all
from tidelog.errors import CorruptDataError
from tidelog.records.batch import BatchHeader, iter_headers
from tidelog.storage import files
from tidelog.storage.disk import Disk, read_file
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.scrub import SegmentScrub
from tidelog.storage.scrub_round import target_at
from tidelog.storage.segment import Segment
from tidelog.storage.time_index import TimeIndex
from tidelog.testing.sim.disk import SimDisk

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150, file_delete_delay_ms=1000)
KEY = ("orders", 0)


def sealed_log(
    shapes: Sequence[tuple[int, int]] = ((1, 5), (3, 20), (1, 60), (2, 0)) * 6,
    *,
    epochs: Sequence[int] = (0, 0, 0, 1, 1, 3),
    config: LogConfig = CONFIG,
    disk: Disk | None = None,
    directory: str = DIRECTORY,
) -> Log:
    """A flushed log; each shape is a batch with so many records of so many bytes. Leader epochs are gone through evenly."""
    log = open_orders(disk if disk is not None else SimDisk(Random(1)), config, directory=directory)
    for number, (records, size) in enumerate(shapes):
        times = [NOW_MS + 10 * number + record for record in range(records)]
        epoch = epochs[number * len(epochs) // len(shapes)]
        append(log, make_batch(times, value=b"%d" % number * size), leader_epoch=epoch)
    log.roll(NOW_MS)
    log.flush()
    log.set_high_watermark(log.log_end_offset)
    return log


def headers_of(log: Log, segment: Segment) -> list[tuple[int, BatchHeader]]:
    return list(iter_headers(read_file(log.disk, segment.file.path)))


def scrubbed(log: Log, number: int, *, budget: int = 400) -> SegmentScrub:
    """The finished check of one segment, from files of its own."""
    target = target_at(KEY, log, number)
    assert target is not None, "the segment is not sealed and durable"
    base = target.facts.base_offset

    def path(kind: str) -> str:
        return files.segment_path(log.directory, base, kind)

    limit = target.segment.config.segment_index_bytes
    scrub = SegmentScrub(
        log.disk.open(path(files.LOG)),
        target.facts,
        offset_index=OffsetIndex(log.disk.open(path(files.INDEX)), base, limit),
        time_index=TimeIndex(log.disk.open(path(files.TIME_INDEX)), base, limit),
    )
    for _ in range(100_000):
        if scrub.done:
            return scrub
        assert scrub.step(budget) > 0, "every step is progress"
    raise AssertionError("the check does not come to an end")


def apply(log: Log, number: int, *, budget: int = 400) -> SegmentScrub:
    """Check a segment and keep readers from what was found, as the broker does."""
    scrub = scrubbed(log, number, budget=budget)
    log.segments[number].damage = tuple(scrub.damages) or None
    log.positions.clear()
    return scrub


def read_around(log: Log, *, max_bytes: int) -> tuple[list[Stored], list[range]]:
    """Read the log as a consumer that seeks past what it is refused: what it got, and the offsets it was refused."""
    offset, found, refused = log.log_start_offset, list[Stored](), list[range]()
    while offset < log.log_end_offset:
        try:
            got = read_all(log, start=offset, max_bytes=max_bytes)
        except CorruptDataError:
            got = []
            # `read_all` goes on until it is refused: what it had is read again, up to there.
            end = next(
                end
                for end in range(offset, log.log_end_offset + 1)
                if end == log.log_end_offset or is_refused(log, end)
            )
            if end > offset:
                got = read_all(log, start=offset, max_bytes=max_bytes, end=end)
                found += got
                offset = got[-1].last_offset + 1
                continue
            resumed = offset
            while resumed < log.log_end_offset and is_refused(log, resumed):
                resumed += 1
            refused.append(range(offset, resumed))
            offset = resumed
            continue
        found += got
        break
    return found, refused


def is_refused(log: Log, offset: int) -> bool:
    try:
        read = log.read(offset, 1, end_offset=log.log_end_offset)
    except CorruptDataError:
        return True
    if read.range is not None:
        read.range.release()
    return False
