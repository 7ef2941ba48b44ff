"""Tiered storage. Tidelog keeps every segment on local disk; the names are known so that a file that carries them still loads.

Facts only: names, types, defaults and limits as Kafka 4.3 has them, what they mean in our words, and whether Tidelog
acts on them. One row per line; nothing is computed here.
"""

from __future__ import annotations

from tidelog.config.definition import Setting
from tidelog.config.tables.short import BOOLEAN, CLUSTER_WIDE, DOUBLE, INT, LONG, LONG_MAX, REFUSED, STRING
from tidelog.config.validators import NOT_EMPTY, at_least, between

# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting("remote.log.storage.system.enable", BOOLEAN, False, None, "Move old segments to remote storage.", effect=REFUSED),
    Setting("remote.log.storage.manager.class.name", STRING, None, NOT_EMPTY, "Java class that stores segments remotely."),
    Setting("remote.log.storage.manager.class.path", STRING, None, None, "Where to load the storage class from."),
    Setting("remote.log.storage.manager.impl.prefix", STRING, "rsm.config.", NOT_EMPTY, "Prefix of the settings that are passed to the storage class."),
    Setting("remote.log.metadata.manager.class.name", STRING, "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager", NOT_EMPTY, "Java class that keeps track of remote segments."),
    Setting("remote.log.metadata.manager.class.path", STRING, None, None, "Where to load the tracking class from."),
    Setting("remote.log.metadata.manager.impl.prefix", STRING, "rlmm.config.", NOT_EMPTY, "Prefix of the settings that are passed to the tracking class."),
    Setting("remote.log.metadata.manager.listener.name", STRING, None, NOT_EMPTY, "Listener over which the tracking class talks to brokers."),
    Setting("remote.log.metadata.custom.metadata.max.bytes", INT, 128, at_least(0), "Largest custom metadata of a remote segment."),
    Setting("remote.log.index.file.cache.total.size.bytes", LONG, 1_073_741_824, at_least(1), "Disk space for cached remote indexes.", update=CLUSTER_WIDE),
    Setting("remote.log.index.file.cache.ttl.ms", LONG, 900_000, at_least(-1), "How long a cached remote index is kept unused.", internal=True),
    Setting("remote.log.manager.thread.pool.size", INT, 2, at_least(1), "Threads for tiering tasks."),
    Setting("remote.log.manager.copier.thread.pool.size", INT, 10, at_least(1), "Threads that copy segments to remote storage.", update=CLUSTER_WIDE),
    Setting("remote.log.manager.expiration.thread.pool.size", INT, 10, at_least(1), "Threads that remove expired remote segments.", update=CLUSTER_WIDE),
    Setting("remote.log.manager.follower.thread.pool.size", INT, 2, at_least(1), "Threads that follow the remote state on followers.", update=CLUSTER_WIDE),
    Setting("remote.log.manager.copy.max.bytes.per.second", LONG, LONG_MAX, at_least(1), "Bytes per second copied to remote storage.", update=CLUSTER_WIDE),
    Setting("remote.log.manager.copy.quota.window.num", INT, 11, at_least(1), "Windows over which the copy rate is measured."),
    Setting("remote.log.manager.copy.quota.window.size.seconds", INT, 1, at_least(1), "Length of one window of the copy rate."),
    Setting("remote.log.manager.fetch.max.bytes.per.second", LONG, LONG_MAX, at_least(1), "Bytes per second fetched from remote storage.", update=CLUSTER_WIDE),
    Setting("remote.log.manager.fetch.quota.window.num", INT, 11, at_least(1), "Windows over which the remote fetch rate is measured."),
    Setting("remote.log.manager.fetch.quota.window.size.seconds", INT, 1, at_least(1), "Length of one window of the remote fetch rate."),
    Setting("remote.log.manager.task.interval.ms", LONG, 30_000, at_least(1), "How often tiering tasks run."),
    Setting("remote.log.manager.task.retry.backoff.ms", LONG, 500, at_least(1), "First pause before a failed tiering task runs again.", internal=True),
    Setting("remote.log.manager.task.retry.backoff.max.ms", LONG, 30_000, at_least(1), "Longest pause before a failed tiering task runs again.", internal=True),
    Setting("remote.log.manager.task.retry.jitter", DOUBLE, 0.2, between(0, 0.5), "Random share of the pause before a tiering task runs again.", internal=True),
    Setting("remote.log.reader.threads", INT, 10, at_least(1), "Threads that read from remote storage.", update=CLUSTER_WIDE),
    Setting("remote.log.reader.max.pending.tasks", INT, 100, at_least(1), "Remote reads that may wait for a thread."),
    Setting("remote.fetch.max.wait.ms", INT, 500, at_least(1), "How long a fetch waits for remote storage.", update=CLUSTER_WIDE),
    Setting("remote.list.offsets.request.timeout.ms", LONG, 30_000, at_least(1), "How long a ListOffsets request waits for remote storage.", update=CLUSTER_WIDE),
    Setting("log.local.retention.ms", LONG, -2, at_least(-2), "How long tiered segments also stay on local disk. -2 takes the value of the retention time.", update=CLUSTER_WIDE),
    Setting("log.local.retention.bytes", LONG, -2, at_least(-2), "Size of tiered segments that also stay on local disk. -2 takes the value of the retention size.", update=CLUSTER_WIDE),
    Setting("follower.fetch.last.tiered.offset.enable", BOOLEAN, False, None, "Let a new follower start at the last tiered offset.", update=CLUSTER_WIDE),
)
# fmt: on
