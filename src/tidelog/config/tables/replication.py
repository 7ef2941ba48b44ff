"""Copies of a partition on several brokers.

Facts only: names, types, defaults and limits as Kafka 4.3 has them, what they mean in our words, and whether Tidelog
acts on them. One row per line; nothing is computed here.
"""

from __future__ import annotations

from tidelog.config.definition import Setting
from tidelog.config.tables.short import ACTS, BOOLEAN, CLUSTER_WIDE, INT, LONG, STRING
from tidelog.config.validators import at_least, one_of

# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting("min.insync.replicas", INT, 1, at_least(1), "Replicas that must have a record before acks=all is answered. With fewer in sync, such writes are refused.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("unclean.leader.election.enable", BOOLEAN, False, None, "Let a replica that is not in sync become leader when no other is left. Records can be lost.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("replica.lag.time.max.ms", LONG, 30_000, None, "A follower that has not caught up with the leader's end for this long leaves the in-sync replicas.", effect=ACTS),
    Setting("replica.fetch.wait.max.ms", INT, 500, None, "How long a follower's fetch waits for new records.", effect=ACTS),
    Setting("replica.fetch.min.bytes", INT, 1, None, "Bytes a follower's fetch waits for.", effect=ACTS),
    Setting("replica.fetch.max.bytes", INT, 1_048_576, at_least(0), "Bytes a follower asks for per partition. A bigger first batch is still fetched.", effect=ACTS),
    Setting("replica.fetch.response.max.bytes", INT, 10_485_760, at_least(0), "Bytes a follower asks for per fetch. A bigger first batch is still fetched.", effect=ACTS),
    Setting("replica.fetch.backoff.ms", INT, 1000, at_least(0), "Pause of a follower after a failed fetch.", effect=ACTS),
    Setting("replica.high.watermark.checkpoint.interval.ms", LONG, 5000, None, "How often high watermarks are written to their checkpoint file."),
    Setting("replica.socket.timeout.ms", INT, 30_000, None, "How long a follower waits for the leader's answer.", effect=ACTS),
    Setting("replica.socket.receive.buffer.bytes", INT, 65_536, None, "Receive buffer (SO_RCVBUF) of a follower's connection."),
    Setting("replica.selector.class", STRING, None, one_of("org.apache.kafka.common.replica.RackAwareReplicaSelector"), "Which replica a consumer is sent to that says where it is (`client.rack`): with Kafka's RackAwareReplicaSelector the one in its rack (`broker.rack`), if that is in sync. Unset: everybody reads from the leader.", effect=ACTS),
    Setting("num.replica.fetchers", INT, 1, at_least(1), "Connections a follower opens to each leader.", update=CLUSTER_WIDE),
    Setting("num.replica.alter.log.dirs.threads", INT, None, None, "Threads that move replicas between directories."),
    Setting("leader.replication.throttled.rate", LONG, None, at_least(0), "Bytes per second that leaders send for throttled replicas. Unset: no limit.", update=CLUSTER_WIDE, internal=True),
    Setting("follower.replication.throttled.rate", LONG, None, at_least(0), "Bytes per second that followers take for throttled replicas. Unset: no limit.", update=CLUSTER_WIDE, internal=True),
    Setting("replica.alter.log.dirs.io.max.bytes.per.second", LONG, None, at_least(0), "Bytes per second for moving replicas between directories of one broker. Unset: no limit.", update=CLUSTER_WIDE, internal=True),
)
# fmt: on
