"""Makes the directory of a new partition: as few operations as there can be, and not one sync.

Durability comes with the log's first flush (see `log_flush`): before it nobody was told of anything in the partition. What a crash
leaves of a directory until then is opened, and finished, like any other (`recovery`).
"""

from __future__ import annotations

from tidelog.ports import Rng
from tidelog.storage import checkpoints, files
from tidelog.storage.disk import Disk
from tidelog.storage.epoch_cache import LeaderEpochCache
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.log_flush import DirectoryNames
from tidelog.storage.producer_state import ProducerState
from tidelog.storage.recovery_report import RecoveryReport
from tidelog.storage.segment import Segment


def make_log(
    disk: Disk,
    directory: str,
    topic: str,
    partition: int,
    *,
    topic_id: bytes,
    config: LogConfig,
    now_ms: int,
    rng: Rng,
    names_above: DirectoryNames,
) -> Log | None:
    """An empty log in a directory of its own. None, and nothing changed, if the directory is there already."""
    if not disk.make_dir(directory):
        return None
    # The id first: a directory with segments and without an id could be anyone's.
    checkpoints.write_partition_metadata(disk, files.join(directory, files.PARTITION_METADATA), topic_id)
    log = Log(
        disk,
        directory,
        topic,
        partition,
        topic_id=topic_id,
        config=config,
        rng=rng,
        segments=[Segment.create_first(disk, directory, config, now_ms=now_ms)],
        unsynced=[],
        log_start_offset=0,
        log_end_offset=0,
        recovery_point=0,
        high_watermark=0,
        epochs=LeaderEpochCache(),
        producers=ProducerState(),
        recovery=RecoveryReport(topic, partition, directory),
    )
    log.unsynced.begin(names_above)
    return log
