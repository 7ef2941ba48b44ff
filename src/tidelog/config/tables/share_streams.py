"""Share groups and streams groups.

Facts only: names, types, defaults and limits as Kafka 4.3 has them, what they mean in our words, and whether Tidelog
acts on them. One row per line; nothing is computed here.
"""

from __future__ import annotations

from tidelog.config.definition import Setting
from tidelog.config.tables.short import CLUSTER_WIDE, INT, INT_MAX, LIST, SHORT, STRING
from tidelog.config.validators import at_least, between

# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting("group.share.assignors", LIST, ("simple",), None, "Server-side assignor of share groups."),
    Setting("group.share.assignment.interval.ms", INT, 1000, at_least(0), "Shortest time between two assignments of a share group.", update=CLUSTER_WIDE),
    Setting("group.share.min.assignment.interval.ms", INT, 0, at_least(0), "Lower bound of a group's share.assignment.interval.ms."),
    Setting("group.share.max.assignment.interval.ms", INT, 15_000, at_least(0), "Upper bound of a group's share.assignment.interval.ms."),
    Setting("group.share.delivery.count.limit", INT, 5, between(2, 10), "How often one record is delivered in a share group at most."),
    Setting("group.share.min.delivery.count.limit", INT, 2, between(2, 5), "Lower bound of a group's share.delivery.count.limit."),
    Setting("group.share.max.delivery.count.limit", INT, 10, between(5, 25), "Upper bound of a group's share.delivery.count.limit."),
    Setting("group.share.heartbeat.interval.ms", INT, 5000, at_least(1), "How often members of a share group send heartbeats."),
    Setting("group.share.min.heartbeat.interval.ms", INT, 5000, at_least(1), "Lower bound of a group's share.heartbeat.interval.ms."),
    Setting("group.share.max.heartbeat.interval.ms", INT, 15_000, at_least(1), "Upper bound of a group's share.heartbeat.interval.ms."),
    Setting("group.share.session.timeout.ms", INT, 45_000, at_least(1), "A member of a share group that is silent for this long is removed."),
    Setting("group.share.min.session.timeout.ms", INT, 45_000, at_least(1), "Lower bound of a group's share.session.timeout.ms."),
    Setting("group.share.max.session.timeout.ms", INT, 60_000, at_least(1), "Upper bound of a group's share.session.timeout.ms."),
    Setting("group.share.partition.max.record.locks", INT, 2000, between(100, 10000), "Records of one share partition that may be out for delivery at a time."),
    Setting("group.share.min.partition.max.record.locks", INT, 100, between(100, 2000), "Lower bound of a group's share.partition.max.record.locks."),
    Setting("group.share.max.partition.max.record.locks", INT, 4000, between(2000, 10000), "Upper bound of a group's share.partition.max.record.locks."),
    Setting("group.share.record.lock.duration.ms", INT, 30_000, between(1000, 3600000), "How long a delivered record stays reserved for its consumer."),
    Setting("group.share.min.record.lock.duration.ms", INT, 15_000, between(1000, 30000), "Lower bound of a group's share.record.lock.duration.ms."),
    Setting("group.share.max.record.lock.duration.ms", INT, 60_000, between(30000, 3600000), "Upper bound of a group's share.record.lock.duration.ms."),
    Setting("group.share.max.share.sessions", INT, 2000, at_least(1), "Share sessions that a broker remembers."),
    Setting("group.share.max.size", INT, 200, between(1, 1000), "Most members of a share group."),
    Setting("group.share.initialize.retry.interval.ms", INT, 30_000, at_least(1), "Pause before the state of new share partitions is initialised again after a failure.", internal=True),
    Setting("group.share.persister.class.name", STRING, "org.apache.kafka.server.share.persister.DefaultStatePersister", None, "Java class that stores the state of share groups.", internal=True),
    Setting("share.coordinator.append.linger.ms", INT, -1, at_least(-1), "How long the share coordinator gathers records before it writes them. -1 adapts by itself."),
    Setting("share.coordinator.cached.buffer.max.bytes", INT, 1_048_588, at_least(524288), "Largest write buffer that the share coordinator keeps for reuse.", update=CLUSTER_WIDE),
    Setting("share.coordinator.cold.partition.snapshot.interval.ms", INT, 300_000, at_least(1), "How often the state of quiet share partitions is written as a snapshot.", internal=True),
    Setting("share.coordinator.load.buffer.size", INT, 5_242_880, at_least(1), "Bytes read at once when share state is loaded."),
    Setting("share.coordinator.snapshot.update.records.per.snapshot", INT, 500, between(0, 500), "Updates of share state between two snapshots."),
    Setting("share.coordinator.state.topic.compression.codec", INT, 0, None, "Codec number of the batches in __share_group_state."),
    Setting("share.coordinator.state.topic.min.isr", SHORT, 2, at_least(1), "min.insync.replicas of __share_group_state."),
    Setting("share.coordinator.state.topic.num.partitions", INT, 50, at_least(1), "Partitions of __share_group_state."),
    Setting("share.coordinator.state.topic.prune.interval.ms", INT, 300_000, at_least(1), "How often __share_group_state is cut below what is still needed.", internal=True),
    Setting("share.coordinator.state.topic.replication.factor", SHORT, 3, at_least(1), "Replicas of __share_group_state when it is created."),
    Setting("share.coordinator.state.topic.segment.bytes", INT, 104_857_600, at_least(1), "Segment size of __share_group_state."),
    Setting("share.coordinator.threads", INT, 1, at_least(1), "Threads of Kafka's share coordinator."),
    Setting("share.coordinator.write.timeout.ms", INT, 5000, at_least(1), "How long a write of share state waits for its replicas."),
    Setting("group.streams.assignment.interval.ms", INT, 1000, at_least(0), "Shortest time between two assignments of a streams group.", update=CLUSTER_WIDE),
    Setting("group.streams.min.assignment.interval.ms", INT, 0, at_least(0), "Lower bound of a group's streams.assignment.interval.ms."),
    Setting("group.streams.max.assignment.interval.ms", INT, 15_000, at_least(0), "Upper bound of a group's streams.assignment.interval.ms."),
    Setting("group.streams.heartbeat.interval.ms", INT, 5000, at_least(1), "How often members of a streams group send heartbeats."),
    Setting("group.streams.min.heartbeat.interval.ms", INT, 5000, at_least(1), "Lower bound of a group's streams.heartbeat.interval.ms."),
    Setting("group.streams.max.heartbeat.interval.ms", INT, 15_000, at_least(1), "Upper bound of a group's streams.heartbeat.interval.ms."),
    Setting("group.streams.session.timeout.ms", INT, 45_000, at_least(1), "A member of a streams group that is silent for this long is removed."),
    Setting("group.streams.min.session.timeout.ms", INT, 45_000, at_least(1), "Lower bound of a group's streams.session.timeout.ms."),
    Setting("group.streams.max.session.timeout.ms", INT, 60_000, at_least(1), "Upper bound of a group's streams.session.timeout.ms."),
    Setting("group.streams.initial.rebalance.delay.ms", INT, 3000, at_least(0), "How long a new streams group waits for more members before its first assignment."),
    Setting("group.streams.num.standby.replicas", INT, 0, at_least(0), "Standby copies of each stateful task."),
    Setting("group.streams.max.standby.replicas", INT, 2, at_least(0), "Upper bound of a group's streams.num.standby.replicas."),
    Setting("group.streams.max.size", INT, INT_MAX, at_least(1), "Most members of a streams group."),
)
# fmt: on
