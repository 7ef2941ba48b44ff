"""Topics as they are created, and the logs on disk. Most of these are the defaults of topic settings.

Facts only: names, types, defaults and limits as Kafka 4.3 has them, what they mean in our words, and whether Tidelog
acts on them. One row per line; nothing is computed here.
"""

from __future__ import annotations

from tidelog.config.definition import Setting
from tidelog.config.tables.short import (
    ACTS,
    BOOLEAN,
    CLUSTER_WIDE,
    DOUBLE,
    DOUBLE_MAX,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    PER_BROKER,
    STRING,
)
from tidelog.config.validators import (
    GZIP_LEVEL,
    POSITIVE_OR_UNLIMITED,
    SOME,
    at_least,
    between,
    items,
    one_of,
)

# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting("auto.create.topics.enable", BOOLEAN, True, None, "Create a topic when a client asks for one that does not exist.", effect=ACTS),
    Setting("delete.topic.enable", BOOLEAN, True, None, "Allow topics to be deleted.", effect=ACTS),
    Setting("num.partitions", INT, 1, at_least(1), "Partitions of a new topic when the request does not say.", effect=ACTS),
    Setting("default.replication.factor", INT, 1, None, "Replicas of a new topic when the request does not say.", effect=ACTS),
    Setting("log.dir", LIST, ("./tidelog-data",), SOME, "Data directories, used when log.dirs is not given.", effect=ACTS, kafka_default=("/tmp/kafka-logs",), reason="Data does not belong in a directory that a reboot empties."),
    Setting("log.dirs", LIST, None, None, "Data directories, separated by commas. A new partition goes to the one that holds fewest.", effect=ACTS),
    Setting("cordoned.log.dirs", LIST, (), None, "Data directories that get no new partitions; * names all of them.", update=PER_BROKER),
    Setting("log.dir.reserve.bytes", LONG, -1, at_least(-1), "Space of a data directory's volume that records may not use: deletions, metadata and a clean stop need some. -1: a twentieth of the volume, from 4 MiB to 1 GiB. 0: none.", update=CLUSTER_WIDE, effect=ACTS, kafka_default=None, reason="Kafka has no such setting and writes until the disk is full."),
    Setting("log.dir.failure.timeout.ms", LONG, 30_000, at_least(1), "A broker that cannot report a failed directory to the controller for this long stops."),
    Setting("durability", STRING, "fsync", one_of("fsync", "replicated"), "What acks=all promises. fsync: every replica that is counted has the records on its disk. replicated: they are in the replicas' page caches, as in Kafka.", effect=ACTS, kafka_default="replicated", reason="Kafka has no such setting and always behaves like replicated: an answered record can be lost when all its replicas lose power. Group commit makes the stronger promise affordable."),
    Setting("log.segment.bytes", INT, 1_073_741_824, at_least(1048576), "Size at which a segment is closed and the next one begins.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.roll.ms", LONG, None, None, "Age at which a segment is closed although it is not full. Wins over log.roll.hours.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.roll.hours", INT, 168, at_least(1), "Age in hours at which a segment is closed although it is not full.", effect=ACTS),
    Setting("log.roll.jitter.ms", LONG, None, None, "Random part taken off the roll age, so that segments do not all roll together. Wins over log.roll.jitter.hours.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.roll.jitter.hours", INT, 0, at_least(0), "Random part, in hours, taken off the roll age.", effect=ACTS),
    Setting("log.index.size.max.bytes", INT, 10_485_760, at_least(4), "Largest size of an index file. A segment whose index is full is closed.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.index.interval.bytes", INT, 4096, at_least(0), "Bytes of records between two index entries.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.preallocate", BOOLEAN, False, None, "Reserve the whole file on disk when a segment begins.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.retention.ms", LONG, None, POSITIVE_OR_UNLIMITED, "How long records are kept; -1 keeps them for ever. Wins over minutes and hours.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.retention.minutes", INT, None, POSITIVE_OR_UNLIMITED, "How long records are kept, in minutes. Wins over hours.", effect=ACTS),
    Setting("log.retention.hours", INT, 168, POSITIVE_OR_UNLIMITED, "How long records are kept, in hours.", effect=ACTS),
    Setting("log.retention.bytes", LONG, -1, None, "Size of a partition above which its oldest segments are deleted; -1 means no limit.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.retention.check.interval.ms", LONG, 300_000, at_least(1), "How often segments are checked against the retention limits.", effect=ACTS),
    Setting("log.cleanup.policy", LIST, ("delete",), items("compact", "delete", may_be_empty=True), "What happens to old segments: delete removes them by age and size, compact keeps the last value of each key. Both may be given.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.segment.delete.delay.ms", LONG, 60_000, at_least(0), "Time between taking a segment out of the log and removing its files.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.initial.task.delay.ms", LONG, 30_000, at_least(0), "Time after the start before the background check of logs begins.", internal=True, effect=ACTS),
    Setting("log.flush.interval.messages", LONG, LONG_MAX, at_least(1), "Flush a partition to disk after this many records.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.flush.interval.ms", LONG, None, None, "Longest time records stay unflushed. Unset: log.flush.scheduler.interval.ms.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.flush.scheduler.interval.ms", LONG, LONG_MAX, None, "How often logs are checked for a flush that is due.", effect=ACTS),
    Setting("log.flush.offset.checkpoint.interval.ms", INT, 60_000, at_least(0), "How often the recovery points are written to their checkpoint file.", effect=ACTS),
    Setting("log.flush.start.offset.checkpoint.interval.ms", INT, 60_000, at_least(0), "How often the log start offsets are written to their checkpoint file."),
    Setting("log.scrub.bytes.per.second", LONG, 8_388_608, at_least(0), "How fast sealed segments are read again in the background to find damage; each batch counts at least 1 KiB. 0 turns the check off.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.scrub.interval.ms", LONG, 604_800_000, at_least(1), "How often every sealed segment is checked for damage, if log.scrub.bytes.per.second allows.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("num.recovery.threads.per.data.dir", INT, 2, at_least(1), "Threads per directory that open logs at start-up, and check them after an unclean stop.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("message.max.bytes", INT, 1_048_588, at_least(0), "Largest record batch that is accepted, after compression.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.message.timestamp.type", STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"), "Whose time a record carries: the producer's (CreateTime) or the broker's (LogAppendTime).", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.message.timestamp.before.max.ms", LONG, LONG_MAX, at_least(0), "How far in the past a record's timestamp may lie.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.message.timestamp.after.max.ms", LONG, 3_600_000, at_least(0), "How far in the future a record's timestamp may lie.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("compression.type", STRING, "producer", one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), "Codec in which batches are stored. producer keeps what the producer chose.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("compression.gzip.level", INT, -1, GZIP_LEVEL, "Level used when the broker compresses with gzip; -1 is the codec's own default.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("compression.lz4.level", INT, 9, between(1, 17), "Level used when the broker compresses with lz4.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("compression.zstd.level", INT, 3, between(-131072, 22), "Level used when the broker compresses with zstd.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.cleaner.enable", BOOLEAN, True, None, "Compact topics with cleanup.policy=compact.", effect=ACTS),
    Setting("log.cleaner.threads", INT, 1, at_least(0), "Logs that are compacted at the same time, each by a process of its own. 0: none.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.cleaner.backoff.ms", LONG, 15_000, at_least(0), "Time between two looks for logs that are to be compacted.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.cleaner.dedupe.buffer.size", LONG, 134_217_728, None, "Memory for the compactor's table of keys.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.cleaner.delete.retention.ms", LONG, 86_400_000, at_least(0), "How long a tombstone stays in a compacted log.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, None, "How full the compactor's table of keys may get.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.cleaner.io.buffer.size", INT, 524_288, at_least(0), "Memory for the compactor's reads and writes.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.cleaner.io.max.bytes.per.second", DOUBLE, 50_000_000.0, None, "Most bytes the compactor reads and writes per second.", update=CLUSTER_WIDE, effect=ACTS, kafka_default=DOUBLE_MAX, reason="Compaction shares disk and processors with the clients, who come first. Raise it where a log grows faster than it is compacted."),
    Setting("log.cleaner.max.compaction.lag.ms", LONG, LONG_MAX, at_least(1), "Longest time a record may stay uncompacted.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.cleaner.min.compaction.lag.ms", LONG, 0, at_least(0), "Shortest time a record stays uncompacted.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("log.cleaner.min.cleanable.ratio", DOUBLE, 0.5, between(0, 1), "Share of uncompacted bytes above which a log is compacted.", update=CLUSTER_WIDE, effect=ACTS),
)
# fmt: on
