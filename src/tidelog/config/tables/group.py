"""What can be set for one group, and the broker settings each falls back to.

Facts only: names, types, defaults and limits as Kafka 4.3 has them, what they mean in our words, and whether Tidelog
acts on them. One row per line; nothing is computed here.
"""

from __future__ import annotations

from tidelog.config.definition import Fallback, Setting
from tidelog.config.tables.short import ACTS, BOOLEAN, GROUP, INT, STRING
from tidelog.config.validators import OFFSET_RESET, at_least, one_of

# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting("consumer.assignment.interval.ms", INT, 1000, at_least(0), "Shortest time between two assignments of the group.", scope=GROUP, fallbacks=(Fallback("group.consumer.assignment.interval.ms"),), effect=ACTS),
    Setting("consumer.heartbeat.interval.ms", INT, 5000, at_least(1), "How often members send heartbeats.", scope=GROUP, fallbacks=(Fallback("group.consumer.heartbeat.interval.ms"),), effect=ACTS),
    Setting("consumer.session.timeout.ms", INT, 45_000, at_least(1), "A member that is silent for this long is removed.", scope=GROUP, fallbacks=(Fallback("group.consumer.session.timeout.ms"),), effect=ACTS),
    Setting("share.assignment.interval.ms", INT, 1000, at_least(0), "Shortest time between two assignments of the share group.", scope=GROUP, fallbacks=(Fallback("group.share.assignment.interval.ms"),)),
    Setting("share.auto.offset.reset", STRING, "latest", OFFSET_RESET, "Where a share group without state begins to read.", scope=GROUP),
    Setting("share.delivery.count.limit", INT, 5, at_least(2), "How often one record is delivered at most.", scope=GROUP, fallbacks=(Fallback("group.share.delivery.count.limit"),)),
    Setting("share.heartbeat.interval.ms", INT, 5000, at_least(1), "How often members of the share group send heartbeats.", scope=GROUP, fallbacks=(Fallback("group.share.heartbeat.interval.ms"),)),
    Setting("share.isolation.level", STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted"), "Whether a share group reads records of open transactions.", scope=GROUP),
    Setting("share.partition.max.record.locks", INT, 2000, at_least(100), "Records of one share partition that may be out for delivery at a time.", scope=GROUP, fallbacks=(Fallback("group.share.partition.max.record.locks"),)),
    Setting("share.record.lock.duration.ms", INT, 30_000, at_least(1000), "How long a delivered record stays reserved for its consumer.", scope=GROUP, fallbacks=(Fallback("group.share.record.lock.duration.ms"),)),
    Setting("share.renew.acknowledge.enable", BOOLEAN, True, None, "Let consumers prolong the reservation of a record.", scope=GROUP),
    Setting("share.session.timeout.ms", INT, 45_000, at_least(1), "A member of the share group that is silent for this long is removed.", scope=GROUP, fallbacks=(Fallback("group.share.session.timeout.ms"),)),
    Setting("streams.assignment.interval.ms", INT, 1000, at_least(0), "Shortest time between two assignments of the streams group.", scope=GROUP, fallbacks=(Fallback("group.streams.assignment.interval.ms"),)),
    Setting("streams.heartbeat.interval.ms", INT, 5000, at_least(1), "How often members of the streams group send heartbeats.", scope=GROUP, fallbacks=(Fallback("group.streams.heartbeat.interval.ms"),)),
    Setting("streams.initial.rebalance.delay.ms", INT, 3000, at_least(0), "How long the new group waits for more members before its first assignment.", scope=GROUP, fallbacks=(Fallback("group.streams.initial.rebalance.delay.ms"),)),
    Setting("streams.num.standby.replicas", INT, 0, at_least(0), "Standby copies of each stateful task.", scope=GROUP, fallbacks=(Fallback("group.streams.num.standby.replicas"),)),
    Setting("streams.session.timeout.ms", INT, 45_000, at_least(1), "A member of the streams group that is silent for this long is removed.", scope=GROUP, fallbacks=(Fallback("group.streams.session.timeout.ms"),)),
)
# fmt: on
