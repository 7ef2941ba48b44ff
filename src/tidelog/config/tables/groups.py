"""Consumer groups and their offsets.

Facts only: names, types, defaults and limits as Kafka 4.3 has them, what they mean in our words, and whether Tidelog
acts on them. One row per line; nothing is computed here.
"""

from __future__ import annotations

from tidelog.config.definition import Setting
from tidelog.config.tables.short import ACTS, CLUSTER_WIDE, INT, INT_MAX, LIST, LONG, SHORT, STRING
from tidelog.config.validators import at_least, items, one_of

# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting("group.initial.rebalance.delay.ms", INT, 3000, None, "How long an empty group waits for more members before its first assignment.", effect=ACTS),
    Setting("group.join.gather.ms", INT, 50, at_least(0), "A classic rebalance with new members ends when for this long no other has come, or after ten times as long. Those who come together get their partitions together. 0: at once.", effect=ACTS),
    Setting("group.min.session.timeout.ms", INT, 6000, None, "Shortest session timeout that a classic member may ask for.", effect=ACTS),
    Setting("group.max.session.timeout.ms", INT, 1_800_000, None, "Longest session timeout that a classic member may ask for.", effect=ACTS),
    Setting("group.max.size", INT, INT_MAX, at_least(1), "Most members of a classic group.", effect=ACTS),
    Setting("group.heartbeat.max.held.ms", INT, 2850, at_least(0), "For how long heartbeats (and some SyncGroups) of classic members wait for a rebalance to tell of. Only of clients that work on meanwhile (Java, librdkafka), at most a third of the session timeout. 0: never.", effect=ACTS),
    Setting("group.coordinator.rebalance.protocols", LIST, ("classic", "consumer", "streams"), items("classic", "consumer", "share", "streams"), "Group protocols that are served."),
    Setting("group.coordinator.threads", INT, 4, at_least(1), "Threads of Kafka's group coordinator."),
    Setting("group.coordinator.background.threads", INT, 2, at_least(1), "Threads of Kafka's group coordinator for background work."),
    Setting("group.coordinator.append.linger.ms", INT, -1, at_least(-1), "How long the group coordinator gathers records before it writes them. -1 adapts by itself."),
    Setting("group.coordinator.cached.buffer.max.bytes", INT, 1_048_588, at_least(524288), "Largest write buffer that the group coordinator keeps for reuse.", update=CLUSTER_WIDE),
    Setting("group.consumer.assignors", LIST, ("uniform", "range"), items("uniform", "range", "org.apache.kafka.coordinator.group.assignor.UniformAssignor", "org.apache.kafka.coordinator.group.assignor.RangeAssignor"), "Server-side assignors, the first is the default. Kafka's class names stand for the same two.", effect=ACTS),
    Setting("group.consumer.assignment.interval.ms", INT, 1000, at_least(0), "Shortest time between two assignments of a consumer group.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("group.consumer.min.assignment.interval.ms", INT, 0, at_least(0), "Lower bound of a group's consumer.assignment.interval.ms.", effect=ACTS),
    Setting("group.consumer.max.assignment.interval.ms", INT, 15_000, at_least(0), "Upper bound of a group's consumer.assignment.interval.ms.", effect=ACTS),
    Setting("group.consumer.heartbeat.interval.ms", INT, 5000, at_least(1), "How often members of a consumer group send heartbeats.", effect=ACTS),
    Setting("group.consumer.min.heartbeat.interval.ms", INT, 5000, at_least(1), "Lower bound of a group's consumer.heartbeat.interval.ms.", effect=ACTS),
    Setting("group.consumer.max.heartbeat.interval.ms", INT, 15_000, at_least(1), "Upper bound of a group's consumer.heartbeat.interval.ms.", effect=ACTS),
    Setting("group.consumer.session.timeout.ms", INT, 45_000, at_least(1), "A member of a consumer group that is silent for this long is removed.", effect=ACTS),
    Setting("group.consumer.min.session.timeout.ms", INT, 45_000, at_least(1), "Lower bound of a group's consumer.session.timeout.ms.", effect=ACTS),
    Setting("group.consumer.max.session.timeout.ms", INT, 60_000, at_least(1), "Upper bound of a group's consumer.session.timeout.ms.", effect=ACTS),
    Setting("group.consumer.max.size", INT, INT_MAX, at_least(1), "Most members of a consumer group.", effect=ACTS),
    Setting("group.consumer.migration.policy", STRING, "bidirectional", one_of("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL", any_case=True), "Which moves between the classic and the consumer protocol a live group may make.", effect=ACTS),
    Setting("group.consumer.regex.refresh.interval.ms", INT, 600_000, at_least(10000), "How often regular-expression subscriptions are matched against the topics again.", internal=True, effect=ACTS),
    Setting("offset.metadata.max.bytes", INT, 4096, None, "Largest metadata text stored with a committed offset.", effect=ACTS),
    Setting("offsets.commit.timeout.ms", INT, 5000, at_least(1), "How long an offset commit waits for its replicas."),
    Setting("offsets.load.buffer.size", INT, 5_242_880, at_least(1), "Bytes read at once when a group partition is loaded."),
    Setting("offsets.retention.check.interval.ms", LONG, 600_000, at_least(1), "How often committed offsets are checked for expiry.", effect=ACTS),
    Setting("offsets.retention.minutes", INT, 10_080, at_least(1), "How long committed offsets of an empty group are kept.", effect=ACTS),
    Setting("offsets.topic.compression.codec", INT, 0, None, "Codec number of the batches in __consumer_offsets."),
    Setting("offsets.topic.num.partitions", INT, 50, at_least(1), "Partitions of __consumer_offsets. Not to be changed once groups exist.", effect=ACTS),
    Setting("offsets.topic.replication.factor", SHORT, 3, at_least(1), "Replicas of __consumer_offsets when it is created.", effect=ACTS),
    Setting("offsets.topic.segment.bytes", INT, 104_857_600, at_least(1), "Segment size of __consumer_offsets.", effect=ACTS),
)
# fmt: on
