"""What can be set for one topic, and the broker settings each falls back to.

Facts only: names, types, defaults and limits as Kafka 4.3 has them, what they mean in our words, and whether Tidelog
acts on them. One row per line; nothing is computed here.
"""

from __future__ import annotations

from tidelog.config.definition import Fallback, Setting
from tidelog.config.tables.short import (
    ACTS,
    BOOLEAN,
    DOUBLE,
    HOURS,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    MINUTES,
    REFUSED,
    STRING,
    TOPIC,
)
from tidelog.config.validators import GZIP_LEVEL, THROTTLED_REPLICAS, at_least, between, items, one_of

# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting("cleanup.policy", LIST, ("delete",), items("compact", "delete", may_be_empty=True), "What happens to old segments: delete removes them by age and size, compact keeps the last value of each key. Both may be given.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.cleanup.policy"),)),
    Setting("compression.type", STRING, "producer", one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), "Codec in which batches are stored. producer keeps what the producer chose.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("compression.type"),)),
    Setting("compression.gzip.level", INT, -1, GZIP_LEVEL, "Level used when the broker compresses with gzip; -1 is the codec's own default.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("compression.gzip.level"),)),
    Setting("compression.lz4.level", INT, 9, between(1, 17), "Level used when the broker compresses with lz4.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("compression.lz4.level"),)),
    Setting("compression.zstd.level", INT, 3, between(-131072, 22), "Level used when the broker compresses with zstd.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("compression.zstd.level"),)),
    Setting("durability", STRING, "fsync", one_of("fsync", "replicated"), "What acks=all promises for this topic. fsync: every replica that is counted has the records on its disk. replicated: they are in the replicas' page caches, as in Kafka.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("durability"),)),
    Setting("retention.ms", LONG, 604_800_000, at_least(-1), "How long records are kept; -1 keeps them for ever.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.retention.ms"), Fallback("log.retention.minutes", MINUTES), Fallback("log.retention.hours", HOURS))),
    Setting("retention.bytes", LONG, -1, None, "Size of a partition above which its oldest segments are deleted; -1 means no limit.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.retention.bytes"),)),
    Setting("segment.bytes", INT, 1_073_741_824, at_least(1048576), "Size at which a segment is closed and the next one begins. Retention works on whole closed segments.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.segment.bytes"),)),
    Setting("segment.ms", LONG, 604_800_000, at_least(1), "Age at which a segment is closed although it is not full.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.roll.ms"), Fallback("log.roll.hours", HOURS))),
    Setting("segment.jitter.ms", LONG, 0, at_least(0), "Random part taken off the roll age, so that segments do not all roll together.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.roll.jitter.ms"), Fallback("log.roll.jitter.hours", HOURS))),
    Setting("segment.index.bytes", INT, 10_485_760, at_least(4), "Largest size of an index file. A segment whose index is full is closed.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.index.size.max.bytes"),)),
    Setting("internal.segment.bytes", INT, None, None, "Segment size for tests, without the lower bound of segment.bytes; wins over it.", effect=ACTS, internal=True, scope=TOPIC),
    Setting("index.interval.bytes", INT, 4096, at_least(0), "Bytes of records between two index entries.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.index.interval.bytes"),)),
    Setting("preallocate", BOOLEAN, False, None, "Reserve the whole file on disk when a segment begins.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.preallocate"),)),
    Setting("file.delete.delay.ms", LONG, 60_000, at_least(0), "Time between taking a segment out of the log and removing its files.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.segment.delete.delay.ms"),)),
    Setting("flush.messages", LONG, LONG_MAX, at_least(1), "Flush a partition to disk after this many records.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.flush.interval.messages"),)),
    Setting("flush.ms", LONG, LONG_MAX, at_least(0), "Longest time records stay unflushed.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.flush.interval.ms"), Fallback("log.flush.scheduler.interval.ms"))),
    Setting("max.message.bytes", INT, 1_048_588, at_least(0), "Largest record batch that is accepted, after compression.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("message.max.bytes"),)),
    Setting("message.timestamp.type", STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"), "Whose time a record carries: the producer's (CreateTime) or the broker's (LogAppendTime).", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.message.timestamp.type"),)),
    Setting("message.timestamp.before.max.ms", LONG, LONG_MAX, at_least(0), "How far in the past a record's timestamp may lie.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.message.timestamp.before.max.ms"),)),
    Setting("message.timestamp.after.max.ms", LONG, 3_600_000, at_least(0), "How far in the future a record's timestamp may lie.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.message.timestamp.after.max.ms"),)),
    Setting("min.insync.replicas", INT, 1, at_least(1), "Replicas that must have a record before acks=all is answered. With fewer in sync, such writes are refused.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("min.insync.replicas"),)),
    Setting("unclean.leader.election.enable", BOOLEAN, False, None, "Let a replica that is not in sync become leader when no other is left. Records can be lost.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("unclean.leader.election.enable"),)),
    Setting("delete.retention.ms", LONG, 86_400_000, at_least(0), "How long a tombstone stays in a compacted log.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.cleaner.delete.retention.ms"),)),
    Setting("min.cleanable.dirty.ratio", DOUBLE, 0.5, between(0, 1), "Share of uncompacted bytes above which a log is compacted.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.cleaner.min.cleanable.ratio"),)),
    Setting("min.compaction.lag.ms", LONG, 0, at_least(0), "Shortest time a record stays uncompacted.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.cleaner.min.compaction.lag.ms"),)),
    Setting("max.compaction.lag.ms", LONG, LONG_MAX, at_least(1), "Longest time a record may stay uncompacted.", effect=ACTS, scope=TOPIC, fallbacks=(Fallback("log.cleaner.max.compaction.lag.ms"),)),
    Setting("leader.replication.throttled.replicas", LIST, (), THROTTLED_REPLICAS, "Replicas whose traffic is throttled at the leader: partition:broker pairs, or * for all.", scope=TOPIC),
    Setting("follower.replication.throttled.replicas", LIST, (), THROTTLED_REPLICAS, "Replicas whose traffic is throttled at the follower: partition:broker pairs, or * for all.", scope=TOPIC),
    Setting("remote.storage.enable", BOOLEAN, False, None, "Move old segments to remote storage. Tidelog has no tiered storage.", effect=REFUSED, scope=TOPIC),
    Setting("remote.log.copy.disable", BOOLEAN, False, None, "Stop copying segments of a tiered topic.", scope=TOPIC),
    Setting("remote.log.delete.on.disable", BOOLEAN, False, None, "Delete remote segments when tiering is switched off.", scope=TOPIC),
    Setting("local.retention.ms", LONG, -2, at_least(-2), "How long tiered segments also stay on local disk. -2 takes the value of retention.ms.", scope=TOPIC, fallbacks=(Fallback("log.local.retention.ms"),)),
    Setting("local.retention.bytes", LONG, -2, at_least(-2), "Size of tiered segments that also stay on local disk. -2 takes the value of retention.bytes.", scope=TOPIC, fallbacks=(Fallback("log.local.retention.bytes"),)),
)
# fmt: on
